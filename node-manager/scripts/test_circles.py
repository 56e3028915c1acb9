#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""circles.py notices what it is for: each test plants a circle, or what looks like one."""

import tempfile
import unittest
from pathlib import Path

from circles import Crate, circles_of, paths_of

# No circle: a child and a root that passes its names on, a test that looks at everything.
GOOD = {
    "lib.rs": "mod a;\nmod b;\npub use a::{A, Other as Another};\n#[cfg(test)]\nmod tests;\n",
    "a.rs": "use crate::b::B;\npub struct A(B);\npub struct Other;\n"
            "#[cfg(test)]\nmod tests {\n    use crate::b::back;\n}\n",
    "b.rs": "pub struct B;\n#[cfg(test)]\nmod tests {\n    use crate::A;\n}\n",
    "tests.rs": "use crate::a::A;\n",
}


class Circles(unittest.TestCase):
    """Circles of a crate with files a and b."""

    def circles(self, **files):
        """The circles of GOOD with these files instead of its own, by their names."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in GOOD.items():
                Path(folder, name).write_text(text)
            for name, text in files.items():
                path = Path(folder, name.replace("__", "/") + ".rs")
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
            found = circles_of(Crate(Path(folder, "lib.rs")).needs())
        return [sorted(file.stem for file in circle) for circle in found]

    def test_good_files_pass(self):
        self.assertEqual(self.circles(), [])

    def test_each_way_back_is_told(self):
        for back in [
            "use crate::a::A;",
            "use crate::a;",
            "use crate::{\n    a::{A, self},\n};",
            "pub(crate) fn back() -> crate::a::A { todo!() }",
            "use super::a::A as Name;",
            # by what the root passes on
            "use crate::A;",
            "use crate::Another;",
            "use crate::{self as root, Another as Name};",
            "impl B { fn back(&self) { super::a::f(self) } }",
        ]:
            self.assertEqual(self.circles(b=back), [["a", "b"]], back)

    def test_what_names_nothing_is_none(self):
        for text in [
            "// use crate::a::A;",
            "/* use\ncrate::a::A; */",
            'const TEXT: &str = "use crate::a::A; \\" crate::a::A";',
            'const RAW: &str = r#"use crate::a::A; "crate::a::A"#;',
            "use other::a::A;",
            "use ::other::{a::A, crates::b};",
            "#[cfg(test)]\nuse crate::a::A;",
            '#[cfg(any(test, feature = "fake"))]\npub fn fake() { crate::a::f() }',
            "fn lives<'a>(a: &'a str) -> char { 'a' } // crate::a::A",
            "#[cfg(test)]\nmod tests {\n    const BRACE: char = '{';\n    use crate::a::A;\n}\n",
        ]:
            self.assertEqual(self.circles(b=text + "\npub struct B;\n"), [], text)

    def test_code_behind_a_test_counts(self):
        text = "#[cfg(test)]\nmod tests {\n    fn f() {}\n}\npub use crate::b::B;\nuse crate::a::A;"
        self.assertEqual(self.circles(b=text), [["a", "b"]])

    def test_circle_of_three_and_of_a_child_with_its_parent(self):
        root = "mod a;\nmod b;\nmod c;\n"
        three = self.circles(lib=root, b="use crate::c::C;", c="use crate::a::A;")
        self.assertEqual(three, [["a", "b", "c"]])
        parent = "mod child;\nuse self::child::Child;\npub struct B(Child);\n"
        self.assertEqual(self.circles(b=parent, b__child="pub struct Child;"), [])
        child = "use super::B;\npub struct Child;"
        self.assertEqual(self.circles(b=parent, b__child=child), [["b", "child"]])
        named = "mod child;\npub struct B;\nfn f() { child::f() }\n"
        self.assertEqual(self.circles(b=named, b__child=child), [["b", "child"]])

    def test_names_that_are_passed_on_in_a_circle_end(self):
        passed = {"a": "pub use crate::b::X;", "b": "pub use crate::a::X;\nfn f() { crate::a::X }"}
        self.assertEqual(self.circles(**passed), [])


class Trees(unittest.TestCase):
    """Use trees."""

    def test_paths_and_names_here(self):
        tree = "crate::{a, b::{self, C as D, e::*}, F}"
        self.assertEqual(paths_of(tree), [
            ("crate::a", "a"), ("crate::b", "b"), ("crate::b::C", "D"),
            ("crate::b::e::*", "*"), ("crate::F", "F"),
        ])


if __name__ == "__main__":
    unittest.main()
