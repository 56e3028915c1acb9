# SPDX-License-Identifier: Apache-2.0
"""Consoles are copied whole, in order, from one boot of a node to the next."""

from pathlib import Path
from types import SimpleNamespace

from rig.watch import ConsoleCopier


class PlayedArea:
    """Consoles of nodes 0 to 2, without a ring's end."""

    header = SimpleNamespace(node_max=3)

    def __init__(self) -> None:
        self.said = {1: b"", 2: b""}

    def console(self, node: int, position: int) -> tuple[bytes, int]:
        said = self.said[node]
        return said[position if position <= len(said) else 0 :], len(said)


def test_consoles_are_copied_as_they_grow(tmp_path: Path):
    area, paths = PlayedArea(), {node: tmp_path / f"console.{node}.log" for node in (1, 2, 3)}
    copier = ConsoleCopier(paths)
    area.said[1] = b"first "
    copier.copy(area)
    area.said[1] += b"boot\n"
    area.said[2] = b"other\n"
    copier.copy(area)
    area.said[1] = b"next\n"
    copier.copy(area)
    copier.copy(area)
    assert paths[1].read_bytes() == b"first boot\nnext\n"
    assert paths[2].read_bytes() == b"other\n"
    assert not paths[3].exists(), "there is no such node on the machine"
    copier.forget()
    area.said = {1: b"reset, and more than before\n", 2: b""}
    copier.copy(area)
    assert paths[1].read_bytes().endswith(b"\nreset, and more than before\n")
