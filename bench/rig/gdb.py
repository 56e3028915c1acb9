# SPDX-License-Identifier: Apache-2.0
"""The machine's cores one instruction at a time, through QEMU's gdbserver: breakpoints, steps, registers, memory.

The machine stands still from attach() until the end of its block, but for the one core that resume() and step() let go
on. Nothing of a kernel needs to know of it.
"""

import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rig.errors import RigError
from rig.machine import Machine
from rig.wait import SLOWNESS

# As QEMU's description of x86-64 numbers them.
RIP, GS_BASE = 16, 25


def packet(data: str) -> bytes:
    """As it goes over the wire: with the sum of its bytes."""
    return f"${data}#{sum(data.encode()) & 0xFF:02x}".encode()


class Gdb:
    """A connection to QEMU's gdbserver. Cores are the machine's numbers; every call ends with the machine halted."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._input = stream.makefile("rb")

    def close(self) -> None:
        """The stream is the caller's to close, too."""
        self._input.close()

    def _send(self, data: str) -> None:
        self._stream.sendall(packet(data))

    def _receive(self) -> str:
        """The next packet; acknowledges it."""
        while (byte := self._input.read(1)) != b"$":
            if not byte:
                raise RigError("QEMU's gdbserver has ended the connection")
        data = b""
        while (byte := self._input.read(1)) != b"#":
            data += byte
        self._input.read(2)
        self._stream.sendall(b"+")
        return data.decode()

    def ask(self, data: str) -> str:
        """One command that is answered at once; raises RigError if it is refused."""
        self._send(data)
        answer = self._receive()
        if not answer or answer.startswith("E"):
            raise RigError(f"QEMU's gdbserver says {answer!r} to {data!r}")
        return answer

    def _go(self, how: str, core: int) -> int:
        """Only this core goes on; gives which core the machine stopped for."""
        self._send(f"vCont;{how}:{core + 1:x}")
        return self.stopped()

    def stopped(self) -> int:
        """Wait until the machine stops; the core that it stopped for."""
        while not (answer := self._receive()).startswith("T"):
            if answer[0] not in "OK":
                raise RigError(f"QEMU's gdbserver says {answer!r} instead of why the machine stopped")
        fields = dict(word.split(":") for word in answer[3:].split(";") if ":" in word)
        return int(fields["thread"].split(".")[-1], 16) - 1

    def resume_all(self) -> int:
        """All cores go on, until one meets a breakpoint; gives which."""
        self._send("vCont;c")
        return self.stopped()

    def resume(self, core: int) -> int:
        """A core alone goes on until it meets a breakpoint. One at the place where it is counts, after the interrupt
        that waits for it, if there is one."""
        return self._go("c", core)

    def step(self, core: int) -> None:
        """One instruction of a core, and no interrupt."""
        if self._go("s", core) != core:
            raise RigError(f"core {core} was to go one step, and the machine stopped for another one")

    def register(self, core: int, number: int) -> int:
        """What is in a register of a core."""
        self.ask(f"Hg{core + 1:x}")
        return int.from_bytes(bytes.fromhex(self.ask(f"p{number:x}")), "little")

    def pc(self, core: int) -> int:
        """Address of the core's next instruction."""
        return self.register(core, RIP)

    @contextmanager
    def breakpoint(self, address: int) -> Iterator[None]:
        """Whatever core comes to this address, virtual or physical as its page tables say, stops the machine."""
        self.ask(f"Z0,{address:x},1")
        yield
        # If that failed the end of the connection does it.
        self.ask(f"z0,{address:x},1")

    def write(self, physical: int, data: bytes) -> None:
        """Change RAM. Unlike rig.ram, also code that has run before: QEMU hears of it."""
        self.ask("Qqemu.PhyMemMode:1")
        self.ask(f"M{physical:x},{len(data):x}:{data.hex()}")
        self.ask("Qqemu.PhyMemMode:0")


@contextmanager
def attach(machine: Machine, limit_s: float = 60) -> Iterator[Gdb]:
    """The machine stands still in here, and goes on behind it."""
    # A path of its own, as sockets' are short; nobody else may open the folder.
    folder = Path(tempfile.mkdtemp(prefix="mint-gdb-"))
    try:
        path = folder / "socket"
        machine.monitor.human(f"gdbserver unix:{path},server=on,wait=off")
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(limit_s * SLOWNESS)
            stream.connect(str(path))
            gdb = Gdb(stream)
            gdb.ask("?")
            try:
                yield gdb
            finally:
                if machine.alive():
                    gdb.ask("D")
                gdb.close()
    finally:
        if machine.alive():
            machine.monitor.human("gdbserver none")
        shutil.rmtree(folder)
