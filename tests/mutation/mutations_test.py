"""The table of faults fits the program that it is for: whoever changes the place where one is put in changes the table,
and does not find out an hour into the next run, or never."""

import re
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import run  # noqa: E402
from mutations import MUTATIONS, Mutation  # noqa: E402


class MutationsTest(unittest.TestCase):
    def test_each_text_stands_in_the_tree_once(self):
        for mutation in MUTATIONS:
            with self.subTest(mutation.name):
                self.assertIsNone(run.misfit(mutation, run.ROOT))

    def test_a_text_that_has_gone_or_stands_twice_is_a_misfit(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "a.cc").write_text("one two two\n")
            self.assertIsNone(run.misfit(Mutation("", "a.cc", "one", ""), root))
            for file, old in (("a.cc", "two"), ("a.cc", "three"), ("b.cc", "one")):
                self.assertIsNotNone(run.misfit(Mutation("", file, old, "one"), root))
            self.assertIsNotNone(run.misfit(Mutation("", "a.cc", "one", "one"), root))

    def test_each_is_another_one_and_names_suites(self):
        self.assertEqual(len({mutation.name for mutation in MUTATIONS}), len(MUTATIONS))
        for mutation in MUTATIONS:
            with self.subTest(mutation.name):
                self.assertTrue(mutation.run)
                self.assertLessEqual(set(mutation.run), set(run.SUITES))

    # What finds it is written there by hand, after a run.
    def test_the_documents_have_all_of_them(self):
        text = (run.ROOT / "docs/reports/2026-11-mutations.md").read_text()
        section = text[text.index("\n## Mutations\n"):]
        rows = re.findall(r"^\| ([^|]+) \| `([^`|]+)` \| [^|]+ \|$", section, re.MULTILINE)
        self.assertEqual(sorted(rows), sorted((mutation.name, mutation.file) for mutation in MUTATIONS))


if __name__ == "__main__":
    unittest.main()
