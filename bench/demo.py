# SPDX-License-Identifier: Apache-2.0
"""make demo: an emulated server, three OS nodes on it, a KVM guest on each.

Exit: 0 all of it worked, 1 it did not.
"""

import sys
import time

from rig.errors import RigError
from rig.guest import Guest, guests
from rig.machine import MachineConfig
from rig.server import ONE, TWO, Server

STEP = "\033[1m==>\033[0m " if sys.stdout.isatty() else "==> "


TIMES = ("apply_ms", "load_ms", "running_ms", "mintd_ms")


def say(text: str) -> None:
    """A step of the demo."""
    print(STEP + text, flush=True)


def table(rows: list[tuple], heads: tuple) -> str:
    """Columns as wide as what is in them."""
    cells = [tuple(map(str, row)) for row in (heads, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    return "\n".join("  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def describe(server: Server, number: int, node: dict) -> tuple:
    """A node's row, from what the node itself shows."""
    there = server.node(number)
    memory_kib = int(there.out("sed -n 's/^MemTotal: *\\([0-9]*\\).*/\\1/p' /proc/meminfo"))
    functions = there.out("lspci -D -n | grep -cv ' 06'")
    return (
        number,
        node["name"],
        node["state"],
        there.out("nproc"),
        f"{memory_kib >> 10} MiB",
        functions,
        node["address"],
        there.out("uname -r"),
    )


def demo(server: Server) -> None:
    """The whole way on a started server."""
    say(f"node 0 is ready {server.uptime_s():.1f} s after power-on")
    starts = []
    for number, plan in ((1, ONE), (2, TWO)):
        say("mintctl node add " + " ".join(plan.words()))
        begin = time.monotonic()
        answer = server.add(plan)
        for line in answer["steps"]:
            print("      " + line)
        server.wait_ready(server.node(number))
        starts.append((number, answer["times"], time.monotonic() - begin))
    nodes = [server.node(n) for n in (0, 1, 2)]
    say("on every node: virsh start a KVM guest that tests its disk and its network")
    begin = time.monotonic()
    with guests(nodes, "demo", "--disk-test 2 --net-test node") as running:
        rows = []
        for guest in running:
            disk, net = guest.passed("disk"), guest.passed("net")
            up_s = time.monotonic() - begin
            rows.append((guest.node.number, guest.name, guest.node.out("virsh domstate demo").strip(),
                         guest.ticks(), f"{up_s:.1f} s", disk.split(" ", 2)[2], net.split(" ", 2)[2]))  # fmt: skip
        say("nodes")
        print(table(
            [describe(server, number, node) for number, node in sorted(server.mintctl.nodes().items())],
            ("id", "name", "state", "cores", "memory", "functions", "mint0", "kernel"),
        ))  # fmt: skip
        say("guests")
        print(table(rows, ("node", "name", "state", "ticks", "tested after", "disk", "network")))
    moved = move(server)
    memory = large(server)
    say("times")
    print(table(
        [
            (f"node {n}", *(f"{times.get(key, 0)} ms" for key in TIMES), f"{total:.1f} s")
            for n, times, total in starts
        ],
        ("", "resources moved", "loaded", "kernel running", "mintd answers", "libvirtd answers"),
    ))  # fmt: skip
    print(f"  guest large has {memory['here_bytes'] >> 20} MiB of its memory on node 1 and {memory['elsewhere_bytes'] >> 20} MiB on "
          f"node 0; {memory['page_outs']} pages went there, {memory['page_ins']} came back")  # fmt: skip
    print(f"  guest traveller moved in {moved['total_ms']} ms, and stood still for {moved['downtime_ms']} ms of them")


def move(server: Server) -> dict:
    """A guest with a disk goes from node 1 to node 2 while it runs; gives what that took."""
    say("mintctl vm migrate traveller --to node2")
    with Guest(server.one, "traveller") as here, Guest(server.two, "traveller") as there:
        here.start("--disk-load 20 --no-network").wait_ticks(2)
        ticks = here.ticks()
        took = server.mintctl("vm", "migrate", "traveller", "--to", "node2")["took"]
        there.wait_ticks(2)
        if there.counter()[0][0] <= ticks:
            raise RigError(f"{there} is another one: it counts {there.ticks()}, and was at {ticks}")
    return took


def large(server: Server) -> dict:
    """A guest with as much memory as all of node 1 has compares what it writes; gives where that is."""
    words = "--memory 1G --split main=80M,node0=rest --memory-load 24576"
    say(f"on node 1, which has 1 GiB: mint-guest large {words}")
    with Guest(server.one, "large") as guest:
        guest.start(f"{words} --no-disk --no-network")
        guest.wait_line("tick [0-9]* at .*, [1-9][0-9]* versions")
        if "FAIL" in guest.log():
            raise RigError(f"{guest}: {guest.log()[-500:]}")
        print(server.one.out("mintctl vm memory large"))
        return server.mintctl("vm", "memory", "large")


def main() -> int:
    """Entry point."""
    begin = time.monotonic()
    say("booting the emulated server (2 sockets, 6 cores, 2 NUMA nodes, 6 GiB)")
    try:
        with Server(MachineConfig("demo")) as server:
            demo(server)
    except (RigError, FileNotFoundError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    say(f"done in {time.monotonic() - begin:.0f} s. To play: make up; make sh NODE=0; make down")
    return 0


if __name__ == "__main__":
    sys.exit(main())
