"""Workers stamp what they did with their own monotonic clocks; records are in the coordinator's, whatever those show."""

import shutil
import subprocess
import unittest

from harness import ClusterTest, Job

# A clock is off by what the host has run longer than the coordinator's: a time namespace shows the same.
OTHER_CLOCK = ["unshare", "--time", "--monotonic", "100000"]


def other_clock_can_be_had():
    return bool(shutil.which("unshare")) and subprocess.run([*OTHER_CLOCK, "true"], capture_output=True, check=False).returncode == 0


@unittest.skipUnless(other_clock_can_be_had(), "time namespaces need root and util-linux 2.36")
class Clocks(ClusterTest):
    def test_records_are_in_the_coordinators_clock(self):
        with Job(2, job__rounds=100, emulate__unit_time="4ms") as job:
            job.start_coordinator()
            job.start_worker(0)
            job.start_worker(1, prefix=OTHER_CLOCK)
            # A clock is guessed by the message that it comes in until a ping is answered: wrong by what the message has waited,
            # where a process stood still, but by no more than the job takes. The other clock is off by more than a day.
            off = job.finish()["wall_seconds"]
            rounds = job.rounds()
        self.assertEqual(len(rounds), 100)
        workers = set()
        for line in rounds:
            for unit in line["units"]:
                self.assertLess(line["times"]["start"] - off, unit["start"])
                self.assertLess(unit["end"], line["times"]["commit"] + off)
                workers.add(unit["worker"])
        self.assertEqual(workers, {0, 1})


if __name__ == "__main__":
    unittest.main(verbosity=2)
