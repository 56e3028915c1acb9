# SPDX-License-Identifier: Apache-2.0
"""The rig's agent over ssh: brought, used, and gone with the connection, whoever ends that."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from far import AT, far  # noqa: F401
from figures_programs import beside, put, written
from rig import bootstrap, inventory, paths, plan, remote
from rig.errors import MachineLost, NodeEnded, RigError
from rig.remote import Remote
from rig.roles import NodePlan
from rig.ssh import Busy, NoConnection, Ssh
from rig.wait import wait_until

AGENT = paths.AGENT.read_bytes() if paths.AGENT.exists() else b""
PLAN = plan.Plan("plan.toml", NodePlan("one", (2,), 1024, 0, ("0000:02:00.0",)))


@pytest.fixture
def connected(far: Path):  # noqa: F811
    """A channel to the agent there, and the process of ssh."""
    channel, stream = Ssh(AT).agent(paths.need(paths.AGENT).read_bytes(), at_end=f"touch {far}/cleaned")
    yield channel, stream
    channel.close()


def folder_of(channel) -> Path:
    """Where the agent is."""
    return Path(channel.start("echo $MINT_RIG_FOLDER").wait().out.strip())


def running(seconds: str) -> bool:
    """Whether a sleep of so many seconds runs here."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes() == b"sleep\0" + seconds.encode() + b"\0":
                return True
        except OSError:
            continue
    return False


def test_commands_run_over_ssh_with_every_byte(connected):
    channel, _ = connected
    data = os.urandom(3 << 20)
    assert channel.start("cat", stdin=data).wait().stdout == data
    result = channel.start("echo out; echo err >&2; exit 7").wait()
    assert (result.out, result.err, result.status) == ("out\n", "err\n", 7)


def test_agent_and_all_beside_it_go_with_the_connection(connected, far: Path):  # noqa: F811
    channel, stream = connected
    folder = folder_of(channel)
    assert (folder / "mint-rig-agent").stat().st_size == len(AGENT)
    assert folder.name.startswith("mint-rig.") and folder.stat().st_mode & 0o777 == 0o711
    channel.start(f"touch {folder}/program").wait()
    stream.shutdown(socket.SHUT_RDWR)
    assert stream.close(20) == 0
    assert not folder.exists() and (far / "cleaned").exists()


def test_lost_connection_is_an_error_and_ends_the_jobs(connected, far: Path):  # noqa: F811
    channel, stream = connected
    folder = folder_of(channel)
    job = channel.start("sleep 74747; true", limit_s=0)
    wait_until("the job runs", lambda: running("74747"), 20)
    os.killpg(stream.process.pid, signal.SIGKILL)
    with pytest.raises(MachineLost, match=f"connection to {AT} ended"):
        job.wait(20)
    with pytest.raises(MachineLost):
        channel.start("true")
    wait_until("the job has ended", lambda: not running("74747"), 20)
    wait_until("its folder is removed", lambda: not folder.exists(), 20)
    assert (far / "cleaned").exists()


def test_background_process_does_not_hold_the_connection(connected):
    channel, stream = connected
    channel.start("sleep 73737 & echo $!").wait()
    begin = time.monotonic()
    stream.shutdown(socket.SHUT_RDWR)
    stream.close(20)
    assert time.monotonic() - begin < 10
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        if entry.exists() and entry.read_bytes() == b"sleep\x0073737\x00":
            os.kill(int(entry.parent.name), signal.SIGKILL)


def test_server_is_one_runs_until_its_end_is_done(far: Path):  # noqa: F811
    lock, go = f"{far}/lock", far / "go"
    channel, stream = Ssh(AT).agent(AGENT, at_end=f"until [ -e {go} ]; do sleep 0.05; done", lock=lock)
    # What stays of it does not keep the lock.
    left = int(channel.start("setsid sleep 78787 >/dev/null 2>&1 & echo $!").wait().out)
    os.killpg(stream.process.pid, signal.SIGKILL)

    def mine() -> bool:
        try:
            _, stream = Ssh(AT).agent(AGENT, lock=lock)
        except Busy as error:
            assert str(error).startswith(f"{AT}: another run is there, or is about to end: wait for its end")
            return False
        stream.shutdown(0)
        return stream.close(20) == 0

    try:
        assert not mine()
        go.touch()
        wait_until("it is free", mine, 20)
        assert running("78787")
    finally:
        go.touch()
        os.kill(left, signal.SIGKILL)


def test_lock_of_a_run_is_seen_before_anything_is_written(far: Path):  # noqa: F811
    """The server's answers say it, and asking does not take it."""
    script = re.search(r'(?m)^\[ ! -e "\$lock".*$', inventory.SCRIPT)[0]
    asked = f"tell() {{ echo \"$@\"; }}\nlock={far}/lock\n{script}\n"
    assert f"lock={bootstrap.LOCK}\n" in inventory.SCRIPT
    assert Ssh(AT).run(asked) == ""
    _, stream = Ssh(AT).agent(AGENT, lock=f"{far}/lock")
    assert Ssh(AT).run(asked) == "busy\n"
    stream.shutdown(0)
    stream.close(20)
    assert Ssh(AT).run(asked) == ""


def test_server_without_a_place_for_programs_says_so(far: Path, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    monkeypatch.setattr(bootstrap.command, "__defaults__", ("", "", ("/proc",), ""))
    with pytest.raises(NoConnection, match="no folder for the rig's agent: /proc let no program run"):
        Ssh(AT).agent(AGENT)


def test_host_that_is_not_there_is_told_with_the_way_out(far: Path):  # noqa: F811
    with pytest.raises(NoConnection, match=r"no such host: root@nowhere\. `ssh -o BatchMode=yes root@nowhere true` must work"):
        Ssh("root@nowhere").run("true")


@pytest.mark.parametrize("at", ["", "-oProxyCommand=true", "a b"])
def test_words_that_are_no_server_are_refused(at: str):
    with pytest.raises(RigError, match="names no server"):
        Ssh(at)


def test_script_that_fails_is_told(far: Path):  # noqa: F811
    assert Ssh(AT).run("echo $((40 + 2))") == "42\n"
    with pytest.raises(RigError, match="status 3 from a script there"):
        Ssh(AT).run("exit 3")


def says_nodes(far: Path, *states: str, boots: int = 1) -> None:  # noqa: F811
    """What its mintctl says of nodes."""
    names = ("node0", "one", "two")
    nodes = [
        {"id": number, "name": names[number], "state": state, "boots": boots, "address": f"10.77.0.{10 + number}"}
        for number, state in enumerate(states)
    ]
    (far / "nodes.json").write_text(json.dumps({"nodes": nodes}))


@pytest.fixture
def server(far: Path, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    """Node 0 alone."""
    # Nothing of this host is a server's.
    monkeypatch.setattr(remote, "AT_BEGIN", ":")
    monkeypatch.setattr(remote, "AT_END", f"touch {far}/cleaned")
    monkeypatch.setattr(remote, "LOCK", f"{far}/lock")
    says_nodes(far, "running")
    with Remote(Ssh(AT), PLAN, inventory.Inventory(boot=inventory.MINT), AGENT) as server:
        yield server


def test_other_nodes_get_an_agent_by_node_exec(server: Remote, far: Path):  # noqa: F811
    says_nodes(far, "running", "running")
    data = os.urandom(1 << 20)
    assert server.one.run("cat", stdin=data).stdout == data
    folder = Path(server.one.out("echo $MINT_RIG_FOLDER"))
    assert folder != Path(server.zero.out("echo $MINT_RIG_FOLDER")) and folder.exists()
    server.stop()
    wait_until("its folder is removed", lambda: not folder.exists(), 20)


def test_node_that_boots_again_is_connected_to_again(server: Remote, far: Path):  # noqa: F811
    says_nodes(far, "running", "running")
    first = server.one.out("echo $MINT_RIG_FOLDER")
    job = server.one.start("kill -9 $PPID; sleep 60", limit_s=60)
    with pytest.raises(NodeEnded):
        job.wait(20)
    says_nodes(far, "running", "running", boots=2)
    assert server.one.out("echo $MINT_RIG_FOLDER") != first


def test_node_that_does_not_run_is_told(server: Remote):
    with pytest.raises(NodeEnded, match="it does not run"):
        server.machine.links.channel(server.machine.channel, 1, 0.1)


def test_only_what_is_removed_at_the_end_is_made(server: Remote, far: Path):  # noqa: F811
    with pytest.raises(RigError, match="would stay on the server"):
        server.add(NodePlan("web", (2,), 1024, 0))
    assert not (far / "asked").exists()
    server.add(PLAN.one)
    assert (far / "asked").read_text().startswith("node add one --cpus 2 --memory 1024M@numa0 --device 0000:02:00.0")


def test_nodes_of_others_are_not_removed(server: Remote, far: Path):  # noqa: F811
    says_nodes(far, "running", "running")
    text = (far / "nodes.json").read_text()
    assert server.remove_all()
    assert (far / "asked").read_text() == "node remove one --force --json\n"
    (far / "nodes.json").write_text(text.replace('"one"', '"web"'))
    with pytest.raises(RigError, match="node web came meanwhile"):
        server.remove_all()


def test_what_runs_beside_a_pass_ends_with_it(server: Remote):
    """With all that its shell started, also what takes its time to go: 200 MiB are given back page by page."""
    folder = Path(server.zero.out("echo $MINT_RIG_FOLDER"))
    large = f"import os, time; x = b'x' * (200 << 20); open('{folder}/large', 'w').write(f'{{os.getpid()}} '); time.sleep(7676)"
    for _ in range(3):
        (folder / "large").unlink(missing_ok=True)
        with pytest.raises(ZeroDivisionError), beside(server.zero, f'sleep 76767 | python3 -c "{large}"; true'):
            wait_until("they run", lambda: running("76767") and (folder / "large").exists(), 20)
            process = wait_until("its number", (folder / "large").read_text, 20).strip()
            raise ZeroDivisionError
        assert not running("76767")
        with pytest.raises(FileNotFoundError):
            print(Path(f"/proc/{process}/stat").read_text())


def test_program_that_runs_is_put_anew(server: Remote):
    """One that a pass has left is no fault of the next."""
    program = Path(shutil.which("sleep")).read_bytes()
    put(server.zero, "$MINT_RIG_FOLDER/again", program)
    with beside(server.zero, "exec $MINT_RIG_FOLDER/again 77777"):
        name = Path(server.zero.out("echo $MINT_RIG_FOLDER")) / "again"
        wait_until("it runs", lambda: server.zero.run(f"pidof {name}", check=False).status == 0, 20)
        put(server.zero, "$MINT_RIG_FOLDER/again", program)
    assert name.read_bytes() == program and name.stat().st_mode & 0o777 == 0o755


def zeroed(disk: Path) -> bool:
    """Whether a disk's first 2 MiB are zero, and what is behind them is as it was."""
    data = disk.read_bytes()
    return data == bytes(2 << 20) + b"x" * (1 << 20)


def test_what_is_written_to_a_disk_is_zero_after_it(server: Remote, tmp_path: Path):
    """Or the plan would be refused at the next boot."""
    disk = tmp_path / "disk"
    disk.write_bytes(b"x" * (3 << 20))
    with pytest.raises(ZeroDivisionError), written(server.zero, str(disk), 2):
        assert disk.read_bytes() == b"x" * (3 << 20)
        raise ZeroDivisionError
    assert zeroed(disk)
    assert server.zero.out("ls $MINT_RIG_FOLDER") == "mint-rig-agent\ntry"


def test_what_was_written_when_the_connection_is_lost_is_zero(far: Path, tmp_path: Path):  # noqa: F811
    assert bootstrap.ZERO_WRITTEN in remote.AT_END
    disk = tmp_path / "disk"
    disk.write_bytes(b"x" * (3 << 20))
    channel, stream = Ssh(AT).agent(AGENT, at_end=bootstrap.ZERO_WRITTEN)
    folder = folder_of(channel)
    node = SimpleNamespace(run=lambda command: channel.start(command).wait())
    with pytest.raises(MachineLost), written(node, str(disk), 2):
        os.killpg(stream.process.pid, signal.SIGKILL)
        channel.start("sleep 60").wait()
    wait_until("its folder is removed", lambda: not folder.exists(), 20)
    assert zeroed(disk)


def test_address_of_a_node_follows_node_0s(server: Remote):
    assert server.address(2) == "10.77.0.12"


MINTCTL = """
cd {folder}
case "$1 $2" in
"node remove")
	[ "$3" != one ] || rm -f one ;;
"operation list")
	echo "ID KIND NODE STATE ASKED-BY TAKEN-FROM SINCE LAST"
	echo "6 node-start one done root - - is running now"
	left=$(cat left)
	[ "$left" -gt 0 ] || exit 0
	echo $((left - 1)) >left
	[ "$left" -gt 1 ] || touch one
	echo "7 node-add one {state} root - - waits" ;;
"node list")
	[ ! -e one ] || echo '{{"nodes":[{{"id":1,"name":"one"}}]}}'
esac
"""


@pytest.mark.parametrize("state", ["running", "queued", "running, is cancelled"])
def test_node_that_comes_after_the_connections_end_is_removed(tmp_path: Path, state: str):
    """The operation that adds it goes on in mintd."""
    program = tmp_path / "mintctl"
    program.write_text("#!/bin/sh" + MINTCTL.format(folder=tmp_path, state=state))
    program.chmod(0o755)
    (tmp_path / "left").write_text("2\n")
    assert remote.REMOVE_NODES in remote.AT_END
    script = remote.REMOVE_NODES.replace("sleep 1", ":")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-eu", "-c", script], env=environment, check=True, timeout=60)
    assert (tmp_path / "left").read_text() == "0\n" and not (tmp_path / "one").exists()
    # What never ends is not waited for for ever.
    (tmp_path / "left").write_text("1000\n")
    subprocess.run(["sh", "-c", script], env=environment, check=True, timeout=60)
    assert (tmp_path / "left").read_text() == f"{1000 - remote.AGAIN}\n"


def test_what_is_made_there_is_removed_at_the_end():
    """The shell of the server knows each name that benchmarks give."""
    for name in (*plan.NODES, *plan.GUESTS):
        assert re.search(rf"\b{name}\b", remote.AT_END)
