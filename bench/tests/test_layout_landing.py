# SPDX-License-Identifier: Apache-2.0
"""A guest's place on the NUMA nodes of its next node is fixed before it comes there."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from rig.guest import Guest
from rig.node import Node
from rig.numa import MEMFD, PAGE, Filler, Numa, define_with_memfd, free_mib
from rig.server import Server
from rig.wait import wait_until

MIB = 1 << 20
MEMORY = 192 * MIB
PLAIN = f"--memory {MEMORY // MIB}M --no-start --no-network --no-disk"
BUSY = f"{PLAIN} --memory-load {80 << 10}"
FREE_MIB = 320  # of the NUMA node that the guest is to come to: more than it and its QEMU need
STEP_MIB = 16
LEAST = 16 * MIB  # that makes room
GAIN = 0.08  # of a plan: one that gains hardly 0.05 may be none a moment later
LIMIT_S = 300
MEASURED_MIB = 4  # of each NUMA node: the emulator is slow
FEW = 0.01  # what has a page here and there only may pass for unused, and is elsewhere
HOOK = "/etc/libvirt/hooks/qemu.d/zz-refuses"


def start(guest: Guest, options: str, cpu: int | None = None, whole: bool = False) -> None:
    """It runs, its memory a memfd of its QEMU's, if it is to be with all of its pages from the beginning; its owner keeps
    it to a CPU, or to none."""
    node, name = guest.node, guest.name
    define_with_memfd(guest, options)
    if whole:
        edit = """sed 's|</memoryBacking>|<allocation mode="immediate"/></memoryBacking>|'"""
        node.run(f"virsh dumpxml --inactive {name} | {edit} >/tmp/whole.xml && virsh -q define /tmp/whole.xml")
    if cpu is not None:
        node.run(f"virsh -q vcpupin {name} 0 {cpu} --config")
    else:
        node.run(f"virsh dumpxml --inactive {name} | sed '/<vcpupin/d' >/tmp/free.xml && virsh -q define /tmp/free.xml")
    node.run(f"virsh -q start {name}", LIMIT_S)
    guest.wait_line("mint-guest: up")


@pytest.fixture
def resident(pair: Server) -> Iterator[Guest]:
    """A guest on node 0 that hardly does anything; all of its memory is on the first NUMA node."""
    numa = Numa(pair.zero)
    with Guest(pair.zero, "resident") as guest:
        start(guest, PLAIN, cpu=1, whole=True)
        numa.move(guest.qemu(), MEMFD, 0, MEMORY, 0)
        yield guest


@contextmanager
def refused(node: Node, name: str) -> Iterator[None]:
    """libvirt starts no guest of that name there."""
    script = f"#!/bin/sh\ncat >/dev/null\n[ $1-$2 != {name}-started ]\n"
    node.run(f"mkdir -p $(dirname {HOOK}) && cat >{HOOK} && chmod 755 {HOOK}", stdin=script.encode())
    try:
        yield
    finally:
        node.run(f"rm -f {HOOK}")


def allowed(guest: Guest) -> str:
    """CPUs that its vCPU may run on, by the kernel's word."""
    return guest.node.out(f"sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' {vcpu_of(guest)}/status")


def vcpu_of(guest: Guest) -> str:
    """The folder of its vCPU's thread."""
    return guest.node.out(f"dirname $(grep -l 'CPU 0/KVM' /proc/{guest.qemu()}/task/*/comm)")


def off(numa: Numa, guest: Guest, before: Iterable[int], node: int) -> float:
    """The part of its pages, by their offsets, that are not on a NUMA node."""
    pages = numa.pages(guest.qemu(), MEMFD)
    offsets = list(before)
    return sum(pages.get(offset) != node for offset in offsets) / len(offsets)


def planned(pair: Server) -> dict[str, float]:
    """What node 0 has of a place for web."""
    return pair.mintctl("vm", "migrate", "web", "--to", "node0", "--layout", "before", "--dry-run")["layout"]


def by_plan(result: dict) -> Counter[int]:
    """Bytes of a guest that each NUMA node was to have."""
    (line,) = [line for line in result["changes"] if line.startswith("memory: ")]
    found = re.findall(r"(\d+)([KM]) on numa(\d)", line)
    return Counter({int(node): int(size) * {"K": 1 << 10, "M": MIB}[unit] for size, unit, node in found})


def where(numa: Numa, guest: Guest) -> Counter[int]:
    """Bytes of a guest on each NUMA node."""
    return Counter({node: pages * PAGE for node, pages in Counter(numa.pages(guest.qemu(), MEMFD).values()).items()})


def test_guest_finds_its_place_ready_when_it_comes_and_what_made_room_goes_back_when_it_does_not(pair: Server, resident: Guest):
    """L, case 1-1: its memory is near the CPU that its owner keeps it to, for which another guest's makes room; and that
    goes on. Before, libvirt does not start it there: it stays where it was, and nothing is kept for it."""
    there, one = Numa(pair.zero), Numa(pair.one)
    with Guest(pair.one, "web") as web, Filler(pair.zero, 0) as filler:
        start(web, BUSY, cpu=0)
        web.compares()
        plan = planned(pair)
        assert not plan["to_evict_bytes"] and not plan["expected_gain"], f"there is room, and nothing is gained: {plan}"
        filler.add(free_mib(pair.zero, 0) - FREE_MIB)
        while (plan := planned(pair))["to_evict_bytes"] < LEAST or plan["expected_gain"] < GAIN:
            assert free_mib(pair.zero, 0) > STEP_MIB, plan
            filler.add(STEP_MIB)
        assert where(there, resident).keys() == {0}, "it is only a plan"
        with refused(pair.zero, "web"):
            failed = pair.zero.run("mintctl vm migrate web --to node0 --layout before", LIMIT_S, check=False)
        assert failed.status == 1, failed
        # that it went at all is told by who moved it
        assert "to=numa1" in pair.zero.out("grep 'makes room' /var/log/mint/mint-guestd.log")
        wait_until("it is back", lambda: where(there, resident).keys() == {0}, LIMIT_S)
        web.compares()
        before = one.pages(web.qemu(), MEMFD)
        done = pair.mintctl("vm", "migrate", "web", "--to", "node0", "--layout", "before")
        with Guest(pair.zero, "web") as landed:
            assert where(there, landed) == by_plan(done), done
            assert len(before) * PAGE > 80 * MIB and off(there, landed, before, 0) < FEW, done
            took = done["layout"]["took"]
            assert took["elsewhere_bytes"] == 0 and took["placed_bytes"] == MEMORY, done
            assert where(there, resident)[1] >= LEAST, where(there, resident)
            assert allowed(landed) == "0"
            reason = pair.mintctl("layout", "explain", "web")["reason"]
            assert reason["before_it_came"] and reason["rank"] == 1 and reason["evicted_bytes"] >= LEAST, reason
            landed.compares()
            resident.wait_ticks()


def test_guests_are_arranged_anew_and_as_they_were(pair: Server):
    """A guest that may run anywhere goes to the CPU that its memory is near to; the memory of one whose owner keeps it to
    a CPU comes to that. Both go back."""
    zero = pair.zero
    numa = Numa(zero)
    with Guest(zero, "astray") as guest:
        start(guest, BUSY)
        guest.compares()
        numa.move(guest.qemu(), MEMFD, 0, MEMORY, 1)
        # kept there by nobody whom libvirt knows
        zero.run(f"taskset -cp 1 $(basename {vcpu_of(guest)})")
        wait_until("it is measured", lambda: pair.mintctl("layout", "plan")["vms"], LIMIT_S)
        assert allowed(guest) == "1", "it is only a plan"
        done = pair.mintctl("layout", "apply")
        assert [vm["name"] for vm in done["vms"]] == ["astray"] and done["expected_gain"] > 0.05, done
        assert allowed(guest) == "5", done
        (shown,) = pair.mintctl("layout", "show")["vms"]
        assert shown["vcpus"][0]["kept_by"] == "layout", shown
        # but for what it has touched since then
        assert pair.mintctl("layout", "explain", "astray")["reason"]["near_bytes_before"] <= FEW * MEMORY
        done = pair.mintctl("layout", "undo")
        assert allowed(guest) == "1", done
        refused = zero.run("mintctl layout undo", check=False)
        assert refused.status == 3, refused

        # not to the CPU that undo gave it: a pin to that is a layout's
        zero.run("virsh -q vcpupin astray 0 0")
        # what it has touched meanwhile is near already
        numa.move(guest.qemu(), MEMFD, 0, MEMORY, 1)
        before = numa.pages(guest.qemu(), MEMFD)
        done = {}

        def goes() -> bool:
            """A guest that was changed is left alone for ten seconds."""
            done.update(pair.mintctl("layout", "apply"))
            return any(vm["memory"] and "left_alone" not in vm for vm in done["vms"])

        wait_until("its memory goes", goes, LIMIT_S)
        assert len(before) * PAGE > 80 * MIB and off(numa, guest, before, 0) < FEW, done
        assert allowed(guest) == "0", "its owner's"
        (shown,) = pair.mintctl("layout", "show")["vms"]
        assert shown["vcpus"][0]["kept_by"] == "owner" and shown["near_bytes"] > 80 * MIB, shown
        guest.compares()
        pair.mintctl("layout", "undo")
        assert off(numa, guest, before, 1) < FEW
        guest.compares()


def test_plain_virsh_migrate_gets_a_place(pair: Server):
    """Without mintctl's plan: libvirt's hook on node 0 asks for a place, which keeps a guest's vCPU that nobody has pinned
    near to where its memory comes."""
    with Guest(pair.one, "plain") as here, Guest(pair.zero, "plain") as landed:
        # libvirt waits for ever for one that writes faster than its memory goes
        start(here, f"{PLAIN} --memory-load 128")
        here.compares()
        going = pair.one.start(
            "virsh migrate --live --p2p --tls --undefinesource --persistent --bandwidth 4 plain qemu+tls://node0/system", LIMIT_S
        )
        # as long as libvirt says that it comes, it is not taken to be there
        comes = "grep -q \"async='migration in'\" /run/libvirt/qemu/plain.xml"
        wait_until("it comes", lambda: not pair.zero.run(comes, check=False).status, LIMIT_S)
        places = json.loads(pair.zero.read("/run/mint/layout-places.json"))
        assert [place["has_come"] for place in places.values()] == [False], places
        assert going.wait().status == 0, going.result

        def reason() -> dict:
            """Once it was brought there."""
            return pair.mintctl("layout", "explain", "plain").get("reason") or {}

        wait_until("it is at its place", reason, LIMIT_S)
        assert reason()["before_it_came"] and reason()["policy"] == "simple", reason()
        (shown,) = [vm for vm in pair.mintctl("layout", "show")["vms"] if vm["name"] == "plain"]
        assert shown["vcpus"][0]["kept_by"] == "layout", shown
        assert shown["near_bytes"] > 80 * MIB, shown
        landed.compares()


def test_memory_of_numa_nodes_is_measured_and_forgotten(pair: Server):
    """By CPUs of both NUMA nodes of node 0, on pages that are there; until then, and after it, plans go by the kernel's
    table. How far memory is here says nothing: the emulator's is as fast everywhere."""
    by_kernel = [one["distances"] for one in pair.mintctl("layout", "show")["numa"]]
    try:
        measured = pair.mintctl("layout", "measure", "--mib", str(MEASURED_MIB))["measured"]
        pairs = [(one["cpus_of"], one["memory_of"]) for one in measured["pairs"]]
        assert pairs == [(0, 0), (0, 1), (1, 0), (1, 1)], measured
        for one in measured["pairs"]:
            assert one["latency_ns"] > 0 and one["read_mb_s"] > 0, measured
            assert one["buffer_bytes"] == MEASURED_MIB * MIB, measured
        shown = pair.mintctl("layout", "show")
        assert shown["measured"] == measured, shown
        assert [min(one["distances"]) for one in shown["numa"]] == [10, 10], shown
        assert "distances: measured 2" in pair.zero.out("mintctl layout show")
    finally:
        forgotten = pair.mintctl("layout", "measure", "--forget")
    assert "measured" not in forgotten, forgotten
    shown = pair.mintctl("layout", "show")
    assert "measured" not in shown and [one["distances"] for one in shown["numa"]] == by_kernel, shown
    assert "distances: the kernel's table" in pair.zero.out("mintctl layout show")
