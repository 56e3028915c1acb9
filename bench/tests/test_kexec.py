# SPDX-License-Identifier: Apache-2.0
"""kexec --mint-node on a real Mint kernel, without the daemon's help."""

import pytest

from rig import paths
from rig.server import NodePlan, Server

# Has no disk: it stays in its initrd.
BY_HAND = NodePlan("by-hand", (5,), 512, 1, (), ("--no-start",))
LOAD = (
    "kexec -s -l --mint-node 1 --initrd /boot/node.initrd"
    " --command-line 'console=hvc0 tsc=reliable nowatchdog mint.root=initrd' /boot/vmlinuz-mint"
)
# Exit statuses of kexec with --mint-node; --status has LOADED for "there is one".
DONE, REFUSED, LOADED = 0, 3, 1


@pytest.fixture
def by_hand(bare: Server):
    """Node 1 with a core and memory, never started."""
    bare.add(BY_HAND)
    yield bare
    bare.mintctl("node", "remove", BY_HAND.name, "--force")


def kexec(server: Server, words: str, status: int) -> str:
    """Run `kexec WORDS` on node 0, check its exit status, give what it said."""
    command = words if words.startswith("kexec") else f"kexec {words}"
    result = server.zero.run(command, check=False)
    assert result.status == status, f"{command}: {result}"
    return result.out + result.err


def test_kexec_loads_starts_and_unloads_a_node(by_hand: Server):
    """-l, --status, -u, -e on a node; what is running is left alone."""
    assert "stopped" in kexec(by_hand, "--status --mint-node 1", DONE)
    assert "no kernel to start" in kexec(by_hand, "-e --mint-node 1", REFUSED)
    kexec(by_hand, LOAD, DONE)
    assert "loaded" in kexec(by_hand, "--status --mint-node 1", LOADED)
    kexec(by_hand, "--mint-node 1 -u", DONE)
    assert "stopped" in kexec(by_hand, "--status --mint-node 1", DONE)

    kexec(by_hand, LOAD, DONE)
    console = by_hand.node(1).console
    begin = console.mark()
    kexec(by_hand, "--mint-node 1 -e", DONE)
    console.wait_for(r"mint-init: node 1 init", begin)
    by_hand.wait_state(1, "running")
    status = kexec(by_hand, "--status --mint-node 1", DONE)
    assert "node 1 (by-hand): running" in status and "1 core online, 512 MiB" in status
    assert "is running" in kexec(by_hand, LOAD, REFUSED)
    assert "is running already" in kexec(by_hand, "-e --mint-node 1", REFUSED)
    assert "is running" in kexec(by_hand, "-u --mint-node 1", REFUSED)
    assert by_hand.mintctl.state(1) == "running"


def test_kexec_says_why_an_image_cannot_be_a_nodes_kernel(by_hand: Server):
    """No kernel, a truncated one, one without Mint: refused, and nothing is loaded."""
    by_hand.zero.run("head -c 1500000 /boot/vmlinuz-mint >/tmp/short")
    by_hand.zero.run("cat >/tmp/vmlinuz-off", stdin=paths.need(paths.kernel("off")).read_bytes())
    for image, why in (
        ("/etc/passwd", "not a bzImage"),
        ("/tmp/short", "truncated"),
        ("/tmp/vmlinuz-off", "CONFIG_MINT=y"),
    ):
        assert why in kexec(by_hand, f"-l --mint-node 1 {image}", REFUSED)
        assert "stopped" in kexec(by_hand, "--status --mint-node 1", DONE)


def test_kexec_says_why_a_node_cannot_be_loaded(by_hand: Server):
    """No such node, the node it runs on, a command line and an initrd that are too long."""
    assert "no node 3" in kexec(by_hand, "-l --mint-node 3 /boot/vmlinuz-mint", REFUSED)
    assert "no node 3" in kexec(by_hand, "--status --mint-node 3", REFUSED)
    assert "only a peer can" in kexec(by_hand, "-l --mint-node 0 /boot/vmlinuz-mint", REFUSED)
    long = "x" * 3000
    assert "command line" in kexec(by_hand, f"-l --mint-node 1 --append={long} /boot/vmlinuz-mint", REFUSED)
    by_hand.zero.run("truncate -s 600M /tmp/big")
    assert "owns 512 MiB" in kexec(by_hand, "-l --mint-node 1 --initrd=/tmp/big /boot/vmlinuz-mint", REFUSED)
    assert "stopped" in kexec(by_hand, "--status --mint-node 1", DONE)
