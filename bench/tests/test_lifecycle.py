# SPDX-License-Identifier: Apache-2.0
"""Stop, start, remove, add again: nothing is leaked. Nodes manage each other.
Nodes of other kernel builds."""

import json
import re
import time
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from rig.guest import guests
from rig.mintctl import Mintctl
from rig.node import Node
from rig.resources import Resources
from rig.server import ONE, SPARE, TWO, NodePlan, Server
from rig.virt import assert_host_validates
from rig.wait import wait_until

# What node 0 needs for nodes at all comes in the first rounds, which do not count.
WARM_UP_ROUNDS = 2
# Free memory that node 0 may have less after all the others. mintd grows by some 0.1 MiB in
# ten rounds; the figures of two moments differ by more. A node's smallest part is far larger.
LEAK_SLACK_BYTES = 4 << 20
# Longer than the pause before a node is started again for the second time.
STAYS_DOWN_S = 4


def one_round(server: Server, plan: NodePlan, *wait: str) -> None:
    """add, stop, restart, remove on the same resources."""
    assert server.add(plan)["node"]["state"] == "running"
    # Not asked for in a list: that waits for the mintd which a tiny node has not.
    assert server.mintctl("node", "stop", plan.name)["node"]["state"] in ("stopped", "halted")
    assert server.mintctl("node", "restart", plan.name, *wait)["node"]["state"] == "running"
    server.mintctl("node", "remove", plan.name, "--force")
    assert server.state(1) == "absent"


@pytest.mark.soak
def test_rounds_of_stop_restart_remove_add_leak_nothing(bare: Server, request: pytest.FixtureRequest):
    """stop, restart, remove, add on the same resources, --rounds times in a row after some that warm up; of a node in
    its initrd."""
    tiny = NodePlan(ONE.name, ONE.cpus, 256, ONE.numa, ONE.devices, SPARE.more)
    bare.wait_ready(bare.zero)
    for _ in range(WARM_UP_ROUNDS):
        one_round(bare, tiny, "--wait", "running")
    before = Resources(bare.zero)

    def rounds() -> Resources:
        for _ in range(request.config.getoption("--rounds")):
            one_round(bare, tiny, "--wait", "running")
        return Resources(bare.zero)

    after = rounds()
    if before.lost_bytes(after) > LEAK_SLACK_BYTES:
        # What a daemon takes once, it has. A leak takes as much again.
        print(f"more is gone than may be: {before.moved(after)}")
        before, after = after, rounds()
    before.check(after, LEAK_SLACK_BYTES)


@pytest.mark.soak
@pytest.mark.soak_only
def test_rounds_of_a_whole_node_leak_nothing(bare: Server, request: pytest.FixtureRequest):
    """The same with a node that has its disk's root, mintd and libvirt; node 0's mintd keeps no connection of those that
    were killed."""
    bare.wait_ready(bare.zero)
    had = descriptors(bare.zero)
    for _ in range(WARM_UP_ROUNDS):
        one_round(bare, ONE)
    before = Resources(bare.zero)
    for _ in range(request.config.getoption("--rounds")):
        one_round(bare, ONE)
    wait_until("as few descriptors as before", lambda: descriptors(bare.zero) <= had, 90)
    before.check(Resources(bare.zero), LEAK_SLACK_BYTES)


def descriptors(node: Node) -> int:
    """How many mintd has open."""
    return int(node.out("ls /proc/$(pidof mintd)/fd | wc -l"))


def test_stopped_node_keeps_its_resources(pair: Server):
    """stop: nobody else's; start: the same ones again."""
    ledger = pair.ledger()
    pair.mintctl("node", "stop", TWO.name)
    assert not ledger.difference(pair.ledger())
    pair.mintctl("node", "start", TWO.name)
    pair.wait_mintd(pair.two)


def test_restart_keeps_name_and_counts_boots(pair: Server):
    """restart: same node, one boot more, its init ran again, its files are still there."""
    pair.two.run("echo kept >/root/kept && sync")
    boots = pair.mintctl.nodes()[2]["boots"]
    mark = pair.two.console.mark()
    pair.mintctl("node", "restart", TWO.name)
    pair.two.console.wait_for("mint-init: node 2 init", mark)
    assert pair.mintctl.nodes()[2]["boots"] == boots + 1
    pair.wait_mintd(pair.two)
    assert pair.two.out("cat /root/kept; rm /root/kept") == "kept"


# Before the first start that nobody asked for, the second, the third.
PAUSES_S = (0, 1, 2)


def test_crashed_node_is_started_again_by_its_policy(bare: Server):
    """node add --restart on-crash: after a panic it runs again, and nobody had to ask for it; the pause before that
    doubles from one panic to the next."""
    # An earlier node of that number has said the same.
    console, boots = bare.one.console, 1
    mark = console.mark()
    bare.add(replace(SPARE, more=(*SPARE.more, "--restart", "on-crash")))
    for pause_s in PAUSES_S:
        console.wait_for("mint-init: node 1: stays in its initrd", mark)
        bare.wait_state(1, "running")
        mark, boots = console.mark(), boots + 1
        # Its shell reads what was typed before it was there.
        bare.zero.run("echo 'echo c >/proc/sysrq-trigger' | mintctl node console 1 --write")
        wait_until("node 1 to crash", lambda: bare.state(1) == "crashed", every_s=0.002)
        crashed = time.monotonic()
        wait_until("node 1 to be started", lambda: bare.state(1) != "crashed", pause_s + 60, every_s=0.002)
        after_s = time.monotonic() - crashed
        print(f"started again after {after_s:.2f} s, its pause is {pause_s} s")
        assert after_s > pause_s - 0.1
        bare.wait_state(1, "running")
        assert bare.nodes()[1].boots == boots
    told = re.findall(r"started again in (\d+) s", bare.zero.read("/var/log/mint/mintd.log"))
    assert [int(pause_s) for pause_s in told[-2:]] == list(PAUSES_S[1:]), told
    bare.remove_all()


def test_node_of_policy_always_is_started_again_unless_somebody_stopped_it(pair: Server):
    """After a poweroff inside it, it runs again; after a stop said on node 2 it stays down, though node 0 added it."""
    plan = replace(SPARE, devices=(), more=(*SPARE.more, "--restart", "always"))
    number = pair.add(plan)["node"]["id"]
    pair.node(number).console.wait_for(f"mint-init: node {number}: stays in its initrd")
    pair.zero.run(f"echo 'poweroff -f' | mintctl node console {number} --write")
    wait_until("it to boot again", lambda: pair.nodes()[number].boots == 2, 60)
    pair.wait_state(number, "running")
    stopped = Mintctl(pair.two)("node", "stop", plan.name)["node"]["state"]
    assert stopped in ("stopped", "halted")
    # A mintd that starts looks at nodes that have ended, too.
    pair.zero.run("mint-service restart mintd")
    pair.wait_mintd(pair.zero)
    end = time.monotonic() + STAYS_DOWN_S
    while time.monotonic() < end:
        node = pair.nodes()[number]
        assert (node.state, node.boots) == (stopped, 2)
        time.sleep(0.1)
    pair.mintctl("node", "remove", plan.name, "--force")


def test_node_with_a_core_offline_is_degraded_until_it_is_back(pair: Server):
    """Taken offline on node 1 itself, by the stock way: all daemons tell, with how many of how many are left."""
    file = pair.one.out("ls /sys/devices/system/cpu/cpu*/online | tail -n 1")
    count = len(ONE.cpus)

    def health_is(word: str) -> bool:
        return all(Mintctl(pair.node(number)).nodes()[1]["health"] == word for number in (0, 1, 2))

    pair.one.run(f"echo 0 >{file}")
    wait_until("node 1 to be degraded", lambda: health_is("degraded"), 60, every_s=0.5)
    told = [json.loads(line) for line in pair.two.out("mintctl events --json").splitlines()]
    told = [event["reason"] for event in told if event["event"] == "degraded" and event["node"] == 1]
    assert f"{count - 1} of its {count} cores are online" in told[-1]
    pair.one.run(f"echo 1 >{file}")
    wait_until("node 1 to be well", lambda: health_is("ok"), 60, every_s=0.5)


def test_node_is_started_from_node1(pair: Server):
    """node add, stop and remove said on node 1; the core and what memory is not free come from node 0, and go back."""
    one = Mintctl(pair.one)
    plan = NodePlan("third", (5,), 768, 1, (), SPARE.more)
    ledger = pair.ledger()
    answer = one("node", "add", *plan.words(), "--from", "node0")
    third = answer["node"]["id"]
    assert answer["node"]["state"] == "running"
    assert pair.mintctl.state(third) == "running"
    pair.node(third).console.wait_for(f"mint-init: node {third} init")
    assert pair.ledger().owned("cpu", third) == ["5"]
    one("node", "stop", "third")
    one("node", "remove", "third", "--force", "--to", "node0")
    assert not ledger.difference(pair.ledger())


def test_mintctl_says_the_same_on_every_node(pair: Server):
    """node list and device list from nodes 0, 1 and 2."""

    def facts(number: int):
        ctl = Mintctl(pair.node(number))
        nodes = [(n["id"], n["name"], n["state"], n["cpus"], n["memory_bytes"]) for n in ctl("node", "list")["nodes"]]
        owners = {device["bdf"]: device["owner"] for device in ctl("device", "list")["devices"]}
        return nodes, owners

    assert facts(0) == facts(1) == facts(2)


def test_console_is_read_from_every_node(pair: Server):
    """mintctl node console of node 2, from nodes 0 and 1: what its init printed."""
    for number in (0, 1):
        text = pair.node(number).out(f"mintctl node console {TWO.name}")
        assert "mint-init: node 2 init" in text, text[-500:]


def test_map_has_a_sign_for_every_core_and_owner(pair: Server):
    """mintctl map on node 1, as text and as SVG."""
    text = pair.one.out("mintctl map")
    cores = dict(re.findall(r"\b(\d+):(\w)", "".join(re.findall(r"^  cpus .*$", text, re.MULTILINE))))
    want = {str(cpu["id"]): str(cpu["owner"]) for cpu in pair.mintctl("cpu", "list")["cpus"]}
    assert cores == want, text
    svg = pair.one.out("mintctl map --svg")
    titles = [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")]
    assert f"cpu {TWO.cpus[0]}: {TWO.name}" in titles


def test_exec_passes_output_and_status(pair: Server):
    """mintctl node exec: stdout, stderr, stdin, exit status, from any node to any."""
    for here in (0, 1, 2):
        for there in (0, 1, 2):
            inner = "sh -c 'hostname; cat; echo wrong >&2; exit 7'"
            outer = f"printf 'in put' | mintctl node exec --stdin node{there} -- {inner}"
            result = pair.node(here).run(outer, check=False)
            name = pair.node(there).out("hostname")
            assert (result.status, result.out, result.err) == (7, f"{name}\nin put", "wrong\n")


def test_exec_passes_32_mib_both_ways(pair: Server):
    """More than all pipes on the way hold, through cat on another node; and a command whose client goes while
    it does not read its input goes, too."""
    sum_of = "head -c 33554432 /dev/zero | tr '\\0' x | {}md5sum"
    there = pair.zero.out(sum_of.format(f"mintctl node exec {ONE.name} -- cat | "), limit_s=300)
    assert there == pair.zero.out(sum_of.format(""))
    running = "pgrep -fx 'sleep 98765'"
    client = pair.zero.start(f"mintctl node exec {ONE.name} -- sleep 98765 </dev/zero", limit_s=300)
    wait_until("the command to run", lambda: pair.one.run(running, check=False).status == 0, 60)
    client.kill()
    wait_until("the command to be gone", lambda: pair.one.run(running, check=False).status == 1, 60)


@pytest.mark.soak
@pytest.mark.soak_only
def test_rt_node_runs_beside_ordinary_ones(bare: Server):
    """A PREEMPT_RT kernel as node 1, node 0 ordinary: both work, talk over mint0, and run a guest each."""
    bare.add(replace(ONE, name="rt", more=("--kernel", "/boot/vmlinuz-mint-rt")))
    bare.wait_ready(bare.one)
    assert "PREEMPT_RT" in bare.one.out("uname -v")
    assert "PREEMPT_RT" not in bare.zero.out("uname -v")
    assert re.search(r"\b0% packet loss", text := bare.one.out("ping -c 5 -i 0.2 -W 10 node0")), text
    assert_host_validates(bare.one)
    with guests([bare.zero, bare.one], "beside", "--no-disk --memory 96M") as both:
        for guest in both:
            guest.wait_ticks()
    bare.remove_all()
