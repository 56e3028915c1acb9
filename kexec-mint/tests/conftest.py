# SPDX-License-Identifier: Apache-2.0
"""What the tests of kexec run: the real binary, and the one on a played kernel."""

import os
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

PART = Path(__file__).resolve().parents[1]
TOP = PART.parent
BUILD = Path(os.environ.get("BUILD", TOP / "build"))


@dataclass(frozen=True)
class Result:
    """How a command ended: exit status, and what it wrote."""

    status: int
    out: str
    err: str


def call(program, *args, **environment):
    """Run PROGRAM ARGS with ENVIRONMENT added; numbers become strings."""
    done = subprocess.run(
        [program, *args],
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def kexec():
    """The built binary, as `kexec(ARGS…)`."""
    program = BUILD / "kexec" / "kexec"
    assert program.exists(), "not built: make kexec"
    return lambda *args: call(program, *args)


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """The git tree of kexec-tools with the series."""
    tree = tmp_path_factory.mktemp("kexec") / "src"
    subprocess.run([PART / "scripts" / "import", tree], check=True)
    return tree


@pytest.fixture(scope="session")
def fake(source):
    """kexec-mint.c on the played kernel of fake_kernel.c: `fake(ARGS…, FAKE_…=…)`."""
    program = source / "fake"
    subprocess.run(
        ["gcc", "-O1", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-sign-compare"]
        + ["-Wno-missing-field-initializers", "-Werror", "-fsanitize=address,undefined"]
        + [f"-I{source}", f"-I{source}/include", f"-I{source}/kexec"]
        + [f"-I{source}/util_lib/include", f"-I{source}/kexec/arch/x86_64/include"]
        + ["-o", program, Path(__file__).parent / "fake_kernel.c"],
        check=True,
    )
    return lambda *args, **environment: call(program, *args, **environment)


SETUP_SECTORS = 2
CODE = (SETUP_SECTORS + 1) * 512
INFO_AT = 0x100


@pytest.fixture
def image(tmp_path):
    """Write a bzImage header with what boot.rst wants of a node's kernel; give its path.

    `image(at=bytes, …)` overwrites bytes at file offset `at`, `image(length=n)` cuts.
    """

    def write(patch=None, length=None):
        data = bytearray(CODE + 0x400)
        data[0x1F1] = SETUP_SECTORS
        struct.pack_into("<I", data, 0x1F4, 0x400 // 16)  # syssize
        struct.pack_into("<H", data, 0x1FE, 0xAA55)
        data[0x202:0x206] = b"HdrS"
        struct.pack_into("<H", data, 0x206, 0x020F)
        data[0x211] = 1  # loadflags: loaded high
        data[0x234] = 1  # relocatable
        struct.pack_into("<H", data, 0x236, 3)  # xloadflags: 64-bit, above 4G
        struct.pack_into("<I", data, 0x268, INFO_AT)
        struct.pack_into("<4sII I", data, CODE + INFO_AT, b"LToP", 16, 28, 0)
        struct.pack_into("<4sII", data, CODE + INFO_AT + 16, b"MINT", 12, 1)
        for offset, new in (patch or {}).items():
            data[offset : offset + len(new)] = new
        path = tmp_path / "bzImage"
        path.write_bytes(data[:length])
        return path

    return write
