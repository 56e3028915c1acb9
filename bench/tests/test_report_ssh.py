# SPDX-License-Identifier: Apache-2.0
"""make report on a real server, whose part the emulated one plays: it is reached by ssh alone."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from report.at import folder_name
from report.recorder import read
from rig import paths
from rig.link import Carrier
from rig.machine import MachineConfig
from rig.server import DISK0, DISK1, DISK2_NVME, ONE, Server
from rig.wait import SLOWNESS

AT = "root@rig"
GROUPS = ("partition", "ready")
LIMIT_S = 600 * SLOWNESS
# Node 1, and nothing else: what groups want beyond it they say they do not have.
PLAN = f"""[one]
cores = [{", ".join(map(str, ONE.cpus))}]
memory = "1G"
numa = {ONE.numa}
disk = "{DISK1}"
"""
# node 0's own disk, and one that holds a node's image.
BAD = f"""{PLAN}[data0]
disk = "{DISK0}"
overwrite = true
[data1]
disk = "{DISK2_NVME}"
"""
# Where anything could be left; processes, guests, cores, nodes.
LOOK = """
ls -A /tmp /var/tmp /root /boot /var/lib/libvirt/images
pgrep -f '[m]int-rig-agent --stdio' || echo no agent
virsh -q list --all
cat /sys/devices/system/cpu/online
mintctl node list --json | grep -o '"name": *"[^"]*"'
"""


@contextlib.contextmanager
def sshd_here(server: Server) -> Iterator[int]:
    """A port of this host that is node 0's sshd, through the rig's channel; no network is between."""
    listener = socket.create_server(("127.0.0.1", 0))

    def to_node(carrier: Carrier, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := connection.recv(65536):
                carrier.sendall(data)
        carrier.shutdown(socket.SHUT_RDWR)
        carrier.close()

    def from_node(carrier: Carrier, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := carrier.recv(65536):
                connection.sendall(data)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                carrier = Carrier(server.machine.channel, "exec nc 127.0.0.1 22")
                for way in (to_node, from_node):
                    threading.Thread(target=way, args=(carrier, connection), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    # Or the thread would go on waiting.
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def ssh_that_knows(server: Server, port: int, folder: Path) -> dict[str, str]:
    """An environment whose ssh takes `rig` for node 0, which lets our key in and is known by its own."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
    key = (folder / "key.pub").read_bytes()
    server.zero.run("umask 077; mkdir -p /root/.ssh; cat >/root/.ssh/authorized_keys", stdin=key)
    host_key = " ".join(server.zero.read("/etc/ssh/ssh_host_ed25519_key.pub").split()[:2])
    (folder / "known").write_text(f"rig {host_key}\n")
    (folder / "config").write_text(
        f"Host rig\nHostName 127.0.0.1\nPort {port}\nHostKeyAlias rig\nIdentityFile {folder}/key\nIdentitiesOnly yes\n"
        f"UserKnownHostsFile {folder}/known\nStrictHostKeyChecking yes\n"
    )
    ssh = folder / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    ssh.chmod(0o755)
    return os.environ | {"PATH": f"{ssh.parent}:{os.environ['PATH']}", "PYTHONPATH": str(paths.PROJECT / "bench")}


def report(environment: dict[str, str], plan: Path) -> subprocess.CompletedProcess:
    """A quick run."""
    words = ["--at", AT, "--plan", str(plan), "--quick", *GROUPS]
    done = subprocess.run(
        [sys.executable, "-m", "report.run", *words],
        env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S,
    )  # fmt: skip
    print(f"$ report.run {' '.join(words)}\n{done.stdout}{done.stderr}")
    return done


@pytest.mark.soak
@pytest.mark.soak_only
def test_report_runs_over_ssh(own_machine, tmp_path: Path):
    """A plan for another server is refused, with nothing written; a good one is measured as far as this boot goes, and
    nothing of it stays on the server."""
    folder = paths.BUILD / "report" / folder_name(AT)
    shutil.rmtree(folder, ignore_errors=True)
    server = own_machine(MachineConfig("report"))
    server.wait_ready(server.zero)
    plan = tmp_path / "plan.toml"
    with sshd_here(server) as port:
        environment = ssh_that_knows(server, port, tmp_path)
        before, ledger = server.zero.out(LOOK), server.ledger()

        plan.write_text(BAD)
        refused = report(environment, plan)
        assert refused.returncode == 3
        root, image = refused.stderr.splitlines()[:2]
        assert root.startswith(f"{plan}:7: data0.disk: ") and f"({DISK0}) is " in root
        assert image.startswith(f"{plan}:10: data1.disk: ") and f"({DISK2_NVME}) holds " in image
        assert image.endswith("set overwrite = true in [data1]")
        assert not folder.exists() and server.zero.out(LOOK) == before

        plan.write_text(PLAN)
        done = report(environment, plan)
        assert done.returncode == 4, "the part of partition without Mint takes another boot"
        assert "a boot of Linux without Mint" in done.stderr

    data = read(folder / "quick" / "data.jsonl")
    assert data.ended == {("partition", "pass 1, mint"), ("ready", "pass 1")} and not data.cut
    assert {(s.case, s.side) for s in data.samples if s.group == "partition"} == {("cpu", "on"), ("copy", "on")}
    ready = {(s.case, s.side): s.value for s in data.samples if s.group == "ready"}
    assert 0 < ready["parts", "kernel"] < ready["whole", "node"] < LIMIT_S and ("whole", "node again") in ready
    assert {group for group, _ in data.absent} == {"partition"}
    assert data.header.plan.startswith(AT) and list(data.header.kernels) == ["mint"] and data.header.qemu == ""
    summary = json.loads((folder / "quick" / "summary.json").read_text())
    assert summary["place"] == "server"
    assert "Not measured here" in (folder / "quick" / "index.html").read_text()

    assert server.zero.out(LOOK) == before
    assert not (changed := ledger.differs_but_for_blocks(server.ledger())), changed
