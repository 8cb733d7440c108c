"""What workers say of their paths. Two hosts and an RDMA port are made up in mount namespaces: another boot id, another /sys/class."""

import pathlib
import re
import subprocess
import unittest

from harness import ClusterTest, Job, main

SCRIPT = """
mount --bind "$1" /proc/sys/kernel/random/boot_id || exit 9
test -z "$2" || mount --bind "$2" /sys/class || exit 9
shift 2
exec "$@"
"""


def can_make_hosts():
    return subprocess.run(["unshare", "-rm", "mount", "--bind", "/proc/sys/kernel/random/uuid", "/proc/sys/kernel/random/boot_id"],
                          capture_output=True, check=False).returncode == 0


def host(job, name, sys_class=""):
    """The words before a command that is to run on a host of this name."""
    boot_id = job.folder / f"boot_id-{name}"
    boot_id.write_text(f"{name}\n")
    return ["unshare", "-rm", "sh", "-c", SCRIPT, "host", boot_id, sys_class]


def with_rdma_port(folder):
    """A /sys/class with an RDMA port that is up."""
    port = pathlib.Path(folder) / "class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "link_layer").write_text("InfiniBand\n")
    return pathlib.Path(folder) / "class"


@unittest.skipUnless(can_make_hosts(), "no mount namespaces may be made here")
class Paths(ClusterTest):
    def run_two(self, job, prefixes):
        job.start_coordinator()
        for index, prefix in enumerate(prefixes):
            job.start_worker(index, prefix=prefix)
        job.finish()
        for index in range(2):
            self.assertEqual(job.wait(f"worker{index}"), 0)
        return [job.log(f"worker{index}") for index in range(2)]

    def test_a_better_path_that_was_to_be_expected(self):
        with Job(2, exchange__transport="tcp") as job:
            first, second = self.run_two(job, [host(job, "a", with_rdma_port(job.folder)), host(job, "b")])
            self.assertRegex(first, r"worker 1: path tcp, [0-9.]+ [GM]B/s\n")
            lines = [line for line in first.split("\n") if "was to be expected" in line]
            self.assertEqual(len(lines), 1, first)
            self.assertIn("worker 1: RDMA was to be expected, but the job's transport is tcp; with exchange.transport = auto", lines[0])
            # The other host has no such port.
            self.assertRegex(second, r"worker 0: path tcp, [0-9.]+ [GM]B/s\n")
            self.assertNotIn("was to be expected", second)

    def test_auto_says_why_a_port_of_rdma_is_not_taken(self):
        # The port is made up, so UCX finds no device behind it; and on loopback it would not be taken in any case.
        with Job(2) as job:
            self.run_two(job, [host(job, "a", with_rdma_port(job.folder)), host(job, "b")])
            self.assertIn("the job uses tcp, because worker 0 does not have ucx: this worker listens on 127.0.0.1", job.log("coordinator"))
            self.assertIn("no port of UCX", job.log("worker0"))

    def test_on_one_host_nothing_better_is_expected(self):
        with Job(2) as job:
            here = host(job, "a", with_rdma_port(job.folder))
            for log in self.run_two(job, [here, here]):
                self.assertEqual(len(re.findall(r"path mapped, [0-9.]+ [GM]B/s\n", log)), 1, log)
                self.assertNotIn("was to be expected", log)


if __name__ == "__main__":
    main()
