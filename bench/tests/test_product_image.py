# SPDX-License-Identifier: Apache-2.0
"""A disk as operators install it, on a node beside the rig's node 0."""

import os
import subprocess
from pathlib import Path

from rig import paths
from rig.machine import MachineConfig, port
from rig.server import NodePlan, Server

DISK = "0000:08:00.0"
WEB = NodePlan("web", (3,), 768, 1, (DISK,))
PASSWORD = "correct horse"
ADDRESS = "10.77.0.11"


def installed(folder: Path) -> tuple[str, Path]:
    """Operator's private key, and a disk that install-disk wrote for it and for PASSWORD."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "id"], check=True)
    with (folder / "hash").open("wb") as file:
        subprocess.run(["openssl", "passwd", "-6", PASSWORD], check=True, stdout=file)
    disk = folder / "disk.raw"
    subprocess.run(
        [paths.PROJECT / "images" / "scripts" / "install-disk", "--size", "2G", "--authorized-keys", folder / "id.pub",
         "--root-password-hash", folder / "hash", disk],
        check=True, env=os.environ | {"BUILD": str(paths.BUILD)},
    )  # fmt: skip
    return (folder / "id").read_text(), disk


def on_web(server: Server, command: str) -> str:
    """stdout of a command on the node, which has no agent of the rig's."""
    return server.zero.out(f"mintctl node exec {WEB.name} -- {command}")


def wait_ready(server: Server) -> None:
    """Until the node's services answer."""
    server.zero.wait("web is ready", f"mintctl node exec {WEB.name} -- test -e /run/mint/ready", 240)


def ssh(server: Server, key: str, command: str):
    """Result of a command on the node, logged in from node 0 with that key on node 0 alone; its host must be known."""
    return server.zero.run(
        f"ssh -F /dev/null -i {key} -o BatchMode=yes -o StrictHostKeyChecking=yes root@{ADDRESS} {command}", check=False
    )


def test_installed_disk_lets_in_its_operator_alone(own_machine, tmp_path):
    """No agent, no test settings; console and ssh want the operator's password or key; the host key stays, and so do
    keys that were let in."""
    key, disk = installed(tmp_path)
    drive = f"if=none,id=product,file={disk},format=raw,cache=unsafe"
    extra = (*port(8), "-drive", drive, "-device", "virtio-blk-pci,drive=product,bus=rp8,serial=product")
    server = own_machine(MachineConfig("product", extra=extra))
    server.add(WEB)
    console = server.one.console

    # On the console: nothing is carried out that is typed, until root has logged in.
    console.wait_for("web login: ")
    typed = server.machine.channel.start(f"mintctl node console {WEB.name} --write --follow", limit_s=0, keep_input=True)
    typed.input(b"id\n")
    console.wait_for("Password: ")
    typed.input(b"id\n")
    console.wait_for(r"Login incorrect[\s\S]*web login: ")
    assert "uid=" not in console.text()
    start = console.mark()
    typed.input(b"root\n")
    console.wait_for("Password: ", start)
    typed.input(PASSWORD.encode() + b"\n")
    console.wait_for("# ", start)
    typed.input(b"id\n")
    console.wait_for(r"uid=0\(root\)", start)
    typed.input(b"exit\n")
    typed.kill()

    wait_ready(server)
    assert on_web(server, "sh -c 'ls /etc/mint; pidof rig-agent || echo none'").split() == ["mint.toml", "none"]
    assert server.zero.run("pidof rig-agent", check=False).status == 0, "this test would not see an agent"
    assert "oops" not in on_web(server, "cat /etc/mint/mint.toml")

    # Over the network: the operator's key, no other; the host is known, also after a restart.
    server.zero.run("umask 077; cat >/tmp/operator", stdin=key.encode())
    server.zero.run("rm -f /tmp/stranger; ssh-keygen -q -t ed25519 -N '' -f /tmp/stranger")
    assert ssh(server, "/tmp/operator", "hostname").out == "web\n"
    refused = ssh(server, "/tmp/stranger", "hostname")
    assert refused.status == 255 and "Permission denied (publickey)" in refused.err
    append = "sh -c 'umask 077; mkdir -p /root/.ssh; cat >>/root/.ssh/authorized_keys'"  # as ssh-copy-id does
    server.zero.run(f"mintctl node exec --stdin {WEB.name} -- {append} </tmp/stranger.pub")
    assert ssh(server, "/tmp/stranger", "hostname").out == "web\n"
    host_key = on_web(server, "cat /etc/ssh/ssh_host_ed25519_key.pub")
    server.mintctl("node", "restart", WEB.name)
    wait_ready(server)
    assert on_web(server, "cat /etc/ssh/ssh_host_ed25519_key.pub") == host_key
    assert ssh(server, "/tmp/operator", "hostname").out == "web\n"
    assert ssh(server, "/tmp/stranger", "hostname").out == "web\n", "a key that was let in there is gone"
