# SPDX-License-Identifier: Apache-2.0
"""Two machines on one wire, which can be cut and slowed: what tests of linked machines stand on."""

import random
import re
import tomllib

from rig import two
from rig.channel import Result
from rig.functions import interface_of, mac_of
from rig.server import CARD0
from rig.two import TwoMachines

ONE_WAY_MS = 50
PORT = 5005


def both_ways(machines: TwoMachines) -> list[Result]:
    """A ping from each machine's node 0 to the other's, at the same time."""
    jobs = [
        server.zero.start(f"ping -c 3 -i 0.2 -W 5 {two.ADDRESSES[1 - number]}")
        for number, server in enumerate(machines.servers)
    ]
    return [job.wait() for job in jobs]


def assert_all_answered(results: list[Result]) -> None:
    """Not a packet is lost."""
    for result in results:
        assert re.search(r"\b0% packet loss", result.out), result


def test_two_machines_are_different_ones_on_one_wire(two_machines: TwoMachines):
    """Each has its own subnet, cards and machine-id; their node 0s reach each other, and TCP passes whole."""
    for server, subnet in zip(two_machines.servers, two.SUBNETS, strict=True):
        settings = tomllib.loads(server.zero.read("/etc/mint/mint.toml"))
        assert settings["commands"]["leave"] == ["mint-leave"], "the rig's other settings stay"
        assert f"{server.address(0)}/24" in server.zero.out("ip -4 addr show mint0")
        assert tomllib.loads(server.zero.out("mintctl config show"))["network"]["subnet"] == subnet
    zeros = [server.zero for server in two_machines.servers]
    for what in (lambda zero: mac_of(zero, CARD0), lambda zero: zero.read("/etc/machine-id")):
        assert what(zeros[0]) != what(zeros[1])
    assert_all_answered(both_ways(two_machines))
    data = random.randbytes(8 << 20)
    received = zeros[1].start(f"nc -d -l {PORT}")
    zeros[1].wait("listens", f"ss -Htln 'sport = :{PORT}' | grep -q .")
    zeros[0].run(f"nc -N {two.ADDRESSES[1]} {PORT}", stdin=data)
    assert received.wait().stdout == data


def test_wire_between_machines_is_cut_and_mended(two_machines: TwoMachines):
    """No packet passes meanwhile, though no card loses its carrier; then all pass."""
    assert_all_answered(both_ways(two_machines))
    with two_machines.wire_cut():
        for result in both_ways(two_machines):
            assert re.search(r"\b100% packet loss", result.out), result
        for server in two_machines.servers:
            assert server.zero.read(f"/sys/class/net/{interface_of(server.zero, CARD0)}/carrier") == "1"
    assert_all_answered(both_ways(two_machines))


def test_wire_between_machines_is_slowed(two_machines: TwoMachines):
    """A packet takes as long as it is told to, each way."""
    with two_machines.wire_slow(f"delay {ONE_WAY_MS}ms"):
        results = both_ways(two_machines)
    assert_all_answered(results)
    for result in results:
        shortest_ms = float(re.search(r"min/avg/max/mdev = ([\d.]+)/", result.out)[1])
        # The two machines' clocks are not quite as fast.
        assert shortest_ms > 2 * ONE_WAY_MS * 0.98, result.out
    for server in two_machines.servers:
        assert "netem" not in server.zero.out("tc qdisc show")
