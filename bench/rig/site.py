# SPDX-License-Identifier: Apache-2.0
"""What is a machine's own: settings and keys, in the site layer of its disks, as an operator's are.

The layer is a file system of its own on a partition of each disk (images/scripts/disk.sh).
A machine's disks are overlays of one that all share: only that partition is written anew.
"""

import json
import subprocess
import tempfile
from pathlib import Path

from rig import paths
from rig.errors import RigError

SETTINGS = "etc/mint/mint.toml"
KEYS = "etc/ssh/authorized_keys"
PARTITION = "mint-site"
SECTOR = 512


def partition(disk: Path) -> tuple[int, int]:
    """Where the site layer lies on a raw disk, and for how long: bytes."""
    command = ["sfdisk", "--json", str(disk)]
    table = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for part in table["partitiontable"]["partitions"]:
        if part.get("name") == PARTITION:
            return part["start"] * SECTOR, part["size"] * SECTOR
    raise RigError(f"{disk} has no partition {PARTITION}")


def layer_with(lines: dict[str, str], layer: Path, output: Path) -> None:
    """The same layer, with more lines at the end of its files, which may be new."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        subprocess.run(["unsquashfs", "-quiet", "-no-progress", "-d", str(root), str(layer)], check=True, stdout=subprocess.DEVNULL)
        for name, more in lines.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            with (root / name).open("a") as file:
                file.write(more)
        packed = subprocess.run([str(paths.PACK_LAYER), str(root), str(output)], capture_output=True, text=True, check=False)
    if packed.returncode != 0:
        raise RigError(f"the machine's own layer was not packed: {packed.stderr}")


def add_lines(overlays: list[Path], lines: dict[str, str], base: Path, layer: Path) -> None:
    """Nodes that boot from these overlays of base find more lines in these files. layer is what base has."""
    start, room = partition(base)
    own = overlays[0].with_name("site.squashfs")
    layer_with(lines, layer, own)
    # qemu-io writes as much as it is told to, and begins the file anew where that is longer.
    length = own.stat().st_size
    if length > room or length % SECTOR:
        raise RigError(f"a site layer of {length} bytes does not fit into the {room} of {PARTITION} on {base}")
    for overlay in overlays:
        # No spaces in the names: qemu-io would take them for the ends of words.
        command = ["qemu-io", "-t", "unsafe", "-f", "qcow2", "-c", f"write -q -s {own.name} {start} {length}", overlay.name]
        subprocess.run(command, check=True, cwd=own.parent)
