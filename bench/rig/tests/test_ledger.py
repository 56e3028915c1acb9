# SPDX-License-Identifier: Apache-2.0
"""What is compared before and after tests."""

from rig.ledger import Ledger

BLOCK = 128 << 20


def ledger(memory: dict[int, tuple[str, int | None]], cores: dict[int, tuple[str, int | None]]) -> Ledger:
    """Blocks below 16 are of NUMA node 0, others of 1; each word has changed as often as its id."""
    details = {
        "memory": [
            {"id": n, "state": state, "owner": owner, "numa": n // 16, "bytes": BLOCK, "changes": n}
            for n, (state, owner) in memory.items()
        ],
        "cpu": [{"id": n, "state": state, "owner": owner, "changes": n} for n, (state, owner) in cores.items()],
        "device": [],
    }
    resources = {
        (kind, str(entry["id"])): (entry["state"], entry["owner"])
        for kind, entries in details.items()
        for entry in entries
    }
    return Ledger(resources, {0: "node0", 1: "one"}, details)


FREE, ZERO, ONE = ("free", None), ("owned", 0), ("owned", 1)
START = ledger({3: ZERO, 4: ONE, 5: FREE, 20: ONE}, {0: ZERO, 1: ONE})


def test_block_for_block_is_a_difference_that_may_be():
    later = ledger({3: ZERO, 4: FREE, 5: ONE, 20: ONE}, {0: ZERO, 1: ONE})
    assert START.difference(later) == ["memory 4: ('owned', 1) -> ('free', None)", "memory 5: ('free', None) -> ('owned', 1)"]
    assert START.differs_but_for_blocks(later) == []


def test_memory_of_another_numa_node_or_owner_is_one_that_may_not():
    later = ledger({3: ZERO, 4: FREE, 5: FREE, 20: ONE}, {0: ZERO, 1: ONE})
    assert START.differs_but_for_blocks(later) == [
        "memory of NUMA node 0, owner 1: 128 MiB -> 0 MiB",
        "memory of NUMA node 0, owner None: 128 MiB -> 256 MiB",
    ]


def test_cores_may_not_differ_at_all():
    later = ledger({3: ZERO, 4: ONE, 5: FREE, 20: ONE}, {0: ONE, 1: ONE})
    assert START.differs_but_for_blocks(later) == ["cpu 0: ('owned', 0) -> ('owned', 1)"]


def test_what_is_moving_is_neither_free_nor_owned():
    later = ledger({3: ZERO, 4: ("moving", 1), 5: FREE, 20: ONE}, {0: ZERO, 1: ONE})
    assert later.moving() == [("memory", "4")]
    assert later.memory_bytes(1, 0) == 0 and later.memory_bytes(None, 0) == BLOCK
    assert START.changes() == 3 + 4 + 5 + 20 + 0 + 1
