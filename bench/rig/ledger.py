# SPDX-License-Identifier: Apache-2.0
"""The ledger, who owns what, as mintctl shows it."""

from collections.abc import Callable
from dataclasses import dataclass


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


def read_ledger(mintctl: Callable[..., dict]) -> Ledger:
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
    names = {number: node["name"] for number, node in ((node["id"], node) for node in mintctl("node", "list")["nodes"])}
    return Ledger(resources, names, details)
