# SPDX-License-Identifier: Apache-2.0
"""What the tests of the KVM host configuration share."""

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("BUILD", HERE.parent / "build"))
COMMAND = BUILD / "bin" / "mint-kvm-config"

DESCRIPTION = {
    "name": '"web"',
    "id": "1",
    "cpus": '"0-1"',
    "memory_bytes": str(1 << 30),
    "pool_path": '"/var/lib/libvirt/images"',
    "bridge": '"mintbr0"',
    "guest_network": '"10.78.0.11/16"',
    "guest_network6": '"fd4d:494e:5400:78::11/64"',
    "uplink": '""',
}


@pytest.fixture
def describe(tmp_path):
    """Write a node description; keyword arguments replace keys, None drops one."""

    def write(**changes):
        keys = {**DESCRIPTION, **changes}
        path = tmp_path / "node.toml"
        path.write_text("".join(f"{k} = {v}\n" for k, v in keys.items() if v is not None))
        return path

    return write


@pytest.fixture(scope="session")
def run():
    """Run mint-kvm-config with arguments; gives the finished process."""
    assert COMMAND.exists(), f"{COMMAND} is not there; run 'make images-check'"

    def call(*arguments, path=None):
        env = dict(os.environ)
        if path:
            env["PATH"] = f"{path}:{env['PATH']}"
        return subprocess.run(
            [COMMAND, *map(str, arguments)],
            env=env, capture_output=True, text=True, check=False, timeout=60,
        )

    return call


@pytest.fixture(scope="session")
def libvirt_tools(tmp_path_factory):
    """Directory with virt-xml-validate and dnsmasq as they are on a node, schemas included.

    Taken from the node image, because the building machine has neither:
    they run with the image's own libraries.
    """
    image = BUILD / "images" / "node.squashfs"
    assert image.exists(), f"{image} is not there; run 'make images-check'"
    root = tmp_path_factory.mktemp("node") / "root"
    subprocess.run(
        ["unsquashfs", "-no-progress", "-quiet", "-d", root, image,
         "usr/bin/xmllint", "usr/bin/virt-xml-validate", "usr/share/libvirt/schemas", "usr/sbin/dnsmasq",
         "usr/lib/x86_64-linux-gnu/*.so*"],
        check=True, capture_output=True,
    )
    libs = root / "usr/lib/x86_64-linux-gnu"
    tools = root.parent / "tools"
    tools.mkdir()
    for program in ("bin/xmllint", "sbin/dnsmasq"):
        tool = tools / program.split("/")[1]
        tool.write_text(
            f'#!/bin/sh\nexec {libs}/ld-linux-x86-64.so.2 --library-path {libs} {root}/usr/{program} "$@"\n')
        tool.chmod(0o755)
    validate = tools / "virt-xml-validate"
    text = (root / "usr/bin/virt-xml-validate").read_text()
    assert "/usr/share/libvirt/schemas" in text
    validate.write_text(text.replace("/usr/share/libvirt/schemas", f"{root}/usr/share/libvirt/schemas"))
    validate.chmod(0o755)
    return tools
