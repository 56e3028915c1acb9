# SPDX-License-Identifier: Apache-2.0
"""mintctl on a node, and the ledger as it shows it. Exit codes: 0 done,
1 failed, 2 usage, 3 refused."""

import json
import shlex
from dataclasses import dataclass

from rig.channel import Result
from rig.errors import RigError
from rig.node import Node

DONE, FAILED, USAGE, REFUSED = 0, 1, 2, 3


class MintctlError(RigError):
    """mintctl ended with a status other than 0."""

    def __init__(self, command: str, result: Result) -> None:
        self.status, self.result = result.status, result
        self.error = last_json(result.err).get("error", {})
        self.code = self.error.get("code", "")
        self.refusals = self.error.get("refusals", [])
        super().__init__(f"status {result.status} from: {command}\n{result.out}{result.err}")

    @property
    def codes(self) -> set[str]:
        """Codes of its refusals, and its own."""
        return {refusal["code"] for refusal in self.refusals} | {self.code}


def last_json(text: str) -> dict:
    """The last line that is a JSON object (progress text may come before); {} if none."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except json.JSONDecodeError:
                pass
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {}


class Mintctl:
    """mintctl as run on one node."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __call__(self, *words: object, limit_s: float = 240) -> dict:
        """Run `mintctl WORDS --json`; raises MintctlError."""
        command = shlex.join(["mintctl", *map(str, words), "--json"])
        result = self.node.run(command, limit_s, check=False)
        if result.status != DONE:
            raise MintctlError(command, result)
        try:
            return json.loads(result.out)
        except json.JSONDecodeError as error:
            raise RigError(f"no JSON from {command}: {error}\n{result.out}\n{result.err}") from error

    def nodes(self) -> dict[int, dict]:
        """node list, by id."""
        return {node["id"]: node for node in self("node", "list")["nodes"]}

    def state(self, number: int) -> str:
        """A node's state; "absent" if there is none of that number."""
        return self.nodes().get(number, {}).get("state", "absent")


@dataclass(frozen=True)
class Ledger:
    """Who owns what, at one moment: (kind, id) -> (state, owner), and the nodes' names."""

    resources: dict[tuple[str, str], tuple[str, int | None]]
    nodes: dict[int, str]
    details: dict[str, list[dict]]

    def owned(self, kind: str, owner: int | None) -> list[str]:
        """Ids of a kind ("cpu", "memory", "device") that owner has (None: free ones)."""
        state = "free" if owner is None else "owned"
        return [
            key[1] for key, value in self.resources.items() if key[0] == kind and value == (state, owner)
        ]

    def moving(self) -> list[tuple[str, str]]:
        """What is between owners: nothing, when no move is under way."""
        return [key for key, (state, _) in self.resources.items() if state == "moving"]

    def difference(self, later: "Ledger") -> list[str]:
        """What changed from this one to a later one, in words."""
        found = []
        for key in sorted(self.resources.keys() | later.resources.keys()):
            before, after = self.resources.get(key), later.resources.get(key)
            if before != after:
                found.append(f"{key[0]} {key[1]}: {before} -> {after}")
        if self.nodes != later.nodes:
            found.append(f"nodes: {self.nodes} -> {later.nodes}")
        return found


def read_ledger(mintctl: Mintctl) -> Ledger:
    """The ledger as mintctl shows it."""
    details = {
        "cpu": mintctl("cpu", "list")["cpus"],
        "memory": mintctl("memory", "list")["memory"],
        "device": mintctl("device", "list")["devices"],
    }
    resources = {
        (kind, str(entry.get("bdf", entry["id"]))): (entry["state"], entry["owner"])
        for kind, entries in details.items()
        for entry in entries
    }
    names = {number: node["name"] for number, node in mintctl.nodes().items()}
    return Ledger(resources, names, details)
