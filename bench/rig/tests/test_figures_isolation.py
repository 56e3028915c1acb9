# SPDX-License-Identifier: Apache-2.0
"""The group "isolation": who is where, that what disturbs is at work while it is said to be, and what is recorded.

Commands of nodes and guests run on this host, by shells of their own.
"""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import figures_isolation as isolation
import figures_neighbours as places
from figures_isolation import AGAIN, IDLE, OWN, PINNED, VICTIMS
from figures_neighbours import GUEST, IN_GUEST, NODE, ONE, OTHER, SAME, TWO, InGuest, Neighbours, OnNode, Told
from rig import paths
from rig.channel import Result
from rig.errors import RigError
from rig.guest import Guest
from rig.machine import CPUS
from rig.markers import Stretch
from rig.victim import Suffered, one

CPU = min(os.sched_getaffinity(0))
LIMIT_S = 60


class HostJob:
    """A command that runs, in a session of its own as the agent's."""

    def __init__(self, command: str) -> None:
        self._process = subprocess.Popen(["sh", "-c", command], start_new_session=True)

    def kill(self, number: int = 15) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.Signals(number))

    def wait(self, _: float = 0) -> None:
        self._process.wait(LIMIT_S)


class HostNode:
    """Runs a node's commands here."""

    number = 1

    def run(self, command: str, limit_s: float = LIMIT_S, stdin: bytes | None = None) -> Result:
        done = subprocess.run(["sh", "-c", command], input=stdin, capture_output=True, timeout=limit_s, check=True)
        return Result(0, done.stdout, done.stderr, 0.0)

    def out(self, command: str, limit_s: float = LIMIT_S) -> str:
        return self.run(command, limit_s).out.rstrip("\n")

    def read(self, path: str) -> str:
        return Path(path).read_text()

    def wait(self, what: str, condition: str, limit_s: float = LIMIT_S) -> None:
        self.run(f"for look in $(seq {int(10 * limit_s)}); do {condition} && exit 0; sleep 0.1; done; exit 1")

    def start(self, command: str, limit_s: float = 0) -> HostJob:
        return HostJob(command)


class HostGuest:
    """A guest's shell, which stays between the lines that are typed."""

    def __init__(self, folder: Path) -> None:
        path = f"{folder}:{os.environ['PATH']}"
        self._shell = subprocess.Popen(
            ["sh"], env={"PATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    shell = Guest.shell

    def dialogue(self, line: str, answer: str, limit_s: float = 0) -> str:
        self._shell.stdin.write(f"{line}\n")
        self._shell.stdin.flush()
        text = f"# {line}\n"
        while not re.search(answer, text):
            text += self._shell.stdout.readline()
        return text

    def end(self) -> None:
        self._shell.communicate()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the programs are; files of nodes and guests are here, too."""
    monkeypatch.setattr(places, "FOLDER", str(tmp_path))
    monkeypatch.setattr(places, "OUT", str(tmp_path / "aggressor.out"))
    monkeypatch.setattr(places, "STOP", str(tmp_path / "stop"))
    monkeypatch.setattr(places, "BEGIN_LIMIT_S", 40)
    (tmp_path / "victim").symlink_to(paths.need(paths.VICTIM))
    # Only this one is to be ended here, by its id.
    stub(tmp_path, "aggressor", f'echo $$ >{tmp_path}/pid; exec {paths.need(paths.AGGRESSOR)} "$@"')
    stub(tmp_path, "killall", f"kill $(cat {tmp_path}/pid)")
    return tmp_path


def stub(folder: Path, name: str, text: str) -> None:
    """A command."""
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def processes(folder: Path) -> list[str]:
    """Aggressors that run out of this folder's stub."""
    pid = folder / "pid"
    with contextlib.suppress(FileNotFoundError):
        number = pid.read_text().strip()
        state = re.search(r"State:\s+(\w)", Path(f"/proc/{number}/status").read_text())[1]
        return [] if state == "Z" else [number]
    return []


def test_each_core_is_one_kernels():
    """No kernel's first core suffers, or disturbs alone; the boot core stays node 0's."""
    cores = [0, *ONE.cpus, *TWO.cpus]
    assert sorted(cores) == list(range(CPUS))
    assert {places.VICTIMS_CORE, places.AGGRESSORS_CORE} == set(ONE.cpus[1:])
    assert places.OTHERS_CORE in TWO.cpus[1:]
    assert not set(ONE.devices) & set(TWO.devices)
    # Of the pool: 1 GiB and 1792 MiB; 128 MiB more come to node two.
    assert TWO.memory_mib + 128 <= 1024 and ONE.memory_mib <= 1792
    assert places.DISK_BYTES > max(ONE.memory_bytes, TWO.memory_bytes)


def test_each_machine_has_three_data_disks():
    config = places.machine_config(PINNED, markers=False)
    assert sum(word.startswith("virtio-blk-pci") for word in config.extra) == 3
    assert f"size={places.DISK_BYTES},latency-ns={places.DISK_LATENCY_NS}" in " ".join(config.extra)


def test_there_are_aggressors_in_each_placement():
    """But that a guest resizes no kernel, and nobody outlives its own crash."""
    missing = {one.name: set(places.PLACEMENTS) - set(one.placements) for one in isolation.AGGRESSORS}
    assert {name: gone for name, gone in missing.items() if gone} == {"resize": {SAME, GUEST}, "crash": {SAME}}
    program = {one.name for one in isolation.AGGRESSORS} - {"resize", "crash"}
    assert program == set(places.PROGRAM_WORDS)


def test_rounds_are_enough_for_the_percentiles():
    for victim in VICTIMS:
        assert victim.rounds * (1000 - victim.per_mille) >= 10_000


@pytest.mark.parametrize("victim", [one for one in VICTIMS if one.kind != "echo"], ids=lambda one: one.name)
def test_victims_words_are_the_programs(victim: isolation.Victim, folder: Path):
    disk = folder / "disk"
    disk.write_bytes(bytes(1 << 20))
    place = OnNode(HostNode(), CPU, CPU, f"{disk} direct=0")
    assert one(place.suffer(f"{victim.kind}=20 {victim.words}")).rounds == 20


@pytest.mark.parametrize("name", ["cpu", "fork", "unlink", "tlb", "hotplug", "text"])
@pytest.mark.parametrize("where", [NODE, IN_GUEST])
def test_aggressor_is_at_work_until_its_end(name: str, where: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """By a node's commands, and by what is typed in a guest; switches are those of a file here."""
    switch = folder / "switch"
    switch.write_text("1")
    monkeypatch.setattr(places, "PROGRAM_WORDS", places.PROGRAM_WORDS | {
        "hotplug": f"toggle file={folder}/sw{{cpu}}tch", "text": f"toggle file={switch}",
    })  # fmt: skip
    guest = HostGuest(folder)
    place = OnNode(HostNode(), CPU, CPU, "none") if where == NODE else InGuest(guest)
    (folder / f"sw{CPU if where == NODE else 1}tch").write_text("1")
    with place.aggress(name):
        assert processes(folder)
    assert not processes(folder) and switch.read_text() == "1"
    guest.end()


@pytest.mark.parametrize("where", [NODE, IN_GUEST])
def test_aggressor_that_does_nothing_is_an_error(where: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    guest = HostGuest(folder)
    place = OnNode(HostNode(), CPU, CPU, "/missing") if where == NODE else InGuest(guest)
    monkeypatch.setattr(places, "PROGRAM_WORDS", {"disk": "disk file=/missing"})
    with pytest.raises(RigError, match="No such file|grep"), place.aggress("disk"):
        pytest.fail("it is not at work")
    guest.end()


def test_victim_that_fails_keeps_no_aggressor(folder: Path):
    guest = HostGuest(folder)
    for place in (OnNode(HostNode(), CPU, CPU, "none"), InGuest(guest)):
        with pytest.raises(RigError, match="lost"), place.aggress("fork"):
            raise RigError("lost")
        subprocess.run(["sleep", "0.2"], check=True)
        assert not processes(folder)
    guest.end()


def test_rounds_of_commands_end_whole(folder: Path):
    """The one that is under way is finished; what fails is an error."""
    log = folder / "log"
    with places.looped(HostNode(), "rounds", f"echo begin >>{log}; sleep 0.2; echo end >>{log}"):
        assert log.read_text().startswith("begin\nend\n")
    words = log.read_text().split()
    assert words == ["begin", "end"] * (len(words) // 2)
    with pytest.raises(RigError, match="has done nothing"), places.looped(HostNode(), "rounds", f"[ -e {log} ] || exit"):
        log.unlink()
        subprocess.run(["sleep", "0.3"], check=True)


def test_resize_takes_and_gives_the_same(folder: Path):
    """As mintctl is asked."""
    log = folder / "log"
    stub(folder, "mintctl", f'echo "$@" >>{log}')
    done = subprocess.run(
        ["sh", "-c", places.RESIZE], env={"PATH": f"{folder}:{os.environ['PATH']}"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert log.read_text().splitlines() == [
        "node resize two --cpus 1 --memory +128M@numa0", "node resize two --cpus 1,2 --memory -128M",
    ]  # fmt: skip


def test_crashed_node_is_started_when_it_is_known_to_be_dead(folder: Path):
    log = folder / "log"
    stub(folder, "mintctl", f"""echo "$@" >>{log}
        [ "$2" != list ] || [ $(grep -c list {log}) -lt 3 ] || echo "2   two   crashed   1-2" """)
    subprocess.run(
        ["sh", "-c", places.CRASH_NODE], env={"PATH": f"{folder}:{os.environ['PATH']}"}, check=True, timeout=LIMIT_S
    )
    assert [line.split()[1] for line in log.read_text().splitlines()] == ["exec", "list", "list", "list", "start"]


def test_guest_that_is_ended_is_waited_for(folder: Path):
    """Whether its log begins anew or not."""
    log = folder / "guest.log"
    for new in (">", ">>"):
        log.write_text("mint-guest: up\n")
        stub(folder, "virsh", f'[ "$2" != start ] || {{ : {new}{log}; (sleep 0.5; echo mint-guest: up >>{log}) & }}')
        had = 1 if new == ">>" else 0
        subprocess.run(
            ["sh", "-c", places.CRASH_GUEST.format(log=log, name="other")],
            env={"PATH": f"{folder}:{os.environ['PATH']}"}, check=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert log.read_text().count("up") == had + 1


def test_qemus_own_threads_are_off_the_cores_that_are_measured():
    xml = "<cputune><vcpupin vcpu='0' cpuset='1'/><emulatorpin cpuset=\"0-2\"/></cputune>"
    assert places.emulator_on(xml, 0) == "<cputune><vcpupin vcpu='0' cpuset='1'/><emulatorpin cpuset='0'/></cputune>"
    with pytest.raises(RigError, match="0 times"):
        places.emulator_on("<domain/>", 0)


INTERRUPTS = """     CPU0  CPU1
 27:  1  {disk}  PCI-MSIX virtio3-req.0
LOC:  5  {timer}  Local timer interrupts
RES:  0  {res}  Rescheduling interrupts
"""


def test_victim_is_told_with_its_cores_interrupts(folder: Path):
    looks = iter([INTERRUPTS.format(disk=1, timer=7, res=2), INTERRUPTS.format(disk=30, timer=99, res=6)] * 2)
    node = SimpleNamespace(read=lambda path: next(looks))
    found = Neighbours(SimpleNamespace(one=node), {})
    found.cpu, found.own = 1, {"wake": (), "read": (r"\bvirtio3-",)}
    found.victims = {NODE: OnNode(HostNode(), CPU, CPU, "none")}
    told = found.suffer(NODE, "wake=10")
    assert told.run.rounds == 10 and sorted(told.interrupts.values()) == [4, 29]
    found.own["wake"] = found.own["read"]
    assert list(found.suffer(NODE, "wake=10").interrupts.values()) == [4]


def test_guests_that_take_no_part_are_suspended(monkeypatch: pytest.MonkeyPatch):
    """Each runs while it suffers, or disturbs, and no longer; also after an error."""
    said: list[str] = []
    node = SimpleNamespace(run=said.append, read=lambda path: INTERRUPTS.format(disk=1, timer=7, res=2))
    found = Neighbours(SimpleNamespace(one=node), {}, cpu=1, own={"wake": ()})
    found._victim, found._other = Guest(node, "victim"), Guest(node, "other")
    text = "victim setting kind=wake \nvictim done rounds=0 sum_ns=0 least_ns=0 most_ns=0 took_ns=1 again=0 moved=0"
    place = SimpleNamespace(suffer=lambda words: said.append(words) or text)
    found.victims = dict.fromkeys((NODE, IN_GUEST), place)
    found.aggressors = dict.fromkeys(places.PLACEMENTS, SimpleNamespace(aggress=lambda name: contextlib.nullcontext()))
    with found.disturbed("cpu", OTHER):
        found.suffer(NODE, "alone")
    assert said == ["alone"]
    said.clear()
    with pytest.raises(RigError), found.disturbed("cpu", GUEST):
        found.suffer(IN_GUEST, "both")
        raise RigError
    words = [*(f"virsh -q resume {name}" for name in ("other", "victim")), "both"]
    assert said == [*words, *(f"virsh -q suspend {name}" for name in ("victim", "other"))]


def told(rounds: int, interrupts: int, ns: int = 50_000, took_s: int = 1) -> Told:
    """A run."""
    return Told(Suffered("wake", rounds, {ns: rounds}, 0, 0, 0, took_s * 10**9, 0, 0), {"RES": interrupts, "CAL": 0})


def test_interrupts_are_those_beyond_idle():
    """Of as much time: what comes a second does not seem to be more because the rounds take longer."""
    assert isolation.more_a_second(told(10, 12), told(10, 2)) == 10
    assert isolation.more_a_second(told(10, 2), told(10, 2)) == 0
    assert isolation.more_a_second(told(10, 40, took_s=2), told(10, 20)) == 0
    assert isolation.rows_beyond(told(10, 24, took_s=2), told(10, 2)) == {"RES": 10}
    assert isolation.rows_beyond(told(10, 40, took_s=2), told(10, 20)) == {}


class Rig:
    """Notes who suffers beside whom."""

    def __init__(self, patches_text: bool = False, counted: int = isolation.OWN_ROUNDS) -> None:
        self.patches_text, self._counted = patches_text, counted
        self.now: tuple[str, str] | None = None
        self.seen: list[tuple[str, str, tuple[str, str] | None]] = []
        self.stretches: list[Stretch] = []
        self.server = SimpleNamespace(machine=SimpleNamespace(stretches=lambda label: list(self.stretches)))

    def suffer(self, place: str, words: str) -> Told:
        kind, rounds = words.split()[0].split("=")
        self.seen.append((kind, place, self.now))
        core = isolation.VICTIMS_CORE
        # one round had a tick in it
        counted = [Stretch(core, 0, 90_000), *[Stretch(core, 0, 500)] * (self._counted - 1)]
        self.stretches += [*counted, Stretch(core + 1, 0, 9)]
        return told(int(rounds), 2 if self.now is None else 52)

    @contextlib.contextmanager
    def disturbed(self, *what: str) -> Iterator[None]:
        self.now = what
        yield
        self.now = None


def measured(rig: Rig, clock: str, extent: isolation.Extent = isolation.WHOLE) -> list[tuple]:
    taken: list[tuple] = []
    taker = SimpleNamespace(add=lambda *sample, round, order: taken.append((*sample, round, order)), name="machine 1")
    isolation.measure(taker, rig.server, rig, clock, 1, extent)
    return taken


def test_all_victims_suffer_from_each_side(capsys: pytest.CaptureFixture):
    """Idle twice in each part, undisturbed; a side that a kernel cannot do is left out."""
    rig = Rig()
    taken = measured(rig, PINNED)
    sides = [name for name in isolation.SIDES if not name.startswith("text")]
    turns = len(sides) + 2 * (isolation.PARTS - 1)
    assert len(rig.seen) == turns * len(VICTIMS)
    assert sum(now is None for *_, now in rig.seen) == 2 * isolation.PARTS * len(VICTIMS)
    assert ("echo", IN_GUEST, ("crash", OTHER)) in rig.seen and ("wake", NODE, ("tlb", SAME)) in rig.seen
    assert len(measured(Rig(patches_text=True), PINNED)) > len(taken)
    latencies = {sample[1] for sample in taken if sample[0] == "wake on a node latency"}
    assert latencies == set(sides)
    more = {sample[1]: sample[2] for sample in taken if sample[0] == "echo in a guest interrupts"}
    assert set(more) == set(sides) - {IDLE} and more[AGAIN] == 0 and more["cpu, other node"] == 50
    said = capsys.readouterr().err
    assert "cpu, other node: {'RES': 50.0}" in said and "same node" not in said
    orders = {(sample[1], sample[-2]): sample[-1] for sample in taken}
    assert sorted(orders.values()) == list(range(turns)) and [side for side, _ in orders] != sides
    assert {part for _, part in orders} == set(range(isolation.PARTS))


def test_an_aggressor_is_compared_with_the_idle_of_its_part():
    """By round, as all ratios."""
    taken = [(side, part) for case, side, _, _, _, part, _ in measured(Rig(), PINNED) if case == "wake on a node latency"]
    assert len(set(taken)) == len(taken)
    assert {part for _, part in taken} == {part for side, part in taken if side == IDLE} == set(range(isolation.PARTS))
    parts = isolation.parts_of(7, "machine 1", list(isolation.DISTURBED), 4)
    assert sorted(name for part in parts for name in part if name not in isolation.IDLES) == sorted(isolation.DISTURBED)
    assert all({IDLE, AGAIN} <= set(part) for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_all_victims_together_are_their_geometric_mean():
    """For the null comparison: of idle turns only."""
    taken = measured(Rig(), PINNED, isolation.Extent(VICTIMS[:2], ("cpu, other node",), 1))
    both = {side: value for case, side, value, *_ in taken if case == "all victims latency"}
    assert set(both) == {IDLE, AGAIN}
    each = [value for case, side, value, *_ in taken if side == IDLE and case != "all victims latency"]
    assert len(each) == 2 and both[IDLE] == pytest.approx((each[0] * each[1]) ** 0.5)


def test_own_instructions_are_the_victims_cores():
    taken = measured(Rig(), OWN, isolation.QUICK)
    assert {round(sample[2], 6) for sample in taken} == {500} and {sample[4] for sample in taken} == {OWN}
    assert len(taken) == len(isolation.QUICK.victims) * (2 + len(isolation.QUICK.aggressors)) + 2
    with pytest.raises(RigError, match="has counted 7 of 300 rounds of wake on a node"):
        measured(Rig(counted=7), OWN)


def test_quick_run_has_each_placement_and_both_idles():
    """Of few."""
    sides = isolation.QUICK.aggressors
    assert len(sides) < len(isolation.DISTURBED) / 3
    assert {isolation.DISTURBED[name][1] for name in sides} == {SAME, GUEST, OTHER}


def test_goals_speak_of_other_nodes_only():
    """Beside the null comparisons; text patching does not show on the rig's kernels."""
    for goal in isolation.GOALS:
        assert goal.null == (goal.side == AGAIN) and (goal.null or goal.side.endswith(f", {OTHER}"))
        assert ("emulator" in goal.where) == (not goal.side.startswith("text"))
    assert {goal.high for goal in isolation.GOALS if goal.clock == OWN and not goal.null} == {1.02}
    latency = {goal.high for goal in isolation.GOALS if goal.to and goal.clock == PINNED and not goal.null}
    assert latency == {1.10}
