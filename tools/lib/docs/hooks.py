"""Tells mkdocs about the tree: the pages beside docs/, pages that are made, links, and the order of the navigation.

A page of docs/ keeps its path on the site, README.md is the start page, and whatever else a page links to is a page below tree/.
"""

import posixpath
import re
import sys
from pathlib import Path
from urllib.parse import quote, unquote

sys.path.insert(0, str(Path(__file__).resolve().parent))
import made_pages  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
SECTIONS = (("Start", "start"), ("Guides", "guides"), ("Explanation", "explanation"), ("Reference", "reference"), ("Project", "project"),
            ("Glossary", "glossary.md"), ("Benchmarks", "benchmarks.md"), ("Reports", "reports"))
PROJECT = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")  # beside docs/project
LANGUAGES = {".cc": "cpp", ".h": "cpp", ".py": "python", ".ini": "ini", ".yml": "yaml", ".yaml": "yaml", ".json": "json", ".sh": "bash"}
FENCE = r"^(?P<indent> *)(?P<fence>```+|~~~+)[^\n]*\n(?:.*?\n)??(?P=indent)(?P=fence)[`~]* *$"
CODE_OR_LINK = re.compile(rf"{FENCE}|`[^`\n]+`|\]\(<?(?P<target>[^()<>\s]+)>?(?P<title> \"[^\"]*\")?\)", re.MULTILINE | re.DOTALL)
ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:|//|#", re.IGNORECASE)
ITEM = re.compile(r"( *)((?:[*+-]|\d+[.)]) +)(?=\S)")

MANY_FILES = 12  # those of a larger folder get no pages

sources = {}  # of a page on the site: the path in the tree


def place(path):
    """The place of a path of the tree on the site."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"tree/{path}" if path.endswith(".md") else f"tree/{path}/index.md" if (ROOT / path).is_dir() else f"tree/{path}.md"


def linked(path, text):
    """The paths in the tree of a page's relative links, with the place of each in the text."""
    for match in CODE_OR_LINK.finditer(text):
        target = match["target"]
        if target and not ELSEWHERE.match(target):
            file, _, anchor = target.partition("#")
            yield match, posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(file))), anchor


def with_links_of_site(path, text):
    here, parts, end = posixpath.dirname(place(path)), [], 0
    for match, to, anchor in linked(path, text):
        if to.startswith("..") or not (ROOT / to).exists():
            continue  # mkdocs reports that it leads nowhere
        link = quote(posixpath.relpath(place(to), here or "."))
        parts += [text[end:match.start()], f"]({link}{'#' if anchor else ''}{anchor}{match['title'] or ''})"]
        end = match.end()
    return "".join([*parts, text[end:]])


def indented(text):
    """Lists in the form of Python-Markdown: an item's text is indented by four, and a blank line comes before the first one."""
    lines, items, fence, before = [], [], None, ""
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip(" "))
        if fence:
            lines.append(line if not line.strip() else "    " * len(items) + line[min(indent, items[-1] if items else 0):])
            fence = None if re.fullmatch(rf" *{fence}[`~]* *", line) else fence
            continue
        if not line.strip() or re.fullmatch(r" *<!--.*-->", line):
            lines.append("")
            before = ""
            continue
        item, opened, in_list = ITEM.match(line), re.match(r" *(```+|~~~+)", line), bool(items)
        while items and indent < items[-1] and (item or opened or not before):
            items.pop()
        if item:
            if not in_list and before:
                lines.append("")
            lines.append("    " * len(items) + line[indent:])
            items.append(item.end())
        else:
            lines.append("    " * len(items) + line[min(indent, items[-1] if items else 0):])
        fence = opened and opened[1]
        before = line
    return "\n".join(lines) + "\n"


def source_page(path):
    """A file or a folder of the tree as a page."""
    file = ROOT / path
    head = f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n"
    if file.is_dir():
        names = sorted(each.name + "/" * each.is_dir() for each in file.iterdir() if not each.name.startswith((".", "__")))
        few = len(names) <= MANY_FILES and not any(name.endswith("/") for name in names)
        return head + "".join(f"* [{name}]({posixpath.basename(path)}/{name})\n" if few else f"* {name}\n" for name in names)
    text = file.read_text(encoding="utf-8")
    fence = "`" * (1 + max(3, *map(len, re.findall("`+", text)), 3))
    first = text.partition("\n")[0]
    language = LANGUAGES.get(file.suffix) or ("bash" if first.endswith("bash") else "python" if first.endswith("python3") else "text")
    return f"{head}{fence}{language}\n{text.rstrip()}\n{fence}\n"


def pages_of_tree():
    """README.md, and the pages that it, docs/ and each other link to: their paths and texts."""
    found = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))}
    waiting = ["README.md", *PROJECT, *found]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = (ROOT / path).read_text(encoding="utf-8") if path.endswith(".md") else source_page(path)
        # A folder's page links to its files as if the page were beside the folder.
        waiting += [to for _, to, _ in linked(path, found[path])
                    if to not in found and (ROOT / to).exists() and not to.startswith("..") and not (to.startswith("docs/") and not to.endswith(".md"))]
    return {path: text for path, text in found.items() if not path.startswith("docs/")}


def title_of(text):
    return re.search(r"^# +(.*?) *$", text, re.MULTILINE)[1].replace("`", "")


def navigation(texts):
    """They are ordered by purpose. Within a section the index page or README.md gives the order, then the title."""
    of_readme = [place(to) for _, to, _ in linked("README.md", (ROOT / "README.md").read_text(encoding="utf-8"))]
    result = [{"Overview": "index.md"}]
    for name, at in SECTIONS:
        if at.endswith(".md"):
            result += [{name: at}] if at in texts else []
            continue
        pages = [page for page in texts if page.startswith(f"{at}/")]
        index = next((page for page in (f"{at}/index.md", f"{at}/README.md") if page in texts), None)
        order = [place(to) for _, to, _ in linked(f"docs/{index}", texts[index])] if index else of_readme
        pages.sort(key=lambda page: (page != index, order.index(page) if page in order else len(order), title_of(texts[page])))
        pages += [place(path) for path in PROJECT] if at == "project" else []
        result += [{name: pages}] if pages else []
    return result


def on_files(files, config):
    from mkdocs.structure.files import File  # not where a test reads this file

    for path, text in pages_of_tree().items():
        if path == "README.md":
            text = f"---\nhide: [navigation]\n---\n{text}"  # it would show itself alone
        files.append(File.generated(config, place(path), content=text))
        sources[place(path)] = path
    for path, text in made_pages.made(ROOT).items():
        files.append(File.generated(config, path, content=text))
        sources[path] = None
    files.append(File.generated(config, "assets/site.css", content=Path(__file__).with_name("site.css").read_text(encoding="utf-8")))
    config.nav = navigation({file.src_uri: file.content_string for file in files.documentation_pages()})
    return files


def on_page_markdown(markdown, page, config, files):
    path = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return indented(with_links_of_site(path, markdown) if path else markdown)
