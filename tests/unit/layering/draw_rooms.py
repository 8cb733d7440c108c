"""Writes into docs/project/architecture.md what the rooms of each folder include, as a drawing (Mermaid) made from the sources.

usage: draw_rooms.py ROOT [--check]

What the rooms may include stands in check_layers.py. --check changes nothing and fails where the page is not current.
"""

import argparse
import sys
from pathlib import Path

import check_layers
import source_tree

PAGE = "docs/project/architecture.md"
BEGIN, END = "<!-- draw_rooms.py: begin -->\n", "<!-- draw_rooms.py: end -->\n"
DRAWN = ("base", "policies", "transport", "coordinator", "worker")


def room(path):
    folder, inner = path.split("/")[0], check_layers.room_of(path)
    return f"{folder}/{inner}" if inner and folder in check_layers.ROOMS else folder


def include_graph(root):
    """{room: the other rooms that its files include}"""
    graph = {}
    for path in source_tree.files(root):
        if path.split("/")[0] not in DRAWN:
            continue
        found = graph.setdefault(room(path), set())
        for _, quoted, name in source_tree.includes((Path(root) / path).read_text(encoding="utf-8")):
            if quoted and (Path(root) / name).is_file():
                found.add(room(name))
        found.discard(room(path))
    return graph


def without_shortcuts(graph):
    """Only the arrows that do not follow from others."""
    def reached(start, seen):
        for other in graph[start] - seen:
            seen.add(other)
            reached(other, seen)
        return seen

    return {start: {end for end in ends if not any(end in reached(other, set()) for other in ends - {end})}
            for start, ends in graph.items()}


def label(name):
    folder, _, inner = name.partition("/")
    return inner or ('"files beside the rooms"' if folder in check_layers.ROOMS else folder)


def drawing(graph):
    lines = ["flowchart TD"]
    for folder in DRAWN:
        rooms = sorted(name for name in graph if name.startswith(f"{folder}/"))
        lines += [f"  subgraph {folder}-rooms [{folder}]"] if rooms else []
        lines += [f"  {'  ' if rooms else ''}{name.replace('/', '_')}[{label(name)}]"
                  for name in [*([folder] if folder in graph else []), *rooms]]
        lines += ["  end"] if rooms else []
    lines += [f"  {start.replace('/', '_')} --> {end.replace('/', '_')}"
              for start, ends in sorted(without_shortcuts(graph).items()) for end in sorted(ends)]
    return "".join(f"{line}\n" for line in lines)


def current(page, root):
    """The page with the drawing as it should be."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "```mermaid\n" + drawing(include_graph(root)) + "```\n" + END + rest.split(END)[1]


def main():
    parser = argparse.ArgumentParser(usage="draw_rooms.py ROOT [--check]")
    parser.add_argument("root", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    page = options.root / PAGE
    text = page.read_text(encoding="utf-8")
    new = current(text, options.root)
    if new == text:
        return 0
    if options.check:
        print(f"{PAGE} does not show the rooms as they are: run tests/unit/layering/draw_rooms.py .", file=sys.stderr)
        return 1
    page.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
