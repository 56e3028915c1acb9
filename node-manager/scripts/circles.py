#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether files of a crate need each other in a circle.

A file needs another one when it names something that is defined there: by `use`, or by a
path in its code (`crate::x::y`, `super::y`, `child::y`). What a file passes on (`pub use`)
is needed from where it is defined, and passing it on needs nothing. Tests are left out:
they look at everything. Names of macros and methods are not followed.

Usage: circles.py [WORKSPACE]. Exit status: 0 there is none, 1 with each circle, and what
ties it.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

WORKSPACE = Path(__file__).resolve().parents[1]
# What is no code: comments, strings, letters. Strings go first, as a comment may quote one
# and a string may hold slashes: whichever begins first wins.
NO_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\bb?r(?P<hashes>\#*)".*?"(?P=hashes)"""
    r"""|b?"(?:\\.|[^"\\])*"|b?'(?:\\[^u]|\\u\{[0-9a-f]*\}|[^'\\])'""",
    re.DOTALL,
)
TEST_ONLY = re.compile(r"#\[cfg\((?:test|any\(test,[^]]*)\)\]\s*(?:#\[[^]]*\]\s*)*")
MOD = re.compile(r"\bmod\s+(\w+)\s*;")
USE = re.compile(r"(?<![\w#])(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
PATH = re.compile(r"(?<![\w:.])((?:crate|super|self|\w+)(?:::\w+)+)")


def code_of(text):
    """The code of a file that is no test: as much of it as names something."""
    text = NO_CODE.sub(" ", text)
    while found := TEST_ONLY.search(text):
        at = found.end()
        # up to the end of the item: its semicolon, or its last brace
        depth = 0
        for end, letter in enumerate(text[at:], at):
            depth += {"{": 1, "(": 1, "[": 1, "}": -1, ")": -1, "]": -1}.get(letter, 0)
            if depth == 0 and letter in ";}" or depth < 0:
                break
        else:
            end = len(text) - 1
        text = text[: found.start()] + text[end + 1 :]
    return text


def paths_of(tree):
    """The paths of a use tree, each with the name it has here: (`a::b`, `c`)."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    if not brace:
        path, _, name = (part.strip() for part in tree.partition(" as "))
        return [(path, name or path.rpartition("::")[2])] if path else []
    found, depth, part = [], 0, ""
    for letter in rest[: rest.rindex("}")] + ",":
        if letter == "," and depth == 0:
            found += paths_of(part)
            part = ""
        else:
            depth += {"{": 1, "}": -1}.get(letter, 0)
            part += letter
    head = head.strip()
    at_head = head.removesuffix("::").rpartition("::")[2]
    return [
        (head.removesuffix("::"), at_head) if path == "self" else (head + path, name)
        for path, name in found
    ]


class Crate:
    """The files of a crate, as modules: () is its root, ("a", "b") is `crate::a::b`."""

    def __init__(self, root):
        """`root` is lib.rs, main.rs, or another file where a crate begins."""
        self.files = {}
        self.code = {}
        self.children = defaultdict(set)
        self.passed_on = defaultdict(dict)
        self._read((), root, root.parent)

    def _read(self, module, path, folder):
        self.files[module] = path
        self.code[module] = code = code_of(path.read_text())
        for name in MOD.findall(code):
            for child in (folder / f"{name}.rs", folder / name / "mod.rs"):
                if child.exists():
                    self.children[module].add(name)
                    self._read((*module, name), child, folder / name)
        for public, tree in USE.findall(code):
            if public:
                for path, name in paths_of(tree):
                    self.passed_on[module][name] = path

    def home(self, module, path, seen=()):
        """The module in which that which `path` names in `module` is defined, if it is
        one of this crate."""
        words = path.split("::")
        at = module
        if words[0] == "crate":
            at, words = (), words[1:]
        elif words[0] in ("self", "super"):
            while words and words[0] in ("self", "super"):
                at = at[:-1] if words.pop(0) == "super" else at
        elif words[0] not in self.children[module]:
            return None
        for nth, word in enumerate(words):
            if word in self.children[at]:
                at = (*at, word)
                continue
            further = self.passed_on[at].get(word)
            if further is not None and (at, word) not in seen:
                rest = "::".join([further, *words[nth + 1 :]])
                # what another crate defines is nobody's here
                return self.home(at, rest, (*seen, (at, word)))
            break
        return at

    def needs(self):
        """Which files each file needs, and by which paths."""
        needed = defaultdict(lambda: defaultdict(set))
        for module, code in self.code.items():
            named = []
            for public, tree in USE.findall(code):
                if not public:
                    named += [path for path, _ in paths_of(tree)]
            named += PATH.findall(USE.sub(" ", code))
            for path in named:
                home = self.home(module, path)
                if home is not None and home != module:
                    needed[self.files[module]][self.files[home]].add(path)
        return needed


def circles_of(needed):
    """Sets of files of which each needs each other, be it through others (Tarjan)."""
    number, low, stack, found = {}, {}, [], []

    def visit(file):
        number[file] = low[file] = len(number)
        stack.append(file)
        for other in sorted(needed.get(file, ())):
            if other not in number:
                visit(other)
                low[file] = min(low[file], low[other])
            elif other in stack:
                low[file] = min(low[file], number[other])
        if low[file] == number[file]:
            circle = [stack.pop()]
            while circle[-1] != file:
                circle.append(stack.pop())
            if len(circle) > 1:
                found.append(sorted(circle))

    for file in sorted(needed):
        if file not in number:
            visit(file)
    return found


def roots_of(workspace):
    """Where the crates of a workspace begin: libraries, programs."""
    for source in sorted(workspace.glob("crates/*/src")):
        for name in ("lib.rs", "main.rs"):
            if (source / name).exists():
                yield source / name
        yield from sorted(source.glob("bin/*.rs"))


def main(workspace):
    """Print the circles; give the exit status."""
    status = 0
    for root in roots_of(workspace):
        needed = Crate(root).needs()
        for circle in circles_of(needed):
            status = 1
            names = ", ".join(str(file.relative_to(workspace)) for file in circle)
            print(f"circles: these files need each other: {names}", file=sys.stderr)
            for file in circle:
                for other in sorted(set(needed[file]) & set(circle)):
                    paths = ", ".join(sorted(needed[file][other]))
                    print(f"circles:   {file.name} needs {other.name}: {paths}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else WORKSPACE))
