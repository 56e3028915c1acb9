# SPDX-License-Identifier: Apache-2.0
"""Which QEMU the rig runs: the host's, if it is new enough, else Debian 13's.

Before 8.2, QEMU's emulated CPUs could see a new memory map before they had
dropped what they knew of the old one; an access to a device while another CPU
moves or resets one then ends QEMU with SIGSEGV. Nodes do that all the time.

The node image has Debian 13's QEMU, with all libraries that it needs: on a host
with an older one it is run from there, through the image's own loader.
"""

import functools
import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from rig import paths

MINIMUM = (8, 2)
HOST_QEMU = "qemu-system-x86_64"
IMAGE_QEMU = "usr/bin/qemu-system-x86_64"
LOADER = "lib64/ld-linux-x86-64.so.2"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# Of the image only this; lib and lib64 are links on Debian 13.
PARTS = ("lib", "lib64", IMAGE_QEMU, LIBRARIES, "usr/lib64", "usr/share/qemu", "usr/share/seabios")


@dataclass(frozen=True)
class Emulator:
    """How to run it: words before QEMU's own, and environment."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def version(command: tuple[str, ...]) -> tuple[int, int]:
    """Major and minor version; (0, 0) if it does not run."""
    try:
        text = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return 0, 0
    match = re.search(r"version (\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def unpacked(image: Path) -> Path:
    """The image's QEMU, unpacked in the cache; made if it is not there."""
    base = Path(os.environ.get("MINT_CACHE", Path.home() / ".cache" / "mint")) / "rig"
    with image.open("rb") as file:
        key = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    folder = base / f"qemu-{key}"
    if not folder.exists():
        base.mkdir(parents=True, exist_ok=True)
        for old in base.glob("qemu-*"):
            shutil.rmtree(old, ignore_errors=True)
        new = base / f"qemu-{key}.{os.getpid()}"
        tool = shutil.which("unsquashfs") or "/usr/bin/unsquashfs"
        subprocess.run([tool, "-q", "-n", "-d", new, image, *PARTS], check=True, stdout=subprocess.DEVNULL)
        new.rename(folder)
    return folder


@functools.cache
def find() -> Emulator:
    """The QEMU to run; MINT_RIG_QEMU names another."""
    if chosen := os.environ.get("MINT_RIG_QEMU"):
        return Emulator((chosen,))
    if version((HOST_QEMU,)) >= MINIMUM:
        return Emulator((HOST_QEMU,))
    image = paths.need(paths.BUILD / "images" / "node.squashfs")
    root = unpacked(image)
    # Subfolders too: some libraries have their own in one.
    folders = [root / LIBRARIES, *(path for path in (root / LIBRARIES).iterdir() if path.is_dir())]
    command = (
        str(root / LOADER), "--library-path", ":".join(map(str, folders)), str(root / IMAGE_QEMU),
        "-L", str(root / "usr/share/qemu"), "-L", str(root / "usr/share/seabios"),
    )  # fmt: skip
    # Or it would try the host's modules, which are another QEMU's.
    return Emulator(command, {"QEMU_MODULE_DIR": str(root / LIBRARIES / "qemu")})
