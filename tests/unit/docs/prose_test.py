"""tools/lint-prose: what counts as a sentence, what is too long, and that an allowance only falls.

usage: prose_test.py LINT_PROSE
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

LINT_PROSE = Path(sys.argv.pop()).resolve()
LONG = "The worker " + "and the other worker " * 10 + "wait.\n"  # 43 words


class ProseTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "docs").mkdir()
        (self.root / "README.md").write_text("# Title\n\nYou start a job. It runs.\n")
        self.limits = self.root / "limits.json"
        self.limits.write_text("{}")

    def page(self, text):
        (self.root / "docs" / "page.md").write_text(text)

    def lint(self, *more):
        return subprocess.run([sys.executable, "-B", LINT_PROSE, "--root", self.root, "--limits", self.limits, *more], capture_output=True, text=True,
                              check=False)

    def test_a_page_of_short_sentences_is_clean(self):
        self.page("Start the coordinator. Then start the workers.\n")
        result = self.lint()
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_long_sentences_are_told(self):
        self.page(LONG)
        result = self.lint()
        self.assertEqual(result.returncode, 1)
        self.assertIn("docs/page.md: mean is 43, the limit 16", result.stderr)
        self.assertIn("docs/page.md: over_35 is 100, the limit 5", result.stderr)

    def test_code_tables_and_headings_are_no_sentences(self):
        self.page(f"# {LONG}\n```sh\n{LONG}```\n\n| {LONG.strip()} |\n\n<!-- {LONG} -->\nYou see a table.\n")
        self.assertEqual(self.lint().returncode, 0)

    def test_an_opening_relative_clause_is_told_and_a_question_is_not(self):
        self.page("What does it cost? Little.\n")
        self.assertEqual(self.lint().returncode, 0)
        self.page("Who is late waits. Of which one counts.\n")
        result = self.lint("--openings")
        self.assertEqual(result.returncode, 1)
        self.assertIn("docs/page.md: openings is 2, the limit 0", result.stderr)
        self.assertIn("    Who is late waits.", result.stdout)

    def test_an_allowance_only_falls(self):
        self.limits.write_text(json.dumps({"docs/page.md": {"mean": 50, "over_35": 100}}))
        self.page(LONG)
        self.assertEqual(self.lint("--renew").returncode, 0)
        self.assertEqual(json.loads(self.limits.read_text()), {"docs/page.md": {"mean": 43.0, "over_35": 100}})
        self.page(LONG + "\nIt ends.\n")
        self.lint("--renew")
        self.assertEqual(json.loads(self.limits.read_text()), {"docs/page.md": {"mean": 22.5, "over_35": 50.0}})
        self.page("It ends.\n")
        self.lint("--renew")
        self.assertEqual(json.loads(self.limits.read_text()), {})

    def test_a_long_readme_is_told(self):
        (self.root / "README.md").write_text("You start it. " * 301)
        self.assertIn("README.md: 903 words, the limit 900", self.lint().stderr)

    def header(self, text, name="base/x.h"):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def test_a_long_sentence_in_a_headers_comment_is_told(self):
        words = " ".join(["word"] * 16)
        self.header(f"int a;\n// One {words}\n// {words}.\nint b;\n")
        result = self.lint()
        self.assertEqual(result.returncode, 1)
        self.assertIn("base/x.h:2: 33 words in a sentence, the limit 30: One word", result.stderr)
        self.header(f"// One {words}.\n// kNone: {words}. base/y.h has {words}.\n")
        self.assertEqual(self.lint().returncode, 0)

    def test_a_relative_clause_in_a_headers_comment_is_told_and_a_table_is_not(self):
        self.header("/* It waits.\n * Who is late waits. */\n//   What is in a table\nint a;\n", "worker/capi/x.h")
        result = self.lint()
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr.count("\n"), 1)
        self.assertIn("worker/capi/x.h:1: opens with a relative clause: Who is late waits.", result.stderr)

    def test_limits_that_are_not_there_are_one_line(self):
        self.limits.unlink()
        result = self.lint()
        self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1))


if __name__ == "__main__":
    unittest.main()
