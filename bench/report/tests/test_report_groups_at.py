# SPDX-License-Identifier: Apache-2.0
"""What make report measures on a real server, which is only played, and what it leaves there: nothing."""

import contextlib
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import figures_configs
import figures_moves
import figures_network
import figures_partition
import figures_programs
import figures_ready
import figures_start
from made_data import HEADER
from played import MODULES, Played, PlayedGuest, PlayedPlace, stub, summary_of
from report import passes
from report.goals import NOT_HERE, SERVER
from report.recorder import Recorder, read
from report.samples import DataSet
from rig.bootstrap import WRITTEN, ZERO_WRITTEN
from rig.errors import RigError
from rig.inventory import LINUX, MINT, Inventory
from rig.plan import NODES
from rig.roles import NodePlan, Roles

AT_ROLES = Roles(
    NodePlan("one", (4, 5), 4096, 1, ("0000:41:00.0",)), NodePlan("two", (6, 7), 2048, 1, ("0000:42:00.0",)),
    (1, 2), 3, 0, "0000:43:00.0", ("0000:44:00.0", "0000:45:00.0"),
)  # fmt: skip
TAKES = (*figures_programs.GUESTS_TAKE, *figures_start.NODE_TAKES, *figures_start.GUEST_TAKES, figures_network.VHOST_NET)
HAS = frozenset(TAKES)
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


VHOST = figures_network.SIDES[figures_network.VHOST]
GUESTS, PLUG = figures_network.SIDES[figures_network.VIRTIO], passes.WHOLE_GROUP


@pytest.mark.parametrize(("group", "tool", "what"), [
    ("start", "kexec with --mint-node", passes.WHOLE_GROUP), ("start", "/boot/vmlinuz-mint", passes.WHOLE_GROUP),
    ("start", "/boot/node.initrd", passes.WHOLE_GROUP), ("start", "/dev/kvm", figures_start.SIDES[figures_start.GUEST]),
    ("start", "qemu-system-x86_64", figures_start.SIDES[figures_start.GUEST]),
    ("network", "mint-guest", GUESTS), ("network", "virsh", GUESTS), ("network", "cpio", GUESTS),
    ("network", "/dev/kvm", GUESTS), ("network", "/dev/vhost-net", VHOST),
    ("moves", "virsh", PLUG), ("moves", "/boot/vmlinuz-mint", PLUG), ("moves", "cpio", PLUG),
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
    assert all("-smp 2 -m 1024" in figures_start.start_guest((1, 2), machine) for machine in figures_start.MACHINE.values())


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
