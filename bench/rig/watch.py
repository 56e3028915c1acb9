# SPDX-License-Identifier: Apache-2.0
"""What the rig looks at in the machine's RAM all the time: consoles, and which nodes run.

The consoles of nodes 1 and up are copied into console.N.log. Nobody on the machine
helps: it goes on while node 0 restarts, and holds what a kernel said last. Node 0's
console is a serial port, which QEMU writes to its file.
"""

import threading
from pathlib import Path

from rig.area import Area
from rig.errors import RigError
from rig.machine import Machine
from rig.ram import Ram, area_of

# Far shorter than a kernel takes to fill a ring of 64 KiB, or to start after another.
EVERY_S = 0.05
RUNS = ("starting", "running")


class ConsoleCopier:
    """Copies what is new, each time it is asked; files are those of the machine's consoles."""

    def __init__(self, paths: dict[int, Path]) -> None:
        self._paths = paths
        self._next = dict.fromkeys(paths, 0)

    def copy(self, area: Area) -> None:
        """All that was printed since."""
        for node, path in self._paths.items():
            if node >= area.header.node_max:
                continue
            text, self._next[node] = area.console(node, self._next[node])
            if text:
                with path.open("ab") as file:
                    file.write(text)

    def forget(self) -> None:
        """Another control area: its rings begin anew."""
        self._next = dict.fromkeys(self._paths, 0)


def watch(machine: Machine) -> None:
    """Copy a started machine's consoles, and tell its links which nodes run, until its end, in a thread."""
    copier = ConsoleCopier({number: console.path for number, console in enumerate(machine.console) if number > 0})
    ram = Ram(machine)

    def look(area: Area) -> None:
        copier.copy(area)
        running = {number: node.boots for number, node in area.nodes().items() if node.state in RUNS}
        machine.links.running(running, machine.channel)

    def run() -> None:
        area: Area | None = None
        over = False
        # Once more after its end: its memory stays as long as we have it open.
        while not over:
            over = machine.ended.wait(EVERY_S) or not machine.alive()
            try:
                if area is None or not area.is_there():
                    area = area_of(ram)
                    copier.forget()
                if area is not None:
                    look(area)
            except RigError:
                area = None  # being made, or of another version: whoever asks for the ledger is told
        ram.close()

    threading.Thread(target=run, name="watch", daemon=True).start()
