#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether other people's crates are what deny.toml lets them be.

Reads the part of cargo-deny's format that deny.toml uses, and refuses what it does not
know: licences (`allow`, and `exceptions` for a crate), banned crates, versions that are any version, sources other than
crates.io, several versions of a crate. The facts are those of `cargo metadata`: what a
crate's own manifest says. Nobody reads its source for other licences, as nobody asks for
advisories: both are cargo-deny's, which is not run because it has to be compiled first.

Exit status: 0 all is well (warnings are printed), 1 with one line a fault.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

WORKSPACE = Path(__file__).resolve().parents[1]
CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"
# Of each table of deny.toml, the keys that are acted on.
KNOWN = {
    "graph": {"targets"},
    "licenses": {"allow", "exceptions"},
    "bans": {"multiple-versions", "wildcards", "allow-wildcard-paths", "deny"},
    "sources": {"unknown-registry", "unknown-git"},
}


class BadExpression(Exception):
    """Not an SPDX licence expression."""


def is_allowed(expression, allow):
    """Whether an SPDX expression can be met with allowed licences alone."""
    # before SPDX's words, cargo had a slash for OR
    words = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))
    at = 0

    def peek():
        return words[at] if at < len(words) else None

    def take():
        nonlocal at
        at += 1
        return words[at - 1] if at <= len(words) else None

    def one():
        word = take()
        if word == "(":
            good = some()
            if take() != ")":
                raise BadExpression(expression)
            return good
        if word is None or word in ("AND", "OR", "WITH", ")"):
            raise BadExpression(expression)
        if peek() == "WITH":
            take()
            # an exception is a licence of its own
            word = f"{word} WITH {take()}"
        return word in allow

    def every():
        good = one()
        while peek() == "AND":
            take()
            good = one() and good
        return good

    def some():
        good = every()
        while peek() == "OR":
            take()
            good = every() or good
        return good

    good = some()
    if peek() is not None:
        raise BadExpression(expression)
    return good


def judge(rules, metadata):
    """Give the faults and the warnings, as lines."""
    faults, warnings = [], []
    for table, keys in rules.items():
        unknown = set(keys) - KNOWN.get(table, set()) if isinstance(keys, dict) else {table}
        faults += [f"deny.toml: nothing here acts on {table}.{key}" for key in sorted(unknown)]
    ours = set(metadata["workspace_members"])
    banned = {ban["name"]: ban["reason"] for ban in rules["bans"].get("deny", [])}
    exceptions = {one["crate"]: one["allow"] for one in rules["licenses"].get("exceptions", [])}
    versions = defaultdict(set)
    for package in metadata["packages"]:
        crate = f"{package['name']} {package['version']}"
        versions[package["name"]].add(package["version"])
        licence = package["license"]
        try:
            if licence is None:
                faults.append(f"{crate}: says no licence")
            elif not is_allowed(licence, rules["licenses"]["allow"] + exceptions.get(package["name"], [])):
                faults.append(f"{crate}: its licence is not allowed: {licence}")
        except BadExpression:
            faults.append(f"{crate}: its licence is no SPDX expression: {licence}")
        if package["name"] in banned:
            faults.append(f"{crate}: banned: {banned[package['name']]}")
        source = package["source"]
        if package["id"] not in ours and source != CRATES_IO:
            faults.append(f"{crate}: comes from {source or 'a folder outside of the workspace'}")
        if package["id"] in ours:
            for needed in package["dependencies"]:
                if needed["req"] == "*" and not needed.get("path"):
                    faults.append(f"{crate}: takes any version of {needed['name']}")
    for name, found in sorted(versions.items()):
        if len(found) > 1:
            warnings.append(f"{name}: {len(found)} versions: {', '.join(sorted(found))}")
    return faults, warnings


def main():
    """Print the faults and warnings; give the exit status."""
    rules = tomllib.loads((WORKSPACE / "deny.toml").read_text())
    command = ["cargo", "metadata", "--locked", "--format-version=1"]
    command += [f"--filter-platform={target}" for target in rules["graph"]["targets"]]
    told = subprocess.run(command, cwd=WORKSPACE, check=True, stdout=subprocess.PIPE)
    faults, warnings = judge(rules, json.loads(told.stdout))
    for warning in warnings:
        print(f"deny: warning: {warning}")
    for fault in faults:
        print(f"deny: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
