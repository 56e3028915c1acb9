# SPDX-License-Identifier: Apache-2.0
"""A node whose kernel is locked down loads no image that nobody signed, and gives no other kernel's memory. Only flavours
lockdep and kasan have what switches lockdown on in a running kernel."""

from rig.machine import DEFAULT_FLAVOUR
from rig.server import TWO, NodePlan, Server

UNSTARTED = NodePlan("unstarted", (5,), 512, 1, (), ("--no-start", "--cmdline", "console=hvc0 mint.root=initrd"))
LOAD = "kexec -s -l --mint-node {0} --initrd /boot/node.initrd /boot/vmlinuz-mint"
LOCKDOWN = "/sys/kernel/security/lockdown"

if DEFAULT_FLAVOUR in ("lockdep", "kasan"):

    def test_no_unsigned_image_is_loaded_under_lockdown(worn: Server):
        """Node 2's kernel is locked down; the same call works before, and on node 0 all the time. Nor does it give the
        memory of another node, once that is confidential."""
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

        # A kernel whose memory can be taken.
        worn.mintctl("node", "start", UNSTARTED.name, "--wait", "running")
        worn.mintctl("node", "kill", UNSTARTED.name)
        dump = f"mintctl node dump {number} --output /tmp/vmcore"
        two.run(f"echo confidentiality >{LOCKDOWN}")
        result = two.run(dump, check=False)
        assert result.status != 0, result
        assert "not permitted" in result.out + result.err, result
        assert "Lockdown: " in two.out("dmesg | tail -5")
        worn.zero.run(f"{dump} && test -s /tmp/vmcore && rm /tmp/vmcore")
        worn.mintctl("node", "remove", UNSTARTED.name)
        # Nothing unlocks a running kernel.
        worn.mintctl("node", "restart", TWO.name)
        worn.wait_ready(two)
