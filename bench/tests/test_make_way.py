# SPDX-License-Identifier: Apache-2.0
"""Guests make way for what their node loses: mintctl node resize --evacuate."""

import re
import shlex

import pytest

from rig.guest import Guest
from rig.mintctl import REFUSED, MintctlError
from rig.node import Node
from rig.server import ONE, Server

MIB = 1 << 20
RESIZE = ("node", "resize", ONE.name)
LAST = str(ONE.cpus[-1])  # node 1's second core, its CPU 1
OTHER = (
    "<domain type='kvm'><name>NAME</name><memory unit='MiB'>64</memory>"
    "<os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"
)


# What Mint takes for a vCPU (QEMU calls its threads so), on node 1's CPU 1 alone.
STRAY = "bash -c 'printf \"CPU 0/KVM\" >/proc/$$/comm; taskset -pc 1 $$; exec 3<> <(:); read -r -t 600 -u 3'"
FIND_STRAY = "grep -lx 'CPU 0/KVM' /proc/[0-9]*/comm | cut -d/ -f3"


@pytest.fixture(autouse=True)
def libvirt_answers(pair: Server) -> None:
    """On all nodes: one that was started anew by an earlier test may be without it yet."""
    for number in (0, 1, 2):
        pair.wait_ready(pair.node(number))


def pins(node: Node, name: str) -> list[tuple[str, str]]:
    """CPUs of a guest's vCPUs and of its emulator threads, as its node's libvirt has them: as it runs, and of its
    definition."""

    def cpus(command: str) -> str:
        # of a vCPU its number comes first
        return node.out(f"virsh -q {command}").split()[-1]

    return [(cpus(f"vcpupin {name} {which}"), cpus(f"emulatorpin {name} {which}")) for which in ("--live", "--config")]


def is_running(node: Node, name: str) -> bool:
    """Whether the node's libvirt runs a guest of that name."""
    return node.run(f"virsh domstate {name}", check=False).out.strip() == "running"


def test_guest_on_a_core_that_goes_gets_another_one(pair: Server):
    """node resize --cpus -1 of the core that a vCPU is pinned to: refused without --evacuate; with it the vCPU is on
    the core that stays, also after its next start. When the resize fails after all, its pins are what they were."""
    with Guest(pair.one, "pinned") as guest:
        guest.start("--no-disk --no-network --pin 1")
        before, was = pair.ledger(), pins(pair.one, "pinned")
        assert was == [("1", "0-1")] * 2
        with pytest.raises(MintctlError, match="--evacuate") as caught:
            pair.mintctl(*RESIZE, "--cpus", "-1")
        assert (caught.value.status, caught.value.codes) == (REFUSED, {"plan_refused", "cpu_pinned"}), caught.value
        plan = pair.mintctl(*RESIZE, "--cpus", "-1", "--evacuate", "--dry-run")
        assert [vm["name"] for vm in plan["evacuated"][0]["repinned"]] == ["pinned"], plan
        assert f"release cpu {LAST}" in " ".join(plan["result"]["steps"]), plan
        # a vCPU of a guest that libvirt does not know: the resize is refused once the others have made way
        with pair.one.undone(f"{STRAY} </dev/null >/dev/null 2>&1 &", f"kill -9 $({FIND_STRAY})"):
            pair.one.wait("a stray vCPU", f"taskset -pc $({FIND_STRAY}) | grep -q ': 1$'")
            with pytest.raises(MintctlError, match="vm pinned has the CPUs again that it had") as caught:
                pair.mintctl(*RESIZE, "--cpus", "-1", "--evacuate")
        assert (caught.value.status, caught.value.codes) == (REFUSED, {"plan_refused", "cpu_pinned"}), caught.value
        assert pins(pair.one, "pinned") == was and not (changed := before.difference(pair.ledger())), changed

        done = pair.mintctl(*RESIZE, "--cpus", "-1", "--evacuate")
        assert done["evacuated"][0]["vms"] == [] and done["result"]["node"]["cpu_count"] == 1, done
        assert pair.ledger().resources["cpu", LAST] == ("owned", 0)
        assert pair.one.out("nproc").strip() == "1" and pins(pair.one, "pinned") == [("0", "0")] * 2
        guest.wait_ticks(2)
        assert "mint-guest: up" not in guest.log().split("tick 1 at")[-1]
        pair.mintctl(*RESIZE, "--cpus", ",".join(map(str, ONE.cpus)))


@pytest.mark.soak
@pytest.mark.soak_only
def test_guest_whose_memory_goes_is_moved_first_or_nothing_is_done(pair: Server):
    """node resize --memory --evacuate of memory that a guest has not touched yet, but will: the guest runs on on another
    node, and the memory is gone. Where no node can have it: refused, and neither cores nor pins nor memory change."""
    spare_mib = int(re.search(r"^MemAvailable: +(\d+)", pair.one.read("/proc/meminfo"), re.MULTILINE)[1]) >> 10
    pair.mintctl(*RESIZE, "--memory", "+256M@numa0")
    less = ("--memory", f"{ONE.memory_mib}M", "--evacuate")
    others = (pair.zero, pair.two)
    with Guest(pair.one, "large") as here, Guest(pair.zero, "large") as there:
        # with what QEMU needs 128 MiB more than node 1 has without the 256
        here.start(f"--no-disk --no-network --pin 1 --memory {spare_mib + 64}M")
        here.wait_ticks(2)
        before, was, ticks = pair.ledger(), pins(pair.one, "large"), here.ticks()
        for node in others:
            node.run(f"echo {shlex.quote(OTHER.replace('NAME', 'large'))} >/tmp/x && virsh -q define /tmp/x; rm /tmp/x")
        try:
            with pytest.raises(MintctlError, match="for vm large") as caught:
                pair.mintctl(*RESIZE, "--cpus", "-1", *less)
            assert caught.value.status == REFUSED, caught.value
            assert {"plan_refused", "memory_short", "vm_name_taken"} == caught.value.codes, caught.value
        finally:
            for node in others:
                node.run("virsh -q undefine large")
        assert not (changed := before.difference(pair.ledger())), changed
        assert is_running(pair.one, "large") and pins(pair.one, "large") == was

        done = pair.mintctl(*RESIZE, *less)
        assert [(vm["name"], vm["to"]) for vm in done["evacuated"][0]["vms"]] == [("large", 0)], done
        assert done["result"]["node"]["memory_bytes"] == ONE.memory_mib * MIB, done
        assert len(pair.ledger().owned("memory", 1)) == ONE.memory_mib // 128
        assert is_running(pair.zero, "large") and not is_running(pair.one, "large")
        there.wait_ticks(2)
        assert there.counter()[0][0] >= ticks and "mint-guest: up" not in there.log()
