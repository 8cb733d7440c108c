"""The pages of tools/docs: links and lists as the site wants them, and the pages that are made from the tree.

usage: site_test.py ROOT
"""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "tools" / "lib" / "docs"))
import hooks  # noqa: E402
import made_pages  # noqa: E402


class SiteTest(unittest.TestCase):
    def test_links_lead_to_the_places_on_the_site(self):
        text = "[a](../README.md) [b](../glossary.md#c) [d](../../README.md#e) ![f](../images/policies.svg) `[g](../glossary.md)` [h](https://i.j)\n"
        self.assertEqual(hooks.with_links_of_site("docs/start/pytorch.md", text.replace("(../README.md)", "(../../CMakeLists.txt)")),
                         text.replace("(../README.md)", "(../tree/CMakeLists.txt.md)").replace("(../../README.md#e)", "(../index.md#e)"))
        self.assertEqual(hooks.with_links_of_site("README.md", "[a](docs/glossary.md) [b](examples/slurm)"), "[a](glossary.md) [b](tree/examples/slurm/index.md)")
        code = "```sh\n[a](../glossary.md)\n```\n"
        self.assertEqual(hooks.with_links_of_site("docs/start/pytorch.md", code), code)

    def test_lists_are_indented_by_four(self):
        self.assertEqual(hooks.indented("Text:\n* a\n  * b\n\n    c\n  ```sh\n    d\n  ```\n* e\n\nf\n1. g\n\n   <!-- h -->\n   i\n"),
                         "Text:\n\n* a\n    * b\n\n        c\n    ```sh\n      d\n    ```\n* e\n\nf\n\n1. g\n\n\n    i\n")

    def test_the_python_page_has_what_is_public(self):
        page = made_pages.python(ROOT)
        for heading in ("lockstep.init", "Job.prepare", "lockstep.Session.next", "lockstep.lightning.Strategy", "lockstep.huggingface.Trainer",
                        "lockstep.accelerate.Accelerator",
                        "lockstep.jax.init", "lockstep.jax.Job.step", "lockstep.jax.Job.stop", "lockstep.jax.Batch.weights", "lockstep.keras.fit"):
            self.assertRegex(page, rf"(?m)^##+ {re.escape(heading)}$")

    def test_the_c_page_has_each_function_of_the_header(self):
        page = made_pages.c(ROOT)
        header = (ROOT / "worker" / "capi" / "lockstep.h").read_text(encoding="utf-8")
        functions = set(re.findall(r"^[a-z][\w* ]*\b(lockstep_\w+)\(", header, re.MULTILINE))
        self.assertGreater(len(functions), 20)
        headings = set(re.findall(r"lockstep_\w+", "".join(re.findall(r"^## .*$", page, re.MULTILINE))))
        self.assertEqual(functions - headings, set())
        self.assertNotIn("extern", page)


if __name__ == "__main__":
    unittest.main()
