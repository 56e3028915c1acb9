# SPDX-License-Identifier: Apache-2.0
"""The modelled caches of the plugin with performance counters (caches.c), without QEMU."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from rig import physical
from rig.physical import HIGH_BASE, LOW_BYTES

SOURCE = Path(__file__).parent.parent / "caches.c"
LINE, NEAR, FAR = 64, 0x08, 0x40
OWN_BYTES = 32 << 10
NODES = ("node=0-1:0x0-0xfffffff:0x100000000-0x10fffffff", "node=2-3:0x10000000-0x1fffffff")


class Caches:
    """The model, with these arguments; refused says why there are none."""

    def __init__(self, library: Path, folder: Path, *arguments: str) -> None:
        # one that was loaded already would go on with what it has
        library = Path(shutil.copy(library, folder / f"caches{len(list(folder.iterdir()))}.so"))
        self._model = ctypes.CDLL(str(library))
        self._model.caches_argument.restype = self._model.caches_are_there.restype = ctypes.c_bool
        self._model.caches_begin.restype = ctypes.c_char_p
        self._model.caches_fills.restype = ctypes.c_uint64
        self.taken = [self._model.caches_argument(argument.encode()) for argument in arguments]
        self.refused = self._model.caches_begin()
        self.are_there = self._model.caches_are_there()

    def read(self, vcpu: int, start: int, length: int) -> tuple[int, int]:
        """Lines that came from near and far memory for that."""
        before = self.fills(vcpu, NEAR), self.fills(vcpu, FAR)
        for address in range(start, start + length, LINE):
            self._model.caches_access(vcpu, ctypes.c_uint64(address))
        return self.fills(vcpu, NEAR) - before[0], self.fills(vcpu, FAR) - before[1]

    def fills(self, vcpu: int, mask: int) -> int:
        """All until now."""
        return self._model.caches_fills(vcpu, mask)


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """The model, compiled."""
    made = tmp_path_factory.mktemp("model") / "caches.so"
    subprocess.run(["gcc", "-std=gnu11", "-O2", "-shared", "-fPIC", "-o", made, SOURCE], check=True)
    return made


@pytest.fixture
def make(library: Path, tmp_path: Path):
    """Makes one with these arguments."""
    return lambda *arguments: Caches(library, tmp_path, *arguments)


@pytest.fixture
def caches(make) -> Caches:
    """1 MiB for each of two NUMA nodes."""
    made = make("caches=0x100000", *NODES)
    assert (made.taken, made.refused, made.are_there) == ([True] * 3, None, True)
    return made


def test_what_fits_comes_once(caches: Caches):
    size = 1 << 20
    assert caches.read(0, 0, size) == (size // LINE, 0)
    assert caches.read(0, 0, size) == (0, 0)
    assert caches.read(0, 0, 2 * size) == (size // LINE, 0), "the first half is there still"
    assert caches.read(0, 0, size) == (size // LINE, 0), "the second half took its place"


def test_lines_of_a_node_are_near_its_own_vcpus(caches: Caches):
    """Wherever its memory is."""
    assert caches.read(1, 0x100000000, 10 * LINE) == (10, 0)
    assert caches.read(1, 0x10000000, 10 * LINE) == (0, 10)
    assert caches.read(2, 0x10000000 + 10 * LINE, 10 * LINE) == (10, 0)
    assert caches.read(3, 0x10000000 + 10 * LINE, 10 * LINE) == (0, 0), "its neighbour has brought them"
    assert caches.read(3, 0x100000000, 10 * LINE) == (0, 10), "another cache has them"
    assert caches.read(0, 0x20000000, 10 * LINE) == (0, 0), "of no node"
    assert caches.read(4, 0, 10 * LINE) == (0, 0), "a vCPU of no node"


def test_unit_masks_are_added(caches: Caches):
    caches.read(0, 0, 3 * LINE)
    caches.read(0, 0x10000000, 4 * LINE)
    assert [caches.fills(0, mask) for mask in (NEAR, FAR, NEAR | FAR, 0x01)] == [3, 4, 7, 0]


def test_vcpus_own_cache_spares_the_shared_one(caches: Caches):
    """What another vCPU has thrown out of the shared one meanwhile, it has still; but no more than that."""
    small = OWN_BYTES // 2
    caches.read(0, 0, small)
    assert caches.read(1, 4 << 20, 1 << 20) == ((1 << 20) // LINE, 0)
    assert caches.read(0, 0, small) == (0, 0)
    caches.read(0, small, OWN_BYTES)
    assert caches.read(0, 0, small) == (small // LINE, 0)


@pytest.mark.parametrize(
    "wrong",
    ["caches=1M", "caches=", "nodes=1", "node=0-1", "node=1-0:0-1", "node=0-64:0-1", "node=0:0-1", "node=0-1:5-4", "node=0-1:0-1x"],
)
def test_argument_that_makes_no_sense_is_refused(make, wrong: str):
    assert make(wrong).taken == [False]


def test_arguments_that_do_not_fit_are_refused(make):
    assert make(*NODES[:1], "node=1-2:0x0-0x1").taken == [True, False], "vCPU 1 has a node"
    assert b"power of two" in make("caches=3072", *NODES).refused
    assert b"want" in make("caches=1024").refused
    assert b"want" in make(*NODES).refused
    none = make()
    assert (none.refused, none.are_there) == (None, False)


def test_machines_memory_is_where_q35_has_it():
    gib = 1 << 30
    assert physical.ranges(0, 3 * gib) == [(0, LOW_BYTES - 1), (HIGH_BASE, HIGH_BASE + gib - 1)]
    assert physical.ranges(1, 3 * gib) == [(HIGH_BASE + gib, HIGH_BASE + 4 * gib - 1)]
    assert physical.ranges(0, 1536 << 20) == [(0, (1536 << 20) - 1)]
    assert physical.plugin_words(1 << 20, 3 * gib, 2, 3) == [
        "caches=1048576",
        "node=0-2:0x0-0x7fffffff:0x100000000-0x13fffffff",
        "node=3-5:0x140000000-0x1ffffffff",
    ]


def test_machines_own_arguments_are_taken(make):
    made = make(*physical.plugin_words(4 << 20, 3 << 30, 2, 3))
    assert (made.taken, made.refused) == ([True] * 3, None)
    assert made.read(5, HIGH_BASE, 4 * LINE) == (0, 4)
