# SPDX-License-Identifier: Apache-2.0
"""make bench: the figures of the README, each side by side in one run.

start      call to start a node -> its init, beside the same kernel and initrd
           as a KVM guest of node 0, and booted directly on the rig
partition  CPU, memory-copy and fio jobs on node 0 alone: mint=on beside the
           same kernel without mint= (figures_partition.py)
network    TCP stream and round trip: mint0 between two nodes, virtio-net
           between two guests of node 0, loopback on node 0
moves      cores, memory, a disk between running nodes, cores and memory beside a
           KVM guest that is plugged the same; what follows a panic
           (figures_moves.py)

usage: python figures.py [start] [partition] [network] [moves]     (default: all)

Prints tables (medians; lowest and highest in brackets), writes
build/rig/figures.json. Exit: 0 done, 1 failed.
"""

import contextlib
import json
import os
import re
import sys
import time
from statistics import median

from figures_moves import figure_moves
from figures_partition import figure_partition
from figures_programs import build, guest_initrd, number, put, spread
from rig import paths
from rig.errors import RigError
from rig.guest import Guest
from rig.machine import MINT, MachineConfig
from rig.node import Node
from rig.server import ONE, TWO, NodePlan, Server

STARTS = 7
# The same words for all three ways to boot: what the kernel prints costs time
# on an emulated serial port, which a node does not have.
BOOT_WORDS = "quiet mint.root=initrd tsc=reliable nowatchdog"
PORT = 5999


# -- start ---------------------------------------------------------------------

# All three stamps of this are node 0's clock: before the start, and when the
# first line of the init arrives on node 0.
START_NODE = """
set -e
rm -f /tmp/stamps
(mintctl node console 1 --follow | while read -r line; do
	case $line in *'node 1 init'*) date +%s%N >>/tmp/stamps ;; esac
done) &
follow=$!
sleep 1
: >/tmp/stamps
for round in $(seq {rounds}); do
	kexec -s -l --mint-node 1 --initrd /boot/node.initrd --command-line 'console=hvc0 {words}' /boot/vmlinuz-mint
	begin=$(date +%s%N)
	kexec --mint-node 1 -e
	until [ "$(wc -l </tmp/stamps)" -ge "$round" ]; do sleep 0.02; done
	echo "start $(( ($(tail -n 1 /tmp/stamps) - begin) / 1000 ))"
	sleep 2
	mintctl node kill 1 >/dev/null
done
kill $follow
"""

# Node 0's cores beside nodes 1 and 2, without the boot core, on which the
# emulator cannot run guests (docs/testing.md).
GUEST_CPUS = (1, 5)

START_GUEST = """
for round in $(seq {rounds}); do
	begin=$(date +%s%N)
	taskset -c {cpus} qemu-system-x86_64 -accel kvm -machine q35 -cpu host -smp 2 -m 1024 -nodefaults -no-user-config -display none \
		-no-reboot -serial stdio -kernel /boot/vmlinuz-mint -initrd /boot/node.initrd \
		-append 'console=ttyS0 {words}' </dev/null 2>/dev/null | while read -r line; do
		case $line in *'node 0 init'*)
			echo "start $(( ($(date +%s%N) - begin) / 1000 ))"
			killall -9 qemu-system-x86_64 ;;
		esac
	done
done
"""


def starts(text: str) -> list[float]:
    """Seconds of "start MICROSECONDS" lines."""
    return [int(us) / 1e6 for us in re.findall(r"^start (\d+)", text, re.MULTILINE)]


def boot_directly() -> float:
    """Power-on of the rig, firmware included -> its init."""
    config = MachineConfig("figures-direct", mint="", append=BOOT_WORDS)
    server = Server(config)
    with server.machine as machine:
        console = machine.console[0]
        while b"mint-init: node 0 init" not in console.raw():
            machine.check_alive()
            time.sleep(0.005)
        return time.monotonic() - machine.started_at


def figure_start() -> dict:
    """Group 1."""
    direct = [boot_directly() for _ in range(STARTS)]
    plan = NodePlan("figure", ONE.cpus, ONE.memory_mib, ONE.numa)
    with Server(MachineConfig("figures-start")) as server:
        server.add(plan, "--no-start")
        texts = {
            "node": START_NODE.format(rounds=STARTS, words=BOOT_WORDS),
            "guest": START_GUEST.format(rounds=STARTS, words=BOOT_WORDS, cpus="{},{}".format(*GUEST_CPUS)),
        }
        taken = {name: starts(server.zero.out(text, 600)) for name, text in texts.items()}
    taken["direct"] = direct
    for name, values in taken.items():
        if len(values) != STARTS:
            raise RigError(f"{name}: {len(values)} of {STARTS} starts were measured")
    base = median(taken["node"])
    print("\n| from the start to the init, s | median [lowest … highest] | node ÷ this | goal |")
    print("|---|---|---|---|")
    for name, what, goal in (
        ("node", "OS node, 2 cores, 1 GiB", ""),
        ("guest", "KVM guest on node 0, the same", "≤ 0.5"),
        ("direct", "the rig itself, firmware included", "≤ 1.0"),
    ):
        ratio = f"{base / median(taken[name]):.2f}" if goal else ""
        print(f"| {what} | {spread(taken[name])} | {ratio} | {goal} |")
    return {"start_s": taken}


# -- network -------------------------------------------------------------------


def serve(node: Node) -> None:
    """Start the other end on a node."""
    node.start(f"exec /root/measure serve {PORT}", limit_s=0)
    node.wait("listens", f"ss -Htln 'sport = :{PORT}' | grep -q .")


def measured(node: Node, address: str, mib: int, trips: int) -> dict[str, list[float]]:
    """Streams and round trips from a node to an address."""
    found: dict[str, list[float]] = {"send": [], "pingpong": []}
    for _ in range(5):
        found["send"].append(number(node.out(f"/root/measure send {address} {PORT} {mib}", 300), "send"))
        text = node.out(f"/root/measure pingpong {address} {PORT} {trips}", 300)
        found["pingpong"].append(number(text, "pingpong"))
    return found


def between_guests(node: Node, program: bytes) -> dict[str, list[float]]:
    """The same between two guests on a node's bridge."""
    options = f"--no-disk --initrd {guest_initrd(node, program)} --append mint.tick=0"
    found: dict[str, list[float]] = {"send": [], "pingpong": []}
    with Guest(node, "far") as far, Guest(node, "near") as near:
        for guest, cpu in zip((far, near), GUEST_CPUS, strict=True):
            guest.start(f"{options} --pin {cpu}")
        address = re.search(r"eth0 ([\d.]+)/", far.wait_line("mint-guest: eth0"))[1]
        near.wait_line("mint-guest: eth0")
        far.dialogue(f"measure serve {PORT} & echo ser''ves", "serves")
        for _ in range(5):
            for what, amount in (("send", 32), ("pingpong", 300)):
                line = f"measure {what} {address} {PORT} {amount}"
                text = near.dialogue(line, rf"(?m)^measure {what} [\d.]+\r*$", limit_s=300)
                found[what].append(number(text, what))
    return found


def figure_network() -> dict:
    """Group 3."""
    program = build("measure")
    with Server(MachineConfig("figures-network")) as server:
        server.add(ONE)
        server.add(TWO)
        for node in (server.zero, server.one, server.two):
            put(node, "/root/measure", program)
        serve(server.two)
        serve(server.zero)
        taken = {
            "mint0": measured(server.one, "10.77.0.12", 256, 2000),
            "loopback": measured(server.zero, "127.0.0.1", 256, 2000),
            "virtio": between_guests(server.zero, program),
        }
    print("\n| one TCP stream | MB/s | mint0 ÷ this | round trip, µs | this ÷ mint0 |")
    print("|---|---|---|---|---|")
    rate, trip = (median(taken["mint0"][what]) for what in ("send", "pingpong"))
    for name, what in (
        ("mint0", "mint0, node 1 → node 2"),
        ("virtio", "virtio-net, guest → guest on node 0 (goal ≥ 3)"),
        ("loopback", "loopback on node 0"),
    ):
        sides = taken[name]
        print(
            f"| {what} | {spread(sides['send'], '{:.0f}')} | {rate / median(sides['send']):.2f} "
            f"| {spread(sides['pingpong'], '{:.0f}')} | {median(sides['pingpong']) / trip:.2f} |"
        )
    return {"network": taken}


GROUPS = {"start": figure_start, "partition": figure_partition, "network": figure_network, "moves": figure_moves}


def main() -> int:
    """Entry point."""
    wanted = sys.argv[1:] or list(GROUPS)
    if unknown := [name for name in wanted if name not in GROUPS]:
        print(f"figures: {unknown[0]}: one of {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    target = paths.RIG / "figures.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(target.read_text()) if target.exists() else {}
    try:
        for name in wanted:
            found |= GROUPS[name]()
            found["host_cpus"] = os.cpu_count()
            target.write_text(json.dumps(found, indent=1) + "\n")
    except (RigError, FileNotFoundError) as error:
        print(f"figures: {error}", file=sys.stderr)
        return 1
    print(f"\nAll values: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
