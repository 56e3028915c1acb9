# SPDX-License-Identifier: Apache-2.0
"""Commands on another node: the agent behind a TCP connection, carried by a command of node 0's agent."""

import os
import pty
import socket
import subprocess
import sys
import threading
import time
import tty

import pytest

from rig import link, paths
from rig.channel import Channel
from rig.errors import NodeEnded

# What nc does on node 0.
CARRY = """
import os, socket, sys, threading
stream = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def there():
    while data := os.read(0, 65536):
        stream.sendall(data)
threading.Thread(target=there, daemon=True).start()
while data := stream.recv(65536):
    os.write(1, data)
"""
NODE = 1


def free_port() -> int:
    """A TCP port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def main():
    """A channel to an agent in node 0's place."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    ours, theirs = socket.socketpair()
    processes = [
        subprocess.Popen([paths.need(paths.AGENT), os.ttyname(slave)]),
        subprocess.Popen(["cat"], stdin=master, stdout=theirs),
        subprocess.Popen(["cat"], stdin=theirs, stdout=master),
    ]
    theirs.close()
    channel = Channel(ours, lambda: "the agent ended")
    channel.wait_ready(20)
    yield channel
    channel.close()
    for process in processes:
        process.kill()
        process.wait()
    os.close(master)
    os.close(slave)


@pytest.fixture
def port(monkeypatch):
    """Where the agent of node 1 is to listen."""
    number = free_port()
    monkeypatch.setattr(link, "connect_command", lambda *_: f"exec {sys.executable} -c '{CARRY}' {number}")
    return number


@pytest.fixture
def agent(port: int):
    """The agent of node 1, which listens on the host's loopback interface."""
    process = subprocess.Popen([paths.need(paths.AGENT), "--listen", "lo", str(port)], start_new_session=True)
    yield process
    os.killpg(process.pid, 9)
    process.wait()


@pytest.mark.usefixtures("agent")
def test_commands_input_and_status_go_through(main: Channel):
    links = link.Links()
    links.running({NODE: 1}, main)
    channel = links.channel(main, NODE, 20)
    result = channel.start("echo out; echo err >&2; exit 7").wait()
    assert (result.out, result.err, result.status) == ("out\n", "err\n", 7)
    data = os.urandom(3 << 20)
    assert channel.start("cat", stdin=data).wait().stdout == data
    assert links.channel(main, NODE, 20) is channel, "one connection a boot"
    slow = channel.start("sleep 0.3; echo slow")
    assert channel.start("echo quick").wait().out == "quick\n"
    assert slow.wait().out == "slow\n"


@pytest.mark.usefixtures("agent")
def test_end_of_the_node_ends_what_waits_there(main: Channel, tmp_path):
    """And what the command left running is killed with the connection; the next boot has a new one."""
    links = link.Links()
    links.running({NODE: 1}, main)
    channel = links.channel(main, NODE, 20)
    job = channel.start(f"trap '' TERM; echo $$ >{tmp_path}/pid; sleep 60")
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        time.sleep(0.01)
    threading.Timer(0.2, links.running, ({}, main)).start()
    with pytest.raises(NodeEnded, match="node 1 ended"):
        job.wait(20)
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}")
    links.running({NODE: 2}, main)
    assert links.channel(main, NODE, 20) is not channel
    assert links.channel(main, NODE, 20).start("echo again").wait().out == "again\n"


def test_node_that_does_not_run_has_no_channel(main: Channel, port: int):
    """Neither one that runs and has no agent."""
    links = link.Links()
    with pytest.raises(NodeEnded, match="does not run"):
        links.channel(main, NODE, 0.3)
    links.running({NODE: 1}, main)
    with pytest.raises(NodeEnded, match="(?s)no connection to node 1's agent.*refused"):
        links.channel(main, NODE, 0.5)
