# SPDX-License-Identifier: Apache-2.0
"""Where the machine's RAM is in its physical addresses."""

# q35 puts as much RAM below 4 GiB, the rest from 4 GiB on.
LOW_BYTES = 2 << 30
HIGH_BASE = 4 << 30


def ranges(numa: int, numa_bytes: int) -> list[tuple[int, int]]:
    """Of a NUMA node's RAM: first and last byte of each. All nodes have as much, one after the other; together more
    than LOW_BYTES."""
    start, end = numa * numa_bytes, (numa + 1) * numa_bytes
    low = (start, min(end, LOW_BYTES) - 1)
    to_high = HIGH_BASE - LOW_BYTES
    high = (max(start, LOW_BYTES) + to_high, end + to_high - 1)
    return [(first, last) for first, last in (low, high) if first <= last]


def plugin_words(cache_bytes: int, numa_bytes: int, numas: int, cpus: int) -> list[str]:
    """Arguments of pmu.c's caches, of a machine whose NUMA nodes have so much RAM and so many CPUs each."""
    words = [f"caches={cache_bytes}"]
    for numa in range(numas):
        parts = [f"{numa * cpus}-{(numa + 1) * cpus - 1}"]
        parts += [f"{first:#x}-{last:#x}" for first, last in ranges(numa, numa_bytes)]
        words.append("node=" + ":".join(parts))
    return words
