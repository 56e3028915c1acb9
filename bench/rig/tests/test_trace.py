# SPDX-License-Identifier: Apache-2.0
"""The checker of the access trace finds what it is for."""

from dataclasses import replace

from rig.ledger import Ledger
from rig.trace import DOORBELL_VECTOR, FIXED, NMI, Access, Bars, Count, Judge, Recorder, Step, read_bars

APIC_IDS = (0, 1, 2, 4, 5, 6)
BARS = Bars(((0xC000, 0xC020, "0000:06:00.0"), (0xFE000000, 0xFE004000, "0000:02:00.0")))
ECAM_02 = (2 << 8, "ecam")


def ledger(owner_of_2: int | None, device_owner: int | None = 1) -> Ledger:
    """Cores 0, 1: node 0; 3: node 1; 2: as said. 02:00.0: as said; 06:00.0: node 0."""
    owners = {0: 0, 1: 0, 2: owner_of_2, 3: 1, 4: None, 5: 0}
    resources = {("cpu", str(n)): ("owned", owner) for n, owner in owners.items()}
    resources["device", "0000:02:00.0"] = ("owned", device_owner)
    resources["device", "0000:06:00.0"] = ("owned", 0)
    details = {"cpu": [{"id": n, "apic_id": apic} for n, apic in enumerate(APIC_IDS)]}
    return Ledger(resources, {0: "node0", 1: "one"}, details)


def faults(accesses: list[Access], before: Ledger, after: Ledger | None = None, **more) -> list[str]:
    """Judge accesses that came one after the other."""
    counts = {access: Count(n, n, 1) for n, access in enumerate(accesses)}
    return Judge(BARS, Step("step", before, after or before, counts, **more)).faults()


def test_own_devices_may_be_used():
    own = [
        Access(3, "config", ECAM_02, True),
        Access(3, "memory", ("virtio", 0xFE001000), True),
        Access(3, "apic", (), True),
        Access(0, "memory", ("rtc", 0x71), False),
        Access(0, "memory", ("io", 0xC000), True),
        Access(0, "config", (0x1234, "cf8"), False),
    ]
    assert not faults(own, ledger(0))


def test_others_devices_ports_and_config_may_not():
    for access in (
        Access(3, "memory", ("rtc", 0x71), False),
        Access(3, "memory", ("e1000e", 0xC000), False),
        Access(3, "config", (6 << 8, "ecam"), False),
        Access(3, "config", ECAM_02[:1] + ("cf8",), False),
        Access(3, "config", (0x1234, "ecam"), False),
        Access(0, "memory", ("virtio", 0xFE001000), False),
        Access(0, "config", ECAM_02, False),
        Access(4, "config", ECAM_02, False),
    ):
        assert len(faults([access], ledger(0))) == 1, access


def test_interrupts_to_others():
    def ipi(mode: int, apic: int, vector: int = 0xFD, shorthand: int = 0, logical: bool = False) -> Access:
        return Access(0, "ipi", (mode, shorthand, apic, vector, logical), True)

    assert not faults([ipi(FIXED, 1), ipi(FIXED, 4, DOORBELL_VECTOR), ipi(FIXED, 0xFF, 0, 1)], ledger(0))
    assert not faults([ipi(NMI, 5)], ledger(0)), "core 4 is free: it may be woken"
    assert not faults([ipi(NMI, 4)], ledger(0), interrupts=frozenset({1}))
    for wrong in (
        ipi(FIXED, 4),
        ipi(FIXED, 0xFF),
        ipi(FIXED, 1, logical=True),
        ipi(FIXED, 0, shorthand=3),
        ipi(NMI, 4),
    ):
        assert faults([wrong], ledger(0)), wrong


def test_core_that_moves_has_one_turning_point():
    as_node0 = Access(2, "memory", ("rtc", 0x71), False)
    as_node1 = Access(2, "config", ECAM_02, True)
    assert not faults([as_node0, as_node1], ledger(0), ledger(1))
    assert faults([as_node1, as_node0], ledger(0), ledger(1))
    assert not faults([as_node0], ledger(0), ledger(None))


def test_functions_of_a_dead_node_may_be_quietened():
    config, memory = Access(0, "config", ECAM_02, True), Access(0, "memory", ("virtio", 0xFE001000), True)
    assert not faults([config], ledger(0), buries=frozenset({1}))
    assert faults([memory], ledger(0), buries=frozenset({1}))


def test_recorder_reads_what_qemu_writes(tmp_path):
    fifo = tmp_path / "fifo"
    recorder = Recorder(fifo)
    with fifo.open("w") as file:
        file.write(
            "memory_region_ops_write cpu 0 mr 0x55 addr 0xcf8 value 0x80000208 size 4 name 'pci-conf-idx'\n"
            "memory_region_ops_read cpu 0 mr 0x55 addr 0xcfc value 0x0 size 4 name 'pci-conf-data'\n"
            "something else\n"
            "memory_region_ops_write cpu -1 mr 0x55 addr 0xfee00000 value 0x0 size 4 name 'apic-msi'\n"
            "memory_region_ops_write cpu 3 mr 0x55 addr 0xfee00310 value 0x4000000 size 4 name 'apic-msi'\n"
            "memory_region_ops_write cpu 3 mr 0x55 addr 0xfee00300 value 0x4400 size 4 name 'apic-msi'\n"
            "memory_region_ops_write cpu 3 mr 0x55 addr 0xb0200010 value 0x1 size 4 name 'pcie-mmcfg-mmio'\n"
            "memory_region_ops_write cpu 3 mr 0x55 addr 0xfe000010 value 0xfee04000 size 4 name 'msix-table'\n"
            "memory_region_ops_read cpu 1 mr 0x55 addr 0x71 value 0x0 size 1 name 'rtc'\n"
            "memory_region_ops_read cpu 1 mr 0x55 addr 0x71 value 0x0 size 1 name 'rtc'\n"
        )
        file.flush()
        counts = recorder.cut()
    assert counts[Access(1, "memory", ("rtc", 0x71), False)].times == 2
    assert set(counts) == {
        Access(0, "memory", ("pci-conf-idx", 0xCF8), True),
        Access(0, "config", (0x02, "cf8"), False),
        Access(3, "ipi", (NMI, 0, 4, 0, False), True),
        Access(3, "config", (2 << 8, "ecam"), True),
        Access(3, "memory", ("msix-table", 0xFE000000), True),
        Access(3, "vector", (0xFE000010, 4), True),
        Access(1, "memory", ("rtc", 0x71), False),
    }
    assert not recorder.cut()
    recorder.close()


def test_vector_must_go_to_an_own_core():
    mine, foreign = (Access(3, "vector", (0xFE000010, apic), True) for apic in (4, 1))
    assert not faults([mine], ledger(0))
    assert faults([foreign], ledger(0))


def test_bars_come_from_the_leaves():
    bridge = {
        "bus": 0, "slot": 2, "function": 0, "regions": [],
        "pci_bridge": {"devices": [
            {"bus": 2, "slot": 0, "function": 0, "regions": [
                {"address": 0xFE000000, "size": 0x4000}, {"address": -1, "size": 16},
            ]},
        ]},
    }  # fmt: skip
    bars = read_bars([{"devices": [bridge]}])
    assert bars.find(0xFE003FFF) == "0000:02:00.0"
    assert bars.find(0xFE004000) is None


def test_ledger_difference_names_the_change():
    before = ledger(0)
    assert not before.difference(replace(before))
    assert before.difference(ledger(1)) == ["cpu 2: ('owned', 0) -> ('owned', 1)"]
