# SPDX-License-Identifier: Apache-2.0
"""A node that ended gives back all that it owned, however it ended: cores that did not park are fetched, nothing
is taken from under one that still runs, and whoever died while it acted on another node is in nobody's way."""

import random
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from rig.errors import RigError
from rig.faults import SPIN
from rig.functions import interface_of, let_master
from rig.ram import Ram, built_symbol, dead_place
from rig.rawcalls import ABSENT, CRASHED, KILLED, LOADED, LOADING, NOBODY, NOT_PARKED, RUNNING, STARTING, STOPPED, Raw
from rig.server import CARD0, CARD1, CARD2_E1000E, ONE, SPARE, Server
from rig.wait import wait_until

EBUSY, ENOENT, ESTALE = 16, 2, 116
MIB = 1 << 20
BLOCK_BYTES = 128 * MIB
# Linux's default, where no configuration says another one.
PANIC_0 = "console=hvc0 tsc=reliable nowatchdog oops=panic mint.root=initrd panic=0"
# In its initrd: it needs no disk and no daemon to die.
DEAD = replace(SPARE, name="dead", cpus=(2, 5), memory_mib=512, more=("--cmdline", PANIC_0, "--wait", "running"))
# arch/x86/include/asm/mint_area.h: init_page of the header
AREA_INIT_PAGE = 180
# One whose panic parks by itself, with any kernel.
ENDED = replace(DEAD, more=SPARE.more)
# cli; 1: hlt; jmp 1b. An NMI gets through.
HALT = bytes.fromhex("fa f4 eb fd")


@contextmanager
def typing(server: Server, number: int, line: str) -> Iterator[None]:
    """A line typed on a node's console, which stays open in here."""
    keys = f"(echo {shlex.quote(line)}; sleep 600) | mintctl node console {number} --write --follow"
    job = server.zero.start(keys, limit_s=600)
    yield
    job.kill()


def load_command(number: int, initrd: str = "/boot/node.initrd") -> str:
    """What loads a node without a daemon's help."""
    return f"kexec -s -l --mint-node {number} --initrd {initrd} --command-line {shlex.quote(PANIC_0)} /boot/vmlinuz-mint"


def area(server: Server) -> int:
    """Physical address of the control area."""
    return int(server.zero.read("/sys/kernel/mint/control_area").split("-")[0], 16)


def parked(server: Server, number: int) -> list[bool]:
    """Of each core that the node owns."""
    cores = [cpu for cpu in server.mintctl("cpu", "list")["cpus"] if cpu["owner"] == number]
    return ["parked" in cpu["flags"] for cpu in cores]


def panic(server: Server, number: int, tries: int = 1) -> None:
    """End a node in its initrd by a panic. More tries: the way there was written over, and may lose what is typed."""
    server.node(number).console.wait_for(f"mint-init: node {number} init")
    for left in reversed(range(tries)):
        with typing(server, number, "echo c >/proc/sysrq-trigger"):
            try:
                server.wait_state(number, "crashed", limit_s=20 if left else 60)
                return
            except RigError:
                if not left:
                    raise
                print(f"node {number} did not get what was typed")


def patch(server: Server, number: int, name: str, code: bytes) -> None:
    """Overwrite a function, which has not run yet, of a node's kernel."""
    node = server.node(number)
    place = dead_place(node, area(server))
    with Ram(node.machine) as ram:
        ram.write(place.physical(built_symbol(name)), code)


def test_panic_of_a_node_parks_whatever_panic_says(bare: Server):
    """panic=0 on its command line: both cores come to the park loop by themselves, and remove frees everything."""
    before = bare.ledger()
    bare.add(DEAD)
    panic(bare, 1)
    wait_until("both cores to park", lambda: parked(bare, 1) == [True, True], 30)
    bare.mintctl("node", "remove", DEAD.name)
    assert not (changed := before.difference(bare.ledger())), changed


def strand(server: Server, deaf: bool, number: int = 1, tries: int = 1) -> None:
    """A node panics, and one of its cores does not park: the one that panicked halts instead; or, with deaf, the other
    one, in the NMI with which the panic stops it."""
    if deaf:
        patch(server, number, "mint_park_stopped_cpu", HALT)
        patch(server, number, "mint_nmi", SPIN)
    else:
        patch(server, number, "mint_emergency_restart", HALT)
    panic(server, number, tries)
    wait_until("one of two cores to park", lambda: parked(server, number).count(True) == 1, 30)


@pytest.mark.parametrize("way", ["remove", "kill", "start", "repair"])
def test_core_that_did_not_park_is_fetched(bare: Server, way: str):
    """A dead node with a core that is not in the park loop: nothing of its memory can be taken, and each of node
    remove, kill, start and doctor --repair brings the core there, by NMI, or by INIT."""
    before = bare.ledger()
    raw = Raw(bare.zero)
    bare.add(DEAD)
    deaf = way in ("remove", "kill")
    strand(bare, deaf)
    mark = bare.zero.console.mark()

    # The block with its kernel's text is not to be had while a core may run there.
    text = dead_place(bare.one, area(bare)).text_physical
    with Ram(bare.machine) as ram:
        was = ram.read(text, MIB)
        assert any(was)
        answer = raw("release", "mem", text // BLOCK_BYTES, 1)
        assert (answer["errno"], answer["reason"]) == (EBUSY, NOT_PARKED), answer
        assert ram.read(text, MIB) == was
    assert raw("start", 1)["errno"] != 0
    assert parked(bare, 1).count(True) == 1

    if way == "remove":
        bare.mintctl("node", "remove", DEAD.name, "--force")
    elif way == "kill":
        bare.mintctl("node", "kill", DEAD.name)
        assert bare.mintctl.state(1) == "crashed"
    elif way == "repair":
        bare.zero.run("mintctl doctor --repair")
    else:
        bare.mintctl("node", "start", DEAD.name, "--wait", "running")
        assert bare.mintctl.nodes()[1]["boots"] == 2
    if deaf:
        bare.zero.console.wait_for("ignores the NMI: INIT", mark)
    else:
        assert "ignores the NMI" not in bare.zero.console.text(mark)
    if way != "remove":
        assert way == "start" or parked(bare, 1) == [True, True]
        bare.mintctl("node", "remove", DEAD.name, "--force")
    assert not (changed := before.difference(bare.ledger())), changed


def test_core_that_nothing_brings_back_is_fenced_alone(worn_out: Server):
    """NMI and INIT leave a core outside the park loop: it is told, and all else of the node comes back."""
    server = worn_out
    before = server.ledger()
    # Of node 0's cores: the others have no part in it. It takes what is surely free there: on which NUMA node
    # node 0 has its memory is not the same after the tests before this.
    third = server.add(replace(DEAD, cpus=(1, 5), memory_mib=256))["node"]["id"]
    # The control ring to it was scribbled over: what the first try leaves there is dropped with the rest.
    strand(server, deaf=True, number=third, tries=3)
    mark = server.zero.console.mark()
    with Ram(server.machine) as ram:
        base = area(server)
        page = int.from_bytes(ram.read(base + AREA_INIT_PAGE, 4), "little")
        assert 0x10000 <= page < 0x80000 and page % 4096 == 0, hex(page)
        ram.write(page, HALT)
    server.mintctl("node", "remove", DEAD.name, "--force")
    server.zero.console.wait_for("did not come to the park loop: fenced", mark)
    changed = before.difference(server.ledger())
    # An absent core is in no ledger.
    assert len(changed) == 1 and changed[0].startswith("cpu ") and changed[0].endswith("None"), changed
    told = [cpu for cpu in server.mintctl("cpu", "list")["cpus"] if "fenced" in cpu["flags"]]
    assert [cpu["id"] for cpu in told] == [int(changed[0].split()[1].rstrip(":"))], told


def test_slow_second_killer_does_not_touch_a_restarted_node(bare: Server):
    """A kill that means an earlier start of the node is refused, and the node runs on; one that means this start, or
    any, kills it."""
    raw = Raw(bare.zero)
    bare.add(DEAD)
    assert raw("kill", 1, 1) == {"errno": 0, "parked": 2, "cpus": 2, "fenced": 0}
    bare.mintctl("node", "start", DEAD.name, "--wait", "running")
    assert raw("kill", 1, 1)["errno"] == ESTALE
    assert raw("get", 1) == {"errno": 0, "state": RUNNING, "boots": 2}
    assert parked(bare, 1) == [False, False]
    assert raw("kill", 1, 2)["errno"] == 0
    assert raw("get", 1)["state"] == KILLED
    # one that has ended already is left as it is
    assert raw("kill", 1) == {"errno": 0, "parked": 2, "cpus": 2, "fenced": 0}
    bare.remove_all()


ROUNDS = 8
# What the first of two calls is ahead of the second at most, until that was quicker all the same.
AHEAD_S = 0.02


@pytest.mark.soak
@pytest.mark.soak_only
def test_kill_at_any_moment_of_a_start(bare: Server, request: pytest.FixtureRequest):
    """Kills from just after the start until after it runs: the node is killed, with all cores parked, each time."""
    rng = random.Random(request.config.getoption("--seed"))
    raw = Raw(bare.zero)
    bare.add(DEAD)
    hit: dict[int, int] = {STARTING: 0, RUNNING: 0}
    began = time.monotonic()
    bare.mintctl("node", "restart", DEAD.name, "--wait", "running")
    whole_s = time.monotonic() - began
    for number in range(ROUNDS):
        raw("kill", 1)
        bare.zero.run(load_command(1))
        assert raw("start", 1)["errno"] == 0
        time.sleep(whole_s * (number + rng.random()) / ROUNDS)
        hit[raw("get", 1)["state"]] += 1
        answer = raw("kill", 1)
        assert answer == {"errno": 0, "parked": 2, "cpus": 2, "fenced": 0}
        assert raw("get", 1)["state"] == KILLED
        assert parked(bare, 1) == [True, True]
    print(f"killed while starting, running: {hit}")
    assert hit[STARTING] and hit[RUNNING], hit
    bare.remove_all()


BIG_INITRD_MIB = 280


def test_load_whose_node_died_is_taken_over(pair: Server):
    """Node 1 is killed while it writes a large initrd into node 3: node 3 is loaded by the next one at once."""
    raw = Raw(pair.zero)
    plan = replace(SPARE, name="target", memory_mib=512, devices=(), more=("--no-start",))
    pair.add(plan)
    pair.one.run(f"truncate -s {BIG_INITRD_MIB}M /tmp/big")
    killer = raw.start("await", 3, LOADING, "kill", 1)
    pair.one.start(load_command(3, "/tmp/big"))
    assert Raw.end(killer)["errno"] == 0
    # The load was cut off, not done.
    assert pair.mintctl.state(1) == "killed"
    assert raw("get", 3)["state"] == STOPPED
    assert raw("start", 3)["errno"] != 0
    pair.zero.run(load_command(3))
    assert raw("get", 3)["state"] == LOADED
    pair.mintctl("node", "remove", plan.name, "--force")
    pair.mintctl("node", "start", ONE.name)
    pair.wait_mintd(pair.one)


def test_release_and_start_of_a_node_exclude_each_other(pair: Server, request: pytest.FixtureRequest):
    """Node 2 takes a block from node 3 while node 0 starts it: the node runs with all its memory, or it does not run.
    Sooner or later by turns, and the one that has not been first yet gets three times the time next: each of the two has
    to be first at least once."""
    rng = random.Random(request.config.getoption("--seed"))
    plan = replace(SPARE, name="target", memory_mib=512, devices=(), more=("--no-start",))
    pair.add(plan)
    start, release = Raw(pair.zero), Raw(pair.two)
    block = str(node_ram(pair, 3)[-1][0] // BLOCK_BYTES)
    outcomes: Counter[str] = Counter()
    ahead_s = {start: AHEAD_S, release: AHEAD_S}
    for number in range(ROUNDS):
        pair.zero.run(load_command(3))
        assert start("get", 3)["state"] == LOADED
        early, late = (start, release) if number % 2 else (release, start)
        words = {start: ("start", 3), release: ("release", "mem", block, 3)}
        first = early.start(*words[early])
        time.sleep(rng.uniform(ahead_s[early] - AHEAD_S, ahead_s[early]))
        second = late.start(*words[late])
        answers = {early: Raw.end(first), late: Raw.end(second)}
        owner = pair.ledger().resources["memory", block]
        if answers[start]["errno"] == 0:
            assert answers[release]["errno"] == EBUSY, answers
            assert owner == ("owned", 3), owner
            pair.wait_state(3, "running")
            assert start("kill", 3) == {"errno": 0, "parked": 1, "cpus": 1, "fenced": 0}
        else:
            assert answers[release] == {"errno": 0, "reason": 0, "owner": NOBODY}
            assert owner[0] == "free", owner
            assert release("claim", "mem", block, 3)["errno"] == 0
        if (early is start) != (answers[start]["errno"] == 0):
            ahead_s[early] *= 3
        outcomes["started" if answers[start]["errno"] == 0 else "released"] += 1
    print(outcomes)
    assert outcomes["started"] and outcomes["released"], outcomes
    pair.mintctl("node", "remove", plan.name, "--force")


def test_refused_load_leaves_the_dump(bare: Server):
    """An initrd that does not fit: the node is still crashed, and its memory can still be dumped."""
    raw = Raw(bare.zero)
    bare.add(ENDED)
    panic(bare, 1)
    wait_until("both cores to park", lambda: parked(bare, 1) == [True, True], 30)
    bare.zero.run("truncate -s 600M /tmp/big")
    result = bare.zero.run("kexec -s -l --mint-node 1 --initrd=/tmp/big /boot/vmlinuz-mint", check=False)
    assert result.status != 0
    assert raw("get", 1)["state"] == CRASHED
    dumped = bare.mintctl("node", "dump", ENDED.name, "--output", "/tmp/vmcore", limit_s=600)
    assert dumped["data_bytes"] > 0
    bare.zero.run("rm /tmp/vmcore /tmp/big")
    bare.remove_all()


def node_ram(server: Server, number: int) -> list[tuple[int, int]]:
    """Physical address and length of each block that a node owns."""
    blocks = server.ledger().details["memory"]
    return [(block["phys"], block["bytes"]) for block in blocks if block["owner"] == number]


# Of a receive ring's 256 buffers, which a dead kernel does not fill up again.
SOME_FRAMES, MANY_FRAMES = 16, 500
INTEL = 0x8086


def test_card_of_a_dead_node_does_not_write_over_its_next_image(bare: Server):
    """Broadcasts come in for the card of a crashed node, which has buffers left; once the node is loaded again
    nothing in its memory changes any more, not even when a driver lets the card do DMA before it resets it."""
    plan = replace(ENDED, devices=(CARD2_E1000E,))
    raw = Raw(bare.zero)
    bare.add(plan)
    console = bare.one.console
    console.wait_for("mint-init: node 1 init")
    up = "for i in /sys/bus/pci/devices/*/net/*; do ip link set ${i##*/} up promisc on; done"
    with typing(bare, 1, up):
        console.wait_for("NIC Link is Up")
    # The second takes the frames that the dead node's card does not: a hub without a receiver takes none at all.
    wire, other = (interface_of(bare.zero, card) for card in (CARD0, CARD1))
    for name in (wire, other):
        bare.zero.run(f"ip link set {name} up")
        bare.zero.wait(f"carrier of {name}", f"grep -q 1 /sys/class/net/{name}/carrier")
    panic(bare, 1)
    wait_until("both cores to park", lambda: parked(bare, 1) == [True, True], 30)
    pieces = [start for base, size in node_ram(bare, 1) for start in range(base, base + size, MIB)]

    def changed_by(ram: Ram, frames: int, master: bool = False) -> int:
        before = [hash(ram.read(start, MIB)) for start in pieces]
        assert raw("flood", wire, frames)["sent"] == frames
        if master:
            let_master(bare.machine, CARD2_E1000E, INTEL)
        return sum(was != hash(ram.read(start, MIB)) for was, start in zip(before, pieces, strict=True))

    with Ram(bare.machine) as ram:
        # The card of the dead node goes on: else this test would show nothing.
        assert changed_by(ram, SOME_FRAMES) > 0
        bare.zero.run(load_command(1))
        assert raw("get", 1)["state"] == LOADED
        assert changed_by(ram, MANY_FRAMES) == 0
        assert changed_by(ram, MANY_FRAMES, master=True) == 0
    assert raw("start", 1)["errno"] == 0
    bare.wait_state(1, "running")
    bare.remove_all()


def test_memory_of_the_platform_is_nobodys(pair: Server):
    """Blocks with the control area, firmware's tables, the page that INIT leads to: no node can release them, for
    itself or for node 0."""
    blocks = {area(pair) // BLOCK_BYTES, 0}
    for line in pair.zero.out("grep -E 'ACPI|Reserved' /proc/iomem").splitlines():
        first = int(line.split("-")[0], 16)
        if first < pair.mintctl("memory", "list")["memory"][-1]["phys"] and first >> 32 == 0 and first < 2 << 30:
            blocks.add(first // BLOCK_BYTES)
    assert len(blocks) > 1
    listed = {block["id"] for block in pair.mintctl("memory", "list")["memory"]}
    assert not blocks & listed
    for node in (pair.zero, pair.one):
        raw = Raw(node)
        for block in sorted(blocks):
            answer = raw("release", "mem", block, 0)
            assert (answer["errno"], answer["reason"]) == (ENOENT, ABSENT), (block, answer)


@pytest.mark.soak
@pytest.mark.soak_only
def test_node0_is_killed_by_a_peer_and_started_again(worn: Server):
    """Node 0 does not answer, or so somebody on node 1 thinks: its cores are parked, the machine and node 2 go on,
    and node 0 comes back."""
    channel, boot_id = worn.machine.channel, worn.machine.channel.boot_id
    boots = {number: node["boots"] for number, node in worn.mintctl.nodes().items()}
    mark = worn.zero.console.mark()
    # It outlives the connection through which it is started.
    worn.one.start(
        "setsid sh -c 'mintctl node kill node0; mintctl node start node0' >/dev/console 2>&1 </dev/null &", limit_s=60
    )
    worn.zero.console.wait_for("mint-init: node 0 init", mark)
    wait_until("node 0's agent", lambda: channel.boot_id != boot_id, 240)
    worn.wait_mintd(worn.zero)
    now = {number: node["boots"] for number, node in worn.mintctl.nodes().items()}
    assert now == boots | {0: boots[0] + 1}
    assert worn.mintctl.state(2) == "running"
