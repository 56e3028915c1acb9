# SPDX-License-Identifier: Apache-2.0
"""What takes the whole machine is refused on every node: a kernel over the running one, a crash kernel, sleep. Guests
on the other nodes go on (the fixture looks at them)."""

import pytest
from figures_programs import build, put

from rig.node import Node
from rig.server import Server

KERNEL = "/boot/vmlinuz-mint"
EPERM, EOPNOTSUPP = "Operation not permitted", "Operation not supported"
# The tool, as anybody would use it; and each of the system calls, which it does not get to without a crashkernel=.
LOAD = f"kexec -s -l {KERNEL} --initrd=/boot/node.initrd --reuse-cmdline"
TAKEOVER = f"/tmp/takeover {KERNEL} /boot/node.initrd"
WAYS = ("kexec_file_load", "kexec_file_load-crash", "kexec_load", "kexec_load-crash")
# -x: it must not take the interfaces down before it fails.
EXECUTE = "kexec -e -x"


def boots(server: Server) -> dict[int, tuple[str, int]]:
    """Which boot of its kernel each node is in, as the kernel itself says and as the control area counts."""
    return {
        node.number: (
            node.read("/proc/sys/kernel/random/boot_id"),
            int(node.read(f"/sys/kernel/mint/nodes/{node.number}/boots")),
        )
        for node in (server.zero, server.one, server.two)
    }


def told(node: Node, command: str) -> tuple[int, str, str]:
    """Status and output of a command, and what the kernel logged meanwhile."""
    node.run("dmesg -C")
    result = node.run(command, check=False)
    return result.status, result.out + result.err, node.out("dmesg")


@pytest.mark.parametrize("number", [0, 1])
def test_plain_kexec_is_refused_with_the_reason(busy_peers: Server, number: int):
    """By either system call, for a restart and for a crash; nothing is loaded, so nothing can be executed."""
    node, before = busy_peers.node(number), boots(busy_peers)
    put(node, "/tmp/takeover", build("takeover"))
    status, said, log = told(node, LOAD)
    assert status != 0 and EPERM in said, said
    assert log.count("mint: kexec: refused") == 1, log
    status, said, log = told(node, TAKEOVER)
    assert said.split() == [word for way in WAYS for word in (way, "EPERM")], said
    assert log.count("mint: kexec: refused") == len(WAYS), log
    for loaded in ("kexec_loaded", "kexec_crash_loaded"):
        assert node.read(f"/sys/kernel/{loaded}") == "0"
    status, said, _log = told(node, EXECUTE)
    assert status != 0, said
    assert boots(busy_peers) == before


@pytest.mark.parametrize("number", [0, 1])
def test_sleep_is_refused_with_the_reason(busy_peers: Server, number: int):
    """Suspend to idle, to RAM where there is a platform that can, and to disk."""
    node, before = busy_peers.node(number), boots(busy_peers)
    offered = node.read("/sys/power/state").split()
    assert {"freeze", "disk"} <= set(offered), offered
    for state in offered:
        status, said, log = told(node, f"echo {state} >/sys/power/state")
        assert status != 0, f"{state}: {said}"
        assert EOPNOTSUPP in said, f"{state}: {said}"
        word = "hibernation" if state == "disk" else "suspend"
        assert f"mint: {word}: refused" in log, f"{state}: {log}"
    assert boots(busy_peers) == before
