# SPDX-License-Identifier: Apache-2.0
"""Group "ready" of make report: mintctl node start -> libvirt answers on the node, and what of that takes how long.

Nothing is changed for it, and nothing looks on while the node starts. Afterwards it is asked for
traces that each start leaves:

called     node 0's clock, before the command
kernel     second 0 of the node's kernel log; its decompressor is before that
init       "Run /init" in that log
services   the file that mint-service makes when it starts mintd, the first of them
mintd      node 0's clock, when the command ends: it waits until the node's mintd says hello
libvirt    the birth of mint-kvm-config's log: init starts that when `virsh version` has answered
ready      the file /run/mint/ready, when that has ended

A node gets its wall clock from who starts it, so its times and node 0's are of one clock: that is
looked at each time. The kernel log's own clock is told by a line that is written into it.
"""

import re
from collections.abc import Mapping

from report.figure import Figure
from report.goals import Goal, equal
from report.recorder import Recorder, Taker
from report.turns import turns
from rig.errors import RigError
from rig.inventory import MINT
from rig.machine import MachineConfig
from rig.remote import Remote
from rig.server import ONE, Server

GROUP = "ready"
MACHINES, QUICK_MACHINES = 5, 1
ROUNDS, QUICK_ROUNDS = 4, 1
LIMIT_S = 300

NODE, AGAIN = "node", "node again"
SIDES = {NODE: "OS node", AGAIN: "the same again"}
# Each from the one before it; mintd and libvirtd start at once, so libvirt's part is what mintd's leaves of it.
PARTS = {
    "load": "command, plan, load, decompressor",
    "kernel": "kernel, until its init",
    "init": "init: root, mounts, keys",
    "mintd": "services start → mintd says hello",
    "libvirt": "→ libvirt answers",
    "settings": "then mint-kvm-config (not in the whole)",
}
FIGURES = (
    Figure(
        GROUP, "whole", "From mintctl node start until libvirt answers", "s", SIDES,
        note="`virsh -c qemu:///system version` on the node. It was stopped in order, and has started before."
        " The emulated server's has 2 cores and 1 GiB, another's what the plan says.",
    ),
    Figure(
        GROUP, "parts", "What of that takes how long", "s", PARTS,
        note="mintd and libvirtd start at the same time, and share two cores. All but the last are the whole.",
    ),
)  # fmt: skip
PROGRAMS = "kernel and load take a quarter (figure below); init's programs, mintd and libvirt, all emulated, the rest"
GOALS = (
    Goal("libvirt answers 5 s after a node's start", GROUP, "whole", NODE, high=5, unit="s", reason=PROGRAMS),
    equal("until libvirt answers, and again", GROUP, "whole", AGAIN, NODE, within=0.15, null=True),
)

# mintctl waits for the node's mintd by default.
START = f"""
set -e
begin=$(date +%s%N)
mintctl node start {ONE.name} >/dev/null
end=$(date +%s%N)
echo "called $begin"
echo "mintd $end"
"""
KVM_LOG = "/var/log/mint/kvm-config.log"
# On the node, once it is ready.
LOOK = f"""
set -e
virsh -q -c qemu:///system version >/dev/null
line="figures $(cat /proc/sys/kernel/random/uuid)"
before=$(date +%s%N)
echo "$line" >/dev/kmsg
after=$(date +%s%N)
echo "now $before $after"
dmesg | sed -n "s/^\\[ *\\([0-9.]*\\)\\] $line/logged \\1/p; s/^\\[ *\\([0-9.]*\\)\\] Run \\/init .*/init \\1/p"
stat -c 'services %.9Y' /run/mint/service-mintd
stat -c 'libvirt %.9W' {KVM_LOG}
stat -c 'ready %.9Y' /run/mint/ready
"""
# Its next birth is the next start's. On the disk, as the node's end might be sooner.
FORGET = f"rm {KVM_LOG} && sync"

# Times of files are those of the last tick; a clock is asked through two agents.
TICK_S, CLOCKS_APART_S = 0.02, 0.1


def clock(text: str) -> float:
    """Seconds since 1970 of `date +%s%N`."""
    return int(text) / 1e9


def stamps(start: str, look: str) -> dict[str, float]:
    """Seconds since 1970 of each point, in what START and LOOK print. Raises RigError if one is not there."""
    called = {what: clock(ns) for what, ns in re.findall(r"^(called|mintd) (\d+)$", start, re.MULTILINE)}
    points = r"^(logged|init|services|libvirt|ready) ([\d.]+)$"
    seconds = {what: float(value) for what, value in re.findall(points, look, re.MULTILINE)}
    now = re.search(r"^now (\d+) (\d+)$", look, re.MULTILINE)
    missing = {"called", "mintd", "logged", "init", "services", "libvirt", "ready"} - called.keys() - seconds.keys()
    if missing or not now:
        raise RigError(f"a start has left no {', '.join(sorted(missing)) or 'clock'}:\n{start}\n{look}")
    kernel = (clock(now[1]) + clock(now[2])) / 2 - seconds["logged"]
    return {
        "called": called["called"],
        "kernel": kernel,
        "init": kernel + seconds["init"],
        "services": seconds["services"],
        "mintd": called["mintd"],
        "libvirt": seconds["libvirt"],
        "ready": seconds["ready"],
    }


def parts(at: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each part. Raises RigError if the points are not in their order: a trace is of another start then."""
    for names in (("called", "kernel", "init", "services", "mintd"), ("services", "libvirt", "ready")):
        for before, after in zip(names, names[1:]):
            if at[after] < at[before] - TICK_S:
                raise RigError(f"{after} is before {before}, so it is of another start: {dict(at)}")
    return {
        "load": at["kernel"] - at["called"],
        "kernel": at["init"] - at["kernel"],
        "init": at["services"] - at["init"],
        "mintd": at["mintd"] - at["services"],
        "libvirt": max(0.0, at["libvirt"] - at["mintd"]),
        "settings": at["ready"] - max(at["libvirt"], at["mintd"]),
    }


def whole(at: Mapping[str, float]) -> float:
    """Seconds from the call until libvirt answers; mintd has said hello then, too."""
    return max(at["libvirt"], at["mintd"]) - at["called"]


def check_clocks(before: str, node: str, after: str) -> None:
    """Node 0's clock, node 1's, node 0's again, asked in this order. Raises RigError if they are not of one clock."""
    if not clock(before) - CLOCKS_APART_S <= clock(node) <= clock(after) + CLOCKS_APART_S:
        raise RigError(f"node 1's clock says {node}, between node 0's {before} and {after}: they differ")


def start(server: Server | Remote) -> dict[str, float]:
    """Start node 1, look at what that took, stop it: the points' times."""
    started = server.zero.out(START, LIMIT_S)
    server.wait_ready(server.one)
    look = server.one.out(LOOK)
    check_clocks(*(node.out("date +%s%N") for node in (server.zero, server.one, server.zero)))
    server.one.run(FORGET)
    server.mintctl("node", "stop", ONE.name)
    return stamps(started, look)


def starts(taker: Taker, server: Server | Remote, seed: int, rounds: int) -> None:
    """All starts on a machine; the first makes its files on the disk, and does not count."""
    server.add(server.roles.one, "--no-start")
    start(server)
    for number, order in enumerate(turns(seed, f"{GROUP} {taker.name}", list(SIDES), rounds)):
        for place, side in enumerate(order):
            at = start(server)
            taker.add("whole", side, whole(at), "s", round=number, order=place)
            for part, value in parts(at).items():
                taker.add("parts", part, value, "s", round=len(SIDES) * number + place)


def on_machine(taker: Taker, seed: int, rounds: int) -> None:
    """All starts of one machine."""
    with Server(MachineConfig("figures-ready")) as server:
        starts(taker, server, seed, rounds)


AT_BOOTS = (MINT,)


def absent_at(_: Remote) -> Mapping[str, str]:
    """All is measured on a server."""
    return {}


def on_pass(taker: Taker, remote: Remote, recorder: Recorder) -> None:
    """All starts of a pass on a server."""
    starts(taker, remote, recorder.header.seed, recorder.pick(ROUNDS, QUICK_ROUNDS))


def run(recorder: Recorder) -> None:
    """Measure what is missing."""
    rounds = recorder.pick(ROUNDS, QUICK_ROUNDS)
    for name in recorder.to_do(GROUP, "machine", recorder.pick(MACHINES, QUICK_MACHINES)):
        with recorder.machine(GROUP, name) as taker:
            on_machine(taker, recorder.header.seed, rounds)
