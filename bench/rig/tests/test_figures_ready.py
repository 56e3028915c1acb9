# SPDX-License-Identifier: Apache-2.0
"""What a node's start leaves behind is read as it is, and what is of another start is refused."""

import os
import re
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import figures_ready as ready
from rig import paths
from rig.errors import RigError
from rig.server import ONE

STARTED = "called 1000000000000\nmintd 1006500000000\n"
LOOKED = "now 1012000000000 1012000000100\nlogged 11.0\ninit 0.96\nservices 1003.5\nlibvirt 1009.9\nready 1011.2\n"


def stub(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def run(script: str, folder: Path) -> subprocess.CompletedProcess:
    """As a node's shell would, with stubs before its commands."""
    return subprocess.run(
        ["sh", "-c", script], env={"PATH": f"{folder}:{os.environ['PATH']}"}, capture_output=True, text=True
    )


def test_parts_are_what_is_between_the_points():
    """All but the last are the whole."""
    at = ready.stamps(STARTED, LOOKED)
    parts = ready.parts(at)
    wanted = {"load": 1.0, "kernel": 0.96, "init": 1.54, "mintd": 3.0, "libvirt": 3.4, "settings": 1.3}
    assert parts == pytest.approx(wanted, abs=1e-3)
    assert ready.whole(at) == pytest.approx(9.9, abs=1e-3) == pytest.approx(sum(parts.values()) - parts["settings"])
    assert set(parts) == set(ready.PARTS)


def test_libvirt_may_be_the_first_to_answer():
    """Then it has no part of its own, and the whole ends with mintd's word."""
    at = ready.stamps(STARTED, LOOKED.replace("libvirt 1009.9", "libvirt 1006.0"))
    assert ready.parts(at)["libvirt"] == 0
    assert ready.whole(at) == pytest.approx(6.5)
    assert ready.parts(at)["settings"] == pytest.approx(4.7)


@pytest.mark.parametrize("point", ["called", "mintd", "now", "logged", "init", "services", "libvirt", "ready"])
def test_point_that_is_not_there_is_told(point: str):
    text = re.sub(rf"(?m)^{point} .*\n", "", STARTED + LOOKED)
    with pytest.raises(RigError, match="has left no " + ("clock" if point == "now" else point)):
        ready.stamps(text, text)


@pytest.mark.parametrize(("line", "what"), [
    ("services 900.0", "services is before init"),
    ("libvirt 900.0", "libvirt is before services"),
    ("libvirt 0", "libvirt is before services"),  # what stat says where a file system keeps no birth
    ("ready 1009.0", "ready is before libvirt"),
])  # fmt: skip
def test_trace_of_another_start_is_refused(line: str, what: str):
    text = re.sub(rf"(?m)^{line.split()[0]} .*$", line, LOOKED)
    with pytest.raises(RigError, match=what):
        ready.parts(ready.stamps(STARTED, text))


def test_clocks_that_differ_are_refused():
    ready.check_clocks("1000000000000", "1000050000000", "1000100000000")
    for node in ("999800000000", "1000300000000"):
        with pytest.raises(RigError, match="they differ"):
            ready.check_clocks("1000000000000", node, "1000100000000")


def test_command_is_timed_around(tmp_path: Path):
    """The real script; its failure is one."""
    stub(tmp_path, "mintctl", f'echo "$@" >{tmp_path}/said; sleep 0.3')
    before = time.time()
    done = run(ready.START, tmp_path)
    called, mintd = (int(re.search(rf"{what} (\d+)", done.stdout)[1]) / 1e9 for what in ("called", "mintd"))
    assert before <= called <= mintd - 0.3 and mintd <= time.time()
    assert (tmp_path / "said").read_text() == f"node start {ONE.name}\n"
    stub(tmp_path, "mintctl", "exit 1")
    assert run(ready.START, tmp_path).returncode == 1


def test_traces_are_looked_up_on_the_node(tmp_path: Path):
    """The real script, with a kernel log of its own."""
    log = tmp_path / "kmsg"
    log.write_text("")
    stub(tmp_path, "virsh", f'echo "$@" >{tmp_path}/said')
    stub(
        tmp_path, "dmesg",
        "echo '[    0.000000] Linux version 6'; echo '[    0.961335] Run /init as init process'; "
        f"echo '[   11.100000] figures of another start'; echo \"[   12.345678] $(cat {log})\"",
    )  # fmt: skip
    script = ready.LOOK.replace("/dev/kmsg", str(log))
    for path in re.findall(r"/(?:run|var)/\S+", script):
        there = tmp_path / path.rsplit("/", 1)[1]
        script = script.replace(path, str(there))
        there.write_text("")
    os.utime(tmp_path / "service-mintd", (0, 1003.5))
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "said").read_text() == "-q -c qemu:///system version\n"
    at = ready.stamps(STARTED, done.stdout)
    assert at["init"] - at["kernel"] == pytest.approx(0.961335)
    assert at["kernel"] == pytest.approx(time.time() - 12.345678, abs=30)
    assert at["services"] == 1003.5
    assert at["libvirt"] <= time.time() and at["ready"] <= time.time()
    stub(tmp_path, "virsh", "exit 1")
    assert run(script, tmp_path).returncode == 1


def test_traces_are_those_that_the_images_leave():
    """What init and mint-service write, by name."""
    init = (paths.PROJECT / "images/init/init.node").read_text()
    service = (paths.PROJECT / "images/layer/usr/sbin/mint-service").read_text()
    assert f"mint-kvm-config apply >{ready.KVM_LOG} " in init
    assert "touch /run/mint/ready" in init
    assert "mint-service start $mintd " in init and '>"/run/mint/service-$name"' in service


def test_each_start_is_looked_at_and_forgotten_before_the_stop(monkeypatch: pytest.MonkeyPatch):
    """Or the next one's birth of the log would be this one's."""
    done: list[str] = []

    def out(command: str, limit_s: float = 0) -> str:
        done.append({ready.START: "start", ready.LOOK: "look"}.get(command, "clock"))
        return {ready.START: STARTED, ready.LOOK: LOOKED}.get(command, "1000000000000")

    node = SimpleNamespace(out=out, run=lambda command: done.append(command))
    server = SimpleNamespace(
        zero=node, one=node, wait_ready=lambda _: done.append("ready"), mintctl=lambda *words: done.append(" ".join(words))
    )
    assert ready.whole(ready.start(server)) == pytest.approx(9.9)
    assert done == ["start", "ready", "look", *["clock"] * 3, ready.FORGET, f"node stop {ONE.name}"]
