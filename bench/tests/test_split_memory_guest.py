# SPDX-License-Identifier: Apache-2.0
"""Guests whose memory is split over nodes: larger than what their node has for them."""

import json
import re
import time
from collections.abc import Iterator

import pytest

from rig import halt
from rig.errors import CommandFailed
from rig.guest import Guest, counted_versions, counted_writes
from rig.mintctl import REFUSED, MintctlError
from rig.node import Node
from rig.server import Server
from rig.wait import SLOWNESS, wait_until

PAGE = 4096
CHUNK = 64 << 10
MAIN, MEMORY, LOAD_KIB = 26 << 20, 160 << 20, 14 << 10
LESS = 20 << 20  # what its next main host has for it, for pages to go ahead of it
BOOT_MIB = 64  # what it has on its node until it runs
COLD_MIB = 24  # a file in a guest's memory that is written once
SPLIT = (
    f"--memory {MEMORY >> 20}M --split main={BOOT_MIB}M,two=rest --no-network --memory-load {LOAD_KIB} --disk 8M --disk-load 4"
)
RAM, STORE = "/run/mint/ram/libvirt/qemu", "/run/mint/ram/store"
LIMIT_S = 600
SLOW_BYTES_S = 128 << 10  # for all that is kept to take minutes, also if vCPUs stall
COMPARED = "tick [0-9]* at .*, [1-9][0-9]* versions"


def here_bytes(node: Node, name: str) -> int:
    """Memory of a guest that its node has, as the tmpfs counts it: its own, and copies of what is leaving."""
    blocks = node.out(f"stat -c %b {RAM}/*-{name}/* $(dirname $(grep -l '\"{name}\"' /run/mint/ram/guests/*/guest.json))/copies")
    return sum(int(number) * 512 for number in blocks.split())


def kept_bytes(node: Node) -> int:
    """What a node keeps of other nodes' guests."""
    blocks = node.run(f"stat -c %b {STORE}/*.pages", check=False).out
    return sum(int(number) * 512 for number in blocks.split())


def still_kept_bytes(node: Node) -> int:
    """What a node keeps of guests that do not run: when what they asked for has come and what went for it has gone."""
    last, end = -1, time.monotonic() + LIMIT_S * SLOWNESS
    while (now := kept_bytes(node)) != last:
        assert time.monotonic() < end, f"{now} bytes, {last} before"
        last = now
        time.sleep(2)
    return now


def pid_of(node: Node, program: str) -> int:
    """Of the one process of that program."""
    return int(node.out(f"pgrep -x {program}"))


def versions(guest: Guest) -> int:
    """How many versions of its memory it has compared, the last that it said."""
    return counted_versions(guest.log())[-1]


def goes_on(guest: Guest, more: int = 2) -> None:
    """It compares so many versions more and writes to its disk, and all of it is whole."""
    before, end = versions(guest), time.monotonic() + LIMIT_S * SLOWNESS
    writes = counted_writes(guest.log())[-1]
    while versions(guest) < before + more or counted_writes(guest.log())[-1] <= writes:
        assert "FAIL" not in guest.log(), guest.log()[-500:]
        assert time.monotonic() < end, f"{guest} stands still at {before} versions, {writes} writes"
        time.sleep(2)
    assert "FAIL" not in guest.log(), guest.log()[-500:]


def page_ins(pair: Server, name: str) -> int:
    """Pages of a guest that have come back since its pager began; who tells it may be starting."""
    pair.zero.wait("somebody says where its memory is", f"mintctl vm memory {name}", 120)
    return pair.mintctl("vm", "memory", name)["page_ins"]


def squeeze(pair: Server, guest: Guest) -> None:
    """Leave it less on node 1 than it works with, and take out what came first: pages go and come all the time."""
    split = ("--split", f"main={MAIN >> 20}M,two=rest", "--policy", "fifo")
    pair.mintctl("vm", "migrate", guest.name, "--to", "one", *split)


class Shared:
    """A guest for the tests of this file: another one where a test has failed since."""

    def __init__(self) -> None:
        self.server: Server | None = None
        self.guest: Guest | None = None

    def on(self, server: Server) -> Guest:
        """It runs on node 1, and has compared its memory once."""
        if self.server is not server or self.guest is None:
            self.server, self.guest = server, Guest(server.one, "big")
            self.guest.start(SPLIT)
            self.guest.wait_line(COMPARED, LIMIT_S)
            squeeze(server, self.guest)
        return self.guest

    def end(self) -> None:
        """It is nowhere."""
        if self.server is not None and self.guest is not None and self.server.machine.alive():
            self.guest.end()
        self.guest = None


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    """None yet."""
    shared = Shared()
    yield shared
    shared.end()


@pytest.fixture
def big(pair: Server, shared: Shared) -> Guest:
    """The guest."""
    return shared.on(pair)


def test_guest_has_its_budget_here_and_the_rest_is_on_another_node(pair: Server, big: Guest):
    """Looked at again and again while it goes on: never more than a chunk beyond."""
    most, before = 0, versions(big)
    for _ in range(20):
        most = max(most, here_bytes(pair.one, "big"))
        time.sleep(0.5)
    goes_on(big, before + 2 - versions(big))
    assert MAIN * 3 // 4 < most <= MAIN + CHUNK, most
    assert kept_bytes(pair.two) > 64 * CHUNK
    view = pair.one.out("cat /proc/$(pgrep -x mint-pager)/oom_score_adj")
    assert view == "-1000"


@pytest.mark.parametrize("program", ["mint-pager", "mint-store", "mint-keeper", "mint-guestd", "mintd", "libvirtd"])
def test_guest_waits_for_who_was_killed_and_goes_on(pair: Server, big: Guest, program: str):
    """kill -9 while pages go and come: nothing is lost."""
    node = pair.two if program == "mint-store" else pair.one
    killed, came = pid_of(node, program), page_ins(pair, "big")
    node.run(f"kill -9 {killed}")
    node.wait(f"another {program} runs", f"p=$(pgrep -x {program}) && [ $p != {killed} ]", 60)
    goes_on(big)
    assert page_ins(pair, "big") > (0 if program == "mint-pager" else came), "no page has come since"
    assert big.node.out("virsh domstate big").strip() == "running"


def test_keeper_that_took_over_starts_the_pager_again(pair: Server, big: Guest):
    """The first keeper is killed, then the pager that it had started."""
    keeper, pager = pid_of(pair.one, "mint-keeper"), pid_of(pair.one, "mint-pager")
    pair.one.run(f"kill -9 {keeper}")
    pair.one.wait("another keeper", f"p=$(pgrep -x mint-keeper) && [ $p != {keeper} ] && grep -q 'took over' /var/log/mint/memory-big.log", 60)
    pair.one.run(f"kill -9 {pager}")
    pair.one.wait("another pager", f"p=$(pgrep -x mint-pager) && [ $p != {pager} ]", 60)
    goes_on(big)


@pytest.mark.parametrize(("words", "status", "why"), [
    ("--split main=64M", 2, "nothing is split"),
    ("--split main=64M,two=8M", 2, "are nobody's"),
    ("--split main=64M,one=rest", 2, "call it main"),
    ("--split main=64M,nobody=rest", 1, "there is no node nobody"),
    ("--split main=64M,two=64G", 1, "node two can keep"),
    ("--split main=64M,two=rest --chunk 3K", 2, "power of two"),
])  # fmt: skip
def test_split_that_cannot_be_is_refused_and_leaves_nothing(pair: Server, words: str, status: int, why: str):
    """The guest does not start, nobody keeps anything for it, and the reason is told."""
    leases = pair.two.out(f"ls {STORE}")
    with Guest(pair.one, "wrong"), pytest.raises(CommandFailed) as caught:
        pair.one.run(f"mint-guest wrong --memory 160M --no-disk --no-network {words}")
    said = caught.value.result.err
    assert caught.value.result.status == status and why in said, said
    assert pair.two.out(f"ls {STORE}") == leases
    assert not re.search(r"-wrong$", pair.one.run(f"ls {RAM}", check=False).out, re.MULTILINE)


def test_node_that_keeps_memory_of_a_guest_neither_ends_nor_loses_memory(pair: Server, big: Guest):
    """It is told how much, and what to do; its own guests stay, too."""
    with Guest(pair.two, "stays") as stays:
        stays.start("--no-disk --no-network")
        for words in (("stop", "two"), ("restart", "two", "--evacuate"), ("resize", "two", "--memory", "-128M")):
            with pytest.raises(MintctlError) as caught:
                pair.mintctl("node", *words)
            assert caught.value.status == REFUSED and "memory_kept" in caught.value.codes, (words, caught.value)
        assert pair.two.out("virsh domstate stays").strip() == "running"
    goes_on(big, 1)


def test_node_gives_no_larger_lease_than_its_settings_say(pair: Server, big: Guest):
    """What it has promised before stays."""
    before = lease(pair.two)
    with pair.two.undone(
        "printf '[memory]\\nkeep_max = \"64M\"\\n' >>/etc/mint/mint.toml; sync; mint-service restart mintd",
        "sed -i '/^\\[memory\\]$/,+1d' /etc/mint/mint.toml; sync; mint-service restart mintd",
    ):
        pair.wait_mintd(pair.two)
        with pytest.raises(MintctlError) as caught:
            pair.mintctl("vm", "migrate", "big", "--to", "one", "--split", f"main={LESS >> 20}M,two=rest")
        assert caught.value.status == REFUSED and "node two may keep 64M" in str(caught.value), caught.value
    pair.wait_mintd(pair.two)
    assert lease(pair.two) == before
    goes_on(big, 1)


@pytest.mark.parametrize(("command", "why"), [
    ("mintctl vm migrate big --to two", "two keeps a part of the memory"),
    ("mintctl vm migrate big --to node0 --post-copy-after 1", "without post-copy"),
    ("virsh migrate --live --p2p --unsafe big qemu+tls://10.77.0.10/system", "mintctl vm migrate moves it"),
])  # fmt: skip
def test_move_that_a_split_guest_cannot_make_is_refused(pair: Server, big: Guest, command: str, why: str):
    """It is told why, and runs where it was."""
    with pytest.raises(CommandFailed) as caught:
        pair.one.run(command)
    assert why in caught.value.result.err, caught.value.result.err
    goes_on(big, 1)


def lease(node: Node) -> dict:
    """The one that a node's memory server has given."""
    return json.loads(node.out(f"cat {STORE}/*.lease"))


def test_split_guest_moves_and_its_pages_stay_where_they_are(pair: Server, big: Guest):
    """To node 0 and back, by libvirt and two pagers, while it compares memory and disk: what node 2 keeps stays there, and
    it hears from the new main host."""
    there, epoch = Guest(pair.zero, "big"), lease(pair.two)["epoch"]
    pair.zero.run(f"rm -f {there.log_path}")
    for number, (source, target, name) in enumerate(((big, there, "node0"), (there, big, "one")), 1):
        before, kept = versions(source), kept_bytes(pair.two)
        result = pair.mintctl("vm", "migrate", "big", "--to", name)
        assert result["memory_bytes"] == MAIN and result["took"]["memory_sent_bytes"] < MAIN / 8, result
        target.wait_line(COMPARED, LIMIT_S)
        goes_on(target)
        assert versions(target) > before, f"it began anew: {versions(target)}, {before} before"
        node = target.node
        assert here_bytes(node, "big") <= MAIN + CHUNK and abs(kept_bytes(pair.two) - kept) < MAIN / 2
        view = pair.mintctl("vm", "memory", "big")
        assert view["node"] == node.number and [host["node"] for host in view["hosts"]] == ["two"], view
        assert lease(pair.two)["epoch"] == epoch + number and lease(pair.two)["main"]["node"] == node.number
        source.node.wait("nothing is left of it", "! grep -l '\"big\"' /run/mint/ram/guests/*/guest.json && ! pgrep -x mint-pager", 60)
        # what its node saves is whole
        assert monitor_says(node, "big")["x-ignore-shared"] is False


def monitor_says(node: Node, name: str) -> dict[str, bool]:
    """Capabilities of migrations that a guest's QEMU has, as its monitor for pagers tells."""
    lines = '{"execute": "qmp_capabilities"}\n{"execute": "query-migrate-capabilities"}\n'
    said = node.run(f"(cat; sleep 20) | timeout 20 nc -U /run/mint/qmp/{name} | head -n 3", stdin=lines.encode()).out
    return {each["capability"]: each["state"] for each in json.loads(said.splitlines()[2])["return"]}


# Where a pager dies, of the node that the guest leaves or of its next one.
SOURCE, TARGET = "source", "target"
DEATHS = [(SOURCE, "pager-final"), (TARGET, "pager-copied"), (TARGET, "pager-has-all"), (SOURCE, "pager-ahead")]
MORE_DEATHS = [
    (SOURCE, "pager-gives"), (SOURCE, "pager-ready"), (SOURCE, "pager-finished"), (TARGET, "pager-runs"), (TARGET, "pager-enters"),
]  # fmt: skip


@pytest.mark.soak
@pytest.mark.soak_only
@pytest.mark.parametrize("deaths", [DEATHS, MORE_DEATHS])
def test_pager_that_dies_amid_a_move_loses_nothing(pair: Server, big: Guest, deaths: list[tuple[str, str]]):
    """At each of these steps: the keeper starts another one, and the guest is on its new node with all of its memory. Its
    next node has less for it when pages go ahead of it."""
    at, other = big, Guest(pair.zero, "big")
    with halt.armed([pair.zero, pair.one], "mint-guestd"):
        pair.zero.wait("all nodes say what guests they have", "mintctl vm list", 120)
        # the pager that runs was started before that
        pair.mintctl("vm", "migrate", "big", "--to", name_of(other.node))
        at, other = other, at
        at.wait_line(COMPARED, LIMIT_S)
        for side, step in deaths:
            node = at.node if side == SOURCE else other.node
            before = versions(at)
            halt.ask(node, step, "abort")
            other.node.run(f"rm -f {other.log_path}")
            less = ("--split", f"main={LESS >> 20}M,two=rest") if step == "pager-ahead" else ()
            pair.mintctl("vm", "migrate", "big", "--to", name_of(other.node), *less)
            assert not node.run(f"ls {halt.FAULT}", check=False).out, f"{step} was not reached"
            at, other = other, at
            at.wait_line(COMPARED, LIMIT_S)
            goes_on(at, 1)
            assert versions(at) > before, f"{step}: it began anew"
            if less:
                assert here_bytes(at.node, "big") <= LESS + CHUNK
        if at is not big:
            big.node.run(f"rm -f {big.log_path}")
            pair.mintctl("vm", "migrate", "big", "--to", name_of(big.node))
            big.wait_line(COMPARED, LIMIT_S)
    # what armed them has started them anew
    pair.zero.wait("all nodes say what guests they have", "mintctl vm list", 120)
    squeeze(pair, big)
    goes_on(big)


def name_of(node: Node) -> str:
    """Of a node, as mintctl knows it."""
    return ("node0", "one", "two")[node.number]


def test_what_a_node_keeps_of_a_guest_goes_to_another_node(pair: Server, big: Guest):
    """mintctl memory evacuate two: node 0 keeps it then, and the guest goes on meanwhile; node 2 may end. While nobody
    waits for a page it goes no faster than --bandwidth says, until that is said anew."""
    big.node.run("virsh suspend big")
    before = still_kept_bytes(pair.two)
    assert before > 0 and not kept_bytes(pair.zero)
    began = time.monotonic()
    slow = pair.zero.start(f"mintctl memory evacuate two --bandwidth {SLOW_BYTES_S // 1024}K", LIMIT_S)
    at_once = 4 * CHUNK  # what was asked for before the bound was read
    wait_until("something goes", lambda: kept_bytes(pair.two) < before - at_once - 4 * CHUNK, LIMIT_S)
    gone = before - kept_bytes(pair.two)
    # a node's clock may be a little fast
    assert gone <= 1.2 * SLOW_BYTES_S * (time.monotonic() - began) + at_once + CHUNK, gone
    job = pair.zero.start("mintctl memory evacuate two --json", LIMIT_S)
    big.node.run("virsh resume big")
    goes_on(big, 1)
    result, slow_result = job.wait(), slow.wait()
    assert slow_result.status == 0, slow_result
    assert result.status == 0, result
    assert [(gone["name"], gone["to"]) for gone in json.loads(result.out)["kept"]] == [("big", None)], "it was on its way"
    assert pair.two.out(f"ls {STORE}") == "" and kept_bytes(pair.zero) > before - 2 * MAIN
    assert [host["node"] for host in pair.mintctl("vm", "memory", "big")["hosts"]] == ["node0"]
    goes_on(big)
    pair.mintctl("node", "restart", "two")
    goes_on(big, 1)


def test_guest_without_keeper_and_pager_is_ended_and_its_memory_is_nowhere(pair: Server, big: Guest, shared: Shared):
    """Its memory would be zeros where it is elsewhere: it is ended, and has read none."""
    folder = pair.one.out("dirname $(grep -l '\"big\"' /run/mint/ram/guests/*/guest.json)")
    assert kept_bytes(pair.two) + kept_bytes(pair.zero) > 0
    pair.one.run("kill -9 $(pgrep -x mint-keeper) $(pgrep -x mint-pager)")
    pair.one.wait("it is ended", "virsh domstate big | grep -q 'shut off'", LIMIT_S)
    assert "FAIL" not in big.log(), big.log()[-500:]
    pair.one.wait("nothing is left of it", f"[ ! -e {folder} ]", 60)
    for node in (pair.zero, pair.two):
        node.wait("its lease has ended", f"[ -z \"$(ls {STORE})\" ]", 60)
    # by mint-guestd, or before that looks by a SIGBUS of QEMU, which reads and writes memory for its disk, too
    reason = pair.one.out("virsh domstate --reason big")
    told = pair.one.out("tail -n 50 /var/log/mint/mint-guestd.log")
    assert "cannot go on" in told or "(crashed)" in reason, (reason, told)
    shared.end()


def wait_copies(pair: Server, name: str, keeps: str, mirror: str) -> None:
    """Wait until a node keeps what a guest's own has no room for, and another one has all of it, too."""
    end = time.monotonic() + LIMIT_S * SLOWNESS
    while True:
        view = pair.mintctl("vm", "memory", name)
        assert view["lost_bytes"] == 0, view
        if [(host["node"], host.get("mirror"), host.get("mirror_behind_bytes")) for host in view["hosts"]] == [(keeps, mirror, 0)]:
            return
        assert time.monotonic() < end, view
        time.sleep(1)


@pytest.mark.soak
@pytest.mark.soak_only
def test_guest_of_two_copies_outlives_either_node_that_keeps_them(pair: Server, shared: Shared):
    """Node 2 ends and takes along what it keeps: node 0 has the same, and takes its place. Node 2 is started again, gets
    all of it, and ends again. Then it takes node 0's place, which is to keep nothing any more."""
    shared.end()
    for node in (pair.zero, pair.two):
        node.wait("nobody keeps anything there", f"[ -z \"$(ls {STORE})\" ]", 60)
    with Guest(pair.one, "twice") as guest:
        guest.start(f"{SPLIT} --copies 2")
        guest.wait_line(COMPARED, LIMIT_S)
        squeeze(pair, guest)
        wait_copies(pair, "twice", "two", "node0")
        assert min(kept_bytes(pair.zero), kept_bytes(pair.two)) > 64 * CHUNK
        for keeps in ("two", "node0"):
            pair.mintctl("node", "kill", "two")
            goes_on(guest)
            view = pair.mintctl("vm", "memory", "twice")
            assert [(host["node"], host.get("mirror")) for host in view["hosts"]] == [("node0", None)], (keeps, view)
            assert view["lost_bytes"] == 0 and view["elsewhere_bytes"] > 64 * CHUNK, view
            pair.mintctl("node", "start", "two")
            wait_copies(pair, "twice", "node0", "two")
            assert kept_bytes(pair.two) > 64 * CHUNK
        pair.zero.run("mintctl memory evacuate node0", LIMIT_S)
        assert [host["node"] for host in pair.mintctl("vm", "memory", "twice")["hosts"]] == ["two"]
        assert pair.zero.out(f"ls {STORE}") == ""
        goes_on(guest)


def uses_less_than_it_has(pair: Server, name: str, less_bytes: int) -> None:
    """Wait until so much of what it has on its node was not used lately."""
    end = time.monotonic() + LIMIT_S * SLOWNESS
    while True:
        view = pair.mintctl("vm", "memory", name)
        assert view["policy"] == "aging", view
        if view["used_bytes"] and view["used_bytes"] <= view["here_bytes"] - less_bytes:
            return
        assert time.monotonic() < end, view
        time.sleep(1)


def in_chunks_of(node: Node, name: str, chunk_bytes: int) -> None:
    """Pages of a guest that is split there go and come in chunks of that size: its pager's table has a host for each."""
    folder = f"/run/mint/ram/guests/$(virsh domuuid {name}).*"
    guest = json.loads(node.out(f"cat {folder}/guest.json"))
    table = int(node.out(f"stat -c %s {folder}/subs"))
    assert (guest["chunk_bytes"], table) == (chunk_bytes, guest["memory_bytes"] // chunk_bytes * 2), guest


def picture_shows_where_it_is(pair: Server, name: str) -> None:
    """mintctl vm memory --svg: each chunk is with who has it, and what was used just now is hot."""
    pair.zero.run("rm -f /tmp/map.svg")
    picture = pair.mintctl("vm", "memory", name, "--svg", "/tmp/map.svg")
    view = pair.mintctl("vm", "memory", name)
    cells, slack = picture["cells"], 8 << 20  # it goes on
    assert len(cells) * picture["cell_bytes"] == view["memory_bytes"] and picture["cell_bytes"] == CHUNK, picture
    here = sum(cell["here_bytes"] for cell in cells)
    assert abs(here - view["here_bytes"] - view["leaving_bytes"]) < slack, (here, view)
    shares = [share for cell in cells for share in cell["elsewhere"]]
    elsewhere = {picture["hosts"][share["host"]]: 0 for share in shares}
    for share in shares:
        elsewhere[picture["hosts"][share["host"]]] += share["bytes"]
    assert sorted(elsewhere) == ["node0", "two"] and abs(sum(elsewhere.values()) - view["elsewhere_bytes"]) < slack, elsewhere
    used = sum(picture["cell_bytes"] for cell in cells if cell["heat"] > 6)
    assert LOAD_KIB << 10 <= used < view["memory_bytes"] * 3 // 4, used
    drawn = pair.zero.read("/tmp/map.svg")
    assert drawn.count("<title>") == len(cells) + 4 and f"vm {name}: 64K a square" in drawn


def test_any_guest_is_prepared_split_and_merged_on_another_node_and_split_again_on_its_way_back(pair: Server, shared: Shared):
    """mintctl vm prepare: from its next start its memory can be split, where it runs. mintctl vm merge: it moves, what
    another node keeps follows, and nobody keeps anything; then its memory goes to two nodes, and it moves with what its
    next node may have. It goes on meanwhile."""
    shared.end()
    pair.two.wait("nobody keeps anything there", f"[ -z \"$(ls {STORE})\" ]", 60)
    options = f"--no-start --memory 128M --no-network --memory-load {LOAD_KIB} --disk 8M --disk-load 4"
    with Guest(pair.one, "whole") as here, Guest(pair.zero, "whole") as there:
        here.start(options)
        assert pair.mintctl("vm", "prepare", "whole")["state"] == "shut off"
        pair.one.run("virsh -q start whole", LIMIT_S)
        here.wait_line(COMPARED, LIMIT_S)
        # not in the chunks of what is compared
        text, status = here.shell(f"dd if=/dev/urandom of=/tmp/cold bs=1M count={COLD_MIB}", LIMIT_S)
        assert status == 0, text[-500:]
        view = pair.mintctl("vm", "memory", "whole")
        assert (view["hosts"], view["elsewhere_bytes"]) == ([], 0) and pair.two.out(f"ls {STORE}") == "", view
        # one that never was split moves as it is, and back
        for target, name in ((there, "node0"), (here, "one")):
            target.node.run(f"rm -f {target.log_path}")
            pair.mintctl("vm", "migrate", "whole", "--to", name)
            target.wait_line(COMPARED, LIMIT_S)
        view = pair.mintctl("vm", "memory", "whole")
        assert (view["node"], view["hosts"], view["elsewhere_bytes"]) == (1, [], 0), view
        uses_less_than_it_has(pair, "whole", COLD_MIB * 3 // 4 << 20)
        here_too = ("vm", "migrate", "whole", "--to", "one", "--split", "main=48M,two=rest")
        result = pair.mintctl(*here_too, "--chunk", "256K")
        assert (result["from"], result["to"], result["memory_bytes"]) == (1, 1, 48 << 20), result
        assert here_bytes(pair.one, "whole") <= (48 << 20) + 4 * CHUNK and kept_bytes(pair.two) > 0
        in_chunks_of(pair.one, "whole", 4 * CHUNK)
        # what node 2 keeps is in these
        with pytest.raises(MintctlError) as caught:
            pair.mintctl(*here_too, "--chunk", "64K")
        assert caught.value.status == REFUSED and "in chunks of 256K" in str(caught.value), caught.value
        came = pair.mintctl("vm", "memory", "whole")["page_ins"]
        goes_on(here, 2)
        # what it compares again and again has stayed
        came = pair.mintctl("vm", "memory", "whole")["page_ins"] - came
        assert came < (LOAD_KIB << 10) // PAGE // 16, f"{came} pages came back"
        auto = pair.mintctl("vm", "migrate", "whole", "--to", "node0", "--split", "auto", "--dry-run")
        assert auto["merged"] and auto["memory_bytes"] == 128 << 20 and not auto["took"], auto
        kept = kept_bytes(pair.two)
        result = pair.mintctl("vm", "merge", "whole", "--to", "node0")
        assert result["merged"] and result["memory_bytes"] == 128 << 20, result
        assert kept_bytes(pair.two) == 0 and pair.two.out(f"ls {STORE}") == ""
        # most of what node 2 kept came from there while node 1 sent what it had
        early = int(re.findall(r"early=(\d+)", pair.zero.read("/var/log/mint/memory-whole.log"))[-1])
        assert early * PAGE > kept // 2, (early, kept)
        view = pair.mintctl("vm", "memory", "whole")
        assert (view["node"], view["hosts"], view["elsewhere_bytes"]) == (0, [], 0), view
        assert here_bytes(pair.zero, "whole") > 48 << 20
        there.wait_line(COMPARED, LIMIT_S)
        goes_on(there)
        before, view = versions(there), pair.mintctl("vm", "memory", "whole")
        result = pair.mintctl("vm", "migrate", "whole", "--to", "one", "--split", "main=48M,node0=40M,two=rest", "--chunk", "64K")
        # nothing was taken out and fetched for that where it was: it went from there to each of its hosts
        ended = re.findall(r"page_ins=(\d+) page_outs=(\d+) ahead=(\d+)", pair.zero.read("/var/log/mint/memory-whole.log"))
        page_ins, page_outs, ahead = map(int, ended[-1])
        assert (page_ins, page_outs) == (view["page_ins"], view["page_outs"]), (ended, view)
        assert ahead * PAGE > COLD_MIB << 20, ended
        assert result["memory_bytes"] == 48 << 20 and not result.get("merged"), result
        here.wait_line(COMPARED, LIMIT_S)
        goes_on(here)
        assert versions(here) > before
        assert here_bytes(pair.one, "whole") <= (48 << 20) + CHUNK
        in_chunks_of(pair.one, "whole", CHUNK)
        view = pair.mintctl("vm", "memory", "whole")
        assert view["node"] == 1 and [host["node"] for host in view["hosts"]] == ["node0", "two"], view
        assert kept_bytes(pair.zero) > 0 and kept_bytes(pair.two) > 0
        picture_shows_where_it_is(pair, "whole")
