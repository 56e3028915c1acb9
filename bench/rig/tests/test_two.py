# SPDX-License-Identifier: Apache-2.0
"""Two machines: their wire between QEMUs without a kernel, and how they are named by hand."""

import argparse
import os
import socket
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from rig import channel as protocol
from rig import cli, emulator, machine, relay, wire
from rig.machine import MachineConfig
from rig.qmp import Monitor
from rig.two import SUBNETS, at_wire

FRAME = bytes(range(60))


class Hub:
    """A QEMU that is a hub and nothing else: the wire's end, and a socket in place of a card."""

    def __init__(self, end: socket.socket) -> None:
        monitor, monitor_qemu = socket.socketpair()
        self.card, card_qemu = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.card.settimeout(10)
        self._process = subprocess.Popen(
            [
                *emulator.find().command, "-nodefaults", "-display", "none", "-machine", "none",
                "-chardev", f"socket,id=monitor,fd={monitor_qemu.fileno()}", "-mon", "chardev=monitor,mode=control",
                "-netdev", f"dgram,id=card,local.type=fd,local.str={card_qemu.fileno()}",
                "-netdev", "hubport,id=card-hub,hubid=0,netdev=card",
                *wire.arguments(end),
            ],
            env=os.environ | emulator.find().environment,
            stderr=subprocess.DEVNULL,
            pass_fds=[stream.fileno() for stream in (monitor_qemu, card_qemu, end)],
        )  # fmt: skip
        monitor_qemu.close()
        card_qemu.close()
        self.monitor = Monitor(monitor)

    def stop(self) -> None:
        """End it."""
        self.monitor.close()
        self._process.kill()
        self._process.wait()
        self.card.close()


@pytest.fixture
def cable():
    """A wire without machines."""
    cable = wire.Wire()
    yield cable
    cable.close()


def assert_passes(sender: Hub, receiver: Hub, first: bytes) -> None:
    """A frame that begins like this is the next to arrive."""
    sender.card.send(first + FRAME)
    assert receiver.card.recv(2000) == first + FRAME


def test_frames_pass_until_the_wire_is_cut_and_again_when_it_is_mended(cable: wire.Wire):
    """What is sent meanwhile never arrives; neither what was sent to a machine that was not there."""
    cable.ends[0].send(b"early")
    wire.drain(cable.ends[1])
    one, other = Hub(cable.ends[0]), Hub(cable.ends[1])
    try:
        assert_passes(one, other, b"1")
        assert_passes(other, one, b"2")
        for hub in one, other:
            hub.monitor.execute("set_link", name=wire.NAME, up=False)
        one.card.send(b"lost" + FRAME)
        other.card.send(b"lost" + FRAME)
        for hub in one, other:
            # The hub has taken it by then, and dropped it.
            hub.card.settimeout(0.5)
            with pytest.raises(TimeoutError):
                hub.card.recv(2000)
            hub.card.settimeout(10)
        for hub in one, other:
            hub.monitor.execute("set_link", name=wire.NAME, up=True)
        assert_passes(one, other, b"3")
        assert_passes(other, one, b"4")
        # Another one in the place of one that ended.
        other.stop()
        other = Hub(cable.ends[1])
        assert_passes(one, other, b"5")
    finally:
        one.stop()
        other.stop()


def test_cards_of_two_machines_differ(cable: wire.Wire):
    """By their addresses; those of one machine alone are as ever."""

    def macs(number: int) -> set[str]:
        words = " ".join(" ".join(machine.card_arguments(card, 4 + card, "e1000e", number)) for card in range(3))
        return {option for word in words.split() for option in word.split(",") if option.startswith("mac=")}

    assert len(macs(0) | macs(1)) == 6
    assert "mac=52:54:00:4d:00:02" in macs(0)
    configs = [at_wire(MachineConfig("x"), cable, number, f"x{number}") for number in (0, 1)]
    assert [config.number for config in configs] == [0, 1]
    assert [config.subnet for config in configs] == list(SUBNETS)


@pytest.mark.parametrize(("word", "found"), [("0", (0, 0)), ("12", (0, 12)), ("a/1", (0, 1)), ("b/0", (1, 0))])
def test_node_of_either_machine_is_named(word: str, found: tuple[int, int]):
    assert cli.place(word) == found


@pytest.mark.parametrize("word", ["", "b", "b/", "c/0", "ab/0", "-1", "b/b/0"])
def test_what_names_no_node_is_refused(word: str):
    with pytest.raises(argparse.ArgumentTypeError, match="node's number"):
        cli.place(word)


class PlayedMachine:
    """What the relay wants of a machine."""

    def __init__(self, folder: Path, boot_id: str) -> None:
        self.folder, self.runs = folder, True
        folder.mkdir()
        self.channel = SimpleNamespace(boot_id=boot_id, wait_ready=lambda: None)

    def alive(self) -> bool:
        return self.runs


def test_each_machine_has_a_relay_and_one_word_ends_both(tmp_path: Path):
    """The end of one machine alone ends nothing."""
    machines = [PlayedMachine(tmp_path / name, name) for name in ("a", "b")]
    serving = threading.Thread(target=relay.serve, args=machines, daemon=True)
    serving.start()
    while (stream := relay.connect(machines[1].folder)) is None:
        pass
    channels = [relay.client_channel(stream), relay.client_channel(relay.connect(machines[0].folder))]
    for channel in channels:
        channel.wait_ready(10)
    assert [channel.boot_id for channel in channels] == ["b", "a"]
    machines[1].runs = False
    serving.join(1)
    assert serving.is_alive()
    channels[0].send(protocol.frame(relay.QUIT))
    serving.join(10)
    assert not serving.is_alive()
    assert [relay.connect(each.folder) for each in machines] == [None, None]
