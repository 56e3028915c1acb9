# SPDX-License-Identifier: Apache-2.0
"""What is a machine's own: lines of its mint.toml, keys, and its nodes' addresses."""

import subprocess
from pathlib import Path

from rig import link, paths, site
from rig.machine import MachineConfig

SUBNET = "10.77.1.0/24"


def test_addresses_and_settings_follow_the_subnet():
    """A machine of the default one has nothing of its own, and boots from the disk as it is."""
    assert (link.address(0), link.address(2, SUBNET)) == ("10.77.0.10", "10.77.1.12")
    assert " 10.77.1.11 7776;" in link.connect_command(1, SUBNET)
    assert MachineConfig("plain").own_lines() == {}
    assert f'[network]\nsubnet = "{SUBNET}"\n' in MachineConfig("own", subnet=SUBNET).own_lines()[site.SETTINGS]
    assert MachineConfig("own", keys="ssh-ed25519 AAAA\n").own_lines() == {site.KEYS: "ssh-ed25519 AAAA\n"}


def test_lines_are_in_the_site_layer_of_each_overlay(tmp_path: Path):
    """And nowhere else: the disk below, and what lies beside the partition, stay as they are."""
    tree, layer, base = tmp_path / "tree", tmp_path / "layer", tmp_path / "base.raw"
    (tree / "etc" / "mint").mkdir(parents=True)
    (tree / site.SETTINGS).write_text("[node]\n")
    subprocess.run([paths.PACK_LAYER, tree, layer], check=True, capture_output=True)
    with base.open("wb") as file:
        file.truncate(8 << 20)
    table = "label: gpt\nunit: sectors\n1: start=2048, size=2048, name=mint-node\n4: start=4096, size=2048, name=mint-site\n"
    subprocess.run(["sfdisk", "--quiet", base], input=table, text=True, check=True)
    before = base.read_bytes()
    assert site.partition(base) == (2 << 20, 1 << 20)
    overlays = [tmp_path / "disk0.qcow2", tmp_path / "disk1.qcow2"]
    for overlay in overlays:
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", "raw", overlay], check=True)
    site.add_lines(overlays, {site.SETTINGS: '[network]\nsubnet = "10.77.1.0/24"\n', site.KEYS: "a key\n"}, base, layer)
    for overlay in overlays:
        flat = tmp_path / "flat"
        subprocess.run(["qemu-img", "convert", "-O", "raw", overlay, flat], check=True)
        data = flat.read_bytes()
        (tmp_path / "part").write_bytes(data[2 << 20 : 3 << 20])
        for name, want in (site.SETTINGS, '[node]\n[network]\nsubnet = "10.77.1.0/24"\n'), (site.KEYS, "a key\n"):
            found = subprocess.run(["unsquashfs", "-cat", tmp_path / "part", name], check=True, capture_output=True, text=True)
            assert found.stdout == want
        assert data[: 2 << 20] + data[3 << 20 :] == before[: 2 << 20] + before[3 << 20 :]
    assert base.read_bytes() == before
