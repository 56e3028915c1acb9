# SPDX-License-Identifier: Apache-2.0
"""What is measured on, as a data set's header says it."""

import hashlib
import os
import platform
import re
import subprocess
from pathlib import Path

from report.goals import EMULATOR
from report.samples import Header
from rig import accel, emulator, paths
from rig.errors import RigError
from rig.machine import DEFAULT_FLAVOUR
from rig.record import git

DIGEST = 12  # characters


def digest(data: bytes) -> str:
    """A short name for these bytes."""
    return hashlib.sha256(data).hexdigest()[:DIGEST]


def changes() -> str:
    """A digest of what the tree has beside its commit, new files included; "" if nothing."""
    new = [name for name in git("ls-files", "-z", "--others", "--exclude-standard").split("\0") if name]
    difference = git("diff", "HEAD")
    if not new and not difference:
        return ""
    texts = [difference.encode(), *(name.encode() + (paths.PROJECT / name).read_bytes() for name in sorted(new))]
    return digest(b"\0".join(texts))


def commit() -> str:
    """What the tree is of. Raises RigError without git's knowledge of it: such data could be anything's."""
    if not (found := git("rev-parse", "HEAD")):
        raise RigError(f"git knows no commit of {paths.PROJECT}: measure in a clone, so that the data says what it is of")
    return found


def qemu() -> str:
    """The version of the rig's QEMU, in its own words, and what runs its CPUs."""
    found = emulator.find()
    text = subprocess.run(
        [*found.command, "--version"], env=os.environ | found.environment, capture_output=True, text=True, check=True
    ).stdout
    return f"{text.splitlines()[0].strip()}, {'KVM' if accel.use_kvm() else 'TCG'}"


def host() -> str:
    """Processor, memory, kernel; a name that its owner gave that does not matter."""
    cpu = re.search(r"^model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory_kib = int(re.search(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)[1])
    model = cpu[1] if cpu else platform.machine()
    version = platform.release().partition("-")[0]
    return f"{os.cpu_count()} × {model}, {memory_kib / (1 << 20):.0f} GiB, Linux {version}"


def header(quick: bool, seed: int) -> Header:
    """Of a run that begins now. Raises FileNotFoundError, RigError if what it boots is not there."""
    images = {flavour: paths.need(paths.kernel(flavour)) for flavour in dict.fromkeys(("mint", DEFAULT_FLAVOUR))}
    # what needs it says so; of the others many do not
    if (stock := paths.kernel("stock")).exists():
        images["stock"] = stock
    kernels = {flavour: digest(image.read_bytes()) for flavour, image in images.items()}
    return Header(
        commit=commit(), dirty=changes(), qemu=qemu(), kernels=kernels, host=host(),
        plan=EMULATOR, quick=quick, seed=seed, load=round(os.getloadavg()[0], 2),
    )  # fmt: skip
