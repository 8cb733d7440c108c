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

    def source(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        result = self.lint()
        path.unlink()
        return result.returncode, result.stderr.splitlines()

    def assert_told(self, name, text, line, told):
        status, lines = self.source(name, text)
        self.assertEqual((status, len(lines)), (1, 1), lines)
        self.assertIn(f"{name}:{line}: {told}", lines[0])

    def test_a_long_help_of_an_option_is_told(self):
        halves = " ".join(["word"] * 16)
        text = f'#include "base/options.h"\n// "{LONG.strip()}"\ntable.Add("a.b", &b, Count(0, 1),  // a\n  "{halves} "\n  "{{}} {halves}");\n'
        self.assert_told("base/x.cc", text, 4, "33 words in a sentence, the limit 30: word word")
        self.assertEqual(self.source("base/x.cc", text.replace('word "', 'word. "')), (0, []))
        self.assertEqual(self.source("base/x.cc", text.replace('word "', 'word. auto: "')), (0, []))

    def test_an_error_or_log_line_that_opens_with_a_relative_clause_is_told(self):
        self.assert_told("worker/x.cc", 'return Error{ErrorCode::kInvalid, "what came is too long"};\n', 1, "opens with a relative clause: what came is")
        self.assert_told("worker/x.cu", 'spdlog::warn("worker {}: whose link is slow waits", id);\n', 1, "opens with a relative clause: worker X: whose")
        self.assertEqual(self.source("worker/x.cc", 'Say("worker {}: too long", R"(What is a page)", \'"\', "what");\n'), (0, []))
        self.assertEqual(self.source("worker/x.cc", 'Say("what does it cost?");\n'), (0, []))

    def test_a_noun_that_is_left_out_is_told(self):
        self.assert_told("python/lockstep/x.py", 'raise UsageError(f"{name} is not one of torch\'s, take another")\n', 1, "leaves out a noun: ")
        self.assertEqual(self.source("python/lockstep/x.py", 'raise UsageError("the end of torch\'s own loop")\n'), (0, []))

    def test_docstrings_and_strings_of_python_are_held_to_the_limits(self):
        words = " ".join(["word"] * 16)
        text = f'def f():\n    """{words}\n    {words}.\n\n    - {words}\n    - {words}\n    """\n'
        self.assert_told("python/lockstep/x.py", text, 2, "32 words in a sentence")
        self.assertEqual(self.source("python/lockstep/x.py", text.replace("word\n    word", "word.\n    Word")), (0, []))
        self.assert_told("tools/x", f'#!/usr/bin/env python3\nsay(f"{{a}} {words} " + name + " {words}")\n', 2, "34 words in a sentence")
        self.assert_told("tools/x", '#!/usr/bin/env python3\nparser.add_argument("--x", help="what is read")\n', 2, "opens with a relative")
        self.assertEqual(self.source("tools/x", '#!/usr/bin/env python3\n# What is read\nCODE = "import os\\n# What\\n"\n'), (0, []))
        self.assertEqual(self.source("tools/x.txt", 'help="what is read"\n'), (0, []))

    def test_a_usage_text_of_a_shell_script_is_held_to_the_limits(self):
        words = " ".join(["word"] * 16)
        usage = f"usage: x [--a] {words} {words}\n\nRuns it.\n\n  --a  {words}\n       {words}\n  --b  {words}\n"
        text = f"#!/usr/bin/env bash\nusage() {{\n  cat <<'TEXT'\n{usage}TEXT\n}}\n"
        self.assert_told("tools/x", text, 8, "32 words in a sentence")
        self.assertEqual(self.source("tools/x", text.replace("word\n       word", "word.\n       Word")), (0, []))
        self.assert_told(".ci/x", '#!/usr/bin/env bash\n# What is told\nfail "$name: what is left of it"\n', 3, "opens with a relative clause")

    def test_a_source_that_is_no_python_is_one_line(self):
        status, lines = self.source("tools/x.py", "def\n")
        self.assertEqual((status, len(lines)), (2, 1), lines)

    def test_limits_that_are_not_there_are_one_line(self):
        self.limits.unlink()
        result = self.lint()
        self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1))


if __name__ == "__main__":
    unittest.main()
