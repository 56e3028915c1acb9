# SPDX-License-Identifier: Apache-2.0
"""Single calls of /dev/mint on a node, as no daemon would make them (rig/raw)."""

from rig import paths
from rig.channel import Job
from rig.node import Node

PROGRAM = "/tmp/raw"
# raw.c: bytes that no call was told of, and what is in bytes that no call has written
GUARD_BYTES = 64
UNTOUCHED = b"\xa5"
# MINT_NODE_NONE
NOBODY = 0xFF
# enum mint_node_state, enum mint_refusal
STOPPED, LOADED, STARTING, RUNNING, CRASHED, KILLED, LOADING = 1, 2, 3, 4, 7, 8, 9
ABSENT, OWNER, STATE, RUNS, NOT_PARKED = 1, 2, 3, 9, 11


def fields(text: str) -> dict[str, int]:
    """The numbers of an answer, by name."""
    return {name: int(value) for name, value in (word.split("=") for word in text.split())}


class Raw:
    """The program, put onto a node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        node.run(f"cat >{PROGRAM} && chmod 755 {PROGRAM}", stdin=paths.need(paths.RAW).read_bytes())

    def __call__(self, *words: object) -> dict[str, int]:
        """One call; gives what it answered ("errno": 0 is done)."""
        return fields(self.node.out(" ".join(map(str, (PROGRAM, *words)))))

    def buffer(self, *words: object) -> tuple[dict[str, int], bytes, bytes]:
        """One call that fills a buffer: what it answered, the buffer, and what follows it in memory."""
        first, second = self.node.out(" ".join(map(str, (PROGRAM, *words)))).splitlines()
        data = bytes.fromhex(second)
        return fields(first), data[:-GUARD_BYTES], data[-GUARD_BYTES:]

    def start(self, *words: object) -> Job:
        """One call that is not waited for; end() gives its answer."""
        return self.node.start(" ".join(map(str, (PROGRAM, *words))))

    @staticmethod
    def end(job: Job) -> dict[str, int]:
        """What a call that was started has answered."""
        result = job.wait()
        assert result.status == 0, result
        return fields(result.out)
