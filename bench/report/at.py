# SPDX-License-Identifier: Apache-2.0
"""make report on a real server: everything is checked before anything is done, there or here."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from report import facts, passes
from report.recorder import Recorder, Refused
from report.samples import Header
from report.tries import measured
from rig import inventory, paths, plan
from rig.errors import MachineLost
from rig.inventory import MINT, Inventory
from rig.plan import BadPlan, Fault, Plan
from rig.remote import Remote
from rig.ssh import Busy, Ssh

# What the emulator's report has in the folder where servers have theirs.
TAKEN = ("quick", "lock")


def folder_name(at: str) -> str:
    """A server's own, whatever ssh calls it: two servers never share one."""
    safe = re.sub(r"[^A-Za-z0-9._@-]", "_", at).lstrip(".")
    return safe if safe == at and at not in TAKEN else f"{safe}-{facts.digest(at.encode())[:6]}"


@dataclass(frozen=True)
class There:
    """A server whose plan is good."""

    ssh: Ssh
    plan: Plan
    has: Inventory

    def header(self, quick: bool, seed: int) -> Header:
        """Of a run that begins now."""
        # By what it says: comments may change.
        digest = facts.digest(repr(self.plan.roles).encode())
        return Header(
            commit=facts.commit(), dirty=facts.changes(), qemu="", host=self.has.host(), quick=quick, seed=seed,
            kernels={self.has.boot: f"{self.has.release} {self.has.kernel}"},
            plan=f"{self.ssh.at}, plan {digest}", load=self.has.load,
        )  # fmt: skip

    def measure(self, recorder: Recorder, groups: list[ModuleType], say: Callable[[str], None]) -> tuple[bool, set[str]]:
        """Each group, as far as this boot goes; gives whether none failed, and which boots the rest takes. Raises
        Refused where another run has begun since prepare()."""
        try:
            return self._measure(recorder, groups, say)
        except Busy as error:
            raise Refused(str(error)) from error

    def _measure(self, recorder: Recorder, groups: list[ModuleType], say: Callable[[str], None]) -> tuple[bool, set[str]]:
        good, left = True, set()
        with Remote(self.ssh, self.plan, self.has, paths.need(paths.AGENT).read_bytes()) as remote:
            for group in groups:
                say(f"group {group.GROUP}")

                def run(group=group) -> None:
                    nonlocal left
                    left |= passes.measure(group, recorder, remote)

                try:
                    good &= measured(recorder, group.GROUP, run, say, MachineLost)
                except MachineLost as error:
                    say(f"group {group.GROUP} was cut, and goes on when it is called again: {error}")
                    return False, left
        return good, left


def dry_run(ssh: Ssh, wanted: Plan) -> list[Fault]:
    """What mintctl says against each node of the plan: it knows more of cores and functions than we have asked."""
    faults = []
    for node in filter(None, (wanted.one, wanted.two)):
        words = shlex.join(["mintctl", "node", "add", *node.words(), "--dry-run"])
        *said, status = ssh.run(f"{words} </dev/null 2>&1; echo $?").splitlines()
        if status != "0":
            text = " ".join(line.strip() for line in said)
            faults.append(Fault(wanted.lines.get(node.name, 1), f"[{node.name}] is refused by mintctl there: {text}"))
    return faults


def prepare(at: str, file: Path) -> There:
    """Read the plan, ask the server, check all of it; writes nothing. Raises BadPlan, RigError."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        fault = Fault(1, f"no plan can be read there: {error}; docs/report-plan.toml is one")
        raise BadPlan(str(file), [fault], 2) from error
    wanted = plan.parse(text, str(file))
    ssh = Ssh(at)
    has = inventory.read(ssh.run(inventory.SCRIPT))
    plan.check(wanted, has)
    if has.boot == MINT and (faults := dry_run(ssh, wanted)):
        raise BadPlan(wanted.name, faults, 3)
    return There(ssh, wanted, has)


def next_boot(at: str, boot: str, left: set[str]) -> str:
    """What to do before the same command goes on."""
    words = " and of ".join(passes.BOOTS[one] for one in sorted(left))
    return (
        f"{at} runs {passes.BOOTS[boot]}, and what that allows has been measured. The rest takes a boot of {words}:"
        " boot that, and give the same command again; it goes on"
    )
