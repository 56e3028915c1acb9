# SPDX-License-Identifier: Apache-2.0
"""One kernel and two nodes: what is compared is equal, and what was measured is what is recorded."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import figures_scaling as scaling
from figures_scaling import AGAIN, FILL, LAYOUTS, NODES, ONE, OPS, OWN, WALL
from rig import paths
from rig.errors import RigError
from rig.machine import CPUS, DEFAULT_FLAVOUR, MINT
from rig.markers import Stretch
from rig.scaling import Scaling, Thread

CORES = sorted(os.sched_getaffinity(0))[:2]


def memory_words(plan) -> list[str]:
    words = plan.words()
    return sorted(words[at + 1] for at, word in enumerate(words) if word == "--memory")


@pytest.mark.parametrize("cores", scaling.CORES)
def test_both_sides_have_the_same(cores: int):
    """The same cores, and as much memory on each NUMA node; a disk for each kernel."""
    by_side = {layout.side: layout.plans for layout in LAYOUTS.values() if layout.cores == cores}
    one, two = by_side[ONE], by_side[NODES]
    assert (len(one), len(two)) == (1, 2)
    assert sorted(one[0].cpus) == sorted(core for plan in two for core in plan.cpus)
    assert len(one[0].cpus) == cores and all(len(plan.cpus) == cores // 2 for plan in two)
    assert memory_words(one[0]) == sorted(words for plan in two for words in memory_words(plan))
    assert len({device for plan in two for device in plan.devices}) == 2
    assert by_side.get(AGAIN, one) == one
    assert list(scaling.sides(cores)) == [side for side in (ONE, AGAIN, NODES) if side in by_side]


def pool_mib() -> dict[int, int]:
    """Of each NUMA node."""
    words = [word.removeprefix("mem=").split("@") for word in MINT.split(",") if word.startswith("mem=")]
    return {int(numa): int(size[:-1]) << (10 if size.endswith("G") else 0) for size, numa in words}


def test_nodes_fit_into_the_pool():
    """All that run at the same time."""
    assert pool_mib() == {0: 1024, 1: 1792}
    for plans in (FILL, *(layout.plans for layout in LAYOUTS.values())):
        taken: dict[int, int] = {}
        for size, _, numa in (words.partition("M@numa") for plan in plans for words in memory_words(plan)):
            taken[int(numa)] = taken.get(int(numa), 0) + int(size)
        assert all(mib <= pool_mib()[numa] for numa, mib in taken.items())


def test_fill_takes_each_core_but_the_boot_core():
    assert [plan.cpus for plan in FILL] == [(core,) for core in range(1, CPUS)]
    assert not any(plan.devices for plan in FILL)


class LocalJob:
    """The program on this host, as a job of a node."""

    def __init__(self, command: str) -> None:
        command = command.replace(scaling.PROGRAM, str(paths.need(paths.SCALE)))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.command, self.result = command, None
        self._process = subprocess.Popen(["sh", "-c", command], text=True, **pipes)
        self._said = ""

    def lines(self, limit_s: float):
        self._said = self._process.stdout.readline()
        yield from self._said.splitlines()

    def input(self, data: bytes) -> None:
        self._process.stdin.write(data.decode())
        self._process.stdin.flush()

    def wait(self) -> SimpleNamespace:
        out, err = self._process.communicate(timeout=60)
        return SimpleNamespace(status=self._process.returncode, out=self._said + out, err=err)


def local(*cpus: int) -> scaling.Place:
    node = SimpleNamespace(channel=SimpleNamespace(start=lambda command, limit_s, keep_input: LocalJob(command)))
    return scaling.Place(node, cpus, cpus)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_the_program_takes_the_words_of_each_operation(op: scaling.Op):
    """In a run that is as short as it can be, in two places at once."""
    runs = scaling.together([local(core) for core in CORES], f"{op.words} calls=3 repeats=2 label={scaling.LABEL}")
    assert [run.repeats[0][0].cpu for run in runs] == CORES
    assert [len(run.repeats) for run in runs] == [2] * len(CORES)


def test_run_that_does_not_begin_or_end_is_told():
    with pytest.raises(RigError, match="did not begin"):
        scaling.together([local(CORES[0])], "op=none")
    with pytest.raises(RigError, match="No such file"):
        scaling.together([local(CORES[0])], "op=unlink dir=/proc/none")


@pytest.mark.parametrize(("clock", "wanted"), [(OWN, [6.0, 6.0]), (WALL, [2e7, 2e7])])
def test_first_repeat_does_not_count(monkeypatch: pytest.MonkeyPatch, clock: str, wanted: list[float]):
    """Nor does what was counted before; on a server each repeat has more calls."""
    stretches = [Stretch(core, scaling.LABEL, 1) for core in (1, 3)] * 3
    asked: list[str] = []

    def together(places, words: str) -> list[Scaling]:
        asked.append(words)
        for instructions in (990, 60, 60):
            stretches.extend(Stretch(core, scaling.LABEL, instructions) for core in (1, 3))
        return [Scaling({}, [[Thread(n, 0, 0, 10, 1000)] for n in range(1, 4)]) for _ in places]

    monkeypatch.setattr(scaling, "together", together)
    server = SimpleNamespace(machine=SimpleNamespace(stretches=lambda _: list(stretches)))
    taken: list[tuple] = []
    places = [scaling.Place(None, (1,), (0,)), scaling.Place(None, (3,), (0,))]
    taker = SimpleNamespace(add=lambda *sample: taken.append(sample))
    scaling.measure(taker, server, LAYOUTS["2 cores, two nodes"], places, clock, 4, 2)
    assert [sample[0] for sample in taken] == [f"{op.name} 2" for op in OPS for _ in wanted]
    assert [sample[2] for sample in taken[:2]] == pytest.approx(wanted)
    assert {sample[1:2] + sample[3:5] + sample[6:] for sample in taken} == {(NODES, scaling.UNITS[clock], clock, 4)}
    assert [sample[5] for sample in taken[:2]] == [0, 1]
    times = scaling.SERVER_TIMES if clock == WALL else 1
    assert asked[0] == f"op=unlink calls={OPS[0].calls * times} repeats=3 label=0"


class FakeServer:
    """Nodes with ids in the order in which they come."""

    def __init__(self, cpuinfo: str = "processor\t: 0\napicid\t\t: 1\n\nprocessor\t: 1\napicid\t\t: 4\n") -> None:
        self.cpuinfo = cpuinfo
        self.done: list[tuple[int, str]] = []
        self.count = 0

    def add(self, plan, *more: str) -> dict:
        self.count += 1
        return {"node": {"id": self.count}}

    def node(self, number: int) -> SimpleNamespace:
        return SimpleNamespace(
            number=number,
            run=lambda command, **_: self.done.append((number, command)),
            read=lambda _: self.cpuinfo,
            console=SimpleNamespace(mark=lambda: number, wait_for=lambda pattern, mark: ("", 300 * 1024)),
            out=lambda _: f"MemTotal:        {3000 * 1024} kB",
        )

    def wait_ready(self, node: SimpleNamespace) -> None:
        self.done.append((node.number, "ready"))

    def remove_all(self) -> None:
        self.done.append((0, "removed"))

    def ledger(self) -> SimpleNamespace:
        return SimpleNamespace(memory_bytes=lambda owner, numa: (1400 - 192 * self.count) << 20)

    zero = property(lambda self: self.node(0))


def test_kernels_are_quiet_and_go():
    """Their services are there before they are stopped; cores are told by their APIC ids."""
    server = FakeServer()
    with scaling.kernels(server, LAYOUTS["2 cores, one kernel"], b"program") as places:
        assert [(place.cores, place.cpus) for place in places] == [((1, 3), (0, 1))]
        assert [what for _, what in server.done[:2]] == ["ready", scaling.QUIET]
    assert server.done[-1] == (0, "removed")


def test_kernel_without_its_cores_is_refused():
    """And goes."""
    server = FakeServer("processor\t: 0\napicid\t\t: 1\n")
    with pytest.raises(RigError, match=r"has cores \[1\], not \(1, 3\)"):
        with scaling.kernels(server, LAYOUTS["2 cores, one kernel"], b"program"):
            pass
    assert server.done[-1] == (0, "removed")


def test_memory_is_what_no_kernel_and_no_free_block_has():
    """6144 MiB; node 0 has 3000, each further node 300 of its 384; 2800 are free before the first."""
    server, taken = FakeServer(), []
    scaling.memory(SimpleNamespace(add=lambda *sample: taken.append(sample)), server)
    kept = {side: value for case, side, value, *_ in taken if case == "kept"}
    costs = {side: value for case, side, value, *_ in taken if case == "each costs"}
    assert kept == {f"{count} nodes": 344 + 84 * count for count in range(len(FILL) + 1)}
    assert costs == {f"node {number}": 84 for number in range(1, len(FILL) + 1)}
    typed = [command for number, command in server.done if number == 0 and "mintctl" in command]
    assert [command.split(" | ")[1] for command in typed] == [
        f"mintctl node console {number} --write >/dev/null" for number in range(1, len(FILL) + 1)
    ]
    assert server.done[-1] == (0, "removed")


def test_area_is_that_of_so_many_nodes(monkeypatch: pytest.MonkeyPatch):
    """Node 0's kernel boots no further than that; what is being made is looked at again."""
    looks = iter([None, RigError("of version 0"), SimpleNamespace(header=SimpleNamespace(area_bytes=36 << 20))])
    booted: list = []

    class FakeRam:
        def __init__(self, _) -> None:
            pass

        def __enter__(self) -> "FakeRam":
            return self

        def __exit__(self, *_) -> None:
            pass

    class FakeMachine(FakeRam):
        def check_alive(self) -> None:
            pass

    def server(config) -> SimpleNamespace:
        booted.append(config)
        return SimpleNamespace(machine=FakeMachine(None))

    def look(_):
        found = next(looks)
        if isinstance(found, RigError):
            raise found
        return found

    monkeypatch.setattr(scaling, "Server", server)
    monkeypatch.setattr(scaling, "Ram", FakeRam)
    monkeypatch.setattr(scaling, "area_of", look)
    assert scaling.area_mib(16) == 36
    assert booted[0].mint == f"{MINT},nodes=16" and booted[0].flavour == DEFAULT_FLAVOUR


def test_fill_is_timed_command_by_command(monkeypatch: pytest.MonkeyPatch):
    """Until each kernel runs, by node 0's clock."""
    said: list[str] = []

    def timed(_, step: tuple[str, str]) -> dict[str, float]:
        said.append(step[1])
        return {"start": 2.0}

    monkeypatch.setattr(scaling, "timed", timed)
    assert scaling.fill(FakeServer()) == [2.0] * len(FILL)
    assert all(command.startswith("mintctl node add more") and command.endswith("--wait running") for command in said)
    assert "'console=hvc0 tsc=reliable nowatchdog oops=panic mint.root=initrd'" in said[0]


def test_services_that_are_stopped_are_services(tmp_path: Path):
    """By the node's own tool; mintd stays."""
    (tmp_path / "mint-service").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/said\n')
    (tmp_path / "mint-service").chmod(0o755)
    subprocess.run(["sh", "-c", scaling.QUIET], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=True)
    stopped = (tmp_path / "said").read_text().split()[1:]
    known = (paths.PROJECT / "images/layer/usr/sbin/mint-service").read_text()
    assert all(f"\t{name}) command=(" in known for name in stopped) and "mintd" not in stopped
