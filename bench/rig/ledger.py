# SPDX-License-Identifier: Apache-2.0
"""The ledger: who owns what, as the machine's RAM says (rig.area), or mintctl."""

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

    def memory_bytes(self, owner: int | None, numa: int) -> int:
        """Memory of a NUMA node that owner has (None: that is free)."""
        blocks = self.details["memory"]
        place = ("free", None) if owner is None else ("owned", owner)
        return sum(b["bytes"] for b in blocks if (b["state"], b["owner"]) == place and b["numa"] == numa)

    def free_blocks(self, numa: int) -> list[str]:
        """Ids of the free blocks of memory of a NUMA node."""
        return [str(b["id"]) for b in self.details["memory"] if b["state"] == "free" and b["numa"] == numa]

    def memory_places(self) -> list[tuple[int | None, int]]:
        """Each owner with each NUMA node; None: nobody."""
        numas = sorted({block["numa"] for block in self.details["memory"]})
        return [(owner, numa) for owner in (*self.nodes, None) for numa in numas]

    def differs_but_for_blocks(self, later: "Ledger") -> list[str]:
        """What changed, but for which blocks of memory of a NUMA node somebody has."""
        found = [line for line in self.difference(later) if not line.startswith("memory ")]
        for owner, numa in self.memory_places():
            before, after = self.memory_bytes(owner, numa), later.memory_bytes(owner, numa)
            if before != after:
                found.append(f"memory of NUMA node {numa}, owner {owner}: {before >> 20} MiB -> {after >> 20} MiB")
        return found

    def changes(self) -> int:
        """How often any word of it has changed (of one that was read in RAM)."""
        return sum(entry["changes"] for entries in self.details.values() for entry in entries)

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
