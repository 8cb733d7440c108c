"""Every relative link in the Markdown files of the tree leads to a file, and its anchor to a heading.

usage: links_test.py ROOT
"""

import re
import sys
import tempfile
import unittest
from pathlib import Path
from urllib.parse import unquote

ROOT = None
NOT_OURS = {"build", "runs", "node_modules"}
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[`~]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(<?([^()<>\s]+)>?(?: \"[^\"]*\")?\)")
ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:|//", re.IGNORECASE)


def pages(root):
    for path in sorted(root.rglob("*.md")):
        folders = path.relative_to(root).parts[:-1]
        if not any(part in NOT_OURS or part.startswith((".", "build-")) for part in folders):
            yield path


def prose(path):
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(text):
    """As GitHub makes them of headings, and those that are given by hand."""
    found, seen = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text)), {}
    for heading in re.findall(r"^#{1,6} +(.*?)(?: +#+)? *$", text, re.MULTILINE):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found


def mistakes(root):
    texts = {path.resolve(): prose(path) for path in pages(root)}
    known = {path: anchors(text) for path, text in texts.items()}
    for path, text in texts.items():
        for target in LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
            if ELSEWHERE.match(target):
                continue
            file, _, anchor = unquote(target).partition("#")
            to = (path.parent / file).resolve() if file else path
            if not to.exists():
                yield f"{path.relative_to(root)}: there is no {target}"
            elif anchor and anchor not in known.get(to, ()):
                yield f"{path.relative_to(root)}: {target}: no heading has this anchor"


class LinksTest(unittest.TestCase):
    maxDiff = None

    def test_every_link_leads_somewhere(self):
        self.assertGreater(len(list(pages(ROOT))), 20)
        self.assertEqual(list(mistakes(ROOT)), [])

    def test_what_leads_nowhere_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            (root / "a.md").write_text("# A `b` c's\n## Twice\n## Twice\n[1](b.md) [2](b.md#no) [3](#a-b-cs) [4](#twice-1) [5](#twice-2) "
                                       "![6](no.svg) `[7](no)` [8](https://a.b/no)\n```\n# No\n[9](no)\n```\n[10](#no)\n")
            (root / "b.md").write_text("text\n")
            self.assertEqual([line.split(": ", 1)[1].split(":")[0] for line in mistakes(root)], ["b.md#no", "#twice-2", "there is no no.svg", "#no"])


if __name__ == "__main__":
    ROOT = Path(sys.argv.pop(1)).resolve()
    unittest.main()
