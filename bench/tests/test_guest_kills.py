# SPDX-License-Identifier: Apache-2.0
"""Something dies at each named step of a guest's move: the guest is on exactly one side afterwards, and nothing is
left of the move. --guest-kills of them; all pairs of a step and a victim, in this order, again and again."""

import itertools

import pytest

from rig.guest import Guest
from rig.killed_move import (
    GOING,
    GUESTDS,
    LIBVIRTD,
    MINTD,
    MINTD_ASKER,
    NAME,
    NODE,
    QEMU,
    SOURCE,
    TARGET,
    Round,
    Step,
    SwitchOver,
    Victim,
    halting,
)
from rig.server import Server

PLANNED, WRITTEN, EXPECTED = (Step(f"move-{name}", SOURCE) for name in ("planned", "written", "expected"))
DONE, SEEN, DROPPED = (Step(f"move-{name}", SOURCE, is_over=True) for name in ("done", "seen", "dropped"))
SWITCH = Step("move-going", SOURCE, is_switch=True)
NOTED = Step("arrival-written", TARGET)
LANDED, FORGOTTEN = (Step(f"arrival-{name}", TARGET, is_over=True) for name in ("seen", "forgotten"))
FAILED = Step("move-failed", SOURCE, is_failure=True)
UNDO, UNDONE = (Step(f"arrival-{name}", TARGET, is_failure=True) for name in ("undo", "dropped"))
STEPS = (PLANNED, WRITTEN, NOTED, EXPECTED, GOING, SWITCH, DONE, LANDED, FORGOTTEN, SEEN, DROPPED, FAILED, UNDO, UNDONE)

VICTIMS = (MINTD_ASKER, *(kind[side] for kind in (MINTD, GUESTDS, LIBVIRTD, QEMU, NODE) for side in (SOURCE, TARGET)))

# The first four are what an ordinary run does: on either side, before and after the switch-over. Then each step, each
# victim.
FIRST = (
    (GOING, GUESTDS[SOURCE]),
    (GOING, QEMU[TARGET]),
    (DONE, GUESTDS[SOURCE]),
    (LANDED, GUESTDS[TARGET]),
    (PLANNED, GUESTDS[SOURCE]),
    (NOTED, GUESTDS[TARGET]),
    (EXPECTED, GUESTDS[SOURCE]),
    (GOING, MINTD_ASKER),
    (GOING, LIBVIRTD[TARGET]),
    (WRITTEN, GUESTDS[SOURCE]),
    (GOING, MINTD[SOURCE]),
    (GOING, LIBVIRTD[SOURCE]),
    (SWITCH, LIBVIRTD[SOURCE]),
    (FORGOTTEN, MINTD[TARGET]),
    (DROPPED, GUESTDS[SOURCE]),
    (FAILED, GUESTDS[SOURCE]),
    (UNDO, LIBVIRTD[TARGET]),
    (UNDONE, GUESTDS[TARGET]),
    (GOING, QEMU[SOURCE]),
    (SEEN, NODE[SOURCE]),
)


def is_there(step: Step, victim: Victim) -> bool:
    """Whether there is such a victim then: the guest has a QEMU on the other side only while it goes."""
    if step.is_switch:
        return victim == LIBVIRTD[SOURCE]
    if victim == QEMU[SOURCE]:
        return not step.is_over
    return victim != QEMU[TARGET] or step == GOING or step.is_over


ALL = FIRST + tuple(pair for pair in itertools.product(STEPS, VICTIMS) if is_there(*pair) and pair not in FIRST)


@pytest.mark.soak
def test_kill_at_any_step_of_a_move_leaves_the_guest_on_one_side(pair: Server, request: pytest.FixtureRequest):
    """A guest with a disk goes to and fro between nodes 1 and 2, asked for on node 0; it stands still at the step, and
    mintd, mint-guestd, libvirtd, QEMU or the node is killed."""
    count = request.config.getoption("--guest-kills")
    hits, where = 0, 1
    with halting(pair), Guest(pair.one, NAME) as one, Guest(pair.two, NAME):
        one.start("--disk-load 20 --no-network")
        one.wait_line(r"tick [0-9]* at [0-9.]*, [1-9][0-9]* writes")
        disk = pair.one.out(f"virsh -q vol-path {NAME}.raw --pool mint").strip()
        for step, victim in itertools.islice(itertools.cycle(ALL), count):
            this = (SwitchOver if step.is_switch else Round)(pair, where, disk, step, victim)
            try:
                where = this.carry_out()
            except BaseException as error:
                error.add_note(f"after {hits} hits of {count}: {this}")
                raise
            hits += 1
        assert "load FAIL" not in Guest(pair.node(where), NAME).log()
    print(f"{hits} hits of {count} kills that were planned")
    assert hits == count
