# SPDX-License-Identifier: Apache-2.0
"""Guests of all nodes, from any of them: mint-guestd, mintctl vm."""

import json
import re
import shlex
import time

import pytest

from rig.guest import ESCAPE, Guest, counted_writes, read_until
from rig.mintctl import FAILED, REFUSED, Mintctl, MintctlError
from rig.node import Node
from rig.server import Server
from rig.wait import SLOWNESS

NUMBERS = (0, 1, 2)
OTHER = (
    "<domain type='kvm'><name>tied</name><memory unit='MiB'>64</memory>"
    "<os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"
)
RECORDS = "/var/lib/mint/guests"  # what mint-guestd writes down of migrations that are not over


@pytest.fixture(autouse=True)
def libvirt_answers(pair: Server) -> None:
    """On all nodes: one that was started anew by an earlier test may be without it yet."""
    for number in NUMBERS:
        pair.wait_ready(pair.node(number))


def known(node: Node) -> dict[str, str]:
    """Guests of a node and their states, as its own libvirt has them."""
    names = node.out("virsh -q list --all --name").split()
    return {name: node.out(f"virsh domstate {name}").strip() for name in names}


def listed(mintctl: Mintctl, *words: object) -> dict[int, dict[str, str]]:
    """The same of all nodes, as mintctl lists them."""
    found: dict[int, dict[str, str]] = {}
    for vm in mintctl("vm", "list", *words)["vms"]:
        found.setdefault(vm["node"], {})[vm["name"]] = vm["state"]
    return found


def running_on(server: Server, name: str) -> list[int]:
    """Nodes whose libvirt runs a guest of that name."""
    return [number for number in NUMBERS if known(server.node(number)).get(name) == "running"]


def domain_cpus(node: Node, name: str) -> list[str]:
    """CPUs that a guest's vCPUs are pinned to, as its node's libvirt has them."""
    return re.findall(r"<vcpupin vcpu='\d+' cpuset='([^']*)'", node.out(f"virsh dumpxml {name}"))


@pytest.mark.parametrize("number", NUMBERS)
def test_guests_of_all_nodes_are_listed_from_any_node(pair: Server, number: int):
    """mintctl vm list, on each node: what each node's own libvirt says; --node: that node's alone."""
    with Guest(pair.zero, "on-zero") as zero, Guest(pair.two, "on-two") as two:
        for guest in (zero, two):
            guest.start("--no-start --no-disk --no-network")
        mintctl = Mintctl(pair.node(number))
        truth = {other: guests for other in NUMBERS if (guests := known(pair.node(other)))}
        assert truth[0]["on-zero"] == truth[2]["on-two"] == "shut off"
        assert listed(mintctl) == truth
        assert listed(mintctl, "--node", "two") == {2: truth[2]}
        shown = mintctl("vm", "show", "on-two")
        assert (shown["node"], shown["uuid"]) == (2, pair.two.out("virsh domuuid on-two").strip())


def test_guest_of_another_node_is_started_and_ended(pair: Server):
    """vm start and vm destroy on node 0 of a guest that is defined on node 2."""
    with Guest(pair.two, "far") as guest:
        guest.start("--no-start --no-disk --no-network")
        assert pair.mintctl("vm", "start", "far")["state"] == "running"
        assert known(pair.two)["far"] == "running"
        guest.wait_ticks(1)
        with pytest.raises(MintctlError) as caught:
            pair.mintctl("vm", "start", "far")
        assert (caught.value.status, caught.value.code) == (FAILED, "failed"), caught.value
        assert pair.mintctl("vm", "destroy", "far")["state"] == "shut off"
        assert known(pair.two)["far"] == "shut off"
    with pytest.raises(MintctlError) as caught:
        pair.mintctl("vm", "start", "far")
    assert (caught.value.status, caught.value.codes) == (REFUSED, {"plan_refused", "vm_absent"}), caught.value


def test_node_whose_guestd_is_down_is_named_and_comes_back_after_a_kill(pair: Server):
    """Without node 1's mint-guestd its guests are not known, and are not said to be nowhere; after kill -9 it is back."""
    with pair.one.undone("mint-service stop mint-guestd", "mint-service start mint-guestd"):
        result = pair.zero.run("mintctl vm list --json", check=False)
        assert result.status == FAILED, result
        assert [node["node"] for node in json.loads(result.out)["silent"]] == [1]
        with pytest.raises(MintctlError) as caught:
            pair.mintctl("vm", "list", "--node", "one")
        assert caught.value.code == "guestd_down", caught.value
        with Guest(pair.two, "waits") as guest:
            guest.start("--no-disk --no-network")
            with pytest.raises(MintctlError) as caught:
                pair.mintctl("vm", "migrate", "waits", "--to", "one")
            assert (caught.value.status, caught.value.codes) == (REFUSED, {"plan_refused", "peer_unreachable"})
            assert running_on(pair, "waits") == [2]
    answers = "mintctl vm list --node one >/dev/null 2>&1"
    pair.zero.wait("node 1's mint-guestd", answers)
    before = pair.one.out("pidof mint-guestd").strip()
    pair.one.run("kill -9 $(pidof mint-guestd)")
    pair.one.wait("another mint-guestd", f'now=$(pidof mint-guestd) && [ "$now" != {before} ]')
    pair.zero.wait("its answer", answers)


@pytest.mark.soak
@pytest.mark.soak_only
def test_running_guest_moves_to_another_node_and_back(pair: Server):
    """vm migrate of a guest that writes and compares its disk, from node 1 to node 2 and back, asked for on node 0."""
    with Guest(pair.one, "mover") as here, Guest(pair.two, "mover") as there:
        here.start("--disk-load 20 --no-network")
        here.wait_line(r"tick [0-9]* at [0-9.]*, [1-9][0-9]* writes")
        uuid = pair.one.out("virsh domuuid mover").strip()
        path = pair.one.out("virsh -q vol-path mover.raw --pool mint").strip()
        plan = pair.mintctl("vm", "migrate", "mover", "--to", "two", "--dry-run")
        assert (plan["from"], plan["to"], plan["took"]) == (1, 2, None), plan
        assert [disk["path"] for disk in plan["disks"]] == [path]
        assert known(pair.one)["mover"] == "running" and "mover" not in known(pair.two)
        limits = ("--parallel", 2, "--downtime-ms", 500, "--bandwidth", "100M")
        for source, target, how in ((here, there, ()), (there, here, limits)):
            ticks, writes = source.ticks(), counted_writes(source.log())[-1]
            target.node.run(f"rm -f {target.log_path}")
            done = pair.mintctl("vm", "migrate", "mover", "--to", target.node.number, *how)
            assert done["took"]["total_ms"] > done["took"]["downtime_ms"] > 0 < done["took"]["disk_sent_bytes"], done
            assert known(target.node)["mover"] == "running" and "mover" not in known(source.node)
            told = json.loads(pair.zero.out("mintctl events --json | grep migrated | tail -n 1"))
            assert (told["node"], told["reason"]) == (target.node.number, "vm mover"), told
            assert target.node.out("virsh domuuid mover").strip() == uuid
            # defined there, with CPUs that are there
            assert "yes" in target.node.out("virsh dominfo mover | grep Persistent")
            online = target.node.out("nproc").strip()
            assert domain_cpus(target.node, "mover") and all(int(cpu) < int(online) for cpu in domain_cpus(target.node, "mover"))
            # the disk is there alone
            assert target.node.run(f"test -s {path}", check=False).status == 0
            assert source.node.run(f"test -e {path}", check=False).status == 1
            # the same guest counts, writes and compares on
            target.wait_ticks(3)
            log = target.log()
            assert target.counter()[0][0] > ticks and counted_writes(log)[-1] > writes, (ticks, writes, log[-2000:])
            assert "mint-guest: up" not in log and "load FAIL" not in log, log[-2000:]


def test_guest_that_cannot_go_stays_and_every_reason_is_told(pair: Server):
    """Refusals of vm migrate change nothing: here, name taken, no room, not running, a folder of its host."""
    with Guest(pair.one, "stay") as guest, Guest(pair.two, "stay") as other:
        guest.start("--no-disk --no-network --memory 600M")
        xml = pair.one.out("virsh dumpxml stay")

        def refused(to: str) -> set[str]:
            with pytest.raises(MintctlError) as caught:
                pair.mintctl("vm", "migrate", "stay", "--to", to)
            assert caught.value.status == REFUSED, caught.value
            assert known(pair.one)["stay"] == "running" and pair.one.out("virsh dumpxml stay") == xml
            return caught.value.codes - {"plan_refused"}

        assert refused("one") == {"vm_here"}
        assert refused("two") == {"memory_short"}
        other.start("--no-start --no-disk --no-network")
        assert refused("two") == {"memory_short", "vm_name_taken"}
        assert refused("nine") == {"node_absent"}
        pair.one.run("virsh destroy stay")
        with pytest.raises(MintctlError) as caught:
            pair.mintctl("vm", "migrate", "stay", "--to", "node0", "--node", "one")
        assert "vm_not_running" in caught.value.codes, caught.value


@pytest.mark.soak
@pytest.mark.soak_only
def test_guest_goes_on_there_before_its_memory_is(pair: Server):
    """vm migrate --post-copy-after of a guest whose memory would take half a minute: it runs on node 2 long before, and
    what it had written is as it was."""
    with Guest(pair.one, "early") as here, Guest(pair.two, "early") as there:
        here.start("--no-disk --no-network")
        shown, status = here.shell("dd if=/dev/urandom of=/tmp/fill bs=1M count=48 2>/dev/null; md5sum /tmp/fill", 120)
        before = re.findall(r"\b([0-9a-f]{32})  /tmp/fill", shown)[-1]
        pair.two.run(f"rm -f {there.log_path}")
        job = pair.zero.start("mintctl vm migrate early --to two --bandwidth 2M --post-copy-after 2", 240)
        pair.two.wait("the guest there", "virsh domstate early 2>/dev/null | grep -q running")
        result = job.wait()
        assert result.status == 0, result
        assert "it runs there, and fetches memory" in result.err, result
        assert running_on(pair, "early") == [2]
        assert re.search(r"vm early is on node 2: \d+ ms in all$", result.out.strip()), result
        shown, status = there.shell("md5sum /tmp/fill", 120)
        assert status == 0 and before in shown, shown


def operations(mintctl: Mintctl) -> list[dict]:
    """Operations that node 0's mintd keeps."""
    return mintctl("operation", "list")["operations"]


def test_migration_that_is_cancelled_leaves_the_guest_and_nothing_else(pair: Server):
    """mintctl operation cancel amid a slow migration: the guest runs on where it was; neither guest nor disk are on the
    other node, and it can go there later."""
    with Guest(pair.one, "slow") as here, Guest(pair.two, "slow") as there:
        here.start("--disk-load 20 --no-network")
        here.wait_line(r"tick [0-9]* at [0-9.]*, [1-9][0-9]* writes")
        # all of it is on the disk: at this rate it takes a minute
        here.shell("dd if=/dev/urandom of=/dev/vda bs=1M seek=2 count=56 2>/dev/null; sync")
        path = pair.one.out("virsh -q vol-path slow.raw --pool mint").strip()
        job = pair.zero.start("mintctl vm migrate slow --to two --bandwidth 1M --json")
        pair.one.wait("the migration", "virsh domjobinfo slow | grep -q 'Data remaining\\|File remaining'")
        assert there.node.run(f"test -e {path}", check=False).status == 0, "nothing was copied before the end"
        moves = [found for found in operations(pair.mintctl) if found["state"] == "running"]
        assert [(found["kind"], found["subject"]) for found in moves] == [("migrate", "slow")], moves
        pair.mintctl("operation", "cancel", moves[0]["id"])
        result = job.wait()
        assert result.status == FAILED and "it stays on one (running)" in result.err, result
        ended = [found["state"] for found in operations(pair.mintctl) if found["id"] == moves[0]["id"]]
        assert ended == ["cancelled"], ended
        assert known(pair.one)["slow"] == "running" and "slow" not in known(pair.two)
        assert there.node.run(f"test -e {path}", check=False).status == 1, "a half copy is left"
        here.wait_ticks(2)
        pair.mintctl("vm", "migrate", "slow", "--to", "two")
        there.wait_ticks(2)
        assert "load FAIL" not in there.log()


@pytest.mark.soak
@pytest.mark.soak_only
def test_guestds_that_die_amid_a_migration_leave_one_guest_and_one_disk(pair: Server):
    """kill -9 of both nodes' mint-guestd while the disk is being copied: their successors see how it ended, and delete
    the copy that nobody uses."""
    with Guest(pair.one, "orphan") as here, Guest(pair.two, "orphan") as there:
        here.start("--disk-load 20 --no-network")
        here.wait_line(r"tick [0-9]* at [0-9.]*, [1-9][0-9]* writes")
        here.shell("dd if=/dev/urandom of=/dev/vda bs=1M seek=2 count=56 2>/dev/null; sync")
        path = pair.one.out("virsh -q vol-path orphan.raw --pool mint").strip()
        job = pair.zero.start("mintctl vm migrate orphan --to two --bandwidth 8M --json")
        copying = f"virsh domjobinfo orphan | grep -q 'File remaining: *[1-9]' && ls {RECORDS}/*.departure.json >/dev/null"
        pair.one.wait("the copy of its disk", copying)
        for node in (pair.one, pair.two):
            assert node.run(f"ls {RECORDS}/*.json && kill -9 $(pidof mint-guestd)", check=False).status == 0
        assert job.wait().status == FAILED, "its mint-guestd is dead"
        for node in (pair.one, pair.two):
            node.wait("nothing left to settle", f"! ls {RECORDS}/*.json >/dev/null 2>&1", 240)
        found = running_on(pair, "orphan")
        assert len(found) == 1, found
        holders = [node.number for node in (pair.one, pair.two) if node.run(f"test -e {path}", check=False).status == 0]
        assert holders == found, (holders, found)
        guest = here if found == [1] else there
        guest.wait_ticks(2)
        assert "load FAIL" not in guest.log()


def test_console_of_a_guest_goes_after_it(pair: Server):
    """mintctl vm console on node 0 of a guest on node 1: its shell answers, nobody else gets it meanwhile, nor virsh;
    when it moves to node 2 the same console goes on there; Ctrl-] leaves it."""
    with Guest(pair.one, "chatty") as here, Guest(pair.two, "chatty") as there:
        here.start("--no-disk --no-network")
        job = pair.zero.terminal("mintctl vm console chatty")

        def reads(text: str) -> None:
            shown = read_until(job, text, time.monotonic() + 60 * SLOWNESS)
            assert text in shown, shown

        def ask(number: int) -> None:
            job.input(f"echo the answer is $(({number} * 7))\r".encode())
            reads(f"the answer is {number * 7}")

        try:
            reads("Ctrl-] leaves it")
            here.wait_line("Enter 'help'")
            ask(6)
            with pytest.raises(MintctlError) as caught:
                pair.mintctl("vm", "console", "chatty")
            assert caught.value.codes == {"plan_refused", "vm_busy"}, caught.value
            # libvirt keeps to the same lock
            result = pair.one.terminal("virsh console chatty", 60).wait()
            assert result.status == FAILED and "Requested device '/dev/pts/" in result.out, result
            pair.mintctl("vm", "migrate", "chatty", "--to", "two")
            reads("vm chatty is on two now")
            ask(7)
            job.input(ESCAPE)
            assert job.wait().status == 0
        finally:
            job.kill(9)
        there.wait_ticks(1)


def boots(server: Server, number: int) -> int:
    """How often a node was started."""
    return server.mintctl.nodes()[number]["boots"]


def test_nodes_guests_run_on_elsewhere_while_it_restarts_and_come_back(pair: Server):
    """node restart node2 --evacuate, asked for on node 0: another kernel under guests that never stop."""
    with Guest(pair.two, "first") as first, Guest(pair.two, "second") as second:
        first.start("--disk-load 20 --no-network")
        second.start("--no-disk --no-network")
        before = boots(pair, 2)
        ticks = {}
        for guest in (first, second):
            guest.wait_ticks(2)
            ticks[guest.name] = guest.counter()[-1]
        plan = pair.mintctl("vm", "evacuate", "two", "--dry-run")
        assert {vm["name"] for vm in plan["vms"]} == {"first", "second"} and running_on(pair, "first") == [2], plan
        done = pair.mintctl("node", "restart", "two", "--evacuate", limit_s=600)
        assert {vm["name"] for vm in done["evacuated"]["vms"]} == {vm["name"] for vm in done["returned"]}
        assert boots(pair, 2) == before + 1
        for guest in (first, second):
            assert running_on(pair, guest.name) == [2]
            guest.wait_ticks(2)
            number, uptime_s = guest.counter()[-1]
            # one boot of the guest: its clock and its counter go on
            assert number > ticks[guest.name][0] and uptime_s > ticks[guest.name][1], (ticks, number, uptime_s)
            assert "mint-guest: up" not in guest.log().split(f"tick {ticks[guest.name][0]} ")[-1]
        assert "load FAIL" not in first.log()


def test_node_is_not_ended_while_a_guest_has_no_other_place(pair: Server):
    """node stop --evacuate: refused for each node's reason, and neither node nor guest notice."""
    with Guest(pair.one, "tied") as tied:
        tied.start("--no-disk --no-network")
        for node in (pair.zero, pair.two):
            node.run(f"echo {shlex.quote(OTHER)} >/tmp/tied.xml && virsh -q define /tmp/tied.xml; rm /tmp/tied.xml")
        try:
            with pytest.raises(MintctlError) as caught:
                pair.mintctl("node", "stop", "one", "--evacuate")
            assert caught.value.status == REFUSED and caught.value.codes == {"plan_refused", "vm_name_taken"}
            assert len(caught.value.refusals) == 2, caught.value
            assert pair.mintctl.state(1) == "running" and running_on(pair, "tied") == [1]
            tied.wait_ticks(1)
        finally:
            for node in (pair.zero, pair.two):
                node.run("virsh -q undefine tied")


def test_plain_virsh_migrate_gets_pins_of_the_other_node(pair: Server):
    """virsh migrate over TLS of a guest that is pinned to node 1's second CPU, which node 2 has not: libvirt's hook gives
    it one that is there."""
    with Guest(pair.one, "plain") as here, Guest(pair.two, "plain") as there:
        here.start("--no-disk --no-network --pin 1")
        assert domain_cpus(pair.one, "plain") == ["1"] and pair.two.out("nproc").strip() == "1"
        here.wait_ticks(2)
        ticks = here.ticks()
        pair.two.run(f"rm -f {there.log_path}")
        pair.one.run("virsh migrate --live --p2p --tls plain qemu+tls://node2/system", 240)
        assert pair.zero.out("virsh -c qemu+tls://node2/system -q list --name").split() == ["plain"]
        assert running_on(pair, "plain") == [2] and domain_cpus(pair.two, "plain") == ["0"]
        there.wait_ticks(2)
        assert there.counter()[0][0] > ticks and "mint-guest: up" not in there.log()
        # what it is called for else passes, whatever it gets
        for what in ("start begin", "reconnect begin", "release end"):
            pair.two.run(f"echo broken | /etc/libvirt/hooks/qemu plain {what} -")
        assert pair.two.run("echo broken | /etc/libvirt/hooks/qemu plain migrate begin -", check=False).status == 1
