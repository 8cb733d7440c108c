"""docs/reference/support.md says what docs/reference/support.json says.

usage: support_page_test.py ROOT
"""

import sys
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "tools" / "lib"))
import support_page  # noqa: E402


class SupportPageTest(unittest.TestCase):
    maxDiff = None

    def test_it_is_made_from_the_data(self):
        self.assertEqual(support_page.PAGE.read_text(encoding="utf-8"), support_page.page(), "write it anew with python3 tools/lib/support_page.py")

    def test_data_that_say_too_little_are_refused(self):
        for row in ({"what": "a", "status": "maybe"}, {"status": "CI"}, {"what": "a", "status": "CI", "remark": "b"}, {"what": "a", "status": "tried", "version": "1"}):
            with self.subTest(row), self.assertRaises(ValueError):
                support_page.checked({"sections": [{"title": "A", "rows": [row]}]})


if __name__ == "__main__":
    unittest.main()
