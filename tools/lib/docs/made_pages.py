"""Makes the pages of the site that have a source elsewhere: --help of the programs and scripts, docstrings, comments of the C header."""

import ast
import concurrent.futures
import functools
import os
import posixpath
import re
import subprocess
import sys
import textwrap

PROGRAMS = ("lockstep-coordinator", "lockstep-worker", "lockstep-simulate", "lockstep-bench", "lockstep-doctor")
COMMANDS = ("run", "status", "ctl", "compare", "export")  # of `lockstep`; its other modules are programs
PATIENCE_S = 60
WIDTH = 88  # of a line of code


class CannotMake(Exception):
    """One line."""


@functools.cache
def help_of(command, root):
    environment = {**os.environ, "COLUMNS": "90", "PYTHONPATH": f"{root}/python", "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"}
    try:
        done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL, env=environment, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotMake(f"{' '.join(command)} --help: {error}") from None
    if done.returncode != 0:
        raise CannotMake(f"{' '.join(command)} --help ends with status {done.returncode}: {done.stderr.strip()[-200:]}")
    return done.stdout.rstrip()


def programs_folder(root):
    builds = [folder for folder in sorted((root / "build").glob("*/bin"), key=lambda path: (path.parent.name != "release", path)) if (folder / PROGRAMS[0]).exists()]
    return builds[0] if builds else None


def executables(folder):
    return sorted(path for path in folder.iterdir() if path.is_file() and os.access(path, os.X_OK))


def command_lines(root):
    built = programs_folder(root)
    groups = [
        ("Programs", [(name, (f"{built}/{name}",)) for name in PROGRAMS if built and (built / name).exists()]),
        ("The command lockstep", [(f"lockstep {name}".strip(), (sys.executable, "-m", "lockstep", *name.split())) for name in ("", *COMMANDS)]),
        ("Scripts", [(f"tools/{path.name}", (str(path),)) for path in executables(root / "tools")]),
        ("Scripts that measure", [(f"tools/experiments/{path.name}", (str(path),)) for path in executables(root / "tools" / "experiments")]),
    ]
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        every = [each for _, some in groups for each in some]
        texts = dict(zip((name for name, _ in every), pool.map(lambda each: help_of(each[1], root), every), strict=True))
    parts = ["# Command lines\n\nThis page is the `--help` of each program and script. [Command lines and exit statuses](operations.md) explains what they do.\n"]
    for title, some in groups:
        parts.append(f"## {title}\n")
        if title == "Programs" and not built:
            parts.append("The programs were not built when this page was made: run `cmake --preset release && cmake --build build/release`, then `tools/docs`.\n")
        parts += [f"### {name}\n\n````text\n{texts[name]}\n````\n" for name, _ in some]
    return "\n".join(parts)


def docstring(node):
    return textwrap.dedent(ast.get_docstring(node) or "").strip()


def with_links(text):
    """The pages that a comment names, for a page of reference/."""
    return re.sub(r"`?docs/([\w/-]+\.md)`?", lambda match: f"[{match[1]}]({posixpath.relpath(match[1], 'reference')})", text)


def as_markdown(text):
    """A docstring's indented lines are code."""
    text = with_links(text)
    return re.sub(r"(?:^ {4,}\S.*\n?)+", lambda match: "```python\n" + textwrap.dedent(match[0]).rstrip() + "\n```\n", text, flags=re.MULTILINE)


def signature(node, name):
    if isinstance(node, ast.ClassDef):
        begin = next((each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)
        return f"class {name}({arguments(begin) if begin and not docstring(node).startswith('What') else ''})".replace("()", "")
    end = f") -> {ast.unparse(node.returns)}" if node.returns else ")"
    line = f"{name}({arguments(node)}{end}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {each.removeprefix('*, ')}," for each in re.split(r", (?=\w+:)", arguments(node))), end])


def arguments(node):
    return re.sub(r"^self(?:, |$)", "", ast.unparse(node.args))


def is_overload(node):
    return any("overload" in ast.unparse(each) for each in node.decorator_list)


def members(node):
    """Public methods and properties with a docstring."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_") and not is_overload(each) and docstring(each):
            yield each, any(ast.unparse(mark) in ("property", "functools.cached_property") for mark in each.decorator_list)


def described(node, name, level):
    parts = [f"{'#' * level} {name}\n\n```python\n{signature(node, name)}\n```\n", as_markdown(docstring(node)) + "\n"]
    for each, is_property in members(node) if isinstance(node, ast.ClassDef) else ():
        of = f"{name}.{each.name}"
        code = f"{of}: {ast.unparse(each.returns)}" if is_property and each.returns else of if is_property else signature(each, of)
        parts.append(f"{'#' * (level + 1)} {of}\n\n```python\n{code}\n```\n\n{as_markdown(docstring(each))}\n")
    return "\n".join(parts)


def top_level(path):
    return {node.name: node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not is_overload(node)}


def python(root):
    package = root / "python" / "lockstep"
    tree = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    where = {name.asname or name.name: (package / f"{node.module.partition('.')[2]}.py", name.name)
             for node in tree.body if isinstance(node, ast.ImportFrom) and node.module.startswith("lockstep.") for name in node.names}
    public = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    nodes = {name: top_level(where[name][0]).get(where[name][1]) for name in public}
    parts = ["# Python package\n\nThis page is made of the docstrings of `lockstep`. [The PyTorch page](pytorch-api.md) says what is supported and what is refused.\n",
             described(nodes["init"], "lockstep.init", 2), described(top_level(package / "_job.py")["Job"], "Job", 2)]
    parts += [described(nodes[name], f"lockstep.{name}", 2) for name in public if name != "init" and nodes[name]]
    for module, name in (("huggingface", "Trainer"), ("lightning", "Strategy"), ("accelerate", "Accelerator")):
        parts.append(described(top_level(package / f"{module}.py")[name], f"lockstep.{module}.{name}", 2))
    jax, loop = top_level(package / "jax.py"), top_level(package / "_loop.py")
    jax["Job"].body += loop["Loop"].body
    parts += [described(node, f"lockstep.jax.{node.name}", 2) for node in (jax["init"], jax["Job"], loop["Batch"])]
    parts.append(described(top_level(package / "keras.py")["fit"], "lockstep.keras.fit", 2))
    parts.append(described(top_level(package / "spark.py")["run"], "lockstep.spark.run", 2))
    rows = top_level(package / "_spark_rows.py")
    parts += [described(rows[name], f"lockstep.spark.{name}", 2) for name in ("parquet", "rows", "Rows")]
    on_ray = top_level(package / "ray.py")
    parts += [described(on_ray[name], f"lockstep.ray.{name}", 2) for name in ("Trainer", "Result", "report")]
    return "\n".join(parts)


def comment_text(comment):
    lines = [re.sub(r"^ ?\* ?", "", line.strip()) for line in comment.strip().removeprefix("/*").removesuffix("*/").splitlines()]
    return with_links("\n".join(lines).strip())


def c(root):
    text = (root / "worker" / "capi" / "lockstep.h").read_text(encoding="utf-8")
    head, body = re.match(r"(/\*.*?\*/)\n(.*)", text, re.DOTALL).groups()
    body = re.sub(r"^#(?:ifndef|endif|ifdef|include).*\n|^extern \"C\" \{\n|^\}\n", "", body.replace("#define LOCKSTEP_H\n", ""), flags=re.MULTILINE)
    parts = [f"# lockstep.h\n\nThis page is the header of the C interface. [The C interface](c-interface.md) explains it and has an example.\n\n{comment_text(head)}\n"]
    # A comment in the first column belongs to the declarations up to the next one or a blank line.
    for match in re.finditer(r"(?P<comment>^/\*.*?\*/\n)?(?P<code>(?:^(?!/\*)[^\n]+\n)+)|(?P<alone>^/\*.*?\*/)", body, re.MULTILINE | re.DOTALL):
        comment, code = match["comment"] or match["alone"], match["code"]
        names = re.findall(r"^\} (\w+);|^#define (\w+)|^typedef struct \w+ (\w+);|\b(lockstep_\w+)\(", code or "", re.MULTILINE)
        names = [name for group in names for name in group if name]
        if names:
            parts.append("## " + ", ".join(dict.fromkeys(names)) + "\n")
        if comment:
            parts.append(comment_text(comment) + "\n")
        if code:
            parts.append(f"```c\n{code.rstrip()}\n```\n")
    return "\n".join(parts)


def made(root):
    return {"reference/command-lines.md": command_lines(root), "reference/python.md": python(root), "reference/c.md": c(root)}
