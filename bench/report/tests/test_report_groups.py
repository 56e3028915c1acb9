# SPDX-License-Identifier: Apache-2.0
"""What make report measures: goals and figures speak of what groups give, on a rig that is only played."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import figures_configs
import figures_isolation
import figures_moves
import figures_network
import figures_partition
import figures_programs
import figures_ready
import figures_scaling
import figures_start
from figures_neighbours import Told
from made_data import HEADER
from report import passes, run
from report.goals import EMULATOR, NOT_HERE, OPEN, SERVER
from report.recorder import Recorder, read
from report.samples import DataSet
from report.summary import Summary, summarise
from rig.bootstrap import WRITTEN, ZERO_WRITTEN
from rig.errors import RigError
from rig.evaluation import Evaluation, Repeat
from rig.inventory import LINUX, MINT, Inventory
from rig.ledger import Ledger
from rig.markers import Stretch
from rig.plan import NODES
from rig.roles import NodePlan, Roles
from rig.scaling import Scaling, Thread
from rig.server import EMULATED
from rig.victim import Suffered

MODULES = {
    "configs": figures_configs,
    "start": figures_start,
    "ready": figures_ready,
    "partition": figures_partition,
    "network": figures_network,
    "moves": figures_moves,
    "scaling": figures_scaling,
    "isolation": figures_isolation,
}


class Played:
    """Answers like a node, its guests, and its monitor, with what a real one would say first."""

    stopped = 0
    roles = EMULATED
    blocks = 16  # free ones, on two NUMA nodes

    def __init__(self, *_) -> None:
        self.number = 0
        self.stretches: list[Stretch] = []
        self.commands: list[str] = []  # that were run
        self.endless: list[str] = []  # commands without a limit that run
        self.machine = SimpleNamespace(
            monitor=self, process=SimpleNamespace(pid=1), stretches=lambda label: list(self.stretches)
        )

    def execute(self, command: str) -> None:
        """QEMU's monitor; two machines do not run at a time where one is to stand still."""
        Played.stopped += {"stop": 1, "cont": -1}[command]

    def out(self, command: str, limit_s: float = 0) -> str:
        """stdout."""
        if "mintctl events" in command:
            event = {"seq": 1, "new": "running"} if "--since" not in command else {"seq": 2, "new": "crashed"}
            return json.dumps({**event, "time_ns": 10, "seen_ns": 3_000_010})
        if "--output-format=json" in command:
            job = {
                "read": {"total_ios": 500},
                "write": {"total_ios": 500},
                "usr_cpu": 20.0,
                "sys_cpu": 30.0,
                "job_runtime": 100,
            }
            return json.dumps({"jobs": [job]})
        if "/moves core" in command:
            return "release 6000\nclaim 5000\n" * int(command.split()[-1])
        if "/moves memory" in command:
            return "add 700\nonline 5000\noffline 17000\nremove 21000\nzero 20000\n" * 8
        if command.startswith(figures_moves.STAMP):
            return "\n".join(f"{what} 128000" for what in re.findall(r"took (\w+);", command))
        if command == figures_start.START_NODE:
            return "init 2700000\nloaded 2500000"
        if "qemu-system-x86_64" in command and command == figures_start.start_guest(self.roles.guests):
            return "init 9800000"
        if command == figures_ready.START:
            return "called 1000000000000\nmintd 1006500000000"
        if command == figures_ready.LOOK:
            return (
                "now 1012000000000 1012000000100\nlogged 11.0\ninit 0.96\nservices 1003.5\nlibvirt 1009.9\nready 1011.2"
            )
        if command == "date +%s%N":
            return "1013000000000"
        what = re.search(r"/measure (\w+)", command)[1]
        return f"measure {what} 288.1"

    def start(self, command: str, limit_s: float = 0) -> SimpleNamespace:
        """A job that is done at the second look, or when it was killed and waited for."""
        looks = iter([False, True])
        killed = []
        if not limit_s:
            self.endless.append(command)
        what = "fio" if "fio" in command else command.split()[4] if "taskset" in command else ""
        return SimpleNamespace(
            done=lambda: next(looks, True), result=SimpleNamespace(out=f"measure {what} 432.0"), kill=killed.append,
            wait=lambda limit_s: self.endless.remove(command) if killed else pytest.fail(f"is waited for: {command}"),
        )  # fmt: skip

    def run(self, command: str = "", *_, **__) -> None:
        """Nothing is to be seen of it."""
        self.commands.append(command)

    wait = wait_ready = wait_state = mintctl = remove_all = lambda *_, **__: None
    console = SimpleNamespace(mark=lambda: 0)

    def node(self, _: int) -> "Played":
        """All nodes are alike."""
        return self

    def add(self, plan, *_) -> dict:
        """mintctl node add."""
        return {"node": {"id": 3}}

    def ledger(self) -> SimpleNamespace:
        """Free blocks."""
        free = [{"id": n, "state": "free", "owner": None, "numa": n % 2, "bytes": 128 << 20} for n in range(16)]
        return Ledger({}, {}, {"memory": free[: self.blocks]})

    zero = one = two = property(lambda self: self)

    def __enter__(self) -> "Played":
        return self

    def __exit__(self, *_) -> None:
        pass


class PlayedGuest(Played):
    """A guest that is plugged into, or measures."""

    plug_vcpu = unplug_vcpu = plug_memory = unplug_memory = lambda self: 0.34

    def measured(self, amounts: tuple[int, int]) -> dict[str, float]:
        return {"stream": 26.0, "trip": 5736.0}


class PlayedPlace:
    """Takes ten times a second of its own core, and 500 instructions."""

    def __init__(self, server: Played, core: int) -> None:
        self.server, self.core = server, core

    def run(self, words: str) -> Evaluation:
        self.server.stretches += [Stretch(self.core, figures_configs.MEASURED, 500)] * 10
        return Evaluation({"repeats": 10}, [Repeat(n, 10**9, 0, 0, 0, 1, False, "") for n in range(10)])

    def busy(self, words: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def played_places(server: Played, config: figures_configs.Config, _: bytes):
    return contextlib.nullcontext([PlayedPlace(server, core) for core in figures_configs.WORKERS[: config.places]])


@contextlib.contextmanager
def played_kernels(server: Played, layout: figures_scaling.Layout, *_):
    yield [figures_scaling.Place(server, plan.cpus, plan.cpus) for plan in layout.plans]


def played_together(places: list[figures_scaling.Place], words: str) -> list[Scaling]:
    """Each thread makes ten calls in a microsecond, with 500 instructions."""
    repeats = int(re.search(r"repeats=(\d+)", words)[1])
    for place in places:
        place.node.stretches += [Stretch(core, figures_scaling.LABEL, 500) for core in place.cores] * repeats
    return [
        Scaling({}, [[Thread(n, at, cpu, 10, 1000) for at, cpu in enumerate(place.cpus)] for n in range(1, repeats + 1)])
        for place in places
    ]


class PlayedNeighbours:
    """Suffers the same from all: 50 µs and 500 instructions a round, three interrupts."""

    patches_text = True

    def __init__(self, server: Played) -> None:
        self.server = server

    def suffer(self, place: str, words: str) -> Told:
        kind, rounds = words.split()[0].split("=")
        if "label=" in words:
            self.server.stretches += [Stretch(figures_isolation.VICTIMS_CORE, 0, 500)] * int(rounds)
        return Told(Suffered(kind, int(rounds), {49_152: int(rounds)}, 0, 0, 0, int(rounds) * 10**6, 0, 0), {"RES": 3})

    def disturbed(self, name: str, placement: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine is booted."""
    Played.stopped = 0
    for module in MODULES.values():
        monkeypatch.setattr(module, "Server", Played)
        for name in {"build", "put"} & set(vars(module)):
            monkeypatch.setattr(module, name, lambda *_: b"")
    monkeypatch.setattr(figures_configs, "Prepared", played_places)
    monkeypatch.setattr(figures_configs, "Pinned", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(figures_isolation, "neighbours", lambda server, _: contextlib.nullcontext(PlayedNeighbours(server)))
    monkeypatch.setattr(figures_isolation, "Pinned", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(figures_moves, "PlugGuest", PlayedGuest)
    monkeypatch.setattr(figures_network, "guest_pair", lambda *_: contextlib.nullcontext(PlayedGuest()))
    monkeypatch.setattr(figures_start, "boot_directly", lambda: {"init": 6.6})
    monkeypatch.setattr(figures_scaling, "kernels", played_kernels)
    monkeypatch.setattr(figures_scaling, "together", played_together)
    # Played free memory is 2 GiB; node 0's, the others'.
    monkeypatch.setattr(figures_scaling, "mem_total_mib", lambda _, number, mark=0: 300.0 if number else 2000.0)
    monkeypatch.setattr(figures_scaling, "area_mib", lambda ids: 36.0 * ids)
    monkeypatch.setattr(figures_partition, "SLICE_S", 0)
    monkeypatch.setattr(figures_partition, "accel", SimpleNamespace(use_kvm=lambda: False))


def measured(module: ModuleType, path: Path, header=HEADER) -> DataSet:
    with Recorder(path, header) as recorder:
        module.run(recorder)
    return read(path)


def summary_of(module: ModuleType, data: DataSet) -> Summary:
    return summarise(data, module.GOALS, module.FIGURES, getattr(module, "HEATMAPS", ()))


def machines_of(module: ModuleType) -> int:
    """How many a whole run has."""
    return getattr(module, "MACHINES", 5)


def test_groups_are_the_ones_of_make_report():
    assert set(run.GROUPS) == set(MODULES)
    assert all(run.module(group) is module for group, module in MODULES.items())


@pytest.mark.parametrize("group", MODULES)
def test_each_group_has_a_null_comparison_and_names_that_agree(group: str):
    module = MODULES[group]
    figures = {figure.key: figure for figure in module.FIGURES}
    assert len(figures) == len(module.FIGURES) and all(figure.group == group for figure in module.FIGURES)
    for goal in module.GOALS:
        sides = figures[goal.group, goal.case, goal.clock].sides
        assert goal.side in sides and (goal.to is None or goal.to in sides), goal
    for heatmap in getattr(module, "HEATMAPS", ()):
        for (row, column), (case, side) in heatmap.cells.items():
            assert row in heatmap.rows and column in heatmap.columns
            sides = figures[heatmap.group, case, heatmap.clock].sides
            assert side in sides and (heatmap.to is None or heatmap.to in sides), (heatmap.name, row, column)
    clocks = {goal.clock for goal in module.GOALS}
    assert {goal.clock for goal in module.GOALS if goal.null} == clocks


@pytest.mark.parametrize("group", MODULES)
def test_each_group_gives_what_its_goals_and_figures_speak_of(rig, tmp_path: Path, group: str):
    module = MODULES[group]
    data = measured(module, tmp_path / "data.jsonl")
    found = summary_of(module, data)
    assert [picture.figure for picture in found.pictures] == [one for one in module.FIGURES if EMULATOR in one.where]
    for picture in found.pictures:
        assert all(side.found.machines >= machines_of(module) for side in picture.sides)
        assert {s.side for s in found.rows if (s.group, s.case, s.clock) == picture.figure.key} <= set(picture.figure.sides)
        assert {s.unit for s in found.rows if (s.group, s.case, s.clock) == picture.figure.key} == {picture.figure.unit}
    for verdict in found.verdicts:
        if EMULATOR not in verdict.goal.where and verdict.goal.clock == "wall" and group in ("configs", "scaling", "partition"):
            assert (verdict.word, verdict.found) == (NOT_HERE, None)  # with KVM that is its only clock
            continue
        assert verdict.found and verdict.found.machines >= machines_of(module) and verdict.word != OPEN, verdict
        assert (verdict.word == NOT_HERE) == (EMULATOR not in verdict.goal.where)
    heatmaps = getattr(module, "HEATMAPS", ())
    assert [(grid.heatmap, set(grid.cells)) for grid in found.grids] == [(one, set(one.cells)) for one in heatmaps]


@pytest.mark.parametrize("group", MODULES)
def test_whole_group_is_not_measured_again(rig, tmp_path: Path, group: str):
    before = measured(MODULES[group], tmp_path / "data.jsonl")
    assert measured(MODULES[group], tmp_path / "data.jsonl") == before
    assert (tmp_path / "data.jsonl").read_text().count('"header"') == 2


@pytest.mark.parametrize("group", MODULES)
def test_quick_run_does_less(rig, tmp_path: Path, group: str):
    whole = measured(MODULES[group], tmp_path / "whole.jsonl")
    quick = measured(MODULES[group], tmp_path / "quick.jsonl", replace(HEADER, quick=True))
    assert 0 < len(quick.samples) < len(whole.samples) / 2
    assert 0 < len(quick.ended) < len(whole.ended) / 2


@pytest.mark.parametrize("group", MODULES)
def test_sides_take_turns(rig, tmp_path: Path, group: str):
    """Each side is first now and then, on the same machine or on several."""
    data = measured(MODULES[group], tmp_path / "data.jsonl")
    nulls = [goal for goal in MODULES[group].GOALS if goal.null and EMULATOR in goal.where]
    assert nulls
    for goal in nulls:
        case = [s for s in data.samples if (s.case, s.clock) == (goal.case, goal.clock)]
        orders: dict[str, set[int]] = {}
        for sample in case:
            orders.setdefault(sample.side, set()).add(sample.order)
        assert all(len(orders[side]) > 1 for side in (goal.side, goal.to) if side), (goal, orders)


def test_server_stands_still_while_another_boots(rig, monkeypatch: pytest.MonkeyPatch):
    def boots() -> dict[str, float]:
        assert Played.stopped == 1
        raise RigError("lost")

    monkeypatch.setattr(figures_start, "boot_directly", boots)
    with pytest.raises(RigError, match="lost"):
        figures_start.start(Played(), figures_start.DIRECT)
    assert Played.stopped == 0


def test_server_that_never_boots_is_an_error(monkeypatch: pytest.MonkeyPatch):
    machine = SimpleNamespace(console=[SimpleNamespace(raw=lambda: b"still")], check_alive=lambda: None, started_at=0)
    server = SimpleNamespace(machine=contextlib.nullcontext(machine))
    monkeypatch.setattr(figures_start, "Server", lambda _: server)
    monkeypatch.setattr(figures_start, "LIMIT_S", 0.1)
    with pytest.raises(RigError, match="not within 0.1 s: the server's own init"):
        figures_start.boot_directly()


def test_job_in_turns_that_never_ends_is_an_error(rig, monkeypatch: pytest.MonkeyPatch):
    """And the machines stand still."""
    monkeypatch.setattr(figures_partition, "LIMIT_S", 0.1)
    monkeypatch.setattr(Played, "start", lambda *_, **__: SimpleNamespace(done=lambda: False))
    Played.stopped = 2
    with pytest.raises(RigError, match="not within 0.1 s: fio on both machines, in turns"):
        figures_partition.in_turns({"on": Played(), "off": Played()}, "fio", "on")
    assert Played.stopped == 2


def stub(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_start_is_timed_from_before_the_load_to_the_init(tmp_path: Path):
    """The real script, with commands that take a known time."""
    stamps = tmp_path / "stamps"
    stamps.write_text("1\n")
    stub(tmp_path, "kexec", f'[ "$1" = -s ] && exec sleep 0.3; (sleep 0.2; date +%s%N >>{stamps}) & exit 0')
    stub(tmp_path, "mintctl", f'echo "$@" >{tmp_path}/killed')
    script = figures_start.START_NODE.replace(figures_start.STAMPS, str(stamps)).replace("sleep 2", ":")
    path = f"{tmp_path}:{os.environ['PATH']}"
    text = subprocess.run(["sh", "-c", script], env={"PATH": path}, capture_output=True, text=True, check=True).stdout
    found = figures_start.times(text)
    assert 0.2 <= found["loaded"] < found["init"] - 0.25 and found["init"] < 30
    assert (tmp_path / "killed").read_text() == "node kill 1\n"


def test_guests_start_is_timed_to_its_init(tmp_path: Path):
    stub(tmp_path, "taskset", f"echo $$ >{tmp_path}/guest.pid; sleep 0.2; echo 'mint-init: node 0 init'; exec sleep 60")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MINT_RIG_FOLDER": str(tmp_path)}
    begin = time.monotonic()
    text = subprocess.run(
        ["sh", "-c", figures_start.start_guest((1, 5))], env=environment, capture_output=True, text=True
    ).stdout
    assert 0.2 <= figures_start.times(text)["init"] < 30
    assert time.monotonic() - begin < 50, "the guest was left to itself"


def test_start_without_an_init_is_an_error():
    with pytest.raises(RigError, match="no init was seen"):
        figures_start.times("loaded 12\n")


def test_move_without_a_time_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Played, "out", lambda *_: "comes 1000\n")
    with pytest.raises(RigError, match="goes: no time"):
        figures_moves.move_core(Played())


def test_request_of_fio_costs_its_processors_time():
    assert figures_partition.per_request_us(Played().out("--output-format=json")) == pytest.approx(50.0)


# -- on a real server -------------------------------------------------------------

AT_ROLES = Roles(
    NodePlan("one", (4, 5), 4096, 1, ("0000:41:00.0",)), NodePlan("two", (6, 7), 2048, 1, ("0000:42:00.0",)),
    (1, 2), 3, 0, "0000:43:00.0", ("0000:44:00.0", "0000:45:00.0"),
)  # fmt: skip
HAS = frozenset((*figures_programs.GUESTS_TAKE, *figures_start.NODE_TAKES, *figures_start.GUEST_TAKES))
AT_HEADER = replace(HEADER, qemu="", plan="root@server, plan cafe")
AT_MODULES = {name: module for name, module in MODULES.items() if hasattr(module, "on_pass")}


class PlayedRemote(Played):
    """A server with all roles."""

    def __init__(self, boot: str, roles: Roles = AT_ROLES) -> None:
        super().__init__()
        self.boot, self.roles = boot, roles
        self.has = Inventory(boot=boot, tools=HAS)
        self.added: list[NodePlan] = []
        self.room = "ext2/ext3\n5000"

    def add(self, plan, *more) -> dict:
        self.added.append(plan)
        return super().add(plan, *more)

    def out(self, command: str, limit_s: float = 0) -> str:
        if "/sys/block" in command and "grep -F" in command and "date" not in command:
            return "nvme2n1"
        if "stat -f" in command:
            return self.room
        if "/fio " in command:
            self.commands.append("fio")
            return "measure fio 3000.0"
        return super().out(command, limit_s)

    def address(self, number: int) -> str:
        return f"10.77.0.{10 + number}"


@pytest.fixture
def at(rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A real server is played."""
    monkeypatch.setattr(figures_partition, "paths", SimpleNamespace(need=lambda path: path, BUILD=tmp_path))
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "fio").write_bytes(b"fio")
    monkeypatch.setattr(Played, "measured", PlayedGuest.measured, raising=False)
    places = contextlib.nullcontext
    monkeypatch.setattr(
        figures_configs, "Prepared",
        lambda server, config, program, site: places([PlayedPlace(server, core) for core in site.workers[: config.places]]),
    )  # fmt: skip


def measured_at(module: ModuleType, path: Path, header=AT_HEADER, roles: Roles = AT_ROLES) -> tuple[DataSet, list[set[str]]]:
    """In a boot without Mint, then in one with it; and which boots were left after each."""
    left = []
    for boot in (LINUX, MINT):
        with Recorder(path, header) as recorder:
            left.append(passes.measure(module, recorder, PlayedRemote(boot, roles)))
    return read(path), left


@pytest.mark.parametrize("group", AT_MODULES)
def test_server_gives_what_goals_speak_of(at, tmp_path: Path, group: str):
    module = MODULES[group]
    data, left = measured_at(module, tmp_path / "data.jsonl")
    assert left == [{MINT}, set()]
    found = summary_of(module, data)
    assert found.place == SERVER
    for picture in found.pictures:
        assert SERVER in picture.figure.where and picture.figure in module.FIGURES
        assert all(side.found.machines == passes.PASSES for side in picture.sides)
    unmeasured = {"counted", "own", "pinned"}
    not_there = {"start", "all started", "kept", "each costs", "control area"} if group == "scaling" else set()
    for verdict in found.verdicts:
        if verdict.goal.clock in unmeasured or verdict.goal.case in not_there or verdict.goal.to == figures_start.DIRECT:
            assert not verdict.found, verdict
        else:
            assert verdict.found and verdict.found.machines == passes.PASSES, verdict


@pytest.mark.parametrize("group", AT_MODULES)
def test_server_is_not_measured_again(at, tmp_path: Path, group: str):
    before, _ = measured_at(MODULES[group], tmp_path / "data.jsonl")
    after, left = measured_at(MODULES[group], tmp_path / "data.jsonl")
    assert after == before and left == [set(), set()]


@pytest.mark.parametrize("group", AT_MODULES)
def test_quick_run_on_a_server_does_less(at, tmp_path: Path, group: str):
    whole, _ = measured_at(MODULES[group], tmp_path / "whole.jsonl")
    quick, _ = measured_at(MODULES[group], tmp_path / "quick.jsonl", replace(AT_HEADER, quick=True))
    assert 0 < len(quick.samples) < len(whole.samples) / 2


def test_what_has_come_since_is_absent_no_more(at, tmp_path: Path):
    """A tool was installed between two calls; what waits for a boot still does."""
    path, module = tmp_path / "data.jsonl", MODULES["configs"]
    server = PlayedRemote(LINUX)
    server.has = replace(server.has, tools=server.has.tools - {"virsh"})
    with Recorder(path, AT_HEADER) as recorder:
        passes.measure(module, recorder, server)
    before = {what for _, what in read(path).absent}
    assert "guests" in before
    with Recorder(path, AT_HEADER) as recorder:
        passes.measure(module, recorder, PlayedRemote(LINUX))
    assert {what for _, what in read(path).absent} == before - {"guests"}


@pytest.mark.parametrize("group", MODULES)
def test_what_a_plan_has_not_is_told(at, tmp_path: Path, group: str):
    """A plan of one node alone: each group gives what it can, and says of the rest why it does not."""
    roles = Roles(AT_ROLES.one)
    data, _ = measured_at(MODULES[group], tmp_path / "data.jsonl", roles=roles)
    assert bool(data.absent) == (group != "ready")
    if passes.WHOLE_GROUP in {what for _, what in data.absent}:
        assert not data.samples
    assert all(why for why in data.absent.values())


GUESTS, PLUG = figures_network.SIDES[figures_network.VIRTIO], passes.WHOLE_GROUP


@pytest.mark.parametrize(("group", "tool", "what"), [
    ("start", "kexec with --mint-node", passes.WHOLE_GROUP), ("start", "/boot/vmlinuz-mint", passes.WHOLE_GROUP),
    ("start", "/boot/node.initrd", passes.WHOLE_GROUP), ("start", "/dev/kvm", figures_start.SIDES[figures_start.GUEST]),
    ("start", "qemu-system-x86_64", figures_start.SIDES[figures_start.GUEST]),
    ("network", "mint-guest", GUESTS), ("network", "virsh", GUESTS), ("network", "cpio", GUESTS),
    ("network", "/dev/kvm", GUESTS), ("moves", "virsh", PLUG), ("moves", "/boot/vmlinuz-mint", PLUG), ("moves", "cpio", PLUG),
])  # fmt: skip
def test_what_a_server_lacks_is_told_and_not_tried(at, tmp_path: Path, group: str, tool: str, what: str):
    server = PlayedRemote(MINT)
    whole = set(MODULES[group].absent_at(server))
    server.has.tools -= {tool}
    with Recorder(tmp_path / "data.jsonl", AT_HEADER) as recorder:
        passes.measure(MODULES[group], recorder, server)
    data = read(tmp_path / "data.jsonl")
    assert data.absent[group, what] == f"the server has no {tool}"
    sides = {MODULES[group].FIGURES[0].label(sample.side) for sample in data.samples}
    assert what not in sides and bool(sides) == (what != passes.WHOLE_GROUP)
    # Another boot says nothing of it.
    server.boot = server.has.boot = LINUX
    assert set(MODULES[group].absent_at(server)) == whole


def test_nodes_that_groups_add_are_removed_by_the_server(at, tmp_path: Path):
    for module in AT_MODULES.values():
        with Recorder(tmp_path / f"{module.GROUP}.jsonl", AT_HEADER) as recorder:
            server = PlayedRemote(MINT)
            passes.measure(module, recorder, server)
            assert {one.name for one in server.added} <= set(NODES)
            assert all(core in (3, 4, 5, 6, 7) for one in server.added for core in one.cpus)


def test_counts_are_not_asked_of_a_server(at, tmp_path: Path):
    """Goals by them are not open there: nothing would close them."""
    data, _ = measured_at(figures_partition, tmp_path / "data.jsonl")
    words = {verdict.word for verdict in summary_of(figures_partition, data).verdicts if verdict.goal.clock == "counted"}
    assert words == {NOT_HERE}


@pytest.mark.parametrize("boot", [LINUX, MINT])
def test_disk_that_fio_writes_is_zero_again(at, tmp_path: Path, boot: str):
    server = PlayedRemote(boot)
    with Recorder(tmp_path / "data.jsonl", AT_HEADER) as recorder:
        passes.measure(figures_partition, recorder, server)
    writes = [command for command in server.commands if command]
    begin = f"echo /dev/nvme2n1 64 >>{WRITTEN}"
    once = [begin, *["fio"] * (1 if boot == MINT else 2), ZERO_WRITTEN]
    assert writes == once * passes.PASSES


@pytest.mark.parametrize("group", AT_MODULES)
def test_nothing_goes_on_after_a_pass(at, tmp_path: Path, group: str):
    """What stays would be measured with, and the next pass could not write the program."""
    for boot in (LINUX, MINT):
        server = PlayedRemote(boot)
        with Recorder(tmp_path / "data.jsonl", AT_HEADER) as recorder:
            passes.measure(MODULES[group], recorder, server)
        assert server.endless == []


def test_node_that_starts_is_as_large_as_the_guest_beside_it(at, tmp_path: Path):
    """Whatever the plan's node has."""
    one = NodePlan("one", (4, 5, 6, 7), 8192, 1, ("0000:41:00.0",))
    server = PlayedRemote(MINT, replace(AT_ROLES, one=one, two=None))
    with Recorder(tmp_path / "data.jsonl", AT_HEADER) as recorder:
        passes.measure(figures_start, recorder, server)
    assert set(server.added) == {NodePlan("figure", (4, 5), 1024, 1)}
    assert "-smp 2 -m 1024" in figures_start.start_guest((1, 2))


@pytest.mark.parametrize("one", [NodePlan("one", (4,), 4096, 1), NodePlan("one", (4, 5), 768, 1)])
def test_start_of_a_smaller_node_is_not_compared(at, one: NodePlan):
    absent = figures_start.absent_at(PlayedRemote(MINT, replace(AT_ROLES, one=one)))
    assert absent == {passes.WHOLE_GROUP: "one.cores of the plan has less than two, or one.memory is less than 1G"}


@pytest.mark.parametrize("group", ["ready", "moves"])
def test_sizes_of_the_emulated_nodes_are_in_no_label_of_others(group: str):
    """Those of a plan's nodes are others; what moves is the same everywhere."""
    for figure in MODULES[group].FIGURES:
        assert not re.search(r"2 cores|its 1 GiB", f"{figure.title} {' '.join(figure.sides.values())}")


@pytest.mark.parametrize(("room", "why"), [
    ("ext2/ext3\n4160", ""), ("xfs\n4159", "node 0's folder for it has 4159 MiB, and it may take 4160"),
    ("tmpfs\n90000", "node 0's folder for it is a tmpfs, which may be memory"),
])  # fmt: skip
def test_memory_is_dumped_only_to_a_disk_with_room(at, tmp_path: Path, room: str, why: str):
    server = PlayedRemote(MINT)
    server.room = room
    with Recorder(tmp_path / "data.jsonl", AT_HEADER) as recorder:
        passes.measure(figures_moves, recorder, server)
    data = read(tmp_path / "data.jsonl")
    assert {what: text for (_, what), text in data.absent.items()} == ({"a dump of a node's memory": why} if why else {})
    assert ("dump" in {s.side for s in data.samples}) == (not why)
    assert {"known", "start"} <= {s.side for s in data.samples}


def test_room_for_a_dump_is_asked_of_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The real commands."""
    monkeypatch.setenv("MINT_RIG_FOLDER", str(tmp_path))
    out = lambda command: subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    kind = out(f"stat -f -c %T {tmp_path}").strip()
    free_mib = shutil.disk_usage(tmp_path).free >> 20
    server = SimpleNamespace(zero=SimpleNamespace(out=out), roles=replace(AT_ROLES, one=NodePlan("one", (4,), 10**9, 1)))
    found = figures_moves.no_dump(server)
    assert kind in found or abs(int(re.search(r"has (\d+) MiB", found)[1]) - free_mib) < 4096


def test_gib_of_the_kernels_part_is_of_the_moving_numa_node(at, monkeypatch: pytest.MonkeyPatch):
    """And it is a whole one, or none is measured."""
    asked: list[str] = []
    monkeypatch.setattr(PlayedRemote, "out", lambda self, command, *_: asked.append(command) or "")
    server = PlayedRemote(MINT, replace(AT_ROLES, moving_numa=1))
    figures_moves.parts(server, SimpleNamespace(add=lambda *_, **__: None), 1, 1)
    assert [command.split()[4:] for command in asked if "/moves memory" in command] == [[*"1 3 5 7 9 11 13 15".split()]] * 2
    server.blocks = 15
    with pytest.raises(RigError, match="7 blocks of NUMA node 1 are free, and 1 GiB takes 8: boot with a larger pool"):
        figures_moves.parts(server, SimpleNamespace(add=lambda *_, **__: None), 1, 1)


def test_disk_that_moved_is_read_by_the_name_that_node_one_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The real command; one with several paths, too."""
    for place in ("0000:43:00.0/nvme/nvme3/nvme3c0n1", "virtual/nvme3n1"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / "block").mkdir(exist_ok=True)
        (tmp_path / "block" / place.rpartition("/")[2]).symlink_to(tmp_path / place)
    stub(tmp_path, "mintctl", '[ "$1" = device ] && exit; shift 4; exec "$@"')
    stub(tmp_path, "dd", f'echo "$@" >{tmp_path}/read')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def out(command: str, limit_s: float) -> str:
        command = command.replace("/sys/block", f"{tmp_path}/block").replace("[ -b ", "[ -n ")
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, timeout=60).stdout

    added = []
    server = SimpleNamespace(zero=SimpleNamespace(out=out), roles=AT_ROLES)
    figures_moves.disks(server, SimpleNamespace(add=lambda *words, **_: added.append(words[0])), 1)
    assert (tmp_path / "read").read_text() == "if=/dev/nvme3n1 of=/dev/null bs=4k count=1 iflag=direct\n" and added == ["disk"]


def test_failed_pass_leaves_node_0_alone(at, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    removed = []
    monkeypatch.setattr(PlayedRemote, "remove_all", lambda self: removed.append(True))
    monkeypatch.setattr(figures_ready, "start", lambda _: 1 / 0)
    with Recorder(tmp_path / "data.jsonl", AT_HEADER) as recorder, pytest.raises(ZeroDivisionError):
        passes.measure(figures_ready, recorder, PlayedRemote(MINT))
    assert removed == [True]


def test_each_boot_gives_its_own_configurations(at, tmp_path: Path):
    for boot, mint in ((LINUX, False), (MINT, True)):
        path = tmp_path / f"{boot}.jsonl"
        with Recorder(path, AT_HEADER) as recorder:
            assert passes.measure(figures_configs, recorder, PlayedRemote(boot)) == {LINUX, MINT} - {boot}
        sides = {sample.side for sample in read(path).samples}
        assert sides == {side for side, config in figures_configs.RUNS.items() if config.mint == mint}
