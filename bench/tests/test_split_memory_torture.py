# SPDX-License-Identifier: Apache-2.0
"""Pages of a process go to another node and come back, by the real pager and memory server, which die meanwhile."""

import random
import time

import pytest

from rig.errors import RigError
from rig.server import Server
from rig.torture import FAULT, Torture, torture
from rig.wait import SLOWNESS

PAGER = ("pager-take", "pager-taken", "pager-fill", "pager-filled", "pager-drop", "pager-heard", "pager-say")
STORE = ("store-heard", "store-kept", "store-given", "store-dropped", "store-listed", "store-mirrors", "store-mirrored")
STORE_FAULT = "/run/mint/fault-store"
PAGES, MAIN_PAGES = 1024, 256
LIMIT_S = 120


def kill_at(server: Server, running: Torture, step: str) -> None:
    """Who comes to that step next dies there; waits until it has, and another one talks."""
    node, file = (server.two, STORE_FAULT) if step.startswith("store") else (server.one, FAULT)
    node.run(f"echo {step} >{file}")
    if step == "store-listed":
        # said at the beginning of a connection alone
        server.one.run("pkill -9 -x mint-pager")
    node.wait(f"somebody dies at {step}", f"[ ! -e {file} ]", LIMIT_S)
    talks(running)


def talks(running: Torture) -> dict:
    """Waits until its pager has a connection, and pages come; gives what it says."""
    end, before = time.monotonic() + LIMIT_S * SLOWNESS, None
    while time.monotonic() < end:
        view = running.view()
        if view and view["servers"][0]["is_connected"]:
            if before is not None and view["page_ins"] > before:
                assert view["lost_pages"] == 0, view
                return view
            before = view["page_ins"]
        time.sleep(0.3)
    raise RigError(f"no page comes any more: {running.view()}")


@pytest.mark.soak
def test_no_page_is_lost_stale_or_twice_while_pager_and_memory_server_die(pair: Server, request: pytest.FixtureRequest):
    """--page-kills kills, at each step of both at least once; then the memory server's mirror takes its place, and
    --page-moves pages go and come. Threads compare what they wrote, and what disks read into."""
    moves, kills = request.config.getoption("--page-moves"), request.config.getoption("--page-kills")
    seed = request.config.getoption("--seed")
    choose = random.Random(seed)
    steps = [*PAGER, *STORE]
    steps += choose.choices(steps, k=max(0, kills - len(steps)))
    choose.shuffle(steps)
    pair.two.run(f"rm -f {STORE_FAULT}; MINT_FAULT={STORE_FAULT} mint-service restart mint-store")
    pair.two.wait("its memory server answers", "[ -S /run/mint/store.sock ]", 60)
    try:
        with torture(pair, (1, 2, 0), PAGES, MAIN_PAGES, f"threads=2 reads=1 seed={seed}") as running:
            talks(running)
            for step in steps:
                kill_at(pair, running, step)
            running.take_over()
            begin, end = talks(running), time.monotonic() + moves / 100 * SLOWNESS
            count = begin["page_ins"] + begin["page_outs"] + moves
            while (view := running.view()) and view["page_ins"] + view["page_outs"] < count:
                assert time.monotonic() < end, view
                assert view["local_pages"] + view["leaving_pages"] + view["coming_pages"] <= MAIN_PAGES + 16, view
                time.sleep(1)
            done = running.end()
            print(f"kills {len(steps)}, {view}, {done}")
    finally:
        pair.two.run("mint-service restart mint-store")
    assert view, "its pager has died without being asked to"
    assert done["wrong"] == 0
    assert min(done["writes"], done["looks"], done["reads"]) > 0, done
