# SPDX-License-Identifier: Apache-2.0
"""mintctl vm import: a disk image becomes a guest."""

import base64

import pytest

from rig.guest import Guest
from rig.mintctl import REFUSED, MintctlError
from rig.server import Server

SAYS = "the disk boots"
# A boot sector of a BIOS: writes SAYS to the first serial port (3F8h, once it is ready to send), and halts.
CODE = bytes.fromhex("31c08ed8be217cfcac84c0741188c3bafd03eca82074fb88d8b2f8eeebeaf4ebfd")
SECTOR = (CODE + f"{SAYS}\r\n".encode()).ljust(510, b"\0") + b"\x55\xaa"
IMAGE, USER_DATA = "/tmp/boot.qcow2", "/tmp/user-data"
POOL = "/var/lib/libvirt/images"
SEED = f"{POOL}/boots-seed.img"
TOLD = "#cloud-config\nhostname: boots\n"


def test_disk_image_becomes_a_guest_of_another_node_that_boots_and_moves(pair: Server):
    """A qcow2 on node 0, imported for node 1 with what cloud-init is to be told: the guest boots from its disk there;
    image and node 0 are as before, nothing that was sent is left; it moves to node 2 with both its disks."""
    for node in (pair.one, pair.two):
        pair.wait_ready(node)
    with Guest(pair.one, "boots") as guest, Guest(pair.two, "boots") as there:
        sector = base64.b64encode(SECTOR).decode()
        pair.zero.run(
            f"cd /tmp && echo {sector} | base64 -d >boot.raw && truncate -s 4M boot.raw &&"
            f"qemu-img convert -O qcow2 boot.raw {IMAGE} && rm boot.raw && printf '{TOLD}' >{USER_DATA}"
        )
        before = pair.zero.out(f"md5sum {IMAGE}")
        words = ("vm", "import", IMAGE, "--name", "boots", "--memory", "64M", "--node", "one", "--cloud-init", USER_DATA)
        try:
            made = pair.mintctl(*words)
            assert (made["node"], made["state"], made["memory_bytes"]) == (1, "shut off", 64 << 20), made
            assert pair.zero.out(f"md5sum {IMAGE}") == before
            assert "boots" not in pair.zero.out("virsh -q list --all --name").split()
            assert pair.one.out("ls -A /var/lib/mint/uploads").strip() == ""
            assert TOLD in pair.one.run(f"tr -d '\\0' <{SEED}").out and "CIDATA" in pair.one.run(f"tr -d '\\0' <{SEED}").out
            with pytest.raises(MintctlError) as caught:
                pair.mintctl(*words)
            assert caught.value.status == REFUSED, caught.value
            assert caught.value.codes == {"plan_refused", "vm_name_taken", "vm_disk_taken"}, caught.value
            assert pair.one.out("ls -A /var/lib/mint/uploads").strip() == ""
            pair.mintctl("vm", "start", "boots")
            guest.wait_line(SAYS)
            pair.mintctl("vm", "migrate", "boots", "--to", "two")
            for node, status in ((pair.one, 1), (pair.two, 0)):
                for file in (f"{POOL}/boots.raw", SEED):
                    assert node.run(f"test -e {file}", check=False).status == status, (node.number, file)
            assert there.node.out("virsh domstate boots").strip() == "running"
        finally:
            pair.zero.run(f"rm -f {IMAGE} {USER_DATA}")
            for node in (pair.one, pair.two):
                node.run(f"virsh -q destroy boots; virsh -q undefine boots; rm -f {SEED} {POOL}/boots.raw", check=False)
