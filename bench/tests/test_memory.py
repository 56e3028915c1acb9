# SPDX-License-Identifier: Apache-2.0
"""Memory blocks move between running nodes; one request is all or nothing."""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from rig import paths
from rig.faults import failing
from rig.ledger import Ledger
from rig.mintctl import REFUSED, MintctlError
from rig.node import Node
from rig.ram import Ram, own_ram_bytes
from rig.rawcalls import NOBODY, OWNER, STATE, Raw
from rig.server import ONE, SPARE, TWO, NodePlan, Server
from rig.wait import wait_until

MIB = 1 << 20
BLOCK_MIB = 128
EPERM, ENOMEM, EBUSY = 1, 12, 16


def memory_bytes(node: Node, what: str = "MemTotal") -> int:
    """A line of the node's meminfo, in bytes."""
    return int(re.search(rf"^{what}:\s+(\d+)", node.read("/proc/meminfo"), re.MULTILINE)[1]) << 10


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


def test_memory_is_zeroed_before_another_node_has_it(pair: Server):
    """What node 2 wrote into a block is in RAM, and is not there any more when the block is free."""
    mark = secrets.token_bytes(32)
    before = set(pair.ledger().owned("memory", 2))
    pair.mintctl("node", "resize", TWO.name, "--memory", "+256M@numa0")
    now = pair.ledger()
    came = [entry for entry in now.details["memory"] if str(entry["id"]) in set(now.owned("memory", 2)) - before]
    assert len(came) == 2, came
    # More than was free before: these blocks are written, too. A file on a tmpfs that goes leaves it in free pages.
    count = memory_bytes(pair.two, "MemAvailable") // (16 * MIB) - 5
    pair.two.run("cat >/tmp/mark", stdin=mark * (MIB // len(mark)))
    pair.two.run(
        "for n in $(seq 16); do cat /tmp/mark; done >/tmp/marks; mount -t tmpfs full /mnt -o size=100% && "
        f"for n in $(seq {count}); do cat /tmp/marks; done >/mnt/full; umount /mnt; rm /tmp/mark /tmp/marks"
    )
    with Ram(pair.machine) as ram:

        def marked() -> list[bool]:
            return [mark in ram.read(entry["phys"], BLOCK_MIB * MIB) for entry in came]

        assert all(marked()), "node 2 did not write into the blocks that came"
        pair.mintctl("node", "resize", TWO.name, "--memory", f"{TWO.memory_mib}M")
        assert set(pair.ledger().owned("memory", 2)) == before
        assert not any(marked()), "another node could read what node 2 wrote"


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


def compound_request_is_all_or_nothing(server: Server, held: str) -> None:
    """A core and memory of node 1 for node 2: the core goes, the memory, which is held, does not: the core comes back."""
    before = server.ledger()
    core = str(ONE.cpus[-1])

    def changes(ledger: Ledger) -> int:
        return next(cpu["changes"] for cpu in ledger.details["cpu"] if str(cpu["id"]) == core)

    with pytest.raises(MintctlError, match="everything is as it was before") as caught:
        cpus = f"{TWO.cpus[0]},{core}"
        server.mintctl("node", "resize", TWO.name, "--cpus", cpus, "--memory", f"+{held}", "--from", ONE.name)
    assert "memory_busy" in caught.value.codes, caught.value
    after = server.ledger()
    assert changes(after) > changes(before), "the core never moved: nothing had to be taken back"
    assert not (changed := before.difference(after)), changed
    assert (int(server.one.out("nproc")), int(server.two.out("nproc"))) == (len(ONE.cpus), len(TWO.cpus))


# Of NUMA node 0, where node 1 has none of its own; and nearly as much as that, for a program to hold.
AMOUNT, HELD_MIB = "256M@numa0", 224


def blocks_that_come(server: Server, node: int, name: str, amount: str) -> list[str]:
    """A running node gets memory; ids of the blocks."""
    before = set(server.ledger().owned("memory", node))
    server.mintctl("node", "resize", name, "--memory", f"+{amount}")
    return sorted(set(server.ledger().owned("memory", node)) - before, key=int)


@contextmanager
def held(server: Server) -> Iterator[list[str]]:
    """A program on node 1 holds pages, which lie in a pipe and cannot move, in blocks that the node got for it: these.
    Behind it none of them is node 1's any more."""
    blocks = blocks_that_come(server, 1, ONE.name, AMOUNT)
    server.one.run("cat >/tmp/hold && chmod 755 /tmp/hold", stdin=paths.need(paths.HOLD).read_bytes())
    job = server.one.start(f"exec /tmp/hold {HELD_MIB} 0", limit_s=300)
    assert next(job.lines()) == "held"
    yield blocks
    server.one.run("killall hold; rm /tmp/hold", check=False)
    server.mintctl("node", "resize", ONE.name, "--memory", f"{ONE.memory_mib}M")


def test_memory_that_a_program_holds_stays_until_it_is_let_go(pair: Server):
    """The request ends in time and changes nothing, also one that moves a core first, and works once the program has
    ended."""
    with held(pair):
        held_memory_stays(pair)


def held_memory_stays(pair: Server) -> None:
    """While the program holds it."""
    ledger = pair.ledger()
    with pytest.raises(MintctlError) as refused:
        pair.mintctl("node", "resize", ONE.name, "--memory", f"-{AMOUNT}")
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
    compound_request_is_all_or_nothing(pair, AMOUNT)


def test_kill_of_a_node_does_not_wait_for_memory_that_cannot_move(pair: Server):
    """Node 1's kernel tries to empty a block that a program holds, and kills node 3 meanwhile."""
    pair.add(replace(SPARE, devices=()))
    raw = Raw(pair.one)
    with held(pair) as blocks:
        release = raw.start("release", "mem", blocks[-1], 1)
        moving = ("memory", blocks[-1]), ("moving", 1)
        wait_until("the release to begin", lambda: pair.ledger().resources[moving[0]] == moving[1], every_s=0.02)
        assert raw("kill", 3) == {"errno": 0, "parked": 1, "cpus": 1, "fenced": 0}
        assert pair.state(3) == "killed"
        # It is not done: the program still has its pages.
        assert pair.ledger().resources[moving[0]] == moving[1]
        pair.one.run("killall hold")
        assert Raw.end(release) == {"errno": 0, "reason": 0, "owner": NOBODY}
    pair.mintctl("node", "remove", SPARE.name, "--force")


def test_block_that_cannot_be_zeroed_is_in_nobodys_way(pair: Server):
    """The kernel that releases it has no memory for that: a block that it has given up stays on its way, nobody's to
    take, and the next release goes on with it; a dead node's is that node's again."""
    (block,) = blocks_that_come(pair, 1, ONE.name, "128M@numa0")
    key = ("memory", block)
    zero, one = Raw(pair.zero), Raw(pair.one)
    with failing(pair.one, "mint_mem_zero", ENOMEM):
        for _time in range(2):
            assert one("release", "mem", block, 1)["errno"] == ENOMEM
            assert pair.ledger().resources[key] == ("moving", 1)
        assert one("claim", "mem", block, 1) == {"errno": EBUSY, "reason": STATE, "owner": 1}
        assert zero("claim", "mem", block, 0) == {"errno": EPERM, "reason": OWNER, "owner": 1}
    assert one("release", "mem", block, 1) == {"errno": 0, "reason": 0, "owner": NOBODY}
    assert pair.ledger().resources[key] == ("free", None)

    pair.add(NodePlan("dead", (5,), 128, 0, (), ("--no-start",)))
    (block,) = pair.ledger().owned("memory", 3)
    key = ("memory", block)
    with failing(pair.zero, "mint_mem_zero", ENOMEM):
        assert zero("release", "mem", block, 3)["errno"] == ENOMEM
        assert pair.ledger().resources[key] == ("owned", 3)
    assert zero("release", "mem", block, 3) == {"errno": 0, "reason": 0, "owner": NOBODY}
    assert pair.ledger().resources[key] == ("free", None)
    pair.mintctl("node", "remove", "dead")


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


def all_ram_is_owned(server: Server) -> dict[int | None, int]:
    """Each kernel has all blocks that the ledger says it owns, and RAM nowhere else; gives how many each owner has
    (None: nobody)."""
    ledger = server.ledger()
    count: dict[int | None, int] = {place: len(ledger.owned("memory", place)) for place in (None, 0, 1, 2)}
    for number in (0, 1, 2):
        missing = count[number] * BLOCK_MIB * MIB - own_ram_bytes(server.node(number), ledger)
        # Firmware keeps some of node 0's.
        assert 0 <= missing < (BLOCK_MIB * MIB if number == 0 else MIB), f"node {number}: {missing}"
    return count


def test_memory_that_nodes_got_at_boot_goes_to_others_and_back(worn: Server):
    """Of node 0, whose kernel maps it by pages of 1 GiB, and of node 1: to other nodes that run, and back again. Then
    both start again with other memory than at first. (The tests of node 0's restart go on with it.)"""
    start = all_ram_is_owned(worn)
    resize = ("node", "resize")
    worn.mintctl(*resize, ONE.name, "--memory", "-256M", "--to", TWO.name)
    free_mib = start[None] * BLOCK_MIB
    # What is free comes first.
    worn.mintctl(*resize, TWO.name, "--memory", f"+{free_mib + 512}M", "--from", "node0")
    moved = all_ram_is_owned(worn)
    assert moved == {0: start[0] - 4, 1: start[1] - 2, 2: start[2] + start[None] + 6, None: 0}
    worn.mintctl(*resize, TWO.name, "--memory", "-512M", "--to", "node0")
    worn.mintctl(*resize, TWO.name, "--memory", "-256M", "--to", ONE.name)
    worn.mintctl(*resize, TWO.name, "--memory", f"-{free_mib}M")
    assert all_ram_is_owned(worn) == start
    for number, plan in ((1, ONE), (2, TWO)):
        worn.mintctl("node", "restart", plan.name)
        worn.wait_mintd(worn.node(number))
    assert all_ram_is_owned(worn) == start


def test_node_starts_with_memory_that_node0_gives_up(worn: Server):
    """More than is free, which is refused unless node 0 is named; then its memory is node 0's again."""
    start = all_ram_is_owned(worn)
    numa = SPARE.numa
    blocks = [block for block in worn.ledger().details["memory"] if block["numa"] == numa]
    free_mib = len([block for block in blocks if block["owner"] is None]) * BLOCK_MIB
    plan = replace(SPARE, memory_mib=free_mib + 256)
    with pytest.raises(MintctlError) as refused:
        worn.add(plan)
    assert (refused.value.status, "memory_short" in refused.value.codes) == (REFUSED, True), refused.value
    worn.add(plan, "--from", "node0")
    assert all_ram_is_owned(worn) == start | {0: start[0] - 2, None: start[None] - free_mib // BLOCK_MIB}
    worn.mintctl("node", "remove", plan.name, "--force")
    worn.mintctl("node", "resize", "node0", "--memory", f"+256M@numa{numa}")
    assert all_ram_is_owned(worn) == start
