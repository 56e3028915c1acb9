# SPDX-License-Identifier: Apache-2.0
"""The commands that the README gives to play with, as they stand there."""

import os
import pty
import re
import select
import subprocess
import time
from functools import partial

import pytest

from rig import byhand
from rig.byhand import LIMIT_S
from rig.paths import PROJECT, RIG

NAME = "readme"
environment, run = partial(byhand.environment, NAME), partial(byhand.run, rig=NAME)


def commands() -> list[str]:
    """The lines of the README's block that begins with `make up`."""
    text = (PROJECT / "README.md").read_text()
    block = re.search(r"```\n(make up .*?)```", text, re.DOTALL)[1]
    return [re.split(r"\s{3,}#", line)[0].strip() for line in block.splitlines()]


def on_terminal(command: str, typed: list[tuple[str, str]]) -> str:
    """What it showed on a terminal; typed: (what to wait for, what to type then). It must end well."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["sh", "-c", command], cwd=PROJECT, env=environment(), stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown, seen, waiting = "", 0, list(typed)
    end = time.monotonic() + LIMIT_S
    while process.poll() is None:
        assert time.monotonic() < end, f"{command} did not end; it showed:\n{shown}"
        if not select.select([ours], [], [], 1)[0]:
            continue
        try:
            shown += os.read(ours, 65536).decode(errors="replace")
        except OSError:  # nobody has the other end any more
            break
        if waiting and (found := re.search(waiting[0][0], shown[seen:])):
            seen += found.end()
            os.write(ours, waiting.pop(0)[1].encode())
    os.close(ours)
    process.wait(LIMIT_S)
    print(f"$ {command}\n{shown}")
    assert process.returncode == 0, f"{command}: exit status {process.returncode}; it showed:\n{shown}"
    assert not waiting, f"{command} never showed {waiting[0][0]!r}"
    return shown


def statuses_are_passed() -> None:
    """bench/exec ends as the command does; make tells how that was, and fails."""
    for node in 0, 1:
        for command, want in ((["bench/exec", str(node), "exit 7"], 7), (["bench/exec", str(node), "true"], 0)):
            done = subprocess.run(
                command, cwd=PROJECT, env=environment(), stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=False
            )
            assert done.returncode == want, command
    done = subprocess.run(
        ["make", "exec", "NODE=0", "CMD=exit 7"],
        cwd=PROJECT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 2 and "Error 7" in done.stderr, done


def host_logs_in(said: str) -> None:
    """By what `make up` has said: this host's ssh, and its virsh, on node 0; the same on node 1."""
    ssh, virsh = re.search(r"from this host: (.*) \| (.*)", said).groups()
    for node in 0, 1:
        assert run(f"{ssh.replace('node0', f'node{node}')} cat /run/mint/ready >/dev/null && echo in") == "in\n"
        names = run(virsh.replace("node0", f"node{node}") + " --all --name").split()
        assert names == (["demo"] if node == 0 else []), (node, names)


@pytest.fixture
def down_afterwards():
    """Whatever happens: the rig in the background ends."""
    yield
    subprocess.run(["make", "down"], cwd=PROJECT, env=environment(), check=True, timeout=LIMIT_S)


@pytest.mark.usefixtures("down_afterwards")
def test_commands_to_play_do_what_the_readme_says():
    """make up, exec with mintctl node add, list and resize, a guest that moves, sh on a terminal, down; what `make up`
    says of this host's own tools, too."""
    outputs = {}
    lines = commands()
    assert len(lines) == 9, lines
    for line in lines:
        if line.startswith("make sh"):
            typed = [(r"[$#] ", "echo $((6 * 7)) cores=$(nproc)\r"), (r"42 cores=\d+", "exit\r")]
            outputs["sh"] = on_terminal(line, typed)
        else:
            if line == "make down":
                statuses_are_passed()
                host_logs_in(outputs["make up"])
            outputs[re.search(r"(node|vm) (\w+)|make (\w+)", line.partition("mintctl ")[2] or line)[0]] = run(f"{line} 2>&1")
    assert re.search(r"\bweb\b.*\brunning\b", outputs["node list"])
    assert re.search(r"\bdemo +node0 +running\b", outputs["vm list"]), outputs["vm list"]
    assert "42 cores=3" in outputs["sh"]
    assert not list((RIG / NAME).glob("*.socket"))
