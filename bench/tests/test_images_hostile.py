# SPDX-License-Identifier: Apache-2.0
"""Images that are longer than they say, or say what no bzImage says. What is not the node's stays as it is."""

import struct

import pytest

from rig import paths
from rig.ram import Ram
from rig.server import NodePlan, Server

# Has no disk: it stays in its initrd.
SMALL = NodePlan("small", (5,), 256, 1, (), ("--no-start",))
BLOCK_BYTES = 128 << 20
KERNEL = "/boot/vmlinuz-mint"
ARGUMENTS = "--initrd /boot/node.initrd --command-line 'console=hvc0 tsc=reliable nowatchdog mint.root=initrd'"
DONE, REFUSED = 0, 3
# Padding of this byte reaches past the node's end, wherever in the node the kernel is put.
PAD = b"Z"
PADDED_MIB = 256
SAMPLED_MIB = 8

# Offsets in a bzImage (Documentation/arch/x86/boot.rst).
SYSSIZE, SETUP_SECTS, ALIGNMENT, INIT_SIZE, KERNEL_INFO = 0x1F4, 0x1F1, 0x230, 0x260, 0x268


@pytest.fixture
def small(bare: Server):
    """Node 1 with a core and 256 MiB, never started."""
    bare.add(SMALL)
    yield bare
    bare.mintctl("node", "remove", SMALL.name, "--force")


def load(server: Server, image: str):
    """kexec -l of an image into node 1; gives what it answered."""
    return server.zero.run(f"kexec -s -l --mint-node 1 {ARGUMENTS} {image}", check=False)


def samples(ram: Ram, address: int) -> list[bytes]:
    """4 KiB from the start of each of the first MiBs of a block."""
    return [ram.read(address + (mib << 20), 4096) for mib in range(SAMPLED_MIB)]


def changed(server: Server, image: str, at: int, value: int, size: int = 4) -> str:
    """A copy of the kernel on node 0 with one field changed."""
    octal = "".join(f"\\{byte:03o}" for byte in value.to_bytes(size, "little"))
    server.zero.run(f"cp {KERNEL} {image} && printf '{octal}' | dd of={image} bs=1 seek={at} conv=notrunc status=none")
    return image


def test_a_padded_kernel_writes_nothing_past_itself_and_starts(small: Server):
    """As a signature behind the kernel, only longer: it is not the kernel's, and the next owner's memory is not this
    node's."""
    own = sorted(int(block["phys"]) for block in small.ledger().details["memory"] if block["owner"] == 1)
    assert own == list(range(own[0], own[0] + SMALL.memory_bytes, BLOCK_BYTES)), "the node's blocks are not in a row"
    after = own[-1] + BLOCK_BYTES
    small.zero.run(
        f"cp {KERNEL} /tmp/padded && head -c {PADDED_MIB << 20} /dev/zero | tr '\\0' {PAD.decode()} >>/tmp/padded",
        limit_s=240,
    )
    try:
        with Ram(small.machine) as ram:
            before = samples(ram, after)
            result = load(small, "/tmp/padded")
            assert result.status == DONE, result
            own_tail = ram.read(own[0] + (100 << 20), 4096)
            assert samples(ram, after) == before, "the load wrote into the block after the node's"
            assert own_tail != PAD * 4096, "the padding was written"
    finally:
        small.zero.run("rm -f /tmp/padded")
    console = small.node(1).console
    begin = console.mark()
    small.zero.run("kexec --mint-node 1 -e")
    console.wait_for(r"mint-init: node 1 init", begin)
    small.wait_state(1, "running")


def test_headers_that_no_bzimage_has_are_refused(small: Server):
    """Each with a reason in the log; nothing is loaded, and physical address 0 stays as it is."""
    header = paths.need(paths.kernel("mint")).read_bytes()[:0x300]
    (init_size,) = struct.unpack_from("<I", header, INIT_SIZE)
    (syssize,) = struct.unpack_from("<I", header, SYSSIZE)
    wrong = (
        (ALIGNMENT, 0, 4, "an alignment of 0x0 is"),
        (ALIGNMENT, 0x1000, 4, "an alignment of 0x1000 is"),
        (ALIGNMENT, 0x300000, 4, "an alignment of 0x300000 is"),
        (INIT_SIZE, 0, 4, "init_size of 0"),
        (INIT_SIZE, syssize * 16 - 1, 4, f"init_size of {syssize * 16 - 1}"),
        (SYSSIZE, 16, 4, "256 bytes of kernel do not go"),
        (SYSSIZE, 0xFFFFFFFF, 4, "truncated"),
        (SETUP_SECTS, 255, 1, "truncated"),
        (KERNEL_INFO, 0xFFFFFFF0, 4, "no kernel_info at 0xfffffff0"),
        (KERNEL_INFO, 2, 4, "no kernel_info at 0x2"),
    )
    assert init_size > syssize * 16, "the unchanged header does not pass what is checked here"
    with Ram(small.machine) as ram:
        before = ram.read(0, 4096)
        for at, value, size, why in wrong:
            small.zero.run("dmesg -C")
            result = load(small, changed(small, "/tmp/wrong", at, value, size))
            case = f"{value:#x} at {at:#x}"
            assert result.status == REFUSED, f"{case}: {result}"
            told = result.out + result.err + small.zero.out("dmesg")
            assert why in told, f"{case}: {told}"
            assert small.mintctl.state(1) == "stopped", case
        assert ram.read(0, 4096) == before, "physical address 0 was written"
    small.zero.run("rm -f /tmp/wrong")
