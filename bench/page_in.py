# SPDX-License-Identifier: Apache-2.0
"""make page-in: how fast pages come back from a memory server, on this host itself: no emulator, no node.

node-manager/crates/mint-pager/examples/page-in.rs has the real pager and the real memory server talk over loopback, and,
in turns with that, two processes that ask for and answer the same bytes and do nothing else. Prints the table of
docs/benchmarks.md.
"""

import argparse
import json
import platform
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path

LATENCY_PAGES, BULK_PAGES, CHUNK_PAGES = 20_000, 64 << 10, 64  # chunks of 256 KiB
PAGE = 4096
LATENCY, BULK = "latency", "bulk"


def taken(program: str, kind: str, is_plain: bool) -> dict[str, float]:
    """One measurement: microseconds of a page, or GB/s."""
    words = [f"plain-{kind}" if is_plain else kind]
    words += [str(LATENCY_PAGES)] if kind == LATENCY else [str(BULK_PAGES), str(CHUNK_PAGES)]
    said = json.loads(subprocess.run([program, *words], check=True, stdout=subprocess.PIPE, timeout=300).stdout)
    if kind == BULK:
        return {"bulk": said["pages"] * PAGE / said["all_ns"]}
    parts = statistics.quantiles(said["each_ns"], n=100)
    return {"p50": parts[49] / 1000, "p99": parts[98] / 1000}


def row(name: str, unit: str, ours: list[float], plain: list[float], digits: int) -> str:
    """Medians of both sides, and of what each round's are to each other, with the least and the most of that."""
    ratios = [one / other for one, other in zip(ours, plain, strict=True)]
    middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
    sides = (f"{statistics.median(side):.{digits}f} {unit}" for side in (ours, plain))
    return f"| {name} | {' | '.join(sides)} | {middle:.2f} ({low:.2f} to {high:.2f}) |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="the example, built")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    args = parser.parse_args()
    choose = random.Random(args.seed)
    found: dict[tuple[str, bool], list[float]] = {}
    for _ in range(args.rounds):
        turns = [(kind, is_plain) for kind in (LATENCY, BULK) for is_plain in (False, True)]
        choose.shuffle(turns)
        for kind, is_plain in turns:
            for figure, value in taken(args.program, kind, is_plain).items():
                found.setdefault((figure, is_plain), []).append(value)
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    commit = subprocess.run(git, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    cores = Path("/proc/cpuinfo").read_text().count("processor\t")
    print(f"Commit {commit}, Linux {platform.release()}, {cores} × {cpu[1] if cpu else '?'}; {args.rounds} rounds in turns, seed {args.seed}.\n")
    print("| | pager and memory server | the same bytes, asked for and read | ratio (least to most) |\n| --- | --- | --- | --- |")
    for figure, name, unit, digits in (
        ("p50", "a page of 4 KiB, median", "µs", 1),
        ("p99", "a page of 4 KiB, 99 of 100", "µs", 1),
        ("bulk", f"{CHUNK_PAGES * PAGE >> 10} KiB at a time, one after the other", "GB/s", 2),
    ):
        print(row(name, unit, found[figure, False], found[figure, True], digits))


if __name__ == "__main__":
    sys.exit(main())
