# SPDX-License-Identifier: Apache-2.0
"""Commands of this host's shell, as a user types them: those of the README, and tools that come in over ssh."""

import os
import subprocess

from rig.paths import PROJECT, UP_NAME
from rig.wait import SLOWNESS

LIMIT_S = 600 * SLOWNESS


def environment(rig: str) -> dict[str, str]:
    """Ours, without what the make that runs us has left there; a rig in the background of this name."""
    return {word: value for word, value in os.environ.items() if not word.startswith(("MAKE", "MFLAGS"))} | {UP_NAME: rig}


def run(command: str, rig: str) -> str:
    """Its output; it must end well."""
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=PROJECT, env=environment(rig), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    print(f"$ {command}\n{done.stdout}{done.stderr}")
    assert done.returncode == 0, f"{command}: exit status {done.returncode}"
    return done.stdout
