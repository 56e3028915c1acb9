# SPDX-License-Identifier: Apache-2.0
"""What a made server answers to rig.inventory.SCRIPT: 8 cores, 2 NUMA nodes, four disks, a card."""

import json

DISKS = {
    # name: function, mounts, holders, open, partitions' names, signatures, nonzero
    "sda": ("0000:00:1f.2", "/,/boot", "", "", "", "dos,ext4", "1"),
    "nvme0n1": ("0000:41:00.0", "", "", "", "mint-node,mint-upper", "gpt,squashfs,ext4", "1"),
    "nvme1n1": ("0000:42:00.0", "", "", "", "mint-node,mint-upper", "gpt,squashfs,ext4", "1"),
    "nvme2n1": ("0000:43:00.0", "", "", "", "", "", "0"),
    "nvme3n1": ("0000:44:00.0", "", "", "", "", "", "0"),
}
CARD, BRIDGE, PLATFORM = "0000:51:00.0", "0000:40:01.0", "0000:00:16.0"
TOOLS = ("setsid", "mktemp", "taskset", "flock", "mintctl", "virsh", "mint-guest", "qemu-system-x86_64", "cpio",
    "kexec with --mint-node",
)  # fmt: skip
FILES = ("/dev/kvm", "/dev/vhost-net", "/boot/vmlinuz-mint", "/boot/node.initrd")
POOL_BLOCKS = 64  # of 128 MiB, of each NUMA node


def device(function: str, **more) -> dict:
    """As mintctl tells it."""
    return {"bdf": function, "owner": 0, "owner_name": "node0", "platform": False, "bridge": False} | more


def answers(boot: str = "mint", **changes) -> str:
    """All of it; changes: disks (by name: fields by their place in DISKS), nodes, cpus, devices, lines: more at the end,
    without: lines that begin so are left out."""
    disks = {name: list(fields) for name, fields in DISKS.items()}
    for name, fields in changes.get("disks", {}).items():
        for at, value in fields.items():
            disks[name][at] = value
    lines = [
        ("user", "0"), ("boot", boot, "0" if boot == "mint" else ""), ("kernel", f"6.12-{boot}", f"{boot}-digest"),
        ("model", "A processor"), ("microcode", "0x7"), ("governor", "performance"), ("smt", "0"), ("load", "0.02"),
        *(("cpu", str(n), str(2 * n), str(n // 4), "1") for n in range(8)),
        ("numa", "0", str(32 << 20)), ("numa", "1", str(32 << 20)), ("swap", "/dev/sda3"),
        *(("disk", name, f[0], "1000000000", *f[1:6], f[6], "") for name, f in disks.items()),
    ]  # fmt: skip
    if boot == "mint":
        nodes = [{"id": 0, "name": "node0", "state": "running", "boots": 1, "address": "10.77.0.10"}]
        cpus = [{"id": n, "state": "owned", "owner": 0, "owner_name": "node0"} for n in range(8)]
        free = {"state": "free", "owner": None, "bytes": 128 << 20}
        blocks = [free | {"numa": numa} for numa in (0, 1) for _ in range(POOL_BLOCKS)]
        functions = [fields[0] for fields in disks.values()]
        devices = [device(function) for function in (*functions, CARD)]
        devices += [device(BRIDGE, bridge=True), device(PLATFORM, platform=True)]
        for core, entry in changes.get("cpus", {}).items():
            cpus[core] |= entry
        for function, entry in changes.get("devices", {}).items():
            next(one for one in devices if one["bdf"] == function).update(entry)
        lines += [
            ("nodes", json.dumps({"nodes": nodes + changes.get("nodes", [])})), ("cpus", json.dumps({"cpus": cpus})),
            ("memorys", json.dumps({"memory": blocks})), ("devices", json.dumps({"devices": devices})),
        ]  # fmt: skip
    lines += [*(("tool", tool) for tool in TOOLS), *(("file", name) for name in FILES)]
    lines += changes.get("lines", [])
    without = changes.get("without", ("-",))
    return "\n".join("\t".join(line) for line in [*lines, ("end",)] if not "\t".join(line).startswith(without)) + "\n"
