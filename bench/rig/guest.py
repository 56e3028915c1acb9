# SPDX-License-Identifier: Apache-2.0
"""A KVM guest on a node, started with the node's own tools (mint-guest, virsh)."""

import contextlib
import re
import shlex
import time
from collections.abc import Iterator

from rig.channel import OUTPUT, Job
from rig.errors import CommandTimeout, RigError
from rig.machine import DEFAULT_FLAVOUR
from rig.node import Node
from rig.wait import SLOWNESS, wait_until

# From virsh start to what the guest says: it boots in emulated KVM, and several may at once.
LIMIT_S = 240
ESCAPE = b"\x1d"  # Ctrl-]: leaves virsh console
# Ends a pattern of a line that has come whole: "$" also matches at the end of what has come so far.
WHOLE = r"\r*\n"
PROMPT, PROMPT_AGAIN_S = r"[#$] ", 2.0  # of a guest's shell; how long to wait for it before it is asked again
LINE_END = "\r"  # before the newline, on its console: without it a line is still being written
# A node's init says so; a server with systemd starts libvirt before anybody can ask for it.
READY = "[ -e /run/mint/ready ] || [ -d /run/systemd/system ]"
# What guests boot where node 0's /boot/vmlinuz-mint is another flavour (Server.start); the rig's layer has it on
# every node, so that they can move.
GUEST_KERNEL = "/boot/vmlinuz-guest"


def start_command(node: Node, name: str, options: str) -> str:
    """mint-guest NAME OPTIONS, once the node's libvirt answers; guests boot the ordinary kernel on every node."""
    kernel = f"--kernel {GUEST_KERNEL} " if DEFAULT_FLAVOUR != "mint" else ""
    return f"until {READY}; do sleep 0.3; done; mint-guest {name} {kernel}{options}"


def read_until(job: Job, pattern: str, end: float, text: str = "") -> str:
    """Add a terminal's output to text until that matches, or until the time is end."""
    with contextlib.suppress(CommandTimeout):
        for kind, data in job.frames(max(0.0, end - time.monotonic())):
            text += data.decode(errors="replace") if kind == OUTPUT else ""
            if re.search(pattern, text):
                break
    if job.result is not None and not re.search(pattern, text):
        raise RigError(f"ended with status {job.result.status} before {pattern!r} came:\n{text}")
    return text


def _lines(log: str) -> list[tuple[str, str, str]]:
    """Of its counter's lines that have come whole: the number, the uptime, and what else it has counted."""
    # Its shell writes on the same console, also before a line of the counter.
    return re.findall(r"tick (\d+) at ([\d.]+)((?:, \d+ (?:writes|versions|replies in up to \d+ cs))*)\n", log)


def counter(log: str) -> list[tuple[int, float]]:
    """A guest's counter's lines in its log: the number, and its uptime then, in seconds."""
    return [(int(number), float(uptime_s)) for number, uptime_s, _ in _lines(log)]


def _counted(log: str, what: str) -> list[tuple[int, ...]]:
    found = [re.search(what, more) for _, _, more in _lines(log)]
    return [tuple(map(int, match.groups())) for match in found if match]


def counted_writes(log: str) -> list[int]:
    """How many writes of its disk a guest has counted, each second (--disk-load)."""
    return [writes for (writes,) in _counted(log, r"(\d+) writes")]


def counted_versions(log: str) -> list[int]:
    """How many versions of its memory a guest has compared, each second (--memory-load)."""
    return [versions for (versions,) in _counted(log, r"(\d+) versions")]


def counted_replies(log: str) -> list[tuple[int, float]]:
    """How many replies a guest has had over its one connection (--net-echo), each second; the longest time of one, in s."""
    return [(replies, longest_cs / 100) for replies, longest_cs in _counted(log, r"(\d+) replies in up to (\d+) cs")]


class Guest:
    """Guest name on a node; with Guest(...) as a context it is ended at the end."""

    def __init__(self, node: Node, name: str) -> None:
        self.node, self.name = node, name

    def __str__(self) -> str:
        return f"guest {self.name} on node {self.node.number}"

    def start(self, options: str = "") -> "Guest":
        """mint-guest NAME OPTIONS, then wait until its init runs."""
        self.node.run(start_command(self.node, self.name, options), LIMIT_S)
        if "--no-start" not in options:
            self.wait_line("mint-guest: up")
        return self

    @property
    def log_path(self) -> str:
        """The file on its node in which libvirt keeps what it says on its console."""
        return f"/var/log/libvirt/qemu/{self.name}-console.log"

    def log(self) -> str:
        """What it said on its console."""
        return self.node.run(f"cat {self.log_path}", check=False).out.replace("\r", "")

    def wait_line(self, start: str, limit_s: float = LIMIT_S) -> str:
        """Wait until its console log has a whole line with this; gives it from there to its end.

        Its shell writes on the same console, also before a line of the init's.
        """
        find = f"grep -m 1 -o {shlex.quote(f'{start}.*{LINE_END}')} {self.log_path}"
        self.node.wait(f"{self} says {start!r}", f"{find} >/dev/null", limit_s)
        return self.node.out(find).rstrip(LINE_END)

    def passed(self, what: str) -> str:
        """Wait for the end of its own test of "disk" or "net"; raises RigError unless PASS."""
        line = self.wait_line(f"mint-guest: {what} ")
        if not line.startswith(f"mint-guest: {what} PASS"):
            raise RigError(f"{self}: {line}")
        return line

    def counter(self) -> list[tuple[int, float]]:
        """Its counter's lines until now."""
        return counter(self.log())

    def ticks(self) -> int:
        """The last number of its counter, which grows each second."""
        counter = self.counter()
        return counter[-1][0] if counter else 0

    def qemu(self) -> int:
        """Process of its QEMU on its node."""
        return int(self.node.out(f"pgrep -f 'guest={self.name},'"))

    def compares(self, more: int = 1) -> None:
        """Wait until it has compared its memory so many times more with what it wrote there (--memory-load), and found it."""
        def count() -> int:
            log = self.log()
            assert "FAIL" not in log, log[-500:]
            return (counted_versions(log) or [0])[-1]

        before = count()
        wait_until(f"{self} compares its memory", lambda: count() >= before + more, LIMIT_S)

    def wait_ticks(self, more: int = 3, limit_s: float = 60) -> None:
        """Wait until its counter has grown; the log of one that has come from another node begins anywhere."""
        self.wait_line("tick [0-9]* at ", limit_s)
        seen = self.ticks()
        self.wait_line(f"tick {seen + more} at ", limit_s)

    def dialogue(self, line: str, answer: str, limit_s: float = 90) -> str:
        """Type a line, once, on its console through `virsh console`, and wait for an answer.

        answer is a regular expression that the typed line itself must not match; one that wants a whole line ends
        with WHOLE. The console's
        shell is asked for its prompt first, as it may not be up yet; a line that is typed then
        and gets lost is a fault. Gives all text; raises RigError.
        """
        job = self.node.terminal(f"virsh console {self.name} --force")
        end = time.monotonic() + limit_s * SLOWNESS
        try:
            text = read_until(job, r"Escape character is", end)
            shown = ""
            while not re.search(PROMPT, shown) and time.monotonic() < end:
                job.input(b"\r")
                shown = read_until(job, PROMPT, min(end, time.monotonic() + PROMPT_AGAIN_S), shown)
            job.input(f"{line}\r".encode())
            text = read_until(job, answer, end, text + shown)
            if re.search(answer, text):
                return text.replace("\r", "")
        finally:
            job.input(ESCAPE)
            job.kill(9)
        raise RigError(f"{self} did not answer {answer!r} to {line!r}:\n{text[-3000:]}")

    def shell(self, line: str, limit_s: float = 90) -> tuple[str, int]:
        """What its shell says to a line, the console's text before it included, and the exit status. Raises RigError."""
        text = self.dialogue(f"{line}; echo o''ver $?", rf"(?m)^over \d+{WHOLE}", limit_s)
        return text, int(re.findall(r"(?m)^over (\d+)", text)[-1])

    def end(self) -> None:
        """Destroy it and all that belongs to it; no error if it is gone."""
        name = self.name
        self.node.run(
            f"virsh -q destroy {name}; virsh -q undefine {name} --nvram; virsh -q vol-delete {name}.raw --pool mint",
            check=False,
        )

    def __enter__(self) -> "Guest":
        return self

    def __exit__(self, *exception) -> None:
        self.end()


@contextlib.contextmanager
def guests(nodes: list[Node], name: str, options: str = "") -> Iterator[list[Guest]]:
    """A guest on each of the nodes, started at the same time; ended at the end."""
    found = [Guest(node, name) for node in nodes]
    try:
        jobs = [guest.node.start(start_command(guest.node, name, options), LIMIT_S) for guest in found]
        for guest, job in zip(found, jobs, strict=True):
            if job.wait().status != 0:
                raise RigError(f"{guest} did not start: {job.result.out}{job.result.err}")
        for guest in found:
            guest.wait_line("mint-guest: up")
        yield found
    finally:
        for guest in found:
            guest.end()
