# SPDX-License-Identifier: Apache-2.0
"""What make report measures: goals and figures speak of what groups give, on a rig that is only played."""

import contextlib
import os
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import figures_ethernet
import figures_migrate
import figures_moves
import figures_partition
import figures_split_cache
import figures_split_sort
import figures_start
from made_data import HEADER
from played import MODULES, Played, machines_of, measured, stub, summary_of
from report import run
from report.goals import EMULATOR, NOT_HERE, OPEN
from rig.errors import RigError


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
        ["sh", "-c", figures_start.start_guest((1, 5), "pc")], env=environment, capture_output=True, text=True
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


def test_move_without_figures_is_an_error():
    said = {"took": {"total_ms": 4000, "downtime_ms": 40}}
    assert figures_migrate.figures(5.0, said) == {"total": 5.0, "downtime": 0.04}
    with pytest.raises(RigError, match="does not say what the move took"):
        figures_migrate.figures(5.0, {"took": None})


def test_downtime_is_all_of_it():
    said = "Total downtime:       812          ms\nDowntime w/o network: 570          ms\n"
    assert figures_migrate.downtime_s(said) == 0.812
    with pytest.raises(RigError, match="stood still"):
        figures_migrate.downtime_s("Downtime w/o network: 570          ms\n")


def test_command_is_timed_by_its_own_clock_and_says_what_it_said(tmp_path: Path):
    """The real script."""

    def out(script: str, limit_s: float) -> str:
        environment = {**os.environ, "MINT_RIG_FOLDER": str(tmp_path)}
        return subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=True).stdout

    took_s, said = figures_migrate.timed(SimpleNamespace(out=out), "sleep 0.3; printf 'took 7\\n{}'")
    assert 0.3 <= took_s < 30 and said == "took 7\n{}"
    assert figures_migrate.timed(SimpleNamespace(out=out), "true")[1] == ""


def test_quick_run_leaves_groups_out_that_take_minutes_each():
    assert run.every(quick=False) == list(run.GROUPS)
    left_out = set(run.GROUPS) - set(run.every(quick=True))
    assert left_out == {group for group in run.GROUPS if group in ("migrate", "layout") or group.startswith("split")}


def test_second_card_is_on_the_routed_bridge():
    card = "<interface type='network'><mac address='52:54:00:00:00:01'/><source network='mint'/><model type='virtio'/></interface>"
    tree = ElementTree.fromstring(figures_ethernet.with_second_card(f"<domain><devices>{card}</devices></domain>"))
    first, second = tree.findall("devices/interface")
    assert (first.get("type"), second.get("type")) == ("network", "bridge")
    assert second.find("source").attrib == {"bridge": figures_ethernet.BRIDGE} and second.find("mac") is None
    assert second.find("model").get("type") == "virtio"
    with pytest.raises(RigError, match="0 cards"):
        figures_ethernet.with_second_card("<domain><devices/></domain>")


def test_guest_that_did_not_work_gives_no_figure():
    with pytest.raises(RigError, match="does not say when"):
        figures_split_sort.sorted_s("sorted from\n")
    assert figures_split_sort.sorted_s("~ # read a\nsorted from 100.50 to 112.75\n") == 12.25
    second = "Period   1        3221         3221         12.8       0          344\n"
    assert figures_split_cache.answers(second * figures_split_cache.WORK.after_s) == [3221] * figures_split_cache.WORK.after_s
    with pytest.raises(RigError, match="speaks of 2 seconds"):
        figures_split_cache.answers(second * 2)
