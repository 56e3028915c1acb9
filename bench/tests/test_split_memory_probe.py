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


def test_kernel_selftest_of_guest_memory_passes_on_a_node(pair: Server):
    """Of the series' own: none of it is skipped."""
    program = paths.need(paths.KERNELS / "mint" / "selftests" / "mint-memory")
    pair.one.run(f"cat >{PROGRAM} && chmod +x {PROGRAM}", stdin=program.read_bytes())
    try:
        said = pair.one.out(f"{PROGRAM} 2>&1", 120 * SLOWNESS)
    finally:
        pair.one.run(f"rm -f {PROGRAM}")
    print(said)
    passed = re.search(r"^# Totals: pass:(\d+) fail:0 xfail:0 xpass:0 skip:0 error:0$", said, re.MULTILINE)
    assert passed and int(passed[1]) == said.count("#  RUN "), said


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


def test_page_that_a_disk_reads_into_stays_where_the_kernel_takes_pages(pair: Server, request: pytest.FixtureRequest):
    """--paging-s seconds of that, by /dev/mint-memory, beside a vCPU and a thread that write: nothing is lost."""
    seconds, seed = request.config.getoption("--paging-s"), request.config.getoption("--seed")
    words = f"take=1 threads=1 vcpus=1 reads=2 pages=8 resident=2 seed={seed} file={FILE}"
    done = paging(pair.one, seconds, words)
    assert all(done[what] > LEAST for what in ("outs", "ins", "writes", "vcpu_writes", "reads")), done
    assert done["stayed"] > 0, "no read was hit"
    assert done["lost"] == 0 and done["reads_lost"] == 0, done
