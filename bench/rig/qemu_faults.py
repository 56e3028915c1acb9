# SPDX-License-Identifier: Apache-2.0
"""Looks for the faults of QEMU's emulator that the rig's own QEMU is mended of.

Each is looked for on a machine of two CPUs whose only program is qemu-faults/: no kernel,
no Mint (docs/testing.md, "What QEMU's emulator does wrong").

usage: python -m rig.qemu_faults [FAULT...]    make qemu-faults
Takes the rig's QEMU, or the one that MINT_RIG_QEMU names, as it is if MINT_RIG_MEND=0.
Exit: 0 none seen, 1 one seen or not to be looked for.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass

from rig import emulator, paths

# How often an SVM guest runs before one says that there is no fault: several times as often
# as it took a QEMU that has it, on two cores that had other work.
COUNTS = {"twice": 100_000, "flag": 1_000_000, "lost": 3_000_000, "priority": 10_000, "busy": 10_000}
LIMIT_S = 1200
# isa-debug-exit: twice what the program writes, and one. As in qemu-faults/faults.c.
NONE, TWICE, FLAG, LOST, HUNG, UNABLE = (2 * code + 1 for code in range(16, 22))


@dataclass(frozen=True)
class Outcome:
    """status: one of those above, if QEMU lives; runs and interrupts: what the program counted."""

    status: int
    text: str
    runs: int
    interrupts: int


def look(
    qemu: emulator.Emulator, fault: str, count: int, limit_s: float = LIMIT_S, more: tuple[str, ...] = ()
) -> Outcome:
    """Run COUNT guests on this QEMU, or as many as it takes; more: of its command line. Raises TimeoutExpired."""
    command = [
        *qemu.command, "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot",
        "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "qemu64,+svm,+npt,+pdpe1gb",
        "-smp", "2", "-m", "32M",
        "-serial", "stdio", "-device", "isa-debug-exit,iobase=0xf4,iosize=4",
        "-kernel", str(paths.need(paths.QEMU_FAULTS)), "-append", f"{fault} {count}", *more,
    ]  # fmt: skip
    done = subprocess.run(
        command, env=os.environ | qemu.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=limit_s, check=False,
    )  # fmt: skip
    counted = re.search(r": (\d+) runs, (\d+) interrupts: ", done.stdout)
    runs, interrupts = map(int, counted.groups()) if counted else (0, 0)
    return Outcome(done.returncode, (done.stdout + done.stderr).strip(), runs, interrupts)


def main() -> int:
    """Entry point."""
    qemu, status = emulator.choose(mended=os.environ.get("MINT_RIG_MEND") != "0"), 0
    for fault in sys.argv[1:] or COUNTS:
        if fault not in COUNTS:
            print(__doc__, file=sys.stderr)
            return 1
        outcome = look(qemu, fault, COUNTS[fault])
        print(outcome.text, flush=True)
        status = status or int(outcome.status != NONE)
    return status


if __name__ == "__main__":
    sys.exit(main())
