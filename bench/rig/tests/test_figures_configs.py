# SPDX-License-Identifier: Apache-2.0
"""The paper's configurations: what is compared is equal, and what was measured is what is recorded."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import figures_configs as configs
from figures_configs import CASES, CONFIGS, COUNTED, OWN, PINNED
from rig import emulator, paths
from rig.errors import RigError
from rig.evaluation import Evaluation, Repeat
from rig.markers import Stretch
from rig.server import ONE

BY_NUMBER = {config.number: config for config in CONFIGS}
# What the paper compares: the same places, on Linux and with Mint.
PAIRS = [(1, 2), (4, 5), (7, 6)]


def evaluation(*moved: bool) -> Evaluation:
    """Repeats of 1 s, 2 s, …"""
    repeats = [Repeat(n, n * 10**9, 0, 0, 0, 1, there, "") for n, there in enumerate(moved, 1)]
    return Evaluation({"repeats": len(repeats)}, repeats)


def test_there_are_the_papers_seven():
    """Table 2: how many kernels run, and how many guests."""
    shape = {config.number: (config.mint, len(config.nodes), len(config.guests)) for config in CONFIGS}
    assert shape == {
        1: (False, 1, 0), 2: (True, 1, 0), 3: (True, 2, 0), 4: (False, 1, 1), 5: (True, 1, 1), 6: (True, 2, 2),
        7: (False, 1, 2),
    }  # fmt: skip
    assert len({config.side for config in CONFIGS}) == 7


@pytest.mark.parametrize(("linux", "mint"), PAIRS)
def test_both_sides_have_the_same(linux: int, mint: int):
    """Cores, memory, and a disk for each place."""
    one, other = BY_NUMBER[linux], BY_NUMBER[mint]
    cores = [sorted(core for some in config.cores.values() for core in some) for config in (one, other)]
    assert cores[0] == cores[1]
    assert one.memory_mib == other.memory_mib
    assert one.places == other.places
    machines = [configs.machine_config(config, PINNED) for config in (one, other)]
    assert machines[0].extra == machines[1].extra
    assert [machine.flavour for machine in machines] == ["stock", "mint"]


def test_no_place_works_on_its_kernels_first_core():
    """And no two on one."""
    for config in CONFIGS:
        workers = configs.WORKERS[: config.places]
        for node, cores in config.cores.items():
            assert cores[0] not in workers
            assert config.mint or set(workers) <= set(cores)
            assert not config.mint or configs.WORKERS[node] in cores
    assert set(BY_NUMBER[3].cores[1]) == set(configs.NODE1.cpus) == set(ONE.cpus)


def test_linux_has_what_is_left_beside_mints_pool():
    """In MiB of each NUMA node."""
    sizes = {config.number: configs.machine_config(config, PINNED).numa_mib for config in CONFIGS}
    assert sizes == {1: 1664, 4: 1664, 7: 2176, 2: 3072, 3: 3072, 5: 3072, 6: 3072}


def test_each_figure_has_its_configurations():
    """Figures 5 to 7 alone, 8 and 10 at once, 9 both."""
    by_figure: dict[str, set[int]] = {}
    for case in CASES:
        by_figure.setdefault(" ".join(case.name.split()[:2]), set()).update(case.configs)
    assert by_figure == {
        "fig 5": {1, 2, 4, 5}, "fig 6": {1, 2, 4, 5}, "fig 7": {1, 2, 4, 5}, "fig 8": {3, 6, 7},
        "fig 9": {2, 3, 4, 5, 6, 7}, "fig 10": {3, 6, 7},
    }  # fmt: skip
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_program_takes_the_words_of_each_case(case: configs.Case, tmp_path):
    """In a run that is as short as it can be."""
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(1 << 20))
    words = case.words.replace("DISK", str(disk)).split()
    done = subprocess.run(
        [paths.need(paths.EVAL), *words, "label=1", "direct=0", "repeats=1"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_counted_is_for_one_kernel_alone(monkeypatch):
    """It has one clock for all CPUs."""
    assert [config.number for config in CONFIGS if COUNTED in configs.clocks_of(config)] == [1, 2]
    assert all(OWN in configs.clocks_of(config) for config in CONFIGS)
    assert [config.number for config in CONFIGS if PINNED in configs.clocks_of(config)] == [3, 6, 7]
    monkeypatch.setattr(configs.accel, "use_kvm", lambda: True)
    assert configs.clocks_of(BY_NUMBER[1]) == ("wall",)


def test_qemu_takes_the_data_disks():
    """Both, with their I/O threads; it would end with a message."""
    qemu = emulator.choose()
    command = [
        *qemu.command, "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot", "-machine", "q35",
        "-accel", "tcg,thread=multi", "-cpu", "qemu64,+pdpe1gb", "-smp", "2", "-m", "32M",
        "-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-kernel", str(paths.need(paths.COUNT_TEST)),
        *configs.data_disk_arguments(0), *configs.data_disk_arguments(1),
    ]  # fmt: skip
    done = subprocess.run(
        command, env=os.environ | qemu.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 33, done.stderr


def test_kernels_number_cores_as_they_like():
    """Told by their APIC ids."""
    text = "processor\t: 0\nvendor\t: x\napicid\t\t: 4\ninitial apicid\t: 4\n\nprocessor\t: 1\nvendor\t: x\napicid\t\t: 5\n"
    assert configs.numbering(text) == {3: 0, 4: 1}


def test_guest_gets_its_nodes_disk():
    """In a domain without one only."""
    xml = "<domain><devices>\n    <memballoon model='none'/></devices></domain>"
    found = configs.with_disk(xml, "/dev/vdc")
    assert "<source dev='/dev/vdc'/><target dev='vda' bus='virtio'/></disk>\n    <memballoon" in found
    for bad in (found, "<domain/>"):
        with pytest.raises(RigError, match="no domain without a disk"):
            configs.with_disk(bad, "/dev/vdc")


def test_guests_shell_runs_the_program_not_a_word_of_its_own():
    """A shell's own eval takes its words for variables, and succeeds."""

    def says(word: str) -> str:
        return subprocess.run(["sh", "-c", f"type {word}"], capture_output=True, text=True, check=False).stdout

    assert "builtin" in says("eval") and "builtin" not in says(configs.IN_GUEST)


def test_values_are_seconds_or_the_cores_own_instructions():
    """Of other cores' stretches none is taken."""
    run = evaluation(False, False)
    assert configs.values(run, [], 4, PINNED) == [(1.0, "s"), (2.0, "s")]
    own = [Stretch(4, 0, 70), Stretch(1, 0, 1), Stretch(4, 0, 71)]
    assert configs.values(run, own, 4, OWN) == [(70, "instructions"), (71, "instructions")]


def test_values_that_are_not_whole_are_refused():
    """Another CPU's part would be missing."""
    with pytest.raises(RigError, match=r"\[2\] ended on another CPU"):
        configs.values(evaluation(False, True), [], 1, PINNED)
    with pytest.raises(RigError, match="counted 1 of 2"):
        configs.values(evaluation(False, False), [Stretch(4, 0, 70)], 4, OWN)


class FakePlace:
    """Notes what runs while it does."""

    def __init__(self, core: int, busy_now: set[int], seen: list[tuple[int, frozenset[int], str]]) -> None:
        self.core, self._busy_now, self._seen = core, busy_now, seen

    def run(self, words: str) -> Evaluation:
        """Two repeats."""
        self._seen.append((self.core, frozenset(self._busy_now), words))
        return evaluation(False, False)

    @contextlib.contextmanager
    def busy(self, words: str) -> Iterator[None]:
        """Until it is left."""
        self._busy_now.add(self.core)
        yield
        self._busy_now.remove(self.core)


@pytest.mark.parametrize("number", [1, 6])
def test_each_place_is_measured_while_the_others_are_busy(number: int, monkeypatch: pytest.MonkeyPatch):
    """With all its cases; each repeat is the mean of all places."""
    config = BY_NUMBER[number]
    seen: list = []
    taken: list[tuple] = []
    busy_now: set[int] = set()
    places = [FakePlace(core, busy_now, seen) for core in configs.WORKERS[: config.places]]
    taker = SimpleNamespace(add=lambda *sample: taken.append(sample))
    told = iter(range(1, 1000))
    monkeypatch.setattr(configs, "values", lambda evaluation, *_: [(float(next(told)), "s") for _ in evaluation.repeats])
    configs.measure(taker, None, config, places, "wall", 3, 10)
    mine = [case for case in CASES if number in case.configs]
    assert [words for _, _, words in seen] == [f"{case.words} repeats=10" for case in mine for _ in places]
    for core, others, _ in seen:
        assert others == {place.core for place in places} - {core}
    assert not busy_now
    assert [sample[0] for sample in taken] == [case.name for case in mine for _ in range(2)]
    assert {sample[1:2] + sample[3:5] + sample[6:] for sample in taken} == {(config.side, "s", "wall", 3)}
    assert [sample[5] for sample in taken if sample[0] == mine[0].name] == [0, 1]
    assert [sample[2] for sample in taken[:2]] == ([1, 2] if len(places) == 1 else [2, 3])


def test_each_goal_speaks_of_what_is_measured():
    """Its sides run its case by its clock; each case has goals or is told beside them."""
    named = {case.name: case for case in CASES}
    cases = {case.name: case.configs for case in CASES}
    for goal in configs.GOALS:
        for side in (goal.side, goal.to):
            config = configs.RUNS[side]
            assert config.number in cases[goal.case], goal
            assert goal.clock == "wall" or side in configs.runs_by(named[goal.case], goal.clock), goal
        assert goal.where == (("server",) if goal.clock == "wall" else ("emulator",))
    assert {goal.case for goal in configs.GOALS} == set(cases)


def test_each_run_is_on_a_server_of_its_own(monkeypatch):
    """All configurations by all clocks, in an order by chance; a quick one few of them, by own instructions."""
    seen: list[tuple[str, str, int]] = []
    monkeypatch.setattr(configs, "build", lambda _: b"")

    def on_server(taker, program, config, clock, order, repeats) -> None:
        assert repeats == (configs.QUICK_REPEATS if quick else configs.REPEATS[clock])
        seen.append((config.side, clock, order))

    monkeypatch.setattr(configs, "on_server", on_server)
    for quick in (False, True):
        header = SimpleNamespace(seed=1, quick=quick)
        recorder = SimpleNamespace(
            header=header,
            pick=lambda full, less: less if quick else full,
            to_do=lambda *_: ["machine 1"],
            machine=lambda *_: contextlib.nullcontext(None),
        )
        configs.run(recorder)
        wanted = [(side, clock) for side, config in configs.RUNS.items() for clock in configs.clocks_of(config)]
        wanted = [one for one in wanted if not quick or (one[1] == OWN and one[0] in configs.QUICK_SIDES)]
        assert sorted(one[:2] for one in seen) == sorted(wanted)
        assert [one[:2] for one in seen] != wanted
        assert [one[2] for one in seen] == list(range(len(wanted)))
        seen.clear()
