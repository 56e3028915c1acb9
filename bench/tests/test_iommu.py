# SPDX-License-Identifier: Apache-2.0
"""Never a device without interrupts: what is behind an IOMMU or interrupt remapping is not lent, and who asks is told
why and what to do."""


import pytest

from rig.machine import MachineConfig
from rig.mintctl import REFUSED, MintctlError
from rig.server import CARD2_E1000E, DISK2_NVME, TWO, Server

INTEL = ("-device", "intel-iommu,intremap=on")
AMD = ("-device", "amd-iommu,intremap=on")
WAY_OUT = "intremap=off"


def refusal(server: Server, device: str) -> dict:
    """What a plan with this device is told; the function, and its driver, stay where they are."""
    with pytest.raises(MintctlError) as caught:
        server.mintctl("node", "add", "third", "--cpus", "5", "--memory", "256M@numa1", "--device", device)
    assert caught.value.status == REFUSED, caught.value
    (found,) = [one for one in caught.value.refusals if one["code"] == "device_iommu"]
    assert device in found["message"], found
    assert WAY_OUT in found["hint"], found
    return found


def check_of(server: Server, name: str) -> dict:
    """One check of mintctl doctor."""
    (check,) = [check for check in server.mintctl("doctor")["checks"] if check["name"] == name]
    return check


def log_of(server: Server, pattern: str) -> str:
    """Lines of node 0's log."""
    return server.zero.run(f"dmesg | grep -E '{pattern}'", check=False).out


def is_refused(server: Server, why: str) -> None:
    """Both a plan and doctor say why, and nothing moved."""
    before = server.ledger()
    for device in (DISK2_NVME, CARD2_E1000E):
        assert why in refusal(server, device)["message"]
    check = check_of(server, "devices")
    assert check["status"] == "warn", check
    assert why in check["detail"] and WAY_OUT in check["detail"], check
    assert not before.difference(server.ledger())


def test_intel_translation_and_remapping(own_machine):
    server = own_machine(MachineConfig("intel-iommu", append="intel_iommu=on", extra=INTEL))
    assert "Enabled IRQ remapping" in log_of(server, "DMAR-IR"), "remapping is not on: nothing is tested"
    assert server.zero.out(f"readlink /sys/bus/pci/devices/{DISK2_NVME}/iommu_group"), "no translation"
    is_refused(server, "an IOMMU is on")


@pytest.mark.soak
@pytest.mark.soak_only
def test_intel_remapping_alone(own_machine):
    """What `intel_iommu=off` leaves on, as Linux's default does."""
    server = own_machine(MachineConfig("intel-remapping", append="intel_iommu=off", extra=INTEL))
    assert "Enabled IRQ remapping" in log_of(server, "DMAR-IR"), "remapping is not on: nothing is tested"
    is_refused(server, "its interrupts are remapped")


@pytest.mark.soak
@pytest.mark.soak_only
def test_intel_switched_off_lends_a_device_that_works(own_machine):
    """The way out that the refusal names."""
    server = own_machine(MachineConfig("intel-off", append="intel_iommu=off intremap=off", extra=INTEL))
    assert not log_of(server, "Enabled IRQ remapping"), "remapping is on"
    check = check_of(server, "devices")
    assert check["status"] == "ok", check
    # Its root is on that disk: without interrupts the driver gives up after half a minute.
    assert DISK2_NVME in TWO.devices
    server.add(TWO)
    interrupts = server.one.out("grep nvme0q1 /proc/interrupts")
    server.one.run("dd if=/dev/nvme0n1 of=/dev/null bs=64k count=16 iflag=direct", limit_s=60)
    assert server.one.out("grep nvme0q1 /proc/interrupts") != interrupts


def test_amd(own_machine):
    server = own_machine(MachineConfig("amd-iommu", extra=AMD))
    assert server.zero.out(f"readlink /sys/bus/pci/devices/{DISK2_NVME}/iommu_group"), "no translation"
    is_refused(server, "an IOMMU is on")
