#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deny.py notices what it is for: each test plants one fault in good metadata."""

import copy
import unittest

from deny import CRATES_IO, BadExpression, is_allowed, judge

RULES = {
    "licenses": {"allow": ["MIT", "Apache-2.0", "ISC"], "exceptions": [{"crate": "weak", "allow": ["LGPL-2.1"]}]},
    "bans": {"deny": [{"name": "bad", "reason": "no"}]},
    "sources": {"unknown-git": "deny"},
}


def package(name, version="1.0.0", **facts):
    """A crate as `cargo metadata` has it."""
    return {"id": f"{name}@{version}", "name": name, "version": version, "license": "MIT",
            "source": CRATES_IO, "dependencies": []} | facts


OURS = package("ours", source=None, dependencies=[{"name": "one", "req": "^1"}])
GOOD = {"workspace_members": [OURS["id"]], "packages": [OURS, package("one")]}


class Expressions(unittest.TestCase):
    """SPDX expressions."""

    def test_expressions_are_met_with_allowed_licences_or_not(self):
        allow = RULES["licenses"]["allow"]
        for text in ["MIT", "MIT/GPL-2.0-only", "GPL-2.0-only OR MIT", "MIT AND ISC",
                     "(GPL-3.0-only OR MIT) AND Apache-2.0", "MIT OR GPL-2.0-only AND X"]:
            self.assertTrue(is_allowed(text, allow), text)
        for text in ["GPL-2.0-only", "MIT AND GPL-2.0-only", "(MIT OR ISC) AND X",
                     "Apache-2.0 WITH LLVM-exception", "GPL-2.0-only AND X OR Y"]:
            self.assertFalse(is_allowed(text, allow), text)
        for text in ["", "MIT OR", "(MIT", "MIT ISC", "OR MIT", "MIT)"]:
            self.assertRaises(BadExpression, is_allowed, text, allow)


class Faults(unittest.TestCase):
    """Crates."""

    def faults(self, **facts):
        """The faults of metadata whose second crate is so."""
        metadata = copy.deepcopy(GOOD)
        metadata["packages"][1] |= facts
        return judge(RULES, metadata)[0]

    def test_good_ones_pass(self):
        self.assertEqual(judge(RULES, GOOD), ([], []))

    def test_exception_is_for_its_crate_alone(self):
        self.assertEqual(self.faults(name="weak", license="LGPL-2.1"), [])
        self.assertTrue(self.faults(license="LGPL-2.1"))
        self.assertTrue(self.faults(name="weak", license="GPL-3.0-only"))

    def test_each_fault_is_told(self):
        for facts, word in [
            ({"license": "GPL-3.0-only"}, "not allowed"),
            ({"license": None}, "says no licence"),
            ({"license": "see LICENSE"}, "no SPDX"),
            ({"name": "bad"}, "banned: no"),
            ({"source": "git+https://example.org/one"}, "comes from git+"),
            ({"source": None}, "a folder outside"),
        ]:
            faults = self.faults(**facts)
            self.assertEqual((len(faults), word in faults[0]), (1, True), (facts, faults))

    def test_any_version_is_a_fault_and_two_versions_are_a_warning(self):
        metadata = copy.deepcopy(GOOD)
        metadata["packages"][0]["dependencies"][0]["req"] = "*"
        self.assertIn("any version of one", judge(RULES, metadata)[0][0])
        metadata = copy.deepcopy(GOOD)
        metadata["packages"].append(package("one", "2.0.0"))
        self.assertEqual(judge(RULES, metadata), ([], ["one: 2 versions: 1.0.0, 2.0.0"]))

    def test_rule_that_nothing_acts_on_is_a_fault(self):
        rules = RULES | {"licenses": RULES["licenses"] | {"clarify": []}}
        self.assertIn("licenses.clarify", judge(rules, GOOD)[0][0])


if __name__ == "__main__":
    unittest.main()
