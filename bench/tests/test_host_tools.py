# SPDX-License-Identifier: Apache-2.0
"""The host's own virsh and virt-install, on nodes of the emulated server that `make up` started."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rig import byhand, login
from rig.paths import RIG
from test_guest_import import SAYS, SECTOR

NAME, GUEST = "tools", "boots"
VOLUME, LOG = f"{GUEST}.raw", f"/var/log/libvirt/qemu/{GUEST}-console.log"
run = partial(byhand.run, rig=NAME)


@pytest.fixture
def on_node1(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What libvirt calls node 1 of a server in the background."""
    monkeypatch.setattr(login.paths, "UP", RIG / NAME)
    try:
        run("make up")
        run("make exec NODE=0 CMD='mintctl node add web --cpus 2-3 --memory 1G --device 0000:02:00.0'")
        run("make exec NODE=1 CMD='until [ -e /run/mint/ready ]; do sleep 1; done'")
        yield login.uri(0, 1)
    finally:
        run("make down")


@pytest.mark.soak
@pytest.mark.soak_only
def test_virt_install_imports_a_disk_and_mintctl_moves_its_guest(on_node1: str, tmp_path: Path):
    """A disk is sent over ssh into node 1's pool; the guest that virt-install makes of it boots, and goes to node 0."""
    image = tmp_path / "boots.raw"
    image.write_bytes(SECTOR.ljust(4 << 20, b"\0"))
    virsh = f"virsh -q -c '{on_node1}'"
    run(f"{virsh} vol-create-as mint {VOLUME} {image.stat().st_size} --format raw")
    run(f"{virsh} vol-upload {VOLUME} {image} --pool mint")
    run(
        f"virt-install --connect '{on_node1}' --name {GUEST} --memory 64 --vcpus 1 --import --osinfo require=off"
        f" --disk vol=mint/{VOLUME},bus=virtio --network network=mint,model=virtio"
        f" --graphics none --serial pty,log.file={LOG} --noautoconsole"
    )
    run(f"make exec NODE=1 CMD='until grep -q \"{SAYS}\" {LOG}; do sleep 1; done'")
    run(f"make exec NODE=0 CMD='mintctl vm migrate {GUEST} --to node0'")
    there = f"virsh -q -c '{login.uri(0, 0)}'"
    assert run(f"{there} domstate {GUEST}").strip() == "running"
    assert GUEST not in run(f"{virsh} list --all --name").split()
