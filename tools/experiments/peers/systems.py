"""The systems that bench-peers measures: OpenMPI, Gloo, torch.distributed, Lockstep, and the machine's limits."""

import json
import os
import re
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from processes import Failed, fail

SOURCES = Path(__file__).resolve().parent
ROOT = SOURCES.parents[2]
# Memory that is freed stays with the process, on huge pages: a fresh mapping for each call halves OpenMPI's speed at 100 MB.
MALLOC = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=68719476736:glibc.malloc.hugetlb=1"
# Bytes that a worker of ours has inside and outside of its arena, for each byte of gradient.
COPIES = 12
UCX_START_SECONDS = 10


def rounds_for(size):
    """Enough rounds for a median, in no more than a second or two."""
    return max(4, min(200, (200 << 20) // size))


class Peer:
    """A library to compare with: the settings that may be its best, and a run of one of them."""

    def __init__(self, build, processes):
        self.build = build
        self.processes = processes

    def missing(self):
        """The reason why it cannot be measured; None: it can."""
        raise NotImplementedError

    def prepare(self):
        pass

    def settings(self, workers):
        raise NotImplementedError

    def output(self, workers, work, setting, folder):
        raise NotImplementedError

    def measure(self, workers, sizes, setting, share=1):
        """{bytes: [microseconds of each round]}"""
        work = [f"{size}:{max(3, rounds_for(size) // share)}" for size in sizes]
        with tempfile.TemporaryDirectory(prefix="bench-peers-") as folder:
            out = self.output(workers, work, setting, folder)
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        if [line["bytes"] for line in lines] != list(sizes):
            raise Failed(f"printed {len(lines)} of {len(sizes)} sizes")
        return {line["bytes"]: line["times_us"] for line in lines}

    def compile(self, program, compiler, *libraries):
        source, target = SOURCES / f"{program}.cc", self.build / program
        newest = max(path.stat().st_mtime for path in (source, SOURCES / "measure.h"))
        if not target.exists() or target.stat().st_mtime < newest:
            self.build.mkdir(parents=True, exist_ok=True)
            command = [compiler, "-std=c++17", "-O3", "-march=native", "-I", str(ROOT), "-o", str(target), str(source), *libraries]
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode != 0:
                fail(f"{source} does not compile: {next((l for l in made.stderr.splitlines() if 'error' in l), made.stderr[:200])}")
        return target


class OpenMpi(Peer):
    over_tcp = False

    def missing(self):
        for program in ("mpirun", "mpicxx"):
            if shutil.which(program) is None:
                return f"OpenMPI is not installed (no {program}): tools/install-deps peers"
        return None

    def prepare(self):
        self.program = self.compile("mpi_step", "mpicxx")
        listed = subprocess.run(["ompi_info"], capture_output=True, text=True, check=False).stdout
        self.ucx = re.search(r"MCA pml: ucx", listed) is not None

    def settings(self, workers):
        # The algorithms of `tuned` for Allreduce: its own choice, recursive doubling, ring, segmented ring, Rabenseifner.
        return [f"{layer}/{algorithm}" for layer in (("ob1", "ucx") if self.ucx else ("ob1",)) for algorithm in (0, 3, 4, 5, 6)]

    def output(self, workers, work, setting, folder):
        layer, algorithm = setting.split("/")
        words = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", workers, "--mca", "pml", layer]
        environment = {"GLIBC_TUNABLES": MALLOC, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if layer == "ob1":
            words += ["--mca", "btl", "self,tcp" if self.over_tcp else "self,vader"]
            if self.over_tcp:
                words += ["--mca", "btl_tcp_if_include", "lo"]
        else:
            words += ["--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]
            environment["UCX_TLS"] = "tcp,self" if self.over_tcp else "posix,sysv,cma,self"
            if self.over_tcp:
                environment["UCX_NET_DEVICES"] = "lo"
        # Without it, processes spin against each other's time slices, which takes a hundred times as long.
        if workers > len(os.sched_getaffinity(0)):
            words += ["--mca", "mpi_yield_when_idle", 1]
        if algorithm != "0":
            words += ["--mca", "coll_tuned_use_dynamic_rules", 1, "--mca", "coll_tuned_allreduce_algorithm", algorithm]
        return self.processes.run([[*words, self.program, *work]], environment)


class OpenMpiTcp(OpenMpi):
    over_tcp = True


class Gloo(Peer):
    def missing(self):
        if not Path("/usr/include/gloo/allreduce.h").exists():
            return "Gloo is not installed (no gloo/allreduce.h): tools/install-deps peers"
        return None if shutil.which("g++") else "no g++ to compile with: tools/install-deps peers"

    def prepare(self):
        self.program = self.compile("gloo_step", "g++", "-lgloo", "-lpthread")

    def settings(self, workers):
        return ["ring", "bcube", "halving-doubling", "ring-chunked"]

    def output(self, workers, work, setting, folder):
        return self.processes.run([[self.program, rank, workers, folder, setting, *work] for rank in range(workers)], {"GLIBC_TUNABLES": MALLOC})


def python_with_torch():
    for python in dict.fromkeys([os.environ.get("LOCKSTEP_TORCH_PYTHON", sys.executable), sys.executable, "/usr/bin/python3"]):
        if Path(python).exists() and subprocess.run([python, "-c", "import torch.distributed as d; assert d.is_gloo_available()"],
                                                    capture_output=True, check=False).returncode == 0:
            return python
    return None


class Torch(Peer):
    def missing(self):
        self.python = python_with_torch()
        return None if self.python else "torch with Gloo is not installed (import torch.distributed fails): tools/install-deps peers"

    def settings(self, workers):
        return ["gloo"]

    def output(self, workers, work, setting, folder):
        return self.processes.run([[self.python, SOURCES / "torch_step.py", rank, workers, folder, *work] for rank in range(workers)],
                                  {"GLIBC_TUNABLES": MALLOC, "OMP_NUM_THREADS": "1"})


MAKERS = {"openmpi": OpenMpi, "openmpi-tcp": OpenMpiTcp, "gloo": Gloo, "torch": Torch}


class Ours:
    def __init__(self, options, processes):
        self.program = options.build_dir / "bin" / "lockstep-bench"
        self.optimizer = options.optimizer
        self.processes = processes
        self.phases = {}

    def measure(self, workers, size, over_tcp):
        path = ["--transport", "tcp", "--mapping", "off"] if over_tcp else []
        out = self.processes.run([[self.program, "exchange", "-n", workers, "--bytes", size, "--rounds", rounds_for(size), "--optimizer",
                                   self.optimizer, "--json", "-", *path]])
        row = json.loads(out)["rows"][0]
        self.phases.setdefault(("lockstep-tcp" if over_tcp else "lockstep", workers, size), []).append(
            {key: row[key] for key in ("phases_us", "copied_per_byte", "peak_bytes") if key in row})
        return row["median_us"]

    def limits(self, workers, size):
        """{limit: microseconds}"""
        out = self.processes.run([[self.program, "limits", "-n", workers, "--bytes", size, "--rounds", min(20, rounds_for(size)), "--json", "-"]])
        row = json.loads(out)["rows"][0]
        times = {"limit:sum": row["sum_us"], "limit:sum+step": row["sum_step_us"], "limit:memcpy": row["memcpy_us"], "limit:tcp": row["tcp_us"]}
        if shutil.which("ucx_perftest"):
            for name, tls in (("limit:ucx-shm", "posix,sysv,cma,self"), ("limit:ucx-tcp", "tcp,self")):
                times[name] = self.ucx_one_way(size, tls)
        return {name: value for name, value in times.items() if value is not None}

    def ucx_one_way(self, size, tls):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {**os.environ, "UCX_TLS": tls, "UCX_WARN_UNUSED_ENV_VARS": "n"}
        # On a terminal it reports at once that it listens.
        screen, terminal = os.openpty()
        server = subprocess.Popen(["ucx_perftest", "-p", str(port)], env=environment, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal,
                                  start_new_session=True)
        os.close(terminal)
        self.processes.running.append(server)
        client = ["ucx_perftest", "127.0.0.1", "-p", str(port), "-t", "tag_bw", "-s", str(size), "-n", str(rounds_for(size)), "-w", "3", "-f"]
        try:
            if not select.select([screen], [], [], UCX_START_SECONDS)[0] or b"Waiting" not in os.read(screen, 4096):
                return None
            done = subprocess.run(client, env=environment, capture_output=True, text=True, timeout=120, check=False)
        except (OSError, subprocess.TimeoutExpired):  # it ended before it reported that; it hangs
            return None
        finally:
            self.processes.end()
            os.close(screen)
        # The last line of numbers, behind "Final:" in newer releases: iterations, microseconds of an iteration (median, average, overall), ...
        lines = [line.removeprefix("Final:").split() for line in done.stdout.splitlines() if re.fullmatch(r"(Final:)?[\s\d.]+", line)]
        lines = [words for words in lines if len(words) >= 6]
        return float(lines[-1][3]) if lines and float(lines[-1][3]) > 0 else None
