# SPDX-License-Identifier: Apache-2.0
"""What calls of /dev/mint give back, also to a caller who knows shorter or longer structures than the kernel
(docs/kernel-abi.md)."""

import struct

import pytest

from rig.rawcalls import NOBODY, STOPPED, UNTOUCHED, Raw
from rig.server import CARD2_E1000E, NodePlan, Server

EINVAL, E2BIG = 22, 7
PAGE_BYTES = 4096
# MINT_RESOURCE_BYTES_1, MINT_EVENT_BYTES_1
RESOURCE_BYTES, EVENT_BYTES = 48, 32
# struct mint_resource: kind, id, state, owner; enum mint_kind, MINT_RES_OWNED
ROW = struct.Struct("<4I")
KINDS = {"cpu": 0, "mem": 1, "pci": 2}
OWNED = 2
# struct mint_event: seq, time_ns, node, old_state, new_state, lost
EVENT = struct.Struct("<QQIIII")
# struct mint_node: size, node, state, boots, and more
NODE = struct.Struct("<4I")

# It does not run, and has one of each kind.
OWNER = NodePlan("owner", (5,), 128, 1, (CARD2_E1000E,), ("--no-start",))


def rows(data: bytes, count: int) -> list[bytes]:
    """A buffer as so many rows."""
    assert len(data) % count == 0
    size = len(data) // count
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("kind", KINDS)
def test_resources_come_in_rows_as_long_as_the_caller_says(bare: Server, kind: str):
    """The same in each, zeros where a row is longer than the kernel's, nothing behind the last one; a length that
    cannot be is refused, and nothing written. A caller who knows of no lengths gets the first one."""
    raw, count = Raw(bare.zero), 3
    answer, first, _ = raw.buffer("rows", kind, count, RESOURCE_BYTES)
    assert answer == {"errno": 0, "count": count}
    seen = [ROW.unpack_from(row) for row in rows(first, count)]
    assert [row[0] for row in seen] == [KINDS[kind]] * count
    assert [row[2:] for row in seen] == [(OWNED, 0)] * count or kind == "mem", seen
    assert len({row[1] for row in seen}) == count
    for length in (0, RESOURCE_BYTES, RESOURCE_BYTES + 8, 2 * RESOURCE_BYTES, PAGE_BYTES):
        answer, data, behind = raw.buffer("rows", kind, count, length)
        assert answer == {"errno": 0, "count": count}
        assert [row[:RESOURCE_BYTES] for row in rows(data, count)] == rows(first, count)
        assert not any(any(row[RESOURCE_BYTES:]) for row in rows(data, count)), data.hex()
        assert behind == UNTOUCHED * len(behind), behind.hex()
    for length in (8, RESOURCE_BYTES - 8, RESOURCE_BYTES + 4, PAGE_BYTES + 8):
        answer, data, behind = raw.buffer("rows", kind, count, length)
        assert answer["errno"] == EINVAL
        assert set(data + behind) == set(UNTOUCHED)


def test_events_come_as_long_as_the_reader_says(bare: Server):
    """A node is created: one event of each length, zeros where it is longer than the kernel's. A read without room for
    one gives none, nor part of one, and a length that cannot be is refused."""
    raw = Raw(bare.zero)
    for length, more in ((0, 0), (EVENT_BYTES, EVENT_BYTES - 1), (EVENT_BYTES + 8, 24), (PAGE_BYTES, 1)):
        size = length or EVENT_BYTES
        answer, data, behind = raw.buffer("events", length, size + more)
        assert answer == {"errno": 0, "got": size}
        _, time_ns, node, old, new, lost = EVENT.unpack_from(data)
        assert (node, old, new, lost) == (1, 0, STOPPED, 0) and time_ns, data[:EVENT_BYTES].hex()
        assert not any(data[EVENT_BYTES:size]), data.hex()
        assert set(data[size:] + behind) == set(UNTOUCHED)
    for length, room in ((0, EVENT_BYTES - 1), (EVENT_BYTES + 8, EVENT_BYTES + 7), (EVENT_BYTES + 8, EVENT_BYTES)):
        answer, data, behind = raw.buffer("events", length, room)
        assert answer["errno"] == EINVAL
        assert set(data + behind) == set(UNTOUCHED)
    for length in (8, EVENT_BYTES - 8, EVENT_BYTES + 4, PAGE_BYTES + 8):
        assert raw.buffer("events", length, PAGE_BYTES)[0]["errno"] == EINVAL
    assert not bare.extra_nodes()


def test_structures_are_as_long_as_caller_and_kernel_both_know(bare: Server):
    """Of a shorter one nothing behind its end is written; of a longer one the rest stays the caller's, and has to be
    zeros."""
    raw = Raw(bare.zero)
    answer, whole, _ = raw.buffer("sized", 0, PAGE_BYTES, 0)
    known = answer["known"]
    assert answer["errno"] == 0
    size, node, state, boots = NODE.unpack_from(whole)
    assert (size, node, boots) == (PAGE_BYTES, 0, 1) and state, whole[:known].hex()
    assert b"node0\0" in whole[:known]
    assert not any(whole[known:])
    for length in (NODE.size, 24, known - 8):
        answer, data, behind = raw.buffer("sized", 0, length, 0)
        assert answer["errno"] == 0
        assert NODE.unpack_from(data) == (length, node, state, boots)
        assert behind == UNTOUCHED * len(behind), behind.hex()
    answer, data, _ = raw.buffer("sized", 0, known + 8, 1)
    assert answer["errno"] == E2BIG
    assert (data[8:known], data[known:]) == (bytes(known - 8), b"\1" * 8), "written although it was refused"
    assert raw.buffer("sized", 0, PAGE_BYTES + 8, 0)[0]["errno"] == EINVAL


def id_of(function: str) -> int:
    """A function's id: segment << 16 | bus << 8 | devfn."""
    segment, bus, slot = function.split(":")
    device, number = slot.split(".")
    return int(segment, 16) << 16 | int(bus, 16) << 8 | int(device, 16) << 3 | int(number)


def test_claim_and_release_say_who_has_it_now(bare: Server):
    """Of each kind, for a node that does not run and for the caller's own: the answer names the owner that the ledger
    in RAM has."""
    raw = Raw(bare.zero)
    bare.add(OWNER)
    block = bare.ledger().owned("memory", 1)[0]
    things = {
        ("cpu", str(OWNER.cpus[0])): OWNER.cpus[0],
        ("memory", block): block,
        ("device", CARD2_E1000E): id_of(CARD2_E1000E),
    }
    for key, number in things.items():
        word = {"memory": "mem", "device": "pci"}.get(key[0], key[0])
        for verb, node, owner in (("release", 1, None), ("claim", 0, 0), ("release", 0, None), ("claim", 1, 1)):
            if (key[0], verb, node) == ("device", "release", 0):
                # One with a driver stays.
                bare.zero.run(f"echo {key[1]} >/sys/bus/pci/devices/{key[1]}/driver/unbind")
            answer = raw(verb, word, number, node)
            told = NOBODY if owner is None else owner
            assert answer == {"errno": 0, "reason": 0, "owner": told}, (verb, key, node)
            state = "free" if owner is None else "owned"
            assert bare.ledger().resources[key] == (state, owner), (verb, key, node)
    # what is refused names who has it
    assert raw("claim", "cpu", OWNER.cpus[0], 0)["owner"] == 1
    bare.remove_all()
