# SPDX-License-Identifier: Apache-2.0
"""What nodes use, and the metrics of every mintd."""

import subprocess

from rig import paths
from rig.mintctl import Mintctl
from rig.server import ONE, TWO, Server

SCRAPE = "curl -sS --fail --unix-socket /run/mint/mintd.sock http://mintd/metrics"


def test_top_tells_what_every_node_uses(pair: Server):
    """node top on node 1, while node 2 is busy: all nodes' cores, memory and interrupts."""
    before = {node["id"]: node["load"] for node in Mintctl(pair.one)("node", "top")["nodes"]}
    pair.two.run("timeout 3 sh -c 'while :; do :; done'", check=False)
    after = {node["id"]: node["load"] for node in Mintctl(pair.one)("node", "top")["nodes"]}
    assert set(before) == set(after) == {0, 1, 2}
    for number, plan in ((1, ONE), (2, TWO)):
        assert 0 < after[number]["memory_available_bytes"] < after[number]["memory_bytes"] < plan.memory_bytes
        assert after[number]["interrupts"] > before[number]["interrupts"]
    past_ms = after[2]["uptime_ms"] - before[2]["uptime_ms"]
    busy_ms = after[2]["cpu_busy_ms"] - before[2]["cpu_busy_ms"]
    assert 1000 < busy_ms <= past_ms + 1000
    text = pair.one.out("mintctl node top --count 2 --interval-s 1")
    assert text.count("\n2   two") == 2, text


def test_metrics_of_every_mintd_pass_promtool(pair: Server):
    """The text that a scrape gets, on nodes 0, 1 and 2."""
    for number in (0, 1, 2):
        text = pair.node(number).run(SCRAPE).out
        tool = [paths.need(paths.PROMTOOL), "check", "metrics"]
        checked = subprocess.run(tool, input=text, capture_output=True, text=True)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, ""), text
        for plan, node in ((ONE, 1), (TWO, 2)):
            labels = f'name="{plan.name}",node="{node}"'
            assert f'mint_node_state{{{labels},state="running"}} 1' in text
            assert f"mint_node_cores{{{labels}}} {len(plan.cpus)}\n" in text
            assert f"mint_node_memory_bytes{{{labels}}} {plan.memory_bytes}\n" in text
