# SPDX-License-Identifier: Apache-2.0
"""Node 0 restarts alone, or panics and is started again; the other nodes and their guests run on. The whole
machine's end."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rig.load import Ping, check, load
from rig.reset import Reset
from rig.server import ONE, TWO, Server
from rig.wait import wait_until

NAMES = {1: ONE.name, 2: TWO.name}


@contextmanager
def node0_comes_back(server: Server) -> Iterator[None]:
    """What is done in here ends node 0; ends when its mintd answers again, and all others do."""
    channel, boot_id = server.machine.channel, server.machine.channel.boot_id
    mark = server.zero.console.mark()
    yield
    server.zero.console.wait_for("mint-init: node 0 init", mark)
    wait_until("node 0's agent", lambda: channel.boot_id != boot_id, 240)
    server.wait_mintd(server.zero)
    wait_until(
        "all mintds",
        lambda: all(node["mintd"] == "ok" for node in server.mintctl("node", "list")["nodes"]),
    )


def end_node0(server: Server, number: int) -> str:
    """In turns a restart, asked for on each node, and a panic, after which nobody asks for anything; says which."""
    if number % 2:
        server.zero.start("echo c >/proc/sysrq-trigger")
        return "panic"
    asked_on = (1, 2, 0)[number // 2 % 3]
    # It outlives the connection through which it is started.
    command = "setsid mintctl node restart node0 >/dev/console 2>&1 </dev/null &"
    server.node(asked_on).start(command, limit_s=60)
    return "restart"


@pytest.mark.soak
def test_node0_restarts_alone_and_comes_back_after_a_panic(worn: Server, request: pytest.FixtureRequest):
    """Guests on nodes 1 and 2 count on and use their disks, a ping between them loses nothing, the ledger is the
    same; any node may ask."""
    server = worn
    with server.zero.undone(
        "printf '[node0]\\nrestart = \"on-crash\"\\n' >>/etc/mint/mint.toml; sync; mint-service restart mintd",
        "sed -i '/^\\[node0\\]$/,+1d' /etc/mint/mint.toml; sync; mint-service restart mintd",
    ):
        server.wait_mintd(server.zero)
        end_node0_in_turns(server, request.config.getoption("--node0-rounds"))
    # Everything that node 0 does beside nodes, it does again.
    server.wait_mintd(server.zero)
    server.wait_ready(server.zero)
    assert server.mintctl("doctor")["ok"]
    server.mintctl("node", "restart", TWO.name)
    server.mintctl("node", "resize", ONE.name, "--cpus", "+1")
    server.mintctl("node", "resize", ONE.name, "--cpus", "-1")
    server.remove_all()
    assert server.zero.out("nproc") == "6"


def end_node0_in_turns(server: Server, rounds: int) -> None:
    """So many ends of node 0 beside busy nodes, none of which may notice."""
    mark = server.zero.console.mark()
    ledger = server.ledger()
    boots = {number: node.boots for number, node in server.nodes().items()}
    done = {"restart": 0, "panic": 0}
    with load([server.one, server.two]) as found:
        ping = Ping(server.one, server.two)
        for number in range(rounds):
            with node0_comes_back(server):
                kind = end_node0(server, number)
            now = {n: node.boots for n, node in server.nodes().items()}
            assert now == boots | {0: boots[0] + number + 1}
            assert not (changed := ledger.difference(server.ledger())), changed
            check(found)
            done[kind] += 1
        ping.check_and_end()
    print(f"ends of node 0: {done}")
    assert done == {"restart": (rounds + 1) // 2, "panic": rounds // 2}
    assert "ends with this reset" not in server.zero.console.text(mark)


# How a server's owner says which nodes there are (docs/config.md).
NODE_FILE = """
name = "{name}"
cpus = "{cpus}"
memory = "{memory}"
devices = {devices}
"""


@pytest.mark.soak
@pytest.mark.soak_only
def test_machine_reboot_ends_in_order_and_nodes_of_nodes_d_come_back(worn: Server):
    """mintctl machine reboot, said on node 2: all nodes end, the machine is reset, and node 0's init starts what
    /etc/mint/nodes.d describes: the same nodes with the same resources, with what is on their disks."""
    server = worn
    for plan in (ONE, TWO):
        text = NODE_FILE.format(
            name=plan.name,
            cpus=",".join(map(str, plan.cpus)),
            memory=f"{plan.memory_mib}M@numa{plan.numa}",
            devices=json.dumps(plan.devices),
        )
        path = f"/etc/mint/nodes.d/{plan.name}.toml"
        server.zero.run(f"mkdir -p /etc/mint/nodes.d; cat >{path}", stdin=text.encode())
    server.one.run("echo kept >/root/kept")
    ledger, boot_id = server.ledger(), server.area.header.boot_id
    marks = {number: server.node(number).console.mark() for number in (0, 1, 2)}
    # As on a user's machine: a reset is not the end of QEMU.
    with Reset(server) as reset, node0_comes_back(server):
        server.two.start("mintctl machine reboot")
        reset.finish()
    for number in (1, 2):
        server.wait_state(number, "running", limit_s=120)
        server.wait_mintd(server.node(number))
    assert server.area.header.boot_id != boot_id
    for number, mark in marks.items():
        assert f"mint-init: node {number}: " in server.node(number).console.text(mark)
    assert "still runs and ends with this reset" not in server.zero.console.text(marks[0])
    # Of memory each has as much as before, wherever the pool is in this boot.
    now = server.ledger()
    for kind in "cpu", "memory", "device":
        for node in (0, 1, 2, None):
            before, after = ledger.owned(kind, node), now.owned(kind, node)
            assert (len(before) == len(after)) if kind == "memory" else (before == after), (kind, node, before, after)
    assert server.one.read("/root/kept").strip() == "kept"
    assert {node["boots"] for node in server.mintctl.nodes().values()} == {1}
    server.zero.run("rm -r /etc/mint/nodes.d")


def test_machine_poweroff_stops_nodes_before_node0(worn_out: Server):
    """mintctl machine poweroff, said on node 1: both nodes end in an orderly way, then the machine is off."""
    marks = {number: worn_out.node(number).console.mark() for number in (0, 1, 2)}
    worn_out.one.start("mintctl machine poweroff")
    process = worn_out.machine.process
    wait_until("the machine to be off", lambda: process.poll() is not None, 120)
    assert process.returncode == 0
    said = {number: worn_out.node(number).console.text(mark) for number, mark in marks.items()}
    for number, text in said.items():
        assert f"mint-init: node {number}: poweroff" in text
    # What the kernels of nodes 1 and 2 say last is before node 0's last words.
    for number in (1, 2):
        assert "reboot: Power off not available: System halted" in said[number]
    assert "still runs and ends with this reset" not in said[0]
