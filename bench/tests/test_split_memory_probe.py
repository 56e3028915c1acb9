# SPDX-License-Identifier: Apache-2.0
"""What split memory stands on (bench/micro/paging.c): pages of a guest's memory go and come under a node's kernel while
threads, vCPUs and disks write to them."""

import re

import pytest

from rig import paths
from rig.node import Node
from rig.server import Server
from rig.wait import SLOWNESS

PROGRAM, FILE = "/tmp/paging", "/var/lib/mint/paging"
STALL_S = 60 * SLOWNESS
LEAST = 100 // SLOWNESS  # of what is done and what is hit
LOSES_S, TRIES = 5, 12  # until a read is lost


def paging(node: Node, seconds: int, words: str) -> dict[str, int]:
    """What it has counted."""
    node.run(f"cat >{PROGRAM} && chmod +x {PROGRAM}", stdin=paths.need(paths.PAGING).read_bytes())
    try:
        said = node.out(f"{PROGRAM} seconds={seconds} stall_s={STALL_S} {words}", seconds + 120)
    finally:
        node.run(f"rm -f {PROGRAM} {FILE}")
    print(said)
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", said)}


@pytest.mark.soak
def test_pages_go_and_come_under_vcpus_and_threads_and_no_write_is_lost(pair: Server, request: pytest.FixtureRequest):
    """--paging-s seconds, on node 1: a vCPU and a thread compare what they find in each page with what they wrote last."""
    seconds, seed = request.config.getoption("--paging-s"), request.config.getoption("--seed")
    done = paging(pair.one, seconds, f"threads=1 vcpus=1 pages=64 resident=32 seed={seed}")
    assert all(done[what] > LEAST for what in ("outs", "ins", "writes", "vcpu_writes")), done
    assert done["lost"] == 0, done


def test_page_that_a_disk_reads_into_is_not_safe_from_going_by_splice(pair: Server):
    """Why page-out must look for pages that are pinned: the same loses what a read past the page cache brings."""
    for _ in range(TRIES):
        done = paging(pair.one, LOSES_S, f"threads=0 reads=2 pages=4 resident=1 file={FILE}")
        if done["reads_lost"]:
            return
    pytest.fail(f"no read was lost: {done}")
