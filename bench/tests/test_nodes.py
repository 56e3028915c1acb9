# SPDX-License-Identifier: Apache-2.0
"""Two nodes beside node 0: each shows exactly what it owns; together they are
the machine."""

import itertools
import re

import pytest

from rig.machine import CPUS, DEFAULT_FLAVOUR
from rig.ram import own_ram_bytes
from rig.server import ONE, TWO, NodePlan, Server
from rig.wait import SLOWNESS

# Of its memory a kernel keeps this share for itself before MemTotal counts:
# its text and data, struct pages (1.6 %), per-CPU areas, the initrd's tail. KASAN
# keeps a byte for eight.
KERNEL_SHARE = 0.16 + (1 / 8 if DEFAULT_FLAVOUR == "kasan" else 0)

BOTH = pytest.mark.parametrize(("number", "plan"), [(1, ONE), (2, TWO)], ids=["node1", "node2"])


def meminfo_bytes(server: Server, number: int, field: str = "MemTotal") -> int:
    """A field of a node's /proc/meminfo."""
    match = re.search(rf"^{field}:\s+(\d+) kB", server.node(number).read("/proc/meminfo"), re.MULTILINE)
    return int(match[1]) << 10


def functions_seen(server: Server, number: int) -> set[str]:
    """PCI functions that lspci shows on a node."""
    return {line.split()[0] for line in server.node(number).out("lspci -D").splitlines()}


def test_two_nodes_run_within_seconds(bare: Server):
    """node add: both are in `running` within seconds, their mintd answers soon after."""
    for number, plan in ((1, ONE), (2, TWO)):
        answer = bare.add(plan)
        assert answer["node"]["id"] == number
        assert answer["node"]["state"] == "running"
        assert answer["times"]["running_ms"] < 20_000 * SLOWNESS, answer["times"]
        assert f"mint-init: node {number} init" in bare.node(number).console.text()
    bare.remove_all()


@BOTH
def test_nproc_shows_own_cores(pair: Server, number: int, plan: NodePlan):
    """nproc and /proc/cpuinfo."""
    node = pair.node(number)
    assert int(node.out("nproc")) == len(plan.cpus)
    assert int(node.out("grep -c ^processor /proc/cpuinfo")) == len(plan.cpus)


@BOTH
def test_cores_are_the_ones_asked_for(pair: Server, number: int, plan: NodePlan):
    """The APIC ids in /proc/cpuinfo are those of the machine's cores in the plan."""
    seen = {int(n) for n in re.findall(r"^apicid\s*: (\d+)", pair.node(number).read("/proc/cpuinfo"), re.MULTILINE)}
    wanted = {cpu["apic_id"] for cpu in pair.mintctl("cpu", "list")["cpus"] if cpu["id"] in plan.cpus}
    assert seen == wanted


@BOTH
def test_meminfo_shows_own_memory(pair: Server, number: int, plan: NodePlan):
    """MemTotal: what it owns, but for what its kernel keeps."""
    total = meminfo_bytes(pair, number)
    assert plan.memory_bytes * (1 - KERNEL_SHARE) < total < plan.memory_bytes


@BOTH
def test_iomem_shows_ram_only_in_owned_blocks(pair: Server, number: int, plan: NodePlan):
    """Every System RAM range of /proc/iomem lies in memory blocks that the ledger says it owns."""
    ledger = pair.ledger()
    assert sum(block["bytes"] for block in ledger.details["memory"] if block["owner"] == number) == plan.memory_bytes
    assert own_ram_bytes(pair.node(number), ledger) > 0


@BOTH
def test_numa_node_shows_own_memory_and_cores(pair: Server, number: int, plan: NodePlan):
    """/sys/devices/system/node: one node with memory, all own cores belong to the right one."""
    node = pair.node(number)
    with_memory = node.read("/sys/devices/system/node/has_memory")
    assert with_memory == str(plan.numa), f"memory on NUMA node {with_memory}, asked for {plan.numa}"
    total = re.search(r"MemTotal:\s+(\d+) kB", node.read(f"/sys/devices/system/node/node{plan.numa}/meminfo"))
    assert int(total[1]) << 10 == meminfo_bytes(pair, number)
    per_node = node.out("grep -H . /sys/devices/system/node/node*/cpulist || true")
    cores = {int(n): cpus for n, cpus in re.findall(r"node(\d+)/cpulist:(\S+)", per_node)}
    numa_of_cores = {cpu // 3 for cpu in plan.cpus}
    assert set(cores) == numa_of_cores, per_node


@BOTH
def test_lspci_shows_own_functions(pair: Server, number: int, plan: NodePlan):
    """lspci: exactly the functions given to it."""
    assert functions_seen(pair, number) == set(plan.devices)


def test_lspci_on_node0_hides_given_functions(pair: Server):
    """Node 0 does not see what others own, and sees all the rest."""
    seen = functions_seen(pair, 0)
    devices = pair.mintctl("device", "list")["devices"]
    assert seen == {device["bdf"] for device in devices if device["owner"] == 0}
    assert not seen & {*ONE.devices, *TWO.devices}


def test_sum_of_nodes_is_the_machine(pair: Server):
    """Cores, memory and functions of all nodes, and free ones, are the machine's; each once."""
    ledger = pair.ledger()
    cores = [int(pair.node(n).out("nproc")) for n in (0, 1, 2)]
    assert sum(cores) + len(ledger.owned("cpu", None)) == CPUS
    owned = [core for n in (0, 1, 2) for core in ledger.owned("cpu", n)]
    assert sorted(map(int, owned + ledger.owned("cpu", None))) == list(range(CPUS))
    for n, number in enumerate(cores):
        assert len(ledger.owned("cpu", n)) == number

    seen = [function for n in (0, 1, 2) for function in functions_seen(pair, n)]
    assert len(seen) == len(set(seen)), "a function is seen by two nodes"
    assert set(seen) | set(ledger.owned("device", None)) == {
        device["bdf"] for device in ledger.details["device"] if device["state"] != "absent"
    }

    block_ids = [block["id"] for block in ledger.details["memory"]]
    assert len(block_ids) == len(set(block_ids))
    one, two = (meminfo_bytes(pair, n) for n in (1, 2))
    assert one < ONE.memory_bytes and two < TWO.memory_bytes
    ranges = set()
    for n in (0, 1, 2):
        text = pair.node(n).read("/proc/iomem")
        for begin, last in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) : System RAM", text, re.MULTILINE):
            ranges.add((int(begin, 16), int(last, 16), n))
    in_order = sorted(ranges)
    for (_, last, n), (begin, _, m) in itertools.pairwise(in_order):
        assert last < begin, f"nodes {n} and {m} both use RAM at {begin:#x}"


def test_disks_work_in_all_nodes_at_the_same_time(pair: Server):
    """Write, read back with direct I/O, compare checksums: on three nodes at once."""
    command = (
        "cd /var/lib/libvirt/images && dd if=/dev/urandom of=t bs=1M count=32 oflag=direct 2>/dev/null && "
        "sync && a=$(dd if=t bs=1M iflag=direct 2>/dev/null | sha256sum) && "
        "b=$(dd if=t bs=64k iflag=direct 2>/dev/null | sha256sum) && rm t && echo $a && echo $b"
    )
    jobs = [pair.node(n).start(command) for n in (0, 1, 2)]
    sums = set()
    for job in jobs:
        result = job.wait()
        assert result.status == 0, result.err
        first, second = result.out.splitlines()
        assert first == second
        sums.add(first)
    assert len(sums) == 3, "two nodes read the same random bytes: they share a disk"


def test_wall_clocks_agree(pair: Server):
    """The clock is handed over: node 1 and node 2 tell the same time as node 0."""
    for n in (1, 2):
        before = float(pair.zero.out("date +%s.%N"))
        there = float(pair.node(n).out("date +%s.%N"))
        after = float(pair.zero.out("date +%s.%N"))
        assert before - 0.1 <= there <= after + 0.1


def test_kaslr_is_on_in_every_kernel(pair: Server):
    """Each kernel has its own random virtual base, and none is where it was linked."""
    linked = 0xFFFFFFFF81000000
    bases = {}
    for n in (0, 1, 2):
        assert "nokaslr" not in pair.node(n).read("/proc/cmdline")
        bases[n] = int(pair.node(n).out("grep ' _text$' /proc/kallsyms").split()[0], 16)
    assert all(base % (2 << 20) == 0 for base in bases.values())
    # One in 500 may be at the linked base or at another's by chance, not all.
    assert len({linked, *bases.values()}) >= 3, {n: hex(base) for n, base in bases.items()}
