#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is checked of every file in the project, whatever part it is of.

* a licence line (SPDX) among the first lines; of the patches in their message,
  where kernel/ and kexec-mint/ check it themselves
* shell scripts: shellcheck, warnings and errors
* documents: files that relative links name are there; so are the tests
  (`test_…`) and the targets (`make …`) that they speak of
* tables between marks: what docs/figures/summary.json says (bench/report/tables.py)
* nothing that is of one machine only: home directories, absolute build paths

Looks at what git tracks. Exit status: 0 clean, 1 with one line a fault.
"""

import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP / "bench"))
from report import tables  # noqa: E402

SPDX = "SPDX-License-Identifier: "
# Files that have no place for a comment.
NO_LICENCE_LINE = re.compile(r"(^|/)LICENSES/|\.(json|lock|png|patch|pub)$|^\.gitattributes$")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
NAMED_TEST = re.compile(r"\b(test_\w+)\b")
NAMED_TARGET = re.compile(r"(?:^|`)make ([a-z][a-z0-9-]*)\b", re.MULTILINE)
ELSEWHERE = re.compile(r"^[a-z]+:|^/")
MACHINE = re.compile(r"/root/\.cache|/home/[a-z]+/")


def tracked():
    """Paths of the files git knows, relative to the top."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=TOP, check=True, capture_output=True, text=True)
    return [Path(name) for name in listing.stdout.split("\0") if name and (TOP / name).is_file()]


def is_shell(text):
    """Whether shellcheck is to look: the first line names the shell, or tells shellcheck."""
    first = text.split("\n", 1)[0]
    if re.match(r"#!\s*/bin/busybox", first):
        return False  # shellcheck does not know it; the image's tests run it
    return bool(re.match(r"#!.*\b(sh|bash|dash)\b|# shellcheck shell=", first))


def definitions(paths):
    """Names of all tests, and all targets of make."""
    tests, targets = set(), set()
    for path in paths:
        text = (TOP / path).read_text() if path.suffix in (".py", ".rs", ".mk", ".c") or path.name == "Makefile" else ""
        if path.suffix in (".py", ".rs", ".c"):
            tests.update(re.findall(r"\b(test_\w+)\b", text))
        for line in re.findall(r"^([a-z][\w %.-]*):(?!=)", text, re.MULTILINE):
            targets.update(line.split())
    return tests, targets


def main():
    """Print the faults; give the exit status."""
    faults, scripts = [], []
    tests, targets = definitions(tracked())
    for path in tracked():
        try:
            text = (TOP / path).read_text()
        except UnicodeDecodeError:
            continue
        if text and not NO_LICENCE_LINE.search(str(path)) and SPDX not in "\n".join(text.split("\n", 8)[:8]):
            faults.append(f"{path}: no {SPDX.strip()} line in its first 8 lines")
        if is_shell(text):
            scripts.append(path)
        if path.name != "lint.py":
            for number, line in enumerate(text.split("\n"), 1):
                if MACHINE.search(line):
                    faults.append(f"{path}:{number}: a path of one machine only: {line.strip()[:80]}")
        if path.suffix == ".md":
            if fault := tables.fault(text, tables.load()):
                faults.append(f"{path}: {fault}")
            for number, line in enumerate(text.split("\n"), 1):
                for link in LINK.findall(line):
                    if not ELSEWHERE.match(link) and not (TOP / path.parent / link).exists():
                        faults.append(f"{path}:{number}: links to {link}, which is not there")
                for name in set(NAMED_TEST.findall(line)) - tests:
                    faults.append(f"{path}:{number}: there is no test {name}")
                for name in set(NAMED_TARGET.findall(line)) - targets:
                    faults.append(f"{path}:{number}: there is no target {name}")

    # 2034: variables of a file that others source; 2046: lists of names are words.
    check = subprocess.run(
        ["shellcheck", "-x", "-S", "warning", "-e", "SC2034,SC2046", "-f", "gcc", "--source-path=SCRIPTDIR", "--", *map(str, scripts)],
        cwd=TOP,
        capture_output=True,
        text=True,
    )
    faults += check.stdout.splitlines() + check.stderr.splitlines()
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
