"""No code waits a fixed time for something that it could wait for by event.

usage: check_sleeps.py ROOT
"""

import re
import sys
from pathlib import Path

import source_tree

# Path: why a fixed wait is right there. An entry that is no longer needed is an error.
ALLOWED = {
    "python/lockstep/_initial.py": "looks for a file, or a key of torch's store, whose own wait hears no Ctrl-C",
    "python/lockstep/_launched.py": "the same store",
    "python/lockstep/horovod.py": "the same store",
    "python/lockstep/_spark_task.py": "the pause before a worker is started again, in which it looks whether Spark's process lives",
    "python/lockstep/spark.py": "asks Spark again and again how many slots it has; no event tells its Python",
    "tests/docs/blocks_test.py": "looks at the files that a page's shell writes again and again, until a block has ended",
    "tests/cluster/harness.py": "looks at the files of other processes again and again, until what it waits for holds",
    "tests/python/test_spark.py": "scripts that look for a file until it is there",
    "tests/python/test_package.py": "the backward pass of the worker whose overlap is looked at takes so long, and one that is away stays away",
    "tests/python/test_torch_end.py": "scripts that look for a file, or for the coordinator's word, until it is there",
    "tests/python/test_torch_launch.py": "looks at files of workers, and at /proc, until what it waits for is there",
    "tests/python/test_torch_launchers.py": "a worker looks for a checkpoint, which another one writes, until it is there",
    "tests/python/test_torch_loggers.py": "steps take a time, so that W&B's writer, which tells nobody when it has written, keeps up",
    "tests/python/test_torch_launched.py": "a clock of its own takes the place of the wait",
    "tests/python/test_torch_loader.py": "the emulated disk and model of a worker that is slow at one of them",
    "tests/python/torch_loader.py": "the emulated disk and model of a report in docs/reports; its tests are not slowed",
    "tests/unit/control_tools/slowdown_test.py": "polls /proc: the state of a process cannot be waited for",
    "tests/unit/control/channel_failure_test.cc": "the sleep is what is tested: an event loop that was stopped",
    "worker/runtime/coordinator_search.cc": "the pause before it asks a coordinator again that it does not follow",
    "tools/bench/exchange_worker.cc": "stands for an accelerator that computes, where --idle says so",
    "tools/lib/lockstep_chaos/place.py": "looks at /proc again and again: no event tells that other processes' children have ended",
    "tools/experiments/peers/pytorch_script.py": "the emulated stragglers of bench-pytorch",
    "tools/experiments/peers/faults_script.py": "the emulated accelerator and straggler of bench-faults",
    "tools/experiments/peers/lengths_script.py": "the emulated straggler of bench-lengths",
    "tests/python/torch_costs.py": "samples that take longer than others",
}

CPP_SLEEP = re.compile(r"\b(?:sleep_for|sleep_until|usleep|clock_nanosleep|nanosleep)\b|(?<![\w.>])sleep\s*\(")
PYTHON_SLEEP = re.compile(r"\btime\.sleep\b|\bfrom time import\b.*\bsleep\b")


def sleeps(root):
    """path: lines with a sleep."""
    found = {}
    for path in source_tree.files(root, source_tree.CPP_ENDINGS + (".py",)):
        text = (Path(root) / path).read_text(encoding="utf-8")
        is_python = path.endswith(".py")
        code = re.sub(r"(?m)#.*$", "", text) if is_python else source_tree.code_only(text)
        lines = [source_tree.line_of(code, match.start()) for match in (PYTHON_SLEEP if is_python else CPP_SLEEP).finditer(code)]
        if lines:
            found[path] = lines
    return found


def problems(found, allowed):
    result = [f"{path}:{line}: sleeps; wait for the event, or say in check_sleeps.py why not"
              for path, lines in found.items() if path not in allowed for line in lines]
    return result + [f"{path}: is allowed to sleep and does not" for path in allowed if path not in found]


def main():
    found = problems(sleeps(sys.argv[1]), ALLOWED)
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
