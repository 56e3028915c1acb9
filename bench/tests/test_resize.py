# SPDX-License-Identifier: Apache-2.0
"""Cores, memory and PCI functions move between running nodes; one request is all or nothing."""

import re

import pytest

from rig import paths
from rig.guest import Guest
from rig.mintctl import REFUSED, MintctlError
from rig.node import Node
from rig.server import CARD0, CARD2_E1000E, ONE, TWO, Server

MIB = 1 << 20


def online(node: Node) -> int:
    """Cores that the node's kernel schedules on."""
    return int(node.out("nproc"))


def memory_bytes(node: Node, what: str = "MemTotal") -> int:
    """A line of the node's meminfo, in bytes."""
    return int(re.search(rf"^{what}:\s+(\d+)", node.read("/proc/meminfo"), re.MULTILINE)[1]) << 10


def test_core_moves_from_node0_to_node2_and_back(pair: Server):
    """node resize two --cpus +1: the core works there, and again here when it is back."""
    zero, two = online(pair.zero), online(pair.two)
    pair.mintctl("node", "resize", TWO.name, "--cpus", "+1")
    assert (online(pair.zero), online(pair.two)) == (zero - 1, two + 1)
    # Each core does some work of its own.
    cores = pair.two.read("/sys/devices/system/cpu/online").strip()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", cores):
        for core in range(int(first), int(last or first) + 1):
            pair.two.run(f"taskset -c {core} sha256sum /proc/cpuinfo")
    pair.mintctl("node", "resize", TWO.name, "--cpus", "-1")
    assert (online(pair.zero), online(pair.two)) == (zero, two)


def test_core_moves_between_node1_and_node2(pair: Server):
    """From node 1 to node 2 and back, asked for on node 0; both nodes run on."""
    core = ONE.cpus[-1]
    mine = f"{TWO.cpus[0]},{core}"
    pair.mintctl("node", "resize", TWO.name, "--cpus", mine, "--from", ONE.name)
    assert (online(pair.one), online(pair.two)) == (len(ONE.cpus) - 1, 2)
    pair.mintctl("node", "resize", ONE.name, "--cpus", "+1", "--from", TWO.name)
    assert (online(pair.one), online(pair.two)) == (len(ONE.cpus), 1)


def test_memory_comes_and_goes(pair: Server):
    """+256M from the pool, used, and given back."""
    before = memory_bytes(pair.two)
    spare_mib = memory_bytes(pair.two, "MemAvailable") // MIB
    pair.mintctl("node", "resize", TWO.name, "--memory", "+256M")
    assert memory_bytes(pair.two) >= before + 250 * MIB
    count = spare_mib + 100  # more than there was before
    full = f"mount -t tmpfs -o size={count}M full /mnt && dd if=/dev/zero of=/mnt/full bs=1M count={count}; umount /mnt"
    assert f"{count}+0 records out" in pair.two.run(full).err
    pair.mintctl("node", "resize", TWO.name, "--memory", f"{TWO.memory_mib}M")
    assert memory_bytes(pair.two) <= before + 4 * MIB


def test_memory_that_its_node_took_offline_and_online_goes_back(pair: Server):
    """A block that came at runtime stays movable when somebody on the node writes `online` to it."""
    blocks = "cd /sys/devices/system/memory && grep -lw Movable memory*/valid_zones | cut -d/ -f1"
    before = set(pair.two.out(blocks).split())
    pair.mintctl("node", "resize", TWO.name, "--memory", "+256M")
    came = sorted(set(pair.two.out(blocks).split()) - before)
    assert len(came) == 2, came
    # All offline at once: of the movable zone nothing is left that a block could be added to.
    for state in "offline", "online":
        for block in came:
            pair.two.run(f"echo {state} >/sys/devices/system/memory/{block}/state")
    assert set(pair.two.out(blocks).split()) == before | set(came)
    pair.mintctl("node", "resize", TWO.name, "--memory", "-256M")


def test_memory_that_a_program_holds_stays_until_it_is_let_go(pair: Server):
    """Pages in a pipe cannot move: the request ends in time and changes nothing, and works once they are gone."""
    amount = "256M@numa1"
    pair.mintctl("node", "resize", ONE.name, "--memory", f"+{amount}")
    ledger = pair.ledger()
    pair.one.run("cat >/tmp/hold && chmod 755 /tmp/hold", stdin=paths.need(paths.HOLD).read_bytes())
    # What came last is what programs get first: this is most of it.
    job = pair.one.start("exec /tmp/hold 240", limit_s=300)
    assert next(job.lines()) == "held"
    with pytest.raises(MintctlError) as refused:
        pair.mintctl("node", "resize", ONE.name, "--memory", f"-{amount}")
    assert "took too long" in str(refused.value)
    # Why, of each block that was tried: what is in it, and who has it.
    assert "memory_busy" in refused.value.codes, refused.value
    for refusal in refused.value.refusals:
        pages = refusal["pages"]
        assert pages["timed_out"], refusal
        kib = {part["kind"]: part["kib"] for part in pages["kinds"]}
        holder = pages["holders"][0]
        assert (holder["what"], holder["name"]) == ("program", "hold"), refusal
        # The program has nothing but anonymous memory, and the block is 128 MiB.
        assert 0 < holder["kib"] <= kib["programs"] <= 128 << 10, refusal
        assert f"program hold (process {holder['pid']})" in refusal["message"], refusal
        assert refusal["owner"] == f"node {pair.one.number} ({ONE.name})", refusal
    assert not (changed := ledger.difference(pair.ledger())), changed
    pair.one.run("killall hold; rm /tmp/hold")
    pair.mintctl("node", "resize", ONE.name, "--memory", f"-{amount}")


def test_memory_of_another_numa_node_comes_and_goes(pair: Server):
    """Node 2 has cores and memory on NUMA node 0 only: memory of NUMA node 1 comes as what it is."""
    places = "ls -d /sys/devices/system/node/node*"
    before = pair.two.out(places)
    assert "node1" not in before
    pair.mintctl("node", "resize", TWO.name, "--memory", "+256M@numa1")
    assert "node1" in pair.two.out(places)
    total = re.search(r"MemTotal:\s+(\d+)", pair.two.read("/sys/devices/system/node/node1/meminfo"))
    assert 250 << 10 <= int(total[1]) <= 256 << 10
    pair.mintctl("node", "resize", TWO.name, "--memory", "-256M")
    assert pair.two.out(places) == before


def test_core_is_on_its_own_numa_node_whatever_comes_first(pair: Server):
    """Two cores of NUMA node 1 come to node 2, one before any memory of it: both are there, and it goes with them."""
    nodes = "/sys/devices/system/node"
    before = pair.two.out(f"ls -d {nodes}/node*")
    assert "node1" not in before
    late, early = ONE.cpus[-1], ONE.cpus[-1] + 1  # the second is node 0's
    pair.mintctl("node", "resize", TWO.name, "--cpus", f"{TWO.cpus[0]},{early}")
    first = pair.two.read(f"{nodes}/node1/cpulist").strip()
    assert first.isdigit(), f"CPUs of NUMA node 1: {first!r}"
    pair.mintctl("node", "resize", TWO.name, "--memory", "+128M@numa1")
    pair.mintctl("node", "resize", TWO.name, "--cpus", f"{TWO.cpus[0]},{late},{early}", "--from", ONE.name)
    count = pair.two.out(f"ls -d {nodes}/node1/cpu[0-9]* | wc -l").strip()
    assert (online(pair.two), count) == (3, "2")
    pair.mintctl("node", "resize", ONE.name, "--cpus", ",".join(map(str, ONE.cpus)), "--from", TWO.name)
    pair.mintctl("node", "resize", TWO.name, "--memory", f"{TWO.memory_mib}M")
    assert pair.two.read(f"{nodes}/node1/cpulist").strip() == first
    pair.mintctl("node", "resize", TWO.name, "--cpus", str(TWO.cpus[0]))
    assert pair.two.out(f"ls -d {nodes}/node*") == before


def test_device_moves_from_node0_to_node1_and_back(pair: Server):
    """device move: lspci shows it where it is, its driver binds there, with MSI-X."""
    pair.mintctl("device", "move", CARD2_E1000E, "--to", ONE.name)
    assert CARD2_E1000E in pair.one.out("lspci -D")
    assert CARD2_E1000E not in pair.zero.out("lspci -D")
    driver = pair.one.out(f"basename $(readlink /sys/bus/pci/devices/{CARD2_E1000E}/driver)")
    assert driver == "e1000e"
    pair.mintctl("device", "move", CARD2_E1000E, "--to", "node0")
    assert CARD2_E1000E in pair.zero.out("lspci -D")
    assert CARD2_E1000E not in pair.one.out("lspci -D")


def test_reset_of_a_moved_device_leaves_error_reporting_as_it_was(pair: Server):
    """SERR# and the PCIe device control register, which a function level reset clears."""

    def registers(node: Node) -> tuple[int, str]:
        command, control = node.out(f"setpci -s {CARD0} COMMAND CAP_EXP+8.w").split()
        return int(command, 16) & 0x100, control

    was = registers(pair.zero)
    pair.zero.run(f"setpci -s {CARD0} COMMAND=100:100 CAP_EXP+8.w=f:f")
    wanted = registers(pair.zero)
    assert wanted[0] == 0x100
    pair.mintctl("device", "move", CARD0, "--to", ONE.name)
    assert registers(pair.one) == wanted
    pair.mintctl("device", "move", CARD0, "--to", "node0")
    assert registers(pair.zero) == wanted
    pair.zero.run(f"setpci -s {CARD0} COMMAND={was[0]:x}:100 CAP_EXP+8.w={was[1]}")


def test_core_with_a_pinned_guest_stays(pair: Server):
    """Refused with the guest's name: on node 1 a vCPU is pinned to the only core besides the boot core."""
    with Guest(pair.one, "pinned") as guest:
        guest.start("--no-disk")
        with pytest.raises(MintctlError, match="guest pinned") as caught:
            pair.mintctl("node", "resize", ONE.name, "--cpus", "-1")
        assert caught.value.status == REFUSED
        assert "cpu_pinned" in caught.value.codes


def test_dry_run_of_a_resize_changes_nothing(pair: Server):
    """--dry-run says the steps."""
    answer = pair.mintctl("node", "resize", TWO.name, "--cpus", "+1", "--memory", "+128M", "--dry-run")
    assert answer["dry_run"]
    assert any(step.startswith("claim cpu") for step in answer["steps"]), answer


REFUSALS = {
    "boot core": (("resize", TWO.name, "--cpus", "5"), "cpu_boot"),
    "more cores than there are": (("resize", TWO.name, "--cpus", "+9"), "cpu_short"),
    "last cores": (("resize", ONE.name, "--cpus", "-2"), "cpu_last"),
    "core of a node that is not named": (("resize", TWO.name, "--cpus", f"2,{ONE.cpus[-1]}"), "cpu_owned"),
    "more memory than there is": (("resize", TWO.name, "--memory", "+64G"), "memory_short"),
    "all of its memory": (("resize", TWO.name, "--memory", f"-{TWO.memory_mib}M"), "memory_short"),
    "a function that is not its own": (("resize", TWO.name, "--drop-device", CARD2_E1000E), "device_owned"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_resize_is_refused(pair: Server, what: str):
    """Each with its code, and the ledger as it was (the fixture compares it)."""
    words, code = REFUSALS[what]
    with pytest.raises(MintctlError) as caught:
        pair.mintctl("node", *words)
    assert caught.value.status == REFUSED
    assert code in caught.value.codes, caught.value
