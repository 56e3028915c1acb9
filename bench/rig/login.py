# SPDX-License-Identifier: Apache-2.0
"""The host's own ssh, and so its virsh, virt-install and virt-manager, to nodes of the rig in the background.

A key that `make up` makes is in the site layer of every disk, as an operator's is. The
connection is a command on node 0 that talks to the node's sshd (as `make exec` runs them): no
port of the host is opened, which other users of it would reach, too.

build/rig/up-ssh/config names the nodes for ssh: node0, node1, …, b-node0, … of the second machine.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from rig import link, paths
from rig.two import LETTERS, SUBNETS

NODES = 16  # as many as a machine may have
SSHD = 22
KEY, CONFIG, COMMAND = "key", "config", "ssh"


def folder() -> Path:
    """Of key and configuration."""
    return paths.UP.with_name(f"{paths.UP.name}-ssh")


def name(machine: int, node: int) -> str:
    """What ssh calls a node."""
    return f"node{node}" if machine == 0 else f"{LETTERS[machine]}-node{node}"


def _proxy(machine: int, node: int) -> str:
    """The command that is a connection to a node's sshd, for ssh's configuration."""
    environment = {"PYTHONPATH": paths.PROJECT / "bench", "BUILD": paths.BUILD, paths.UP_NAME: paths.UP.name}
    words = ["env", *(f"{key}={value}" for key, value in environment.items())]
    place = f"{node}" if machine == 0 else f"{LETTERS[machine]}/{node}"
    words += [sys.executable, "-m", "rig.cli", "connect", place, str(SSHD)]
    return shlex.join(words).replace("%", "%%")


def connect_command(machine: int, node: int, port: int) -> str:
    """For the shell of the machine's node 0."""
    return f"exec nc {link.address(node, SUBNETS[machine])} {port}"


def configuration(machines: int) -> str:
    """For `ssh -F`."""
    lines = [
        "# Made by `make up`.",
        "Host node* b-node*",
        "    User root",
        f'    IdentityFile "{folder() / KEY}"',
        "    IdentitiesOnly yes",
        # Every `make up` makes other nodes, and nobody else is on the way to them.
        "    StrictHostKeyChecking no",
        "    UserKnownHostsFile /dev/null",
        "    LogLevel ERROR",
    ]
    for machine in range(machines):
        for node in range(NODES):
            lines += [f"Host {name(machine, node)}", f"    ProxyCommand {_proxy(machine, node)}"]
    return "\n".join(lines) + "\n"


def prepare(machines: int) -> str:
    """Make key and configuration anew; gives the line for authorized_keys."""
    at = folder()
    shutil.rmtree(at, ignore_errors=True)
    at.mkdir(parents=True)
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "the rig's host", "-f", str(at / KEY)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    (at / CONFIG).write_text(configuration(machines))
    # libvirt knows no other way to give ssh a configuration.
    (at / COMMAND).write_text(f'#!/bin/sh\nexec ssh -F {shlex.quote(str(at / CONFIG))} "$@"\n')
    os.chmod(at / COMMAND, 0o755)
    return (at / f"{KEY}.pub").read_text()


def uri(machine: int, node: int) -> str:
    """For virsh, virt-install and virt-manager on the host."""
    return f"qemu+ssh://{name(machine, node)}/system?command={folder() / COMMAND}"
