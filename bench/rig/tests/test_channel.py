# SPDX-License-Identifier: Apache-2.0
"""The agent and the channel, on this host, without a machine."""

import os
import pty
import socket
import subprocess
import time
import tty

import pytest

from rig import paths
from rig.channel import Channel
from rig.errors import CommandTimeout, MachineLost


@pytest.fixture
def channel():
    """A Channel to the built agent, through a pseudo-terminal in place of the virtio port."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    ours, theirs = socket.socketpair()
    agent = subprocess.Popen([paths.need(paths.AGENT), os.ttyname(slave)])
    copies = [
        subprocess.Popen(["cat"], stdin=master, stdout=theirs),
        subprocess.Popen(["cat"], stdin=theirs, stdout=master),
    ]
    theirs.close()
    channel = Channel(ours, lambda: "the agent ended")
    channel.wait_ready(20)
    yield channel
    channel.close()
    for process in [agent, *copies]:
        process.kill()
        process.wait()
    os.close(master)
    os.close(slave)


def test_output_error_and_status_come_back(channel):
    result = channel.start("echo out; echo err >&2; exit 7").wait()
    assert (result.out, result.err, result.status) == ("out\n", "err\n", 7)


def test_input_reaches_the_command_whole(channel):
    data = os.urandom(3 << 20)
    result = channel.start("cat", stdin=data).wait()
    assert result.stdout == data


def test_without_input_stdin_is_at_its_end(channel):
    assert channel.start("cat; echo done").wait().out == "done\n"


def test_several_are_in_flight(channel):
    slow = channel.start("sleep 1; echo slow")
    begin = time.monotonic()
    assert channel.start("echo quick").wait().out == "quick\n"
    assert time.monotonic() - begin < 0.9
    assert slow.wait().out == "slow\n"


def test_limit_kills_the_whole_session(channel):
    with pytest.raises(CommandTimeout):
        channel.start("sleep 4242 & sleep 4242; true", limit_s=0.3).wait()
    assert channel.start("pgrep -fx 'sleep 4242'").wait().out == ""


def test_background_process_does_not_hold_the_command(channel):
    begin = time.monotonic()
    assert channel.start("sleep 5 & echo started").wait().out == "started\n"
    assert time.monotonic() - begin < 3


def test_signal_is_128_and_its_number(channel):
    job = channel.start("exec sleep 60")
    job.kill(15)
    assert job.wait(10).status == 143


def test_terminal_has_a_size(channel):
    job = channel.start("read go; stty size", terminal=True, keep_input=True)
    job.resize(50, 132)
    job.input(b"go\n")
    assert "50 132" in job.wait(10).out


def test_lost_agent_ends_waiting_commands(channel):
    job = channel.start("sleep 60")
    channel._stream.shutdown(socket.SHUT_RDWR)
    with pytest.raises(MachineLost):
        job.wait(10)
