"""The judgement on the counters, with counters of jobs over RDMA and over TCP."""

import unittest

from counters import Counters, parse, why_not_rdma

SNMP = """Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs OutSegs RetransSegs
Tcp: 1 200 120000 -1 14 4 9 3 0 46 47 0
"""
BULK = 40_000_000


class CountersTest(unittest.TestCase):
    def test_are_read_by_their_names(self):
        self.assertEqual(parse("537230\n", "537177\n", SNMP, "7\n", "8\n"), Counters(537230, 537177, 47, 46, 7, 8))
        self.assertEqual(parse("9", "8", SNMP, "1", "0") - parse("4", "2", SNMP, "0", "0"), Counters(5, 6, 0, 0, 1, 0))

    def test_bulk_by_rdma(self):
        self.assertEqual(why_not_rdma(Counters(600, 11_000, 150, 170, 60_000, BULK), BULK), [])

    def test_bulk_by_tcp(self):
        self.assertEqual(len(why_not_rdma(Counters(0, 0, 5_000, 11_000, 300_000, BULK), BULK)), 2)

    def test_some_by_rdma_and_the_rest_by_tcp(self):
        self.assertEqual(len(why_not_rdma(Counters(300, 5_000, 150, 5_000, 60_000, BULK), BULK)), 2)

    def test_many_packets_with_little_in_them(self):
        self.assertEqual(len(why_not_rdma(Counters(6_000, 11_000, 150, 170, 600_000, 900_000), BULK)), 1)

    def test_bulk_by_both(self):
        self.assertRegex(why_not_rdma(Counters(600, 11_000, 150, 9_000, 60_000, 2 * BULK), BULK)[0], "^TCP")


if __name__ == "__main__":
    unittest.main(verbosity=2)
