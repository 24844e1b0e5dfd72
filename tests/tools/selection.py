#!/usr/bin/env python3
"""tools/test.py leaves out the tests that nothing has changed for, and no others.

    tests/tools/selection.py
"""
import importlib.util
import re
import unittest
from pathlib import Path

spec = importlib.util.spec_from_file_location("selection", Path(__file__).parents[2] / "tools/test.py")
selection = importlib.util.module_from_spec(spec)
spec.loader.exec_module(selection)

# Groups whose names begin alike: modules inside modules, and programs under sanitizers, which are one test each.
NAMES = {"bin/moe_test": ["moe.Kernel.Adds", "moe.Kernel.Routes", "moe.Tokens.Count"],
         "bin/moe_cpu_test": ["moe.cpu.Engine.Runs", "moe.cpu.Units.Split"],
         "bin/moe_asan_test": ["moe.asan"],
         "asan/tensor_test": ["tensor"],
         "asan/tensor_files_test": ["tensor.files"],
         "others": ["golden.formats", "moe.cpu.Engine"]}


class Selection(unittest.TestCase):
    def test_leaves_out_the_unchanged_groups_only(self):
        for changed in NAMES:
            unchanged = [group for group in NAMES if group != changed]
            pattern = re.compile(selection.pattern_of(unchanged, NAMES))
            for group, tests in NAMES.items():
                for name in tests:
                    with self.subTest(changed=changed, name=name):
                        self.assertEqual(bool(pattern.search(name)), group != changed)

    def test_is_short_where_names_are_of_one_group(self):
        names = {"bin/base_test": [f"base.Json.Case{i}" for i in range(1000)], "others": ["docs.readme"]}
        self.assertLess(len(selection.pattern_of(["bin/base_test"], names)), 40)


if __name__ == "__main__":
    unittest.main()
