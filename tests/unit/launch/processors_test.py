"""Which processors workers are held to, on machines that are described by the kernel's files.

usage: processors_test.py tools/launch
"""

import sys
import tempfile
import unittest
from pathlib import Path

LAUNCH = Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(LAUNCH.parent / "lib"))
from lockstep_launch import processors  # noqa: E402


def machine(nodes, siblings=()):
    """The kernel's lists of NUMA nodes with these processors, and of cores that are these pairs."""
    lists = {f"sys/devices/system/node/node{i}/cpulist": f"{text}\n" for i, text in enumerate(nodes)}
    for pair in siblings:
        for cpu in pair.split(","):
            lists[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = f"{pair}\n"
    return lists


def places(how, workers, lists, allowed):
    return [(processors.words(held_to), threads) for held_to, threads in processors.places(how, workers, processors.nodes(lists, allowed))]


class ListsTest(unittest.TestCase):
    def test_lists_are_as_the_kernel_writes_them(self):
        self.assertEqual(processors.numbers("0-3,8,10-11\n"), {0, 1, 2, 3, 8, 10, 11})
        self.assertEqual(processors.numbers("\n"), set())
        self.assertEqual(processors.numbers("x,3-,-4,5-y,6"), {3, 6})
        self.assertEqual(processors.words({11, 0, 1, 2, 8, 10}), "0-2,8,10-11")

    def test_files_are_read_below_a_root(self):
        lists = machine(["0-1"], ["0,1"])
        with tempfile.TemporaryDirectory() as root:
            for path, text in lists.items():
                Path(root, path).parent.mkdir(parents=True, exist_ok=True)
                Path(root, path).write_text(text)
            self.assertEqual(processors.read(root), lists)
            self.assertEqual(processors.read(f"{root}/nowhere"), {})

    def test_cores_are_by_node_and_only_of_what_is_allowed(self):
        lists = machine(["0-1,4-5", "2-3,6-7", ""], ["0,4", "1,5", "2,6", "3,7"])
        self.assertEqual(processors.nodes(lists, range(8)), [[{0, 4}, {1, 5}], [{2, 6}, {3, 7}]])
        self.assertEqual(processors.nodes(lists, {1, 4, 5}), [[{1, 5}, {4}]])
        self.assertEqual(processors.nodes({}, {0, 2}), [[{0}, {2}]])

    def test_nodes_go_by_number(self):
        lists = machine([str(i) for i in range(11)])
        self.assertEqual(processors.nodes(lists, range(11)), [[{i}] for i in range(11)])


class PlacesTest(unittest.TestCase):
    two_nodes = machine(["0-7", "8-15"])

    def test_workers_share_nodes_evenly(self):
        self.assertEqual(places("numa", 4, self.two_nodes, range(16)), [("0-7", 4), ("0-7", 4), ("8-15", 4), ("8-15", 4)])
        self.assertEqual(places("numa", 3, self.two_nodes, range(16)), [("0-7", 4), ("0-7", 4), ("8-15", 8)])
        self.assertEqual(places("numa", 2, self.two_nodes, range(12)), [("0-7", 8), ("8-11", 4)])

    def test_fewer_workers_than_nodes_have_several(self):
        self.assertEqual(places("numa", 1, self.two_nodes, range(16)), [("0-15", 16)])
        four = machine(["0-1", "2-3", "4-5", "6-7"])
        self.assertEqual(places("numa", 3, four, range(8)), [("0-1", 2), ("2-3", 2), ("4-7", 4)])

    def test_more_workers_than_processors_still_have_a_node(self):
        self.assertEqual(places("numa", 4, machine(["0-1"]), range(2)), [("0-1", 1)] * 4)

    def test_cores_of_ones_own_are_whole_and_of_one_node(self):
        pairs = [f"{i},{i + 4}" for i in range(4)]
        lists = machine(["0-1,4-5", "2-3,6-7"], pairs)
        self.assertEqual(places("core", 4, lists, range(8)), [("0,4", 1), ("1,5", 1), ("2,6", 1), ("3,7", 1)])
        self.assertEqual(places("core", 2, lists, range(8)), [("0-1,4-5", 2), ("2-3,6-7", 2)])
        self.assertEqual(places("core", 3, machine(["0-7"]), range(8)), [("0-1", 2), ("2-4", 3), ("5-7", 3)])

    def test_no_worker_is_on_two_nodes_unless_it_must(self):
        two = machine(["0-3", "4-7"])
        self.assertEqual(places("core", 3, two, range(8)), [("0-1", 2), ("2-3", 2), ("4-7", 4)])
        self.assertEqual(places("core", 5, two, range(8)), [("0", 1), ("1", 1), ("2-3", 2), ("4-5", 2), ("6-7", 2)])
        self.assertEqual(places("core", 1, two, range(8)), [("0-7", 8)])
        self.assertEqual(places("core", 3, two, {3, 4, 5, 6}), [("3", 1), ("4", 1), ("5-6", 2)])  # one node has but one

    def test_fewer_cores_than_workers_are_refused(self):
        with self.assertRaisesRegex(processors.NoPlace, r"\A--bind-to core: 3 workers and 1 core: not each can have one\Z"):
            processors.places("core", 3, processors.nodes(machine(["0-1"], ["0,1"]), range(2)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
