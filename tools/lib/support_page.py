"""Makes docs/reference/support.md, the support matrix, from docs/reference/support.json: python3 tools/lib/support_page.py"""

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "reference"
DATA, PAGE = FOLDER / "support.json", FOLDER / "support.md"

STATUSES = {
    "CI": "A test covers it, and `.ci/run` runs it for each change. A test without its needs is skipped and says why.",
    "tried": "It ran once, with that version or on that day. No test repeats it.",
    "not tried": "Nobody has run it. Nothing stands against it.",
    "refused": "Lockstep ends with one line that says so, or takes another way and says so.",
}
KEYS = {"what", "status", "version", "when", "note"}
COLUMNS = ("item", "status", "version, day", "note")

HEAD = """<!-- made from support.json by tools/lib/support_page.py: change that file -->
# What is supported

This page says where Lockstep has run. To check your own machine, run [`lockstep-doctor`](../guides/check-a-machine.md).

| status | meaning |
|---|---|
"""


def _row(cells):
    return "| " + " | ".join(cells) + " |\n"


def checked(data):
    """Returns the sections, or raises ValueError with the error."""
    for section in data["sections"]:
        for row in section["rows"]:
            if not set(row) <= KEYS or not row.get("what") or row.get("status") not in STATUSES:
                raise ValueError(f"{section['title']}: {row}")
            if row["status"] == "tried" and not (row.get("version") and row.get("when")):
                raise ValueError(f"{section['title']}: {row['what']}: a row that was tried has a version and a day")
    return data["sections"]


def page():
    text = HEAD + "".join(_row((f"**{status}**", meaning)) for status, meaning in STATUSES.items())
    for section in checked(json.loads(DATA.read_text(encoding="utf-8"))):
        text += f"\n## {section['title']}\n\n" + (f"{section['note']}\n\n" if "note" in section else "")
        text += _row(COLUMNS) + _row(["---"] * len(COLUMNS))
        for row in section["rows"]:
            version = ", ".join(row[key] for key in ("version", "when") if key in row)
            text += _row([row["what"], row["status"], version, row.get("note", "")])
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
