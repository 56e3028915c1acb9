# SPDX-License-Identifier: Apache-2.0
"""make report, quick: every group measures on the emulated server, and all is drawn."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import figures_configs as configs
import figures_isolation as isolation
import figures_layout as layout
import figures_migrate as migrate
import figures_moves as moves
import figures_network as network
import figures_partition as partition
import figures_ready as ready
import figures_scaling as scaling
import figures_split as split
import figures_split_cache as split_cache
import figures_split_merge as split_merge
import figures_split_moves as split_moves
import figures_split_sort as split_sort
import figures_start as start
from figures_split_scarce import Scale
from report import run
from report.recorder import read
from report.samples import part_name
from rig.machine import DEFAULT_FLAVOUR, MachineConfig
from rig.server import EMULATED, Server

MODULES = (configs, start, ready, partition, network, moves, migrate, split, split_moves, split_sort, split_cache, layout,
           isolation, scaling)  # fmt: skip

MACHINES = {
    *((group, "machine 1") for group in run.GROUPS if group != "partition" and not group.startswith("split")),
    *(("split", part_name("machine 1", part)) for part in split.PARTS_OF),
    *(("split_moves", part_name("machine 1", part)) for part in split_moves.PARTS),
    ("split_sort", part_name("machine 1", "sort")),
    ("split_cache", part_name("machine 1", "cache")),
    ("partition", "counted 1"),
    ("scaling", "starts 1"),
}
IDLE, AGAIN, BESIDE = isolation.IDLE, isolation.AGAIN, "cpu, other node"
WAKE = replace(isolation.QUICK_VICTIMS[0], rounds=1000, per_mille=990)
KERNELS = tuple(name for name, layout in scaling.LAYOUTS.items() if layout.cores == 2)
SMALLER = Scale(128, 64)
# What is left of a quick run: one round of few sides, so that all groups take minutes.
TRIMMED = {
    (configs, "QUICK_SIDES"): (configs.NODE0, configs.AGAIN),
    (configs, "QUICK_REPEATS"): 1,
    (network, "SIDES"): {side: network.SIDES[side] for side in (network.MINT0, network.AGAIN, network.LOOPBACK)},
    (partition, "SIDES"): {side: partition.SIDES[side] for side in (partition.OFF, partition.ON)},
    (partition, "COUNTED_QUICK_JOB_S"): 1,
    (split, "SETTLE_S"): 1,
    (split, "COUNT_S"): 5,
    (split_moves, "IDLE"): split_moves.Kind(SMALLER, 48),
    (split_moves, "BUSY"): split_moves.Kind(SMALLER, 48, 16, tuple(split_moves.BUSY_SIDES)),
    (split_sort, "WORK"): split_sort.Work(Scale(192, 96), 24, 24, 24),
    (split_cache, "WORK"): split_cache.Work(Scale(192, 96), 32, 32, 5, 5, 10),
    (layout, "CASES"): layout.CASES[:1],
    (isolation, "QUICK"): isolation.Extent((WAKE,), (BESIDE,), 1),
    (scaling, "QUICK_LAYOUTS"): KERNELS,
    (scaling, "OPS"): scaling.OPS[:1],
    (scaling, "AREA_IDS"): scaling.AREA_IDS[:1],
    (scaling, "FILL"): scaling.FILL[:2],
    (scaling, "STARTS"): dict(list(scaling.STARTS.items())[:2]),
}
SIDES = {
    "configs": {configs.NODE0, configs.AGAIN},
    "start": set(start.SIDES),
    "network": {network.MINT0, network.AGAIN, network.LOOPBACK},
    "partition": {partition.OFF, partition.ON},
    "migrate": {*migrate.MOVE_SIDES, *migrate.TALK_SIDES},
    "split": {*split.SIDES, *split_merge.SIDES},
    "split_moves": {*split_moves.SIDES, *split_moves.LINKS},
    "split_sort": set(split_sort.SIDES),
    "split_cache": set(split_cache.SIDES),
    "layout": set(layout.SIDES),
    "isolation": {IDLE, AGAIN, BESIDE},
}


# Groups that measure on one machine here, which each gets as if it had just booted; the others before.
ONE = (start, ready, network, moves)
ON_ONE = tuple(module.GROUP for module in ONE)
ORDER = (*(group for group in run.GROUPS if group not in ON_ONE), *ON_ONE)


@pytest.fixture
def few_machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Boots are half of what these groups take."""
    with contextlib.ExitStack() as stack:
        started: list[Server] = []

        def server(config: MachineConfig, roles=EMULATED):
            if config.name not in {f"figures-{group}" for group in ON_ONE}:
                return Server(config, roles)
            if not started:
                started.append(stack.enter_context(Server(MachineConfig("figures-on-one", mint=moves.MINT_ROOMY))))
            (one,) = started
            one.remove_all()
            one.roles = roles
            return contextlib.nullcontext(one)

        for module in ONE:
            monkeypatch.setattr(module, "Server", server)
        yield


@pytest.fixture
def trimmed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its folder is another, and little is left of a quick run."""
    monkeypatch.setattr(run, "OUT", tmp_path)
    for (module, name), less in TRIMMED.items():
        monkeypatch.setattr(module, name, less)


# What it measures is of the kernels that the images carry.
if DEFAULT_FLAVOUR == "mint":

    @pytest.mark.soak
    @pytest.mark.soak_only
    def test_report_runs_whole(tmp_path: Path, few_machines: None, trimmed: None):
        """What each group gives is there, and drawn."""
        assert run.main(["--quick", *ORDER]) == 0
        folder = tmp_path / "quick"
        data = read(folder / "data.jsonl")
        assert data.ended == MACHINES and not data.cut
        seen = {group: {sample.side for sample in data.samples if sample.group == group} for group in run.GROUPS}
        assert {group: seen[group] for group in SIDES} == SIDES
        cases = {(sample.group, sample.case) for sample in data.samples}
        assert cases >= {(one.group, one.case) for module in (*ONE, migrate) for one in module.FIGURES}
        assert cases >= {("partition", job) for job in partition.TITLES}
        assert cases >= {("isolation", WAKE.case(what)) for what in (isolation.LATENCY, isolation.INTERRUPTS)}
        assert cases >= {("scaling", case) for case in ("unlink 2", "start", "kept", "each costs", "control area")}
        summary = json.loads((folder / "summary.json").read_text())
        goals = [goal for module in MODULES for goal in module.GOALS]
        assert [goal["name"] for goal in summary["goals"]] == [goal.name for goal in goals]
        found = {(goal["group"], goal["name"]) for goal in summary["goals"] if goal["found"]}
        assert {group for group, _ in found} == set(run.GROUPS)
        assert found >= {(goal.group, goal.name) for goal in (*start.GOALS, *ready.GOALS, *moves.GOALS)}
        for name in [*(figure["name"] for figure in summary["figures"]), *(grid["name"] for grid in summary["maps"])]:
            assert (folder / f"{name}.svg").stat().st_size and (folder / f"{name}.png").stat().st_size
        text = (folder / "index.html").read_text()
        assert "QUICK=1" in text and all(f"<h2>{group}</h2>" in text for group in run.GROUPS)
