# SPDX-License-Identifier: Apache-2.0
"""make report on a server: refused before anything is done, goes on in the next boot, says what it left out."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from far import AT, far  # noqa: F401
from report import at, facts, page, run
from report.recorder import read
from rig import inventory, paths, remote
from rig.inventory import LINUX, MINT
from server_facts import answers
from test_plan import GOOD


def group(name: str, do, boots=(LINUX, MINT), absent: Mapping[str, str] | None = None) -> SimpleNamespace:
    """A group's module."""
    return SimpleNamespace(
        GROUP=name, AT_BOOTS=boots, FIGURES=(), GOALS=(), absent_at=lambda _: absent or {},
        on_pass=lambda taker, remote, recorder: do(taker, remote),
    )  # fmt: skip


def one_value(taker, server) -> None:
    """By a command there."""
    taker.add("case", server.boot, float(server.zero.out("echo 42")), "s")


class Server:
    """The server's boot, its groups, and make report on it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
        self.far, self.out, self.plan = folder, out, folder / "plan.toml"
        self.plan.write_text(GOOD)
        self.groups = {"made": group("made", one_value)}
        monkeypatch.setattr(run, "OUT", out)
        monkeypatch.setattr(run, "module", lambda name: self.groups[name])
        monkeypatch.setattr(run, "GROUPS", ["made"])
        monkeypatch.setattr(inventory, "SCRIPT", f"echo asked >>{folder}/said; cat {folder}/answers")
        monkeypatch.setattr(remote, "AT_BEGIN", f"echo agent >>{folder}/said")
        monkeypatch.setattr(remote, "AT_END", ":")
        monkeypatch.setattr(remote, "LOCK", f"{folder}/lock")
        monkeypatch.setattr(facts, "commit", lambda: "c" * 40)
        monkeypatch.setattr(facts, "changes", lambda: "")
        self.boots(LINUX)

    def boots(self, boot: str, **changes) -> None:
        """It is booted so."""
        (self.far / "answers").write_text(answers(boot, **changes))
        (self.far / "nodes.json").write_text(json.dumps({"nodes": [{"id": 0, "name": "node0", "state": "running"}]}))

    def report(self, *words: str) -> int:
        """make report."""
        return run.main(["--at", AT, "--plan", str(self.plan), *words])

    @property
    def said(self) -> list[str]:
        """What was done there."""
        path = self.far / "said"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def server(far: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:  # noqa: F811
    paths.need(paths.AGENT)
    return Server(far, monkeypatch, tmp_path / "report")


def test_bad_file_is_refused_before_the_server_is_asked(server: Server, capsys):
    server.plan.write_text(GOOD.replace("[guests]", "[guest]"))
    assert server.report() == 2
    assert f"{server.plan}:11: there is no [guest]" in capsys.readouterr().err
    server.plan.unlink()
    assert server.report() == 2
    assert "docs/report-plan.toml is one" in capsys.readouterr().err
    assert server.said == [] and not server.out.exists()


def test_plan_that_is_none_for_the_server_writes_nothing(server: Server, capsys):
    server.boots(MINT, disks={"nvme3n1": {1: "/srv"}})
    assert server.report() == 3
    told = capsys.readouterr().err
    assert f"{server.plan}:19: data1.disk: /dev/nvme3n1 (0000:44:00.0) is mounted on /srv" in told
    assert "nothing was written" in told
    assert server.said == ["asked"] and not server.out.exists()


def test_plan_that_mintctl_refuses_writes_nothing(server: Server, capsys):
    """What it knows, and we do not ask: it is asked without doing it."""
    server.boots(MINT)
    (server.far / "refused").write_text("refused: 0000:42:00.0 is in an IOMMU group with 0000:42:00.1\ngive both")
    assert server.report() == 3
    text = "[two] is refused by mintctl there: refused: 0000:42:00.0 is in an IOMMU group with 0000:42:00.1 give both"
    assert f"{server.plan}:6: {text}" in capsys.readouterr().err
    assert server.said == ["asked"] and not server.out.exists()


def test_server_and_plan_go_together(server: Server, capsys):
    assert run.main(["--at", AT]) == 2 and run.main(["--plan", str(server.plan)]) == 2
    assert capsys.readouterr().err.count("--at and --plan go together") == 2
    assert server.said == []


def test_server_that_is_not_there_is_told(server: Server, capsys):
    assert run.main(["--at", "root@nowhere", "--plan", str(server.plan)]) == 1
    assert "no such host: root@nowhere" in capsys.readouterr().err
    assert not server.out.exists()


def test_run_stops_for_another_boot_and_goes_on_in_it(server: Server, capsys):
    assert server.report() == run.ANOTHER_BOOT
    told = capsys.readouterr().err
    assert f"{AT} runs Linux without Mint" in told and "a boot of Mint (the -mint kernel with mint=on…)" in told
    path = server.out / AT / "data.jsonl"
    data = read(path)
    assert {(s.machine, s.side) for s in data.samples} == {(f"pass {n}", LINUX) for n in range(1, 6)}
    assert data.absent[("made", "its part on mint")].startswith("it takes a boot with Mint")
    # In the same boot there is nothing more to do.
    assert server.report() == run.ANOTHER_BOOT and len(read(path).samples) == 5
    server.boots(MINT)
    assert server.report() == 0
    data = read(path)
    passes = [f"pass {number}" for number in range(1, 6)]
    assert {(s.machine, s.side) for s in data.samples} == {(one, side) for one in passes for side in (LINUX, MINT)}
    assert data.header.kernels == {"linux": "6.12-linux linux-digest", "mint": "6.12-mint mint-digest"}
    assert data.header.qemu == "" and data.header.plan.startswith(f"{AT}, plan ") and data.absent == {}
    # And back: what it was is known.
    server.boots(LINUX)
    assert server.report() == 0 and read(path) == data


@pytest.mark.parametrize("change", [
    lambda server: server.boots(LINUX, lines=[("governor", "powersave")]),
    lambda server: server.boots(LINUX, lines=[("kernel", "6.12-linux", "another")]),
    lambda server: server.plan.write_text(GOOD.replace("[4, 5]", "[4, 7]")),
])  # fmt: skip
def test_data_of_something_else_is_put_aside(server: Server, change):
    server.report()
    change(server)
    server.report()
    assert len(list((server.out / AT).glob("data-*.jsonl"))) == 1
    assert len(read(server.out / AT / "data.jsonl").samples) == 5


def test_comments_of_a_plan_may_change(server: Server):
    server.report()
    server.plan.write_text(f"# again\n{GOOD}")
    server.report()
    assert not list((server.out / AT).glob("data-*.jsonl"))


def test_what_is_not_measured_is_told(server: Server):
    server.boots(MINT)
    server.groups["made"] = group("made", one_value, (MINT,), {"a disk's move": "the plan has no moving.disk"})
    server.groups["other"] = SimpleNamespace(GROUP="other", FIGURES=(), GOALS=(), NOT_AT="nobody can")
    assert server.report("made") == 0
    run.GROUPS.append("other")
    assert server.report("other") == 0
    html = (server.out / AT / "index.html").read_text()
    assert "<h2>Not measured here</h2>" in html and "A machine here is a pass" in html
    for text in ("the plan has no moving.disk", "nobody can"):
        assert page.escape(text) in html
    summary = json.loads((server.out / AT / "summary.json").read_text())
    assert {"group": "other", "what": "all of it", "why": "nobody can"} in summary["absent"]


def test_lost_connection_ends_the_run_which_goes_on(server: Server, capsys):
    server.boots(MINT)

    def cut_once(taker, there) -> None:
        one_value(taker, there)
        if taker.name == "pass 2" and not (server.far / "cut").exists():
            (server.far / "cut").touch()
            os.killpg(there._stream.process.pid, signal.SIGKILL)
            there.zero.out("sleep 60")

    later = []
    server.groups = {
        "made": group("made", cut_once, (MINT,)),
        "later": group("later", lambda *_: later.append(True), (MINT,)),
    }
    run.GROUPS.append("later")
    assert server.report() == 1
    assert not later, "there is no connection for it"
    assert f"made was cut, and goes on when it is called again: the connection to {AT} ended" in capsys.readouterr().err
    data = read(server.out / AT / "data.jsonl")
    assert data.ended == {("made", "pass 1")} and set(data.cut) == {("made", "pass 2")}
    assert server.report() == 0
    assert len(read(server.out / AT / "data.jsonl").ended) == 10


def test_second_run_on_a_server_is_refused(server: Server, capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whatever folder it writes to: here, one that began at the same moment."""
    server.boots(MINT)

    def second(taker, there) -> None:
        one_value(taker, there)
        monkeypatch.setattr(run, "OUT", tmp_path / "other")
        assert server.report() == 3
        monkeypatch.setattr(run, "OUT", server.out)

    server.groups = {"made": group("made", second, (MINT,))}
    assert server.report("--quick") == 0
    assert f"{AT}: another run is there, or is about to end: wait for its end" in capsys.readouterr().err
    server.groups = {"made": group("made", one_value, (MINT,))}
    assert server.report() == 0


def test_failed_group_keeps_no_other_from_being_measured(server: Server, capsys):
    def fails(taker, there) -> None:
        raise ValueError("of this group")

    server.boots(MINT)
    server.groups |= {"bad": group("bad", fails, (MINT,)), "made": group("made", one_value, (MINT,))}
    run.GROUPS[:] = ["bad", "made"]
    assert server.report() == 1
    assert "group bad failed" in capsys.readouterr().err
    assert {key for key in read(server.out / AT / "data.jsonl").ended} == {("made", f"pass {n}") for n in range(1, 6)}


def test_quick_and_servers_have_folders_of_their_own(server: Server):
    assert server.report("--quick") == run.ANOTHER_BOOT
    assert len(read(server.out / AT / "quick" / "data.jsonl").samples) == 1
    names = ["root@a", "quick", "lock", "root@a/../b", "root@a_.._b", ".", "..", "[::1]", "__1_"]
    folders = [at.folder_name(name) for name in names]
    assert folders[0] == "root@a" and len(set(folders)) == len(folders)
    assert not {"quick", "lock", "", ".", ".."} & set(folders) and not any("/" in name for name in folders)
