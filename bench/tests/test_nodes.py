# SPDX-License-Identifier: Apache-2.0
"""Two nodes beside node 0: each shows exactly what it owns; together they are
the machine."""

import itertools
import re

import pytest

from rig.ledger import read_ledger
from rig.machine import APIC_IDS, DEFAULT_FLAVOUR, MEMORY_PER_NUMA_MIB, SOCKETS
from rig.mintctl import Mintctl
from rig.ram import own_ram_bytes
from rig.server import ONE, TWO, NodePlan, Server
from rig.wait import SLOWNESS

MACHINE_BYTES = MEMORY_PER_NUMA_MIB * SOCKETS << 20
# Of its memory a kernel keeps this share for itself before MemTotal counts:
# its text and data, struct pages (1.6 %), per-CPU areas, the initrd's tail. KASAN
# keeps a byte for eight.
KERNEL_SHARE = 0.16 + (1 / 8 if DEFAULT_FLAVOUR == "kasan" else 0)

BOTH = pytest.mark.parametrize(("number", "plan"), [(1, ONE), (2, TWO)], ids=["node1", "node2"])


def meminfo_bytes(server: Server, number: int, field: str = "MemTotal") -> int:
    """A field of a node's /proc/meminfo."""
    match = re.search(rf"^{field}:\s+(\d+) kB", server.node(number).read("/proc/meminfo"), re.MULTILINE)
    return int(match[1]) << 10


def functions_seen(server: Server, number: int) -> set[str]:
    """PCI functions that lspci shows on a node."""
    return {line.split()[0] for line in server.node(number).out("lspci -D").splitlines()}


def test_two_nodes_run_within_seconds(bare: Server):
    """node add: both are in `running` within seconds, their mintd answers soon after."""
    for number, plan in ((1, ONE), (2, TWO)):
        answer = bare.add(plan)
        assert answer["node"]["id"] == number
        assert answer["node"]["state"] == "running"
        assert answer["times"]["running_ms"] < 20_000 * SLOWNESS, answer["times"]
        assert f"mint-init: node {number} init" in bare.node(number).console.text()
    bare.remove_all()


@BOTH
def test_nproc_shows_own_cores(pair: Server, number: int, plan: NodePlan):
    """nproc and /proc/cpuinfo."""
    node = pair.node(number)
    assert int(node.out("nproc")) == len(plan.cpus)
    assert int(node.out("grep -c ^processor /proc/cpuinfo")) == len(plan.cpus)


@BOTH
def test_cores_are_the_ones_asked_for(pair: Server, number: int, plan: NodePlan):
    """The APIC ids in /proc/cpuinfo are those of the machine's cores in the plan."""
    seen = {int(n) for n in re.findall(r"^apicid\s*: (\d+)", pair.node(number).read("/proc/cpuinfo"), re.MULTILINE)}
    wanted = {cpu["apic_id"] for cpu in pair.mintctl("cpu", "list")["cpus"] if cpu["id"] in plan.cpus}
    assert seen == wanted


@BOTH
def test_meminfo_shows_own_memory(pair: Server, number: int, plan: NodePlan):
    """MemTotal: what it owns, but for what its kernel keeps."""
    total = meminfo_bytes(pair, number)
    assert plan.memory_bytes * (1 - KERNEL_SHARE) < total < plan.memory_bytes


@BOTH
def test_iomem_shows_ram_only_in_owned_blocks(pair: Server, number: int, plan: NodePlan):
    """Every System RAM range of /proc/iomem lies in memory blocks that the ledger says it owns."""
    ledger = pair.ledger()
    assert sum(block["bytes"] for block in ledger.details["memory"] if block["owner"] == number) == plan.memory_bytes
    assert own_ram_bytes(pair.node(number), ledger) > 0


@BOTH
def test_numa_node_shows_own_memory_and_cores(pair: Server, number: int, plan: NodePlan):
    """/sys/devices/system/node: one node with memory, all own cores belong to the right one."""
    node = pair.node(number)
    with_memory = node.read("/sys/devices/system/node/has_memory")
    assert with_memory == str(plan.numa), f"memory on NUMA node {with_memory}, asked for {plan.numa}"
    total = re.search(r"MemTotal:\s+(\d+) kB", node.read(f"/sys/devices/system/node/node{plan.numa}/meminfo"))
    assert int(total[1]) << 10 == meminfo_bytes(pair, number)
    per_node = node.out("grep -H . /sys/devices/system/node/node*/cpulist || true")
    cores = {int(n): cpus for n, cpus in re.findall(r"node(\d+)/cpulist:(\S+)", per_node)}
    numa_of_cores = {cpu // 3 for cpu in plan.cpus}
    assert set(cores) == numa_of_cores, per_node


@BOTH
def test_lspci_shows_own_functions(pair: Server, number: int, plan: NodePlan):
    """lspci: exactly the functions given to it."""
    assert functions_seen(pair, number) == set(plan.devices)


def test_lspci_on_node0_hides_given_functions(pair: Server):
    """Node 0 does not see what others own, and sees all the rest."""
    seen = functions_seen(pair, 0)
    devices = pair.mintctl("device", "list")["devices"]
    assert seen == {device["bdf"] for device in devices if device["owner"] == 0}
    assert not seen & {*ONE.devices, *TWO.devices}


# What a virtual function has as its vendor's id (SR-IOV specification 1.1, 3.4.1.1).
NO_VENDOR = 0xFFFF


def machine_functions(server: Server) -> set[str]:
    """All PCI functions of the machine, as QEMU knows them, but virtual ones: it lists those that are not enabled, too."""
    found, buses = set(), server.machine.monitor.execute("query-pci")
    while buses:
        for device in buses.pop()["devices"]:
            if device["id"]["vendor"] == NO_VENDOR:
                continue
            found.add(f"0000:{device['bus']:02x}:{device['slot']:02x}.{device['function']}")
            if bridge := device.get("pci_bridge"):
                buses.append({"devices": bridge.get("devices", [])})
    return found


def test_sum_of_nodes_is_the_machine(pair: Server):
    """Cores, functions and memory that kernels show, and free ones, are the machine's: each once, none missing."""
    ledger = pair.ledger()
    apic_of = {str(cpu["id"]): cpu["apic_id"] for cpu in ledger.details["cpu"]}
    seen = [apic_of[core] for core in ledger.owned("cpu", None)]
    for n in (0, 1, 2):
        cores = re.findall(r"^apicid\s*: (\d+)", pair.node(n).read("/proc/cpuinfo"), re.MULTILINE)
        assert len(cores) == int(pair.node(n).out("nproc")) == len(ledger.owned("cpu", n))
        seen += map(int, cores)
    assert sorted(seen) == sorted(APIC_IDS)

    functions = [function for n in (0, 1, 2) for function in functions_seen(pair, n)] + ledger.owned("device", None)
    assert sorted(functions) == sorted(machine_functions(pair))


def ram_ranges(text: str, what: str) -> list[tuple[int, int]]:
    """Ranges of a name, begin and end, in a text like /proc/iomem."""
    found = re.findall(rf"^ *([0-9a-f]+)-([0-9a-f]+) : {what}", text, re.MULTILINE)
    return [(int(begin, 16), int(last, 16) + 1) for begin, last in found]


# Of a node's RAM: what its kernel never had, because the loader or the firmware has it (facts, the first page).
HOLES_BYTES = 1 << 20


def test_sum_of_memory_is_the_machines_to_the_byte(pair: Server):
    """What firmware gave is, each byte once: RAM of a kernel's, in a free block, or the control area; but for holes,
    each of less than 1 MiB altogether, in blocks of one node (absent ones are node 0's)."""
    ledger = pair.ledger()
    header, phys = pair.area.header, pair.area.phys
    used = [(phys, phys + header.area_bytes, "the control area")]
    for block in ledger.details["memory"]:
        if block["owner"] is None and block["state"] == "free":
            used.append((block["phys"], block["phys"] + block["bytes"], "free"))
    for n in (0, 1, 2):
        ranges = ram_ranges(pair.node(n).read("/proc/iomem"), "System RAM")
        # Node 0 has RAM in absent blocks, too: with firmware's tables, the control area, holes.
        has, owns = sum(end - begin for begin, end in ranges), own_ram_bytes(pair.node(n), ledger)
        assert has == owns if n else has > owns
        used += [(begin, end, n) for begin, end in ranges]
    used.sort()
    for (_, end, who), (begin, _, other) in itertools.pairwise(used):
        assert end <= begin, f"RAM at {begin:#x} is used twice: {who}, {other}"

    # What node 0's kernel was told, at its first start.
    said = pair.zero.console.text().split("Linux version ")[1]
    ranges = re.findall(r"BIOS-e820: \[mem 0x([0-9a-f]+)-0x([0-9a-f]+)\] usable", said)
    firmware = sorted((int(begin, 16), int(last, 16) + 1) for begin, last in ranges)
    total = sum(end - begin for begin, end in firmware)
    assert 0 <= MACHINE_BYTES - total < HOLES_BYTES, f"firmware gives {total:#x} bytes"
    holes: dict[int | None, int] = {}
    for begin, end in firmware:
        inside = [(max(begin, first), min(end, last)) for first, last, _ in used if first < end and last > begin]
        edges = [begin, *(edge for part in inside for edge in part), end]
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            if first == last:
                continue
            (owner,) = {
                block["owner"] for block in ledger.details["memory"]
                if block["phys"] < last and block["phys"] + block["bytes"] > first
            } or {0}  # fmt: skip
            holes[owner] = holes.get(owner, 0) + last - first
    assert sum(holes.values()) + sum(end - begin for begin, end, _ in used) == total, holes
    assert None not in holes, f"nobody has {holes[None]:#x} bytes"
    assert all(size < HOLES_BYTES for size in holes.values()), holes


@pytest.mark.parametrize("number", [0, 1, 2], ids=["node0", "node1", "node2"])
def test_mintctl_shows_the_ledger_that_is_in_ram(pair: Server, number: int):
    """On every node: states, owners, nodes, and where memory and cores are, as the rig reads them in RAM."""
    shown, truth = read_ledger(Mintctl(pair.node(number))), pair.ledger()
    assert shown.resources == truth.resources
    assert shown.nodes == truth.nodes
    for kind, fields in {"cpu": ("id", "apic_id", "numa"), "memory": ("id", "phys", "bytes", "numa")}.items():
        for got, wanted in zip(shown.details[kind], truth.details[kind], strict=True):
            assert {name: got[name] for name in fields} == {name: wanted[name] for name in fields}


def test_disks_work_in_all_nodes_at_the_same_time(pair: Server):
    """Write, read back with direct I/O, compare checksums: on three nodes at once."""
    command = (
        "cd /var/lib/libvirt/images && dd if=/dev/urandom of=t bs=1M count=32 oflag=direct 2>/dev/null && "
        "sync && a=$(dd if=t bs=1M iflag=direct 2>/dev/null | sha256sum) && "
        "b=$(dd if=t bs=64k iflag=direct 2>/dev/null | sha256sum) && rm t && echo $a && echo $b"
    )
    jobs = [pair.node(n).start(command) for n in (0, 1, 2)]
    sums = set()
    for job in jobs:
        result = job.wait()
        assert result.status == 0, result.err
        first, second = result.out.splitlines()
        assert first == second
        sums.add(first)
    assert len(sums) == 3, "two nodes read the same random bytes: they share a disk"


def test_wall_clocks_agree(pair: Server):
    """The clock is handed over: node 1 and node 2 tell the same time as node 0."""
    for n in (1, 2):
        before = float(pair.zero.out("date +%s.%N"))
        there = float(pair.node(n).out("date +%s.%N"))
        after = float(pair.zero.out("date +%s.%N"))
        assert before - 0.1 <= there <= after + 0.1


# boot_params.hdr.loadflags, and the bit in it by which the decompressor says that it has moved the kernel.
LOADFLAGS, KASLR_FLAG = 0x211, 0x02
LINKED = 0xFFFFFFFF81000000


def test_kaslr_is_on_in_every_kernel(pair: Server):
    """Each kernel was moved by its own decompressor; not all are where another is, or where they were linked."""
    bases = {}
    for n in (0, 1, 2):
        node = pair.node(n)
        assert "nokaslr" not in node.read("/proc/cmdline")
        flags = int(node.out(f"od -A n -t u1 -j {LOADFLAGS} -N 1 /sys/kernel/boot_params/data"))
        assert flags & KASLR_FLAG, f"node {n} runs without KASLR: loadflags {flags:#x}"
        bases[n] = int(node.out("grep ' _text$' /proc/kallsyms").split()[0], 16)
    assert all(base % (2 << 20) == 0 for base in bases.values())
    # One in 500 is at the linked base, or at another's, by chance.
    assert len({LINKED, *bases.values()}) >= 3, {n: hex(base) for n, base in bases.items()}
