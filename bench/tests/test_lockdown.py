# SPDX-License-Identifier: Apache-2.0
"""A node whose kernel is locked down loads no image that nobody signed, and gives no other kernel's memory."""

from rig.server import NodePlan, Server

UNSTARTED = NodePlan("unstarted", (5,), 256, 1, (), ("--no-start",))
LOAD = "kexec -s -l --mint-node {0} --initrd /boot/node.initrd /boot/vmlinuz-mint"
LOCKDOWN = "/sys/kernel/security/lockdown"


def test_no_unsigned_image_is_loaded_under_lockdown(worn: Server):
    """Node 2's kernel is; the same call works before, and on node 0 all the time."""
    worn.add(UNSTARTED)
    (number,) = (number for number, node in worn.extra_nodes().items() if node["name"] == UNSTARTED.name)
    load, unload = LOAD.format(number), f"kexec --mint-node {number} -u"
    two = worn.two
    two.run("mountpoint -q /sys/kernel/security || mount -t securityfs none /sys/kernel/security")
    assert "[none]" in two.read(LOCKDOWN)
    two.run(load)
    assert worn.mintctl.state(number) == "loaded"
    two.run(unload)

    two.run(f"echo integrity >{LOCKDOWN}")
    result = two.run(load, check=False)
    assert result.status != 0, result
    assert worn.mintctl.state(number) == "stopped"
    assert "Lockdown: kexec: kexec of unsigned images is restricted" in two.out("dmesg")
    worn.zero.run(load)
    assert worn.mintctl.state(number) == "loaded"
    worn.zero.run(unload)
    worn.mintctl("node", "remove", UNSTARTED.name)
