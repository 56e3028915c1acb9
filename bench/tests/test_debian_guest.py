# SPDX-License-Identifier: Apache-2.0
"""The life of a Debian 13 guest: its stock kernel, systemd, cloud-init, QEMU's guest agent; started by UEFI."""

import base64
import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rig import paths
from rig.guest import Guest
from rig.machine import MachineConfig, port
from rig.node import Node
from rig.server import ONE, TWO, Server
from rig.wait import wait_until

NAME, MEMORY, LIMIT_S = "debian", "512M", 900
# Both nodes can have it.
MINT_ROOMY = "mint=on,mem=1408M@0,mem=1792M@1"
ROOMY = replace(TWO, memory_mib=1152)
IMAGE, POOL = "/var/lib/mint/debian.qcow2", "/var/lib/libvirt/images"
NVRAM = f"/var/lib/libvirt/qemu/nvram/{NAME}_VARS.fd"
SAYS = "cloud-init was told"
USER_DATA = f"""#cloud-config
hostname: landed
runcmd:
  - [sh, -c, "echo {SAYS}: $(hostname) >/dev/ttyS0"]
"""
NUMBERS = 200_000
SORT = f"seq {NUMBERS} | sort -R | sort -n | md5sum"
LANDED = "/run/landed"


def extra_disk(image: str, bus: int) -> tuple[str, ...]:
    """Of QEMU's command line: one more disk of the server, which nobody writes to."""
    return (
        *port(bus), "-drive", f"if=none,id=image,file={image},format=raw,readonly=on,cache=unsafe",
        "-device", f"virtio-blk-pci,drive=image,bus=rp{bus},serial=image",
    )  # fmt: skip


class Agent:
    """QEMU's guest agent in it, through libvirt."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def ask(self, what: str, **arguments: object) -> dict:
        """A command's answer."""
        words = json.dumps({"execute": what, "arguments": arguments})
        self._node.run("cat >/tmp/ask", stdin=words.encode())
        return json.loads(self._node.out(f'virsh -q qemu-agent-command {NAME} --timeout 60 "$(cat /tmp/ask)"', 120))["return"]

    def wait(self) -> None:
        """Until it answers."""
        ping = f"""virsh -q qemu-agent-command {NAME} '{{"execute": "guest-ping"}}'"""
        # virsh takes as much of a core as the guest that boots on it
        wait_until("the guest's agent", lambda: self._node.run(ping, check=False).status == 0, LIMIT_S, every_s=10)

    def start(self, script: str) -> int:
        """For the guest's sh; gives its number."""
        return self.ask("guest-exec", path="/bin/sh", arg=["-c", script], **{"capture-output": True})["pid"]

    def done(self, pid: int) -> str:
        """What it said, once it is over."""

        def ended() -> dict | None:
            status = self.ask("guest-exec-status", pid=pid)
            return status if status["exited"] else None

        status = wait_until("the guest's script", ended, LIMIT_S)
        assert status["exitcode"] == 0, status
        return base64.b64decode(status.get("out-data", "")).decode().strip()

    def run(self, script: str) -> str:
        """What it says."""
        return self.done(self.start(script))


@contextlib.contextmanager
def consoles_shown(*guests: Guest) -> Iterator[None]:
    """If something fails, the end of what they said is shown."""
    try:
        yield
    except BaseException:
        for guest in guests:
            print(f"{guest}:\n{guest.log()[-4000:]}", flush=True)
        raise


@pytest.fixture
def roomy(pool) -> Iterator[Server]:
    """A machine with nodes 1 and 2, and the guest's image on a disk of node 0."""
    disk = extra_disk(str(paths.need(paths.DEBIAN_GUEST)), 8)
    server = pool.start(MachineConfig("debian", mint=MINT_ROOMY, extra=disk))
    try:
        for plan in (ONE, ROOMY):
            server.add(plan)
        for node in (server.zero, server.one, server.two):
            server.wait_ready(node)
        yield server
    finally:
        pool.stop(server)


def put_image(node: Node) -> None:
    """From the disk to a file, without what QEMU has filled the last sector with."""
    size = paths.DEBIAN_GUEST.stat().st_size
    node.run(
        "disk=$(grep -l ^image /sys/block/vd*/serial | cut -d/ -f4) && "
        f"head -c {size} /dev/$disk >{IMAGE} && printf '{USER_DATA}' >/tmp/user-data",
        LIMIT_S,
    )


@pytest.mark.soak
@pytest.mark.soak_only
def test_debian_guest_lives_as_on_any_host(roomy: Server):
    """Imported from its image on node 0 for node 1: cloud-init, address, agent, reboot, save and restore, a snapshot,
    and a move with a sort in it; on node 2 it reboots once more."""
    one, two = roomy.one, roomy.two
    with Guest(one, NAME) as guest, Guest(two, NAME) as there, consoles_shown(guest, there):
        put_image(roomy.zero)
        roomy.mintctl(
            "vm", "import", IMAGE, "--name", NAME, "--memory", MEMORY, "--node", "one", "--uefi",
            "--cloud-init", "/tmp/user-data", limit_s=LIMIT_S,
        )  # fmt: skip
        roomy.zero.run(f"rm {IMAGE}")
        roomy.mintctl("vm", "start", NAME)
        assert guest.wait_line(SAYS, LIMIT_S) == f"{SAYS}: landed"
        agent = Agent(one)
        agent.wait()
        assert re.fullmatch(r"6\.12\.\d+\+deb13-cloud-amd64", agent.run("uname -r"))
        assert agent.run("test -d /sys/firmware/efi && cat /etc/os-release | grep ^VERSION_ID") == 'VERSION_ID="13"'
        address = re.search(r"10\.78\.[\d.]+", one.out(f"virsh -q domifaddr {NAME} --source agent"))[0]
        one.run(f"ping -c 3 -W 10 {address}")

        # a reboot, as its own system does it
        boot = agent.run("cat /proc/sys/kernel/random/boot_id")
        one.run(f"virsh -q reboot {NAME} --mode agent", 120)
        one.wait("another boot", f"! ping -c 1 -W 1 {address}", LIMIT_S)
        agent.wait()
        assert (again := agent.run("cat /proc/sys/kernel/random/boot_id")) != boot

        one.run(f"virsh -q save {NAME} /var/lib/mint/saved", LIMIT_S)
        assert one.out(f"virsh -q domstate {NAME}").strip() == "shut off"
        one.run("virsh -q restore /var/lib/mint/saved && rm /var/lib/mint/saved", LIMIT_S)
        agent.wait()
        assert agent.run("cat /proc/sys/kernel/random/boot_id") == again

        # what it writes after a snapshot is in another file, until both are one again
        top = f"{POOL}/{NAME}-top.qcow2"
        one.run(
            f"virsh -q snapshot-create-as {NAME} --disk-only --atomic --quiesce --no-metadata"
            f" --diskspec vda,file={top} --diskspec vdb,snapshot=no",
            LIMIT_S,
        )
        agent.run("echo after >/root/after && sync")
        assert top in one.out(f"virsh -q domblklist {NAME}")
        one.run(f"virsh -q blockcommit {NAME} vda --active --pivot --wait && rm {top}", LIMIT_S)
        assert f"{POOL}/{NAME}.raw" in one.out(f"virsh -q domblklist {NAME}")
        assert agent.run("cat /root/after") == "after"

        # it sorts all the way
        sorts = agent.start(f"until test -e {LANDED}; do {SORT}; done")
        done = roomy.mintctl("vm", "migrate", NAME, "--to", "two", limit_s=LIMIT_S)
        for node, status in ((one, 1), (two, 0)):
            for file in (f"{POOL}/{NAME}.raw", f"{POOL}/{NAME}-seed.img", NVRAM):
                assert node.run(f"test -e {file}", check=False).status == status, (node.number, file)
        agent = Agent(two)
        agent.run(f"touch {LANDED}")
        sums = agent.done(sorts).splitlines()
        assert set(sums) == {roomy.zero.out(f"seq {NUMBERS} | md5sum").strip()}, sums
        assert agent.run("cat /proc/sys/kernel/random/boot_id") == again
        two.run(f"ping -c 3 -W 10 {address}")
        two.run(f"virsh -q reboot {NAME} --mode agent", 120)
        two.wait("another boot", f"! ping -c 1 -W 1 {address}", LIMIT_S)
        agent.wait()
        assert agent.run("cat /proc/sys/kernel/random/boot_id") not in (again, boot)
        assert agent.run("cat /root/after") == "after"
        assert "Kernel panic" not in guest.log() + there.log()
        assert done["took"]["disk_sent_bytes"] > 0, done
        print(f"{len(sums)} sorts; moved: {done['took']}")
