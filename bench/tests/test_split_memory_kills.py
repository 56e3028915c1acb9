# SPDX-License-Identifier: Apache-2.0
"""Something dies at each named step of the move of a guest whose memory is split: the guest is on one side afterwards, or
has ended with the node that had it, and nothing is left of the move anywhere. --split-kills of them; all pairs of a step
and a victim, in this order, again and again."""

import itertools

import pytest

from rig.channel import Job, Result
from rig.guest import Guest, counted_versions
from rig.killed_move import GUESTDS, LIBVIRTD, NAME, NODE, QEMU, SOURCE, TARGET, Round, Step, Victim, halting
from rig.server import Server

HOST = "host"  # node 0, which keeps what the main host has no room for
FOLDERS = "/run/mint/ram/guests/*/guest.json"
STORE = "/run/mint/ram/store"
LIMIT_S = 240
MAIN_MIB, LOAD_KIB = 26, 14 << 10
COMPARED = "tick [0-9]* at .*, [1-9][0-9]* versions"

# Of mint-pager and mint-guestd (docs/testing.md). At some of them the guest stands still.
GIVES, AHEAD, READY, FINAL, FINISHED, GONE = (
    Step(f"pager-{name}", SOURCE) for name in ("gives", "ahead", "ready", "final", "finished", "gone")
)
LENT = Step("move-lent", SOURCE)
COMES = Step("memory-comes", TARGET)
COPIED, HAS_ALL = (Step(f"pager-{name}", TARGET) for name in ("copied", "has-all"))
RUNS, ENTERS = (Step(f"pager-{name}", TARGET, is_over=True) for name in ("runs", "enters"))
STEPS = (LENT, COMES, GIVES, COPIED, AHEAD, READY, FINAL, FINISHED, HAS_ALL, GONE, RUNS, ENTERS)

PAGER, KEEPER = ({side: Victim(what, side) for side in (SOURCE, TARGET)} for what in ("mint-pager", "mint-keeper"))
MEMORY_SERVER = Victim("mint-store", HOST)
VICTIMS = (
    MEMORY_SERVER, *(kind[side] for kind in (PAGER, KEEPER, GUESTDS, LIBVIRTD, QEMU, NODE) for side in (SOURCE, TARGET)),
)  # fmt: skip

# What an ordinary run does: its next host has all of it, and ends before it runs there. Then the host that it leaves.
FIRST = ((GONE, NODE[TARGET]), (READY, NODE[SOURCE]))


def is_there(step: Step, victim: Victim) -> bool:
    """Whether there is such a victim then: nothing of the guest is on its new node at first, and once it runs there,
    nothing of it may be left on the other."""
    nowhere = SOURCE if step.is_over else TARGET if step == LENT else None
    return nowhere is None or victim not in (kind[nowhere] for kind in (QEMU, PAGER, KEEPER))


ALL = FIRST + tuple(pair for pair in itertools.product(STEPS, VICTIMS) if is_there(*pair) and pair not in FIRST)


class SplitRound(Round):
    """One move and one kill."""

    options = f"--split main={MAIN_MIB}M,node0=rest"

    def __init__(self, server: Server, source: int, disk: str, step: Step, victim: Victim) -> None:
        super().__init__(server, source, disk, step, victim)
        self.numbers[HOST], self.nodes[HOST] = 0, server.zero
        # less than it has, for pages to go ahead of it
        if step in (AHEAD, LENT):
            self.options = f"--split main={MAIN_MIB - 4}M,node0=rest"

    def allowed(self) -> set[tuple[str, str]]:
        """As of any guest; once its next host has all of it, either may go on."""
        home = TARGET if self.step.is_over else SOURCE
        at_home = {(home, "running")}
        if self.victim in (QEMU[home], NODE[home]):
            at_home = {(home, "shut off")}
        if self.step.is_over or self.victim in (QEMU[TARGET], NODE[TARGET]):
            return at_home
        # who was killed may be who waits: then the move goes on, or libvirt has sent all and the source is not missed
        return at_home | {(TARGET, "running")}

    def check(self) -> tuple[str, str]:
        """Besides, its processes and its lease are where it runs, and nowhere else."""
        side, state = super().check()
        for place in (SOURCE, TARGET):
            count = int(place == side and state == "running")
            self.nodes[place].wait(
                f"{count} pagers, and as much of it",
                f"[ $(pgrep -cx mint-pager) = {count} ] && [ $(pgrep -cx mint-keeper) = {count} ] && "
                f"[ $(ls {FOLDERS} 2>/dev/null | wc -l) = {count} ] && ! ls {FOLDERS.replace('guest.json', '*oming.json')} 2>/dev/null",
                LIMIT_S,
            )
            # nor does it say any more how it was before the move
            self.nodes[place].wait("nothing is lent", f"! grep -l '\"lent\"' {FOLDERS} 2>/dev/null", LIMIT_S)
        main = self.numbers[side] if state == "running" else None
        lease = f"cat {STORE}/*.lease 2>/dev/null"
        wanted = f'{lease} | tr -d " " | grep -q \'"node":{main},\'' if main else f'[ -z "$(ls {STORE})" ]'
        self.nodes[HOST].wait(f"a lease of node {main}", wanted, LIMIT_S)
        return side, state

    def start(self, guest: Guest) -> None:
        """With as much of its memory elsewhere as before."""
        super().start(guest)
        guest.wait_line(COMPARED, LIMIT_S)
        squeeze(self.server, guest)

    def recover(self, job: Job) -> Result | None:
        """The lease of a guest whose node has ended ends by itself."""
        result = super().recover(job)
        self.server.zero.wait("its memory server", "mintctl vm list >/dev/null && pgrep -x mint-store", LIMIT_S)
        return result


def squeeze(server: Server, guest: Guest) -> None:
    """Leave it less where it runs than it works with, and take out what came first: pages go and come all the time."""
    words = ("--split", f"main={MAIN_MIB}M,node0=rest", "--policy", "fifo")
    server.mintctl("vm", "migrate", NAME, "--to", f"node{guest.node.number}", *words)


@pytest.mark.soak
@pytest.mark.soak_only
def test_kill_at_any_step_of_a_split_guests_move_leaves_it_on_one_side(pair: Server, request: pytest.FixtureRequest):
    """A guest that compares memory and disk goes to and fro between nodes 1 and 2; node 0 keeps what they have no room
    for. Whatever is killed, it is on one side with all of its memory, or ends with the node that had it."""
    count = request.config.getoption("--split-kills")
    hits, where = 0, 1
    options = f"--memory 128M --split main=64M,node0=rest --no-network --memory-load {LOAD_KIB} --disk 8M --disk-load 4"
    with halting(pair), Guest(pair.one, NAME) as one, Guest(pair.two, NAME):
        one.start(options)
        one.wait_line(COMPARED, LIMIT_S)
        squeeze(pair, one)
        disk = pair.one.out(f"virsh -q vol-path {NAME}.raw --pool mint").strip()
        for step, victim in itertools.islice(itertools.cycle(ALL), count):
            this = SplitRound(pair, where, disk, step, victim)
            try:
                where = this.carry_out()
                guest = Guest(pair.node(where), NAME)
                guest.wait_line(COMPARED, LIMIT_S)
                seen = counted_versions(guest.log())[-1]
                guest.node.wait("it compares its memory", f"! tail -n 1 {guest.log_path} | grep -q ', {seen} versions'", LIMIT_S)
                assert "FAIL" not in guest.log(), guest.log()[-500:]
            except BaseException as error:
                error.add_note(f"after {hits} hits of {count}: {this}")
                raise
            hits += 1
    print(f"{hits} hits of {count} kills that were planned")
    assert hits == count
