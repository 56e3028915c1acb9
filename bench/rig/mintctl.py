# SPDX-License-Identifier: Apache-2.0
"""mintctl on a node. Exit codes: 0 done, 1 failed, 2 usage, 3 refused."""

import json
import shlex

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
