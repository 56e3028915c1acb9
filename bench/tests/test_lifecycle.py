# SPDX-License-Identifier: Apache-2.0
"""Stop, start, remove, add again: nothing is leaked. Nodes manage each other.
Nodes of other kernel builds."""

import json
import re
import time
from dataclasses import replace
from xml.etree import ElementTree

from rig.mintctl import Mintctl
from rig.node import Node
from rig.server import ONE, SPARE, TWO, NodePlan, Server
from rig.wait import wait_until

ROUNDS = 20
# Memory that node 0 may keep back over ROUNDS rounds. What it needs for nodes at all comes
# in the first rounds: 3 to 10 MiB were seen, 12 with lockdep; 60 rounds after the first
# five took 0.7 MiB, as much as mintd grew. A node's smallest part is far larger.
MEMORY_SLACK_BYTES = 24 << 20
# Of a function's Command: decoding of I/O, which none of them has, and SERR#. The
# firmware sets both; they do not come back after the reset of the first hand-over.
FIRMWARES = 0x101
# Longer than the pause before a node is started again for the second time.
STAYS_DOWN_S = 4


class Resources:
    """What node 0 holds that a leak would eat: memory, vectors, PCI state."""

    def __init__(self, server: Server) -> None:
        zero = server.zero
        zero.run("echo 3 >/proc/sys/vm/drop_caches")
        # KASAN keeps freed objects, up to a 32nd of all memory, until their cache is shrunk.
        zero.run("for file in /sys/kernel/slab/*/shrink; do [ ! -e $file ] || echo 1 >$file; done", limit_s=300)
        fields = dict(re.findall(r"^(\w+):\s+(\d+)", zero.read("/proc/meminfo"), re.MULTILINE))
        self.total_bytes = int(fields["MemTotal"]) << 10
        self.free_bytes = (int(fields["MemAvailable"]) << 10) + self.in_cpu_lists(zero)
        self.cores = zero.read("/sys/devices/system/cpu/online")
        # Names and CPUs of vectors in use; their counts differ, of course.
        self.vectors = len(re.findall(r"^ *\d+:", zero.read("/proc/interrupts"), re.MULTILINE))
        # Command, BARs, MSI-X control of every function. Status bits of errors may come and go.
        self.pci = {}
        for block in zero.out("lspci -D -xxx").strip().split("\n\n"):
            name, *lines = block.splitlines()
            octets = bytes.fromhex("".join(line.split(": ")[1] for line in lines).replace(" ", ""))
            command = int.from_bytes(octets[4:6], "little") & ~FIRMWARES
            self.pci[name.split()[0]] = (f"{command:#x}", octets[16:40].hex())

    @staticmethod
    def in_cpu_lists(node: Node) -> int:
        """Bytes of free pages that each CPU keeps for itself: tens of MiB more or less, and not in MemFree."""
        counts = re.findall(r"^ +count: +(\d+)", node.read("/proc/zoneinfo"), re.MULTILINE)
        assert counts
        return sum(map(int, counts)) * 4096

    def check(self, later: "Resources") -> None:
        """Asserts that nothing was lost from this one to a later one."""
        assert later.total_bytes == self.total_bytes
        assert later.free_bytes > self.free_bytes - MEMORY_SLACK_BYTES
        assert later.cores == self.cores
        assert later.vectors == self.vectors
        assert later.pci == self.pci


def test_twenty_rounds_of_stop_restart_remove_add_leak_nothing(bare: Server):
    """stop, restart, remove, add on the same resources, 20 times in a row."""
    tiny = NodePlan(ONE.name, ONE.cpus, 256, ONE.numa, ONE.devices, SPARE.more)
    before = Resources(bare)
    for _ in range(ROUNDS):
        assert bare.add(tiny)["node"]["state"] == "running"
        # Not asked for in a list: that waits for the mintd which this tiny node has not.
        assert bare.mintctl("node", "stop", ONE.name)["node"]["state"] in ("stopped", "halted")
        assert bare.mintctl("node", "restart", ONE.name, "--wait", "running")["node"]["state"] == "running"
        bare.mintctl("node", "remove", ONE.name, "--force")
        assert bare.mintctl.state(1) == "absent"
    before.check(Resources(bare))


def test_stopped_node_keeps_its_resources(pair: Server):
    """stop: nobody else's; start: the same ones again."""
    ledger = pair.ledger()
    pair.mintctl("node", "stop", TWO.name)
    assert not ledger.difference(pair.ledger())
    pair.mintctl("node", "start", TWO.name)
    pair.wait_ready(pair.two)


def test_restart_keeps_name_and_counts_boots(pair: Server):
    """restart: same node, one boot more, its init ran again, its files are still there."""
    pair.two.run("echo kept >/root/kept && sync")
    boots = pair.mintctl.nodes()[2]["boots"]
    mark = pair.two.console.mark()
    pair.mintctl("node", "restart", TWO.name)
    pair.two.console.wait_for("mint-init: node 2 init", mark)
    assert pair.mintctl.nodes()[2]["boots"] == boots + 1
    pair.wait_ready(pair.two)
    assert pair.two.out("cat /root/kept; rm /root/kept") == "kept"


def test_crashed_node_is_started_again_by_its_policy(bare: Server):
    """node add --restart on-crash: after a panic it runs again, and nobody had to ask for it."""
    bare.add(replace(ONE, more=(*ONE.more, "--restart", "on-crash")))
    bare.one.start("sync; echo c >/proc/sysrq-trigger", limit_s=30)
    wait_until("node 1 to boot again", lambda: bare.mintctl.nodes()[1]["boots"] == 2, 60)
    bare.wait_state(1, "running")
    bare.wait_ready(bare.one)
    bare.remove_all()


def test_node_of_policy_always_is_started_again_unless_somebody_stopped_it(bare: Server):
    """After a poweroff inside it, it runs again; after a stop said on node 2 it stays down, whoever added it."""
    bare.add(replace(ONE, more=(*ONE.more, "--restart", "always")))
    bare.add(TWO)
    bare.one.start("poweroff", limit_s=30)
    wait_until("node 1 to boot again", lambda: bare.mintctl.nodes()[1]["boots"] == 2, 60)
    bare.wait_state(1, "running")
    bare.wait_ready(bare.one)
    Mintctl(bare.two)("node", "stop", ONE.name)
    # A mintd that starts looks at nodes that have ended, too.
    bare.zero.run("mint-service restart mintd")
    bare.wait_mintd(bare.zero)
    end = time.monotonic() + STAYS_DOWN_S
    while time.monotonic() < end:
        node = bare.mintctl.nodes()[1]
        assert (node["state"], node["boots"]) == ("halted", 2)
    bare.remove_all()


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
    """node add, stop and remove on node 1, not on node 0; its resources come from node 1's own."""
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


def test_rt_node_runs_beside_ordinary_ones(bare: Server):
    """A PREEMPT_RT kernel as node 2, node 1 ordinary: both work, and talk over mint0."""
    bare.add(ONE)
    rt = NodePlan("rt", TWO.cpus, TWO.memory_mib, TWO.numa, TWO.devices, ("--kernel", "/boot/vmlinuz-mint-rt"))
    bare.add(rt)
    bare.wait_ready(bare.one)
    bare.wait_ready(bare.two)
    assert bare.two.out("uname -v").find("PREEMPT_RT") > 0
    assert bare.one.out("uname -v").find("PREEMPT_RT") < 0
    text = bare.two.out("ping -c 5 -i 0.2 -W 10 node1")
    assert re.search(r"\b0% packet loss", text), text
    assert bare.two.run("virt-host-validate qemu", check=False).out.count("FAIL") == 0
    bare.remove_all()
