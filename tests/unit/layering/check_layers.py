"""Holds the sources to these tables: which folder and which of its rooms may include what, and who names UCX, CUDA and BLAS.

usage: check_layers.py ROOT [--pure FILE]

FILE lists the sources, relative to ROOT, one a line, of the libraries that are to be pure: lockstep_coordinator_core and
lockstep_worker_core. They and every header of their own folder that they reach do no I/O, read no clock and start no thread.
"""

import argparse
import graphlib
import re
import sys
from pathlib import Path

import source_tree

# What each folder may include: folders of this tree, and libraries (None: any). `std` stands for the standard library.
RULES = {
    "base": ({"base"}, {"std", "boost", "fmt", "spdlog"}),
    "policies": ({"base", "policies"}, {"std", "fmt"}),
    "transport": ({"base", "transport"}, None),
    "coordinator": ({"base", "policies", "transport", "coordinator"}, None),
    "worker": ({"base", "policies", "transport", "worker"}, None),
    "tools": ({"base", "policies", "transport", "coordinator", "worker", "tools"}, None),
    "examples": ({"base", "policies", "transport", "coordinator", "worker", "examples"}, None),
    "tests": ({"base", "policies", "transport", "coordinator", "worker", "tools", "examples", "tests"}, None),
}

# Inside a folder with rooms: the other rooms that each may include, without a cycle. A room that is not named here is an error.
# Files beside the rooms are below them all.
ROOMS = {
    "coordinator": {
        "job": set(),
        "round": {"job"},
        "membership": {"job", "round"},
        "core": {"job", "round", "membership"},
        "record": {"job"},
        "checkpoint": {"job", "record"},
        "journal": {"job", "record", "checkpoint"},
        "http": {"job"},
        "shell": {"job", "core", "record", "checkpoint", "http", "journal"},
    },
    "worker": {
        "layout": set(),
        "optimizer": set(),
        "data": set(),
        "core": {"layout"},
        "memory": {"layout", "optimizer"},
        "compute": {"memory", "optimizer"},
        "models": {"compute", "data"},
        "runtime": {"layout", "core", "memory", "compute", "optimizer"},
        "capi": {"runtime", "memory", "compute"},
        "program": {"runtime", "memory", "compute", "models", "data"},
    },
    "transport": {
        "tls": set(), "ucx": set(), "inproc": set(), "mapping": set(), "staging": set(), "paths": set(),
        "control": {"tls"},
        "tcp": {"tls"},
        "factory": {"tcp", "ucx"},
    },
}

# Pure code: its own folder and these.
PURE_FOLDERS = {"base", "policies"}
PURE_LIBRARIES = {"std", "fmt", "nlohmann"}
IMPURE_STANDARD_HEADERS = {
    "barrier", "condition_variable", "filesystem", "fstream", "future", "iostream", "latch", "mutex",
    "semaphore", "shared_mutex", "stop_token", "syncstream", "thread", "csignal", "ctime",
}
IMPURE_NAMES = re.compile(r"\b\w+_clock\s*::\s*now\b|\bstd\s*::\s*(?:thread|jthread|mutex|random_device)\b")


def in_ucx(path):
    return path.startswith(("transport/ucx/", "tests/unit/transport_ucx/"))


def in_cuda(path):
    return path.endswith((".cu", ".cuh")) or not {"cuda", "cuda_on_cpu"}.isdisjoint(path.split("/")[:-1])


def in_blas(path):
    return path.startswith("worker/compute/cpu/")


# (what, names in code, names of headers, where they may stand, said in words)
OWNED_NAMES = (
    ("UCX", re.compile(r"\b(?:uc[pst]_[a-z]\w*|UC[PST]_[A-Z]\w*)"), re.compile(r"^uc[pstm]/"), in_ucx, "transport/ucx"),
    ("CUDA", re.compile(r"\b(?:cuda[A-Z]\w*|cu(?:blas|dnn|rand|fft|Ctx|Device|Mem|Stream)\w*|CUDA_[A-Z]\w*|CU_[A-Z]\w*"
                        r"|__(?:global|device|shared|host|constant)__)|<<<"),
     re.compile(r"^(?:cuda|cublas|cudnn|curand)|\.cuh$"), in_cuda, "cuda/ folders and .cu files"),
    ("BLAS", re.compile(r"\b(?:cblas_\w+|Cblas\w+|openblas_\w+|blasint)\b"), re.compile(r"^(?:cblas|openblas|f77blas)"),
     in_blas, "worker/compute/cpu"),
)


def library(header):
    """Whose header <header> is: std, a library's folder, or the name itself for C and system headers."""
    if "/" in header:
        return header.split("/")[0]
    return header if header.endswith((".h", ".hpp")) else "std"


def room_of(path):
    """The folder inside a top folder in which <path> lies, whatever is deeper; empty: in none."""
    parts = path.split("/")
    return parts[1] if len(parts) > 2 else ""


def cycles(rooms):
    """The folders whose rooms may include each other in a circle, each with one such circle."""
    problems = []
    for folder, allowed in rooms.items():
        try:
            graphlib.TopologicalSorter(allowed).prepare()
        except graphlib.CycleError as error:
            problems.append(f"{folder}: the rooms may include each other in a circle: {' <- '.join(error.args[1])}")
    return problems


class Checker:
    def __init__(self, root, pure_sources):
        self.root = Path(root)
        self.pure_sources = pure_sources
        self.texts = {path: (self.root / path).read_text(encoding="utf-8") for path in source_tree.files(self.root)}
        self.problems = []

    def check(self):
        for path, text in self.texts.items():
            folder = path.split("/")[0]
            if folder not in RULES:
                self._problem(path, 1, f"no rule says what {folder}/ may include")
                continue
            if folder in ROOMS and room_of(path) not in {"", *ROOMS[folder]}:
                self._problem(path, 1, f"no rule says what {folder}/{room_of(path)}/ may include")
                continue
            self._check_includes(path, text, *RULES[folder])
            self._check_owned_names(path, text)
        self._check_pure()
        return self.problems

    def _problem(self, path, line, text):
        self.problems.append(f"{path}:{line}: {text}")

    def _check_includes(self, path, text, folders, libraries):
        own = path.split("/")[0]
        for line, quoted, name in source_tree.includes(text):
            if not quoted:
                if libraries is not None and library(name) not in libraries:
                    self._problem(path, line, f"{own} may not include <{name}>")
            elif name in self.texts:
                if name.split("/")[0] not in folders:
                    self._problem(path, line, f'{own} may not include "{name}"')
                elif own in ROOMS and name.split("/")[0] == own and not self._may_enter(path, name):
                    self._problem(path, line, f'{own}/{room_of(path)} may not include "{name}"')
            elif not name.endswith(".pb.h"):
                self._problem(path, line, f'"{name}" is no file of this tree, named from its root')

    @staticmethod
    def _may_enter(path, name):
        """Whether the file <path> may include the header <name> of its own folder."""
        own, room, other = path.split("/")[0], room_of(path), room_of(name)
        allowed = ROOMS[own].get(room, set())
        return room == other or other == "" or other in allowed

    def _check_owned_names(self, path, text):
        code = source_tree.code_only(text)
        for what, names, headers, allowed, where in OWNED_NAMES:
            if allowed(path):
                continue
            for match in names.finditer(code):
                self._problem(path, source_tree.line_of(code, match.start()),
                              f"names {match.group()}, but only {where} may name {what}")
            for line, _, name in source_tree.includes(text):
                if headers.search(name):
                    self._problem(path, line, f"includes {name}, but only {where} may name {what}")
                # Builds without CUDA have none of its headers.
                elif what == "CUDA" and name in self.texts and allowed(name) and self._leads_to(name, headers):
                    self._problem(path, line, f"reaches a header of {what} by {name}, but only {where} may include such")

    def _leads_to(self, path, headers):
        """Whether a file of this tree includes, perhaps by others, a header whose name <headers> finds."""
        seen, waiting = set(), [path]
        while waiting:
            path = waiting.pop()
            if path in seen:
                continue
            seen.add(path)
            for _, _, name in source_tree.includes(self.texts[path]):
                if headers.search(name):
                    return True
                if name in self.texts:
                    waiting.append(name)
        return False

    def _check_pure(self):
        seen, waiting = set(), []
        for source in self.pure_sources:
            if source not in self.texts:
                self._problem(source, 1, "is listed as pure but is no file of this tree")
                continue
            waiting.append(source)
            header = str(Path(source).with_suffix(".h"))
            if header in self.texts:
                waiting.append(header)
        while waiting:
            path = waiting.pop()
            if path in seen:
                continue
            seen.add(path)
            waiting += self._check_pure_file(path)

    def _check_pure_file(self, path):
        """Returns the headers of the same folder that it includes: they are part of the pure code."""
        text, own, reached = self.texts[path], path.split("/")[0], []
        for line, quoted, name in source_tree.includes(text):
            if quoted and name in self.texts:
                folder = name.split("/")[0]
                if folder == own:
                    reached.append(name)
                elif folder not in PURE_FOLDERS:
                    self._problem(path, line, f'pure code may not include "{name}"')
            elif not quoted and (library(name) not in PURE_LIBRARIES or name in IMPURE_STANDARD_HEADERS):
                self._problem(path, line, f"pure code may not include <{name}>")
        code = source_tree.code_only(text)
        for match in IMPURE_NAMES.finditer(code):
            self._problem(path, source_tree.line_of(code, match.start()), f"pure code may not use {match.group()}")
        return reached


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--pure", metavar="FILE")
    options = parser.parse_args()
    pure_sources = Path(options.pure).read_text(encoding="utf-8").split() if options.pure else []
    problems = cycles(ROOMS) + Checker(options.root, pure_sources).check()
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(problems)} violations; {len(pure_sources)} sources held to be pure")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
