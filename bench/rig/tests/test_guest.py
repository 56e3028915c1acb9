# SPDX-License-Identifier: Apache-2.0
"""What a guest says on its console, its shell's prompt and unfinished lines in between."""

import re

import pytest

from figures_network import VHOST, VIRTIO, GuestPair, with_cards
from rig.errors import RigError
from rig.guest import counted_replies, counted_versions, counted_writes, counter

LOG = "mint-guest: up\n~ # tick 1 at 3.10\ntick 2 at 4.11, 7 writes\ntick 3 at 5.12, 11 writes\ntick 4 at 6.1"


def test_counter_has_whole_lines_only():
    assert counter(LOG) == [(1, 3.10), (2, 4.11), (3, 5.12)]


def test_writes_are_those_of_whole_lines():
    assert counted_writes(LOG) == [7, 11]
    assert counted_writes("tick 1 at 3.10\n") == []


def test_line_says_all_that_a_guest_counts():
    log = "tick 1 at 3.10, 7 writes, 2 versions, 5 replies in up to 35 cs\ntick 2 at 4.11, 9 versions\ntick 3 at 5.1, 1 ver"
    assert counter(log) == [(1, 3.10), (2, 4.11)]
    assert counted_writes(log) == [7]
    assert counted_versions(log) == [2, 9]
    assert counted_replies(log) == [(5, 0.35)]


class Slow:
    """A guest whose console brings one character after the other."""

    def wait_line(self, _: str) -> str:
        return "mint-guest: eth0 192.168.122.7/24"

    def dialogue(self, line: str, answer: str, limit_s: float = 0) -> str:
        text = ""
        for character in f"serves\r\nmeasure {line.split()[1]} 1671.7\r\n":
            text += character
            if re.search(answer, text):
                break
        return text.replace("\r", "")


def test_number_on_a_console_is_read_whole():
    """1671.7 µs, not 1."""
    assert GuestPair(Slow(), Slow(), [VHOST]).measured(VHOST) == {"stream": 1671.7, "trip": 1671.7}


DOMAIN = "<domain><devices><interface><mac address='02:4d'/><source network='mint'/></interface><video/></devices></domain>"


def test_guest_has_a_card_for_each_side():
    """The first keeps its address; each says what serves it, as a baseline that libvirt chooses would not be known."""
    both, one = with_cards(DOMAIN, [VHOST, VIRTIO]), with_cards(DOMAIN, [VIRTIO])
    assert re.findall(r'<driver name="(\w+)"', both) == ["vhost", "qemu"] and both.count("<mac ") == 1
    assert both.index("02:4d") < both.index("vhost") < both.index("qemu") < both.index("<video")
    assert both.count('network="mint"') == 2
    assert re.findall(r'<driver name="(\w+)"', one) == ["qemu"] and one.count("<interface") == 1
    with pytest.raises(RigError, match="2 cards"):
        with_cards(both, [VHOST])
