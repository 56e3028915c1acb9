# SPDX-License-Identifier: Apache-2.0
"""A rig, and a server, that are only played: what groups ask of them they answer as real ones do first."""

import contextlib
import json
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import figures_configs
import figures_isolation
import figures_layout
import figures_migrate
import figures_moves
import figures_network
import figures_partition
import figures_ready
import figures_scaling
import figures_split
import figures_split_cache
import figures_split_merge
import figures_split_moves
import figures_split_scarce
import figures_split_sort
import figures_start
from figures_neighbours import Told
from made_data import HEADER
from report.recorder import Recorder, read
from report.samples import DataSet
from report.summary import Summary, summarise
from rig.evaluation import Evaluation, Repeat
from rig.ledger import Ledger
from rig.markers import Stretch
from rig.modelled import Course, Second
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
    "migrate": figures_migrate,
    "split": figures_split,
    "split_moves": figures_split_moves,
    "split_sort": figures_split_sort,
    "split_cache": figures_split_cache,
    "layout": figures_layout,
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

    def ensure_pair(self) -> bool:
        """Its nodes run."""
        return True

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
        if "qemu-system-x86_64" in command:
            cpus, machines = self.roles.guests, figures_start.MACHINE.values()
            assert command in [figures_start.start_guest(cpus, machine) for machine in machines]
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

    def measured(self, side: str) -> dict[str, float]:
        return {"stream": 26.0, "trip": 5736.0}


class PlayedTwo:
    """Two machines, and what goes between them and talks there."""

    def __init__(self, *_) -> None:
        self.a = self.b = Played()

    def move(self) -> dict[str, float]:
        return {"total": 4.0, "downtime": 0.1}

    def ethernet(self) -> dict[str, float]:
        return {"stream": 26.0, "trip": 5736.0}

    routes = one_node = ethernet

    def __enter__(self) -> "PlayedTwo":
        return self

    def __exit__(self, *_) -> None:
        pass


class PlayedMerger:
    """A guest that comes from as many hosts."""

    def __init__(self, hosts: int) -> None:
        self._hosts = hosts

    def merge(self) -> float:
        return 20.0 / self._hosts


class PlayedWay:
    """A guest that goes, and back."""

    name = "guest"

    def ready(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def there(self) -> dict[str, float]:
        return {"total": 20.0, "downtime": 0.1}

    def came(self) -> int:
        return 500

    def back(self) -> None:
        pass


def played_did(_, line: str) -> str:
    """What a guest says to a line of work."""
    seconds = "".join(f"Period   1        {2000 + n}         2000         2.0\n" for n in range(figures_split_cache.WORK.after_s))
    return "sorted from 10.50 to 20.75\n" if "sorted from" in line else seconds


class PlayedPaged:
    """A guest whose pages come back whatever its pager knows."""

    def by(self, policy: str) -> dict[str, float]:
        return {"came": 200.0, "work": 0.5}


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


class PlayedStage:
    """A guest goes to and fro, and loses nothing."""

    def __init__(self, _, case: figures_layout.Case) -> None:
        self.case = case

    def ready(self) -> contextlib.AbstractContextManager:
        """All guests run."""
        return contextlib.nullcontext()

    def go(self, side: str) -> Course:
        """In a mode that the case has."""
        assert side in self.case.sides
        some = [Second(1000, 10_000_000 + number, 1000, 0) for number in range(12)]
        return Course(some, some, some, some)

    def back(self) -> None:
        """It does."""


def play(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boot no machine in what follows: groups are given what is played here."""
    Played.stopped = 0
    for module in MODULES.values():
        monkeypatch.setattr(module, "Server", Played)
        for name in {"build", "put"} & set(vars(module)):
            monkeypatch.setattr(module, name, lambda *_: b"")
    monkeypatch.setattr(figures_configs, "Prepared", played_places)
    monkeypatch.setattr(figures_configs, "Pinned", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(figures_isolation, "neighbours", lambda server, _: contextlib.nullcontext(PlayedNeighbours(server)))
    monkeypatch.setattr(figures_isolation, "Pinned", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(figures_migrate, "TwoMachines", PlayedTwo)
    monkeypatch.setattr(figures_migrate, "linked", contextlib.nullcontext)
    monkeypatch.setattr(figures_migrate, "set_clocks", lambda _: {})
    monkeypatch.setattr(figures_migrate, "Talkers", PlayedTwo)
    sides = dict.fromkeys(figures_migrate.MOVE_SIDES, PlayedTwo())
    monkeypatch.setattr(figures_migrate, "movers", lambda _: contextlib.nullcontext(sides))
    monkeypatch.setattr(figures_moves, "PlugGuest", PlayedGuest)
    monkeypatch.setattr(figures_network, "guest_pair", lambda *_: contextlib.nullcontext(PlayedGuest()))
    monkeypatch.setattr(figures_split, "paged", lambda _: contextlib.nullcontext(PlayedPaged()))
    for name, played in {"Server": Played, "config": lambda: None, "add_nodes": lambda _: None}.items():
        monkeypatch.setattr(figures_split_scarce, name, played)
    for module in (figures_split_moves, figures_split_sort, figures_split_cache):
        ways = dict.fromkeys(module.SIDES, PlayedWay())
        monkeypatch.setattr(module, "ways", lambda *_, ways=ways: contextlib.nullcontext(ways))
        monkeypatch.setattr(module, "shaped", lambda *_: contextlib.nullcontext())
    for module in (figures_split_sort, figures_split_cache):
        monkeypatch.setattr(module, "bring", lambda _: None)
        monkeypatch.setattr(module, "did", played_did)
    monkeypatch.setattr(figures_layout, "Stage", PlayedStage)
    monkeypatch.setattr(figures_layout, "add_nodes", lambda _: None)
    mergers = {side: PlayedMerger(1 + (side == figures_split_merge.PARTS)) for side in figures_split_merge.SIDES}
    monkeypatch.setattr(figures_split_merge, "mergers", lambda _: contextlib.nullcontext(mergers))
    monkeypatch.setattr(figures_start, "boot_directly", lambda: {"init": 6.6})
    monkeypatch.setattr(figures_scaling, "kernels", played_kernels)
    monkeypatch.setattr(figures_scaling, "together", played_together)
    # Played free memory is 2 GiB; node 0's, the others'.
    monkeypatch.setattr(figures_scaling, "mem_total_mib", lambda _, number, mark=0: 300.0 if number else 2000.0)
    monkeypatch.setattr(figures_scaling, "area_mib", lambda ids: 36.0 * ids)
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


def stub(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
