# SPDX-License-Identifier: Apache-2.0
"""What a leak check compares is in it."""

from rig.resources import MSI, MSIX, functions_of, message_controls, pages_of, vectors_of

INTERRUPTS = """\
            CPU0       CPU1
   8:          0          1   IO-APIC   8-edge      rtc0
  27:      12345          0   PCI-MSIX-0000:01:00.0   1-edge      virtio0-req.0
  31:          0          9   PCI-MSIX-0000:06:00.0   0-edge      eth2-rx-0
 NMI:          0          0   Non-maskable interrupts
"""

ZONES = """\
Node 0, zone      DMA
  pages free     3840
        spanned  4095
        present  3998
        managed  3840
  pagesets
    cpu: 0
              count:    7
Node 0, zone    DMA32
        present  262144
        managed  250000
"""


def config(*capabilities: tuple[int, int], command: int = 0x507) -> bytearray:
    """256 bytes of a function with these capabilities: id and control word."""
    data = bytearray(256)
    data[4:6] = command.to_bytes(2, "little")
    data[0x34] = 0x40 if capabilities else 0
    for number, (which, control) in enumerate(capabilities):
        at = 0x40 + 16 * number
        following = at + 16 if number + 1 < len(capabilities) else 0
        data[at : at + 4] = bytes([which, following]) + control.to_bytes(2, "little")
    return data


def lspci(data: bytes) -> str:
    """As lspci -D -xxx prints it."""
    lines = [f"{at:02x}: {data[at : at + 16].hex(' ')}" for at in range(0, 256, 16)]
    return "\n".join(["0000:01:00.0 SCSI storage controller: Red Hat", *lines]) + "\n"


def test_vectors_are_told_by_their_users():
    assert vectors_of(INTERRUPTS) == [
        "IO-APIC 8-edge rtc0",
        "PCI-MSIX-0000:01:00.0 1-edge virtio0-req.0",
        "PCI-MSIX-0000:06:00.0 0-edge eth2-rx-0",
    ]
    other = INTERRUPTS.replace("31:", "44:").replace("12345", "99999")
    assert vectors_of(other) == vectors_of(INTERRUPTS)
    assert vectors_of(INTERRUPTS.replace("eth2-rx-0", "eth2-rx-1")) != vectors_of(INTERRUPTS)


def test_control_of_msi_and_msix_is_found_in_the_list():
    assert message_controls(bytes(config())) == {}
    assert message_controls(bytes(config((1, 7), (MSIX, 0x8002), (MSI, 0x81)))) == {MSIX: 0x8002, MSI: 0x81}
    looped = config((MSIX, 0x8002))
    looped[0x41] = 0x40
    assert message_controls(bytes(looped)) == {MSIX: 0x8002}


def test_masked_msix_and_lost_command_bits_are_a_difference():
    before = functions_of(lspci(config((MSIX, 0x8002))))
    assert list(before) == ["0000:01:00.0"]
    assert before == functions_of(lspci(config((MSIX, 0x8002), command=0x406))), "firmware's bits do not count"
    assert before != functions_of(lspci(config((MSIX, 0xC002))))
    assert before != functions_of(lspci(config((MSIX, 0x8002), command=0x503)))


def test_pages_of_all_zones_are_summed():
    assert pages_of(ZONES, "present") == 3998 + 262144
    assert pages_of(ZONES, "managed") == 3840 + 250000
