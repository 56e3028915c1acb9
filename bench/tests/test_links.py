# SPDX-License-Identifier: Apache-2.0
"""Two machines that are linked: their nodes and guests reach each other, and guests move between them."""

import contextlib
import json
import re

import pytest

from rig.echo import address, echoes, wait_echoes
from rig.guest import Guest
from rig.linked import wait_up
from rig.mintctl import FAILED, REFUSED, MintctlError
from rig.server import Server
from rig.two import TwoMachines

RECORDS = "/var/lib/mint/guests"  # what mint-guestd writes down of migrations that are not over
LIMIT_S = 300  # of a migration over the wire
SAME_MIB = 48  # of a guest's memory, which are the same again and again


def running(server: Server) -> list[str]:
    """Guests that run on a machine's node 0, as its own libvirt has them."""
    return server.zero.out("virsh -q list --name").split()


def path_of(server: Server, name: str) -> str:
    """Where its disk is."""
    return server.zero.out(f"virsh -q vol-path {name}.raw --pool mint").strip()


@pytest.mark.soak
@pytest.mark.soak_only
def test_guest_moves_to_another_machine_with_its_disk_and_its_connection(linked: TwoMachines):
    """By mintctl from a to b, and by plain virsh back: it writes and compares its disk, and talks by TCP with a guest
    that stays on b. One connection all the time, the same address."""
    a, b = linked.a, linked.b
    with contextlib.ExitStack() as ends:
        for server in linked.servers:
            for name in ("mover", "speaker"):
                ends.enter_context(Guest(server.zero, name))
        speaker = Guest(b.zero, "speaker").start("--no-disk")
        there = address(speaker)
        here = Guest(a.zero, "mover").start(f"--disk-load 20 --net-echo {there}")
        own = address(here)
        assert own != there
        wait_echoes(here)
        # larger than a packet of the wire
        shown, status = here.shell(f"ping -c 2 -s 4000 {there}")
        assert status == 0, shown
        listed = {vm["name"]: vm["node_name"] for vm in a.mintctl("vm", "list")["vms"]}
        assert listed == {"mover": "node0", "speaker": "b/node0"}
        path = path_of(a, "mover")
        plan = a.mintctl("vm", "migrate", "mover", "--to", "b/node0", "--dry-run")
        assert plan["to_name"] == "b/node0" and [disk["path"] for disk in plan["disks"]] == [path]
        before = echoes(here)[0]
        done = a.mintctl("vm", "migrate", "mover", "--to", "b/node0", limit_s=LIMIT_S)
        assert done["took"]["total_ms"] > done["took"]["downtime_ms"] > 0, done
        assert running(a) == [] and sorted(running(b)) == ["mover", "speaker"]
        assert a.zero.run(f"test -e {path}", check=False).status == 1, "the old copy of its disk is left"
        for server in linked.servers:
            assert server.zero.run(f"ls {RECORDS}/*.json", check=False).status != 0
        assert a.mintctl("vm", "show", "mover")["node_name"] == "b/node0"
        mover = Guest(b.zero, "mover")
        assert wait_echoes(mover)[0] > before
        shown, _ = mover.shell("ip -4 address show dev eth0")
        assert f"inet {own}/16" in shown, shown
        # the same with what libvirt has
        b.zero.run(
            "virsh migrate --live --p2p --persistent --undefinesource --copy-storage-all --tls mover"
            f" qemu+tls://{a.address(0)}/system",
            LIMIT_S,
        )
        assert running(a) == ["mover"] and running(b) == ["speaker"]
        before = echoes(here)[0]
        gap = wait_echoes(here)[1]
        assert echoes(here)[0] > before and "load FAIL" not in here.log() + mover.log()
        b.zero.run(f"virsh -q vol-delete {path}")
        print(f"over the wire: {done['took']}; longest time of a reply: {gap} s")


@pytest.mark.soak
@pytest.mark.soak_only
def test_guest_of_a_linked_machine_is_seen_started_and_called_back(linked: TwoMachines):
    """From a: a guest that is defined on b is started, and comes to a by a's word, compressed."""
    a, b = linked.a, linked.b
    with Guest(b.zero, "far") as far, Guest(a.zero, "far") as near:
        far.start("--no-start --no-disk --no-network")
        assert a.mintctl("vm", "start", "far")["state"] == "running"
        assert running(b) == ["far"]
        far.wait_ticks(2)
        # more than may be sent, if it is compressed
        shown, status = far.shell(f"yes mint | head -c 1048576 >/tmp/once; for i in $(seq {SAME_MIB}); do cat /tmp/once; done >/tmp/same")
        assert status == 0, shown
        ticks = far.ticks()
        done = a.mintctl("vm", "migrate", "far", "--to", "node0", "--compress", limit_s=LIMIT_S)
        assert running(a) == ["far"] and running(b) == [], done
        assert 0 < done["took"]["memory_sent_bytes"] < SAME_MIB << 20, done
        near.wait_ticks(2)
        assert near.counter()[0][0] > ticks and "mint-guest: up" not in near.log()
        with pytest.raises(MintctlError) as caught:
            a.mintctl("vm", "migrate", "far", "--to", "b/node7")
        assert (caught.value.status, caught.value.codes) == (REFUSED, {"plan_refused", "node_absent"})
        # guests, and nothing else of b
        with pytest.raises(MintctlError) as caught:
            a.mintctl("node", "kill", "b/node0")
        assert caught.value.status == REFUSED and b.machine.alive()


@pytest.mark.soak
@pytest.mark.soak_only
def test_guest_stays_when_the_wire_is_cut_amid_its_move(linked: TwoMachines):
    """It runs on a all the time; its move is cancelled meanwhile, and ends when the wire is whole again. Then nothing of
    it is left on b, and it can go."""
    a, b = linked.a, linked.b
    with Guest(a.zero, "torn") as here, Guest(b.zero, "torn") as there:
        here.start("--disk-load 20 --no-network")
        here.shell("dd if=/dev/urandom of=/dev/vda bs=1M seek=2 count=24 2>/dev/null; sync")
        path = path_of(a, "torn")
        job = a.zero.start("mintctl vm migrate torn --to b/node0 --bandwidth 1M --json", LIMIT_S)
        a.zero.wait("the copy of its disk", "virsh domjobinfo torn | grep -q 'File remaining: *[1-9]'")
        assert b.zero.run(f"test -e {path} && ls {RECORDS}/*.arrival.json").status == 0
        with linked.wire_cut():
            wait_up(a, "b", is_up=False)
            listed = a.zero.run("mintctl vm list --json", check=False)
            assert listed.status == FAILED, listed
            assert [silent["name"] for silent in json.loads(listed.out)["silent"]] == ["machine b"]
            # what is on the wire holds it up until that is whole, or TCP gives up
            abort = a.zero.start("virsh domjobabort torn", LIMIT_S)
            here.wait_ticks(2)
        result = job.wait()
        assert abort.wait().status == 0, abort.result
        assert result.status == FAILED and re.search(r"it stays on node0 \(running\)", result.err), result
        assert running(a) == ["torn"]
        wait_up(a, "b")
        for server in linked.servers:
            server.zero.wait("nothing left to settle", f"! ls {RECORDS}/*.json >/dev/null 2>&1", 240)
        assert running(b) == [] and b.zero.run(f"test -e {path}", check=False).status == 1
        here.wait_ticks(2)
        a.mintctl("vm", "migrate", "torn", "--to", "b/node0", limit_s=LIMIT_S)
        there.wait_ticks(2)
        assert running(b) == ["torn"] and "load FAIL" not in there.log()
