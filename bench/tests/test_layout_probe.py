# SPDX-License-Identifier: Apache-2.0
"""What a layout stands on: memory of a guest is bound to NUMA nodes by range from outside of its QEMU, before it is
there, and relocated when it is; and the rig's modelled counters tell what guests do. Node 0 has memory of two NUMA
nodes."""

import json
import re
import shlex

import pytest

from rig import paths
from rig.guest import Guest
from rig.machine import MachineConfig
from rig.node import Node
from rig.numa import MEMFD, Numa, Stripes, define_with_memfd
from rig.server import Server
from rig.wait import wait_until

MIB = 1 << 20
MEMORY, STRIPE = 160 * MIB, 16 * MIB
LEAST = 8 * MIB  # of pages that come, on each NUMA node
LOAD = f"--memory {MEMORY // MIB}M --no-start --no-network --no-disk --memory-load {48 << 10}"
LIMIT_S = 300
# of a guest's memory in /proc/PID/maps
FILE = "/run/mint/ram/"
TURNS = 50_000_000
# A modelled cache, and lines of which a few fit into it, and many do not
CACHE_BYTES, FEW, MANY = 256 << 10, 1024, 16384
READS, STEP = 400_000, 5  # instructions for each
SPEED = 3  # so often counters count each
CPU = 1  # of NUMA node 0
MISSES, SAMPLES = 1000, 3  # of a second in which it does something; so many of these
HOOK = "/etc/libvirt/hooks/qemu.d/zz-layout-probe"


@pytest.mark.soak
@pytest.mark.soak_only
@pytest.mark.parametrize("backing", ["memfd", "file"])
def test_pages_of_a_guest_come_to_the_numa_node_that_their_range_is_bound_to(pair: Server, backing: str):
    """mbind of its memory's file, by another process. What it had before goes there by move_pages(2)."""
    numa, stripes = Numa(pair.zero), Stripes(MEMORY, STRIPE)
    with Guest(pair.zero, "probe") as guest:
        if backing == "memfd":
            name = MEMFD
            define_with_memfd(guest, LOAD)
        else:
            name = FILE
            pair.zero.run(f"mint-guest {guest.name} {LOAD}", LIMIT_S)
            pair.mintctl("vm", "prepare", "probe")
        pair.zero.run("virsh -q start probe", LIMIT_S)
        pid = guest.qemu()
        pair.zero.run(stripes.command(str(pid), name))
        before = numa.pages(pid, name)
        guest.wait_line("mint-guest: up")
        guest.compares()
        after = numa.pages(pid, name)
        came = {offset: where for offset, where in after.items() if offset not in before}
        stripes.check(came, LEAST)
        for start in range(0, MEMORY, STRIPE):
            numa.move(pid, name, start, STRIPE, 1 - stripes.numa(start))
        moved = numa.pages(pid, name)
        gone = {offset: 1 - where for offset, where in moved.items() if offset in after}
        stripes.check(gone, LEAST)
        guest.compares(2)


@pytest.mark.soak
@pytest.mark.soak_only
def test_incoming_migration_fills_the_numa_nodes_that_ranges_are_bound_to(pair: Server):
    """All of its pages, as libvirt's hook binds its memory once its QEMU is there."""
    numa, stripes = Numa(pair.zero), Stripes(MEMORY, STRIPE)
    lines = stripes.command('"$pid"', MEMFD)
    script = f"#!/bin/sh\ncat >/dev/null\n[ $1-$2 = probe-started ] || exit 0\npid=$(pgrep -f guest=probe,) || exit 1\n{lines}\n"
    there = Guest(pair.zero, "probe")
    with Guest(pair.one, "probe") as guest:
        define_with_memfd(guest, LOAD)
        pair.one.run("virsh -q start probe", LIMIT_S)
        guest.wait_line("mint-guest: up")
        guest.compares()
        pair.zero.run(f"mkdir -p $(dirname {HOOK}) && printf %s {shlex.quote(script)} >{HOOK} && chmod 755 {HOOK}")
        try:
            pair.mintctl("vm", "migrate", "probe", "--to", "node0")
        finally:
            pair.zero.run(f"rm -f {HOOK}")
        with there:
            stripes.check(numa.pages(there.qemu(), MEMFD), LEAST)
            there.compares()


@pytest.fixture(scope="module")
def zero(modules_machine) -> Node:
    """Node 0 of a machine with modelled counters and caches."""
    return modules_machine(MachineConfig("pmu", pmu=True, pmu_speed=SPEED, cache_bytes=CACHE_BYTES)).zero


def test_modelled_counters_tell_a_guests_instructions_from_the_hosts(zero: Node):
    """By perf_event_open(2) on node 0: a known loop, on a CPU and in a KVM guest, counted within 2 % where it is to be
    counted, and hardly where it is not."""
    assert "AMD PMU driver" in zero.out("dmesg")
    program = "/tmp/turns"
    zero.run(f"cat >{program} && chmod 755 {program}", stdin=paths.need(paths.TURNS).read_bytes())
    said = zero.out(f"{program} {TURNS}")
    print(said)
    counts = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", said)}
    known = 2 * TURNS * SPEED
    for what in ("host", "guest"):
        assert abs(counts[what] - known) <= 0.02 * known, said
    assert counts["host_guest"] == 0, said
    assert counts["guest_host"] < 0.02 * known, said


def test_modelled_caches_tell_what_a_guest_misses_and_where(zero: Node):
    """By perf_event_open(2) on node 0, of the events that mint-guestd counts there: a KVM guest's lines come from memory
    once if they fit into the cache, each time if they do not, and from the NUMA node that has them."""
    program = "/tmp/misses"
    zero.run(f"cat >{program} && chmod 755 {program}", stdin=paths.need(paths.MISSES).read_bytes())
    for numa, there, elsewhere in ((0, "near", "far"), (1, "far", "near")):
        for lines, expected in ((FEW, FEW), (MANY, READS)):
            said = zero.out(f"{program} {CPU} {numa} {lines} {READS}", LIMIT_S)
            print(numa, lines, said)
            counts = {key: int(value) / SPEED for key, value in re.findall(r"(\w+)=(\d+)", said)}
            assert abs(counts["instructions"] - STEP * READS) <= 0.02 * STEP * READS, said
            assert abs(counts[there] - expected) <= 0.05 * expected, said
            assert counts[elsewhere] <= 0.05 * expected, said


def test_daemon_counts_what_a_guest_misses_and_from_which_numa_node_that_comes(zero: Node):
    """Each second, by the same events: its memory is on the other NUMA node than its vCPU, and a policy knows what it
    counts."""
    numa = Numa(zero)
    with Guest(zero, "counted") as guest:
        define_with_memfd(guest, LOAD)
        zero.run(f"virsh -q vcpupin counted 0 {CPU} --config && virsh -q start counted", LIMIT_S)
        guest.wait_line("mint-guest: up")
        numa.move(guest.qemu(), MEMFD, 0, MEMORY, 1)
        # what it is given by then comes to its CPU's NUMA node
        guest.compares(2)
        numa.move(guest.qemu(), MEMFD, 0, MEMORY, 1)

        def samples() -> list[dict[str, int]]:
            vcpu = json.loads(zero.out("mintctl --json layout counters counted"))[0]
            return [sample for sample in vcpu["samples"] if sample.get("misses", 0) >= MISSES]

        before = len(samples())
        print("at once:", before)
        wait_until("it is counted for some seconds", lambda: len(samples()) >= SAMPLES, LIMIT_S)
        wait_until(
            "all of it comes from the other NUMA node",
            lambda: all(one["fills"][1] >= 0.95 * one["misses"] for one in samples()[-SAMPLES:]),
            LIMIT_S,
        )
        for sample in samples()[-SAMPLES:]:
            assert sum(sample["fills"]) == sample["misses"], sample
            assert sample["instructions"] > sample["misses"], sample
        plan = json.loads(zero.out("mintctl --json layout plan"))
        (change,) = plan["vms"]
        assert change["name"] == "counted" and not change["is_guessed"], plan
        assert [(one["from"], one["to"]) for one in change["memory"]] == [(1, 0)], plan
        said = zero.out("grep 'what vCPUs do is counted' /var/log/mint/mint-guestd.log")
        assert "AMD family 17h" in said, said
