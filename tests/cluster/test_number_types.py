"""Jobs whose contributions and sums travel in 16 bits: one result whatever way they go, half the bytes, and nothing lost with a worker."""

import collections
import struct
import unittest

import test_encryption
from exchanged import OVER_TCP, ExchangeTest, run
from harness import Job, rounds_in_common

FETCH, PIECE = 4, 6
CONTRIBUTION, SUM = 1, 2


class ByDirection(test_encryption.OnTheWire):
    """Of the one connection of a job of two."""

    def __init__(self):
        super().__init__()
        self.ways = {True: bytearray(), False: bytearray()}

    def seen(self, data, forth):
        self.ways[forth] += data
        return data


def frames(stream):
    """The frames of one direction of a connection of the transport tcp: type and body."""
    at = 0
    while at + 16 <= len(stream):
        length, kind = struct.unpack_from("<IB", stream, at)
        yield kind, bytes(stream[at + 16:at + 16 + length])
        at += 16 + length


class NumberTypes(ExchangeTest):
    def test_ways_agree_bit_for_bit(self):
        digests, rounds = {}, {}
        for dtype in ("fp32", "bf16", "fp16"):
            digests[dtype], rounds[dtype] = self.one_result({"exchange.dtype": dtype})
        self.assertEqual(len(set(digests.values())), 3, "a type changed nothing")
        for dtype in ("bf16", "fp16"):
            self.check_losses_are_near(rounds[dtype], rounds["fp32"])

    def test_ways_agree_where_numbers_are_rounded_at_random(self):
        for dtype in ("bf16", "fp16"):
            digests, rounds = {}, {}
            for rounding in ("nearest", "stochastic"):
                digests[rounding], rounds[rounding] = self.one_result({"exchange.dtype": dtype, "exchange.rounding": rounding})
            self.assertNotEqual(digests["nearest"], digests["stochastic"], "rounding at random changed nothing")
            self.check_losses_are_near(rounds["stochastic"], rounds["nearest"])

    def check_losses_are_near(self, ours, theirs):
        """Of the last round that was over the same samples, of all before it the same."""
        last = rounds_in_common(ours, theirs) - 1
        self.assertGreaterEqual(last, 0)
        self.assertAlmostEqual(ours[last]["loss"] / theirs[last]["loss"], 1, delta=0.05)

    def fetched(self, dtype):
        """Bytes that workers asked each other for, by kind, and the bytes of all pieces that came."""
        options = {**OVER_TCP, "exchange.dtype": dtype, "model.widths": "4096", "job.rounds": 20}
        with Job(2, options) as job:
            wire = ByDirection()
            self.addCleanup(wire.close)
            job.start_coordinator()
            introducer = test_encryption.Introducer(job.address, wire)
            self.addCleanup(introducer.close)
            job.start_worker(0)
            job.start_worker(1, address=f"127.0.0.1:{introducer.port}")
            job.finish()
        asked = collections.Counter()
        pieces = 0
        for way in wire.ways.values():
            for kind, body in frames(way):
                if kind == FETCH:
                    of, length = struct.unpack_from("<I", body, 0)[0], struct.unpack_from("<Q", body, 32)[0]
                    asked[of] += length
                elif kind == PIECE:
                    pieces += len(body)
        probes = sum(length for of, length in asked.items() if of not in (CONTRIBUTION, SUM))
        return asked, pieces - probes

    def test_half_the_bytes_are_on_the_wire(self):
        wide, wide_pieces = self.fetched("fp32")
        self.assertGreater(wide[CONTRIBUTION], 20 * 300000)
        self.assertGreater(wide[SUM], 20 * 300000)
        for dtype in ("bf16", "fp16"):
            narrow, pieces = self.fetched(dtype)
            # On a busy machine one of them may stand in for the other and fetch more, in either job.
            for kind in (CONTRIBUTION, SUM):
                self.assertAlmostEqual(narrow[kind] / wide[kind], 0.5, delta=0.2)
            self.assertAlmostEqual(pieces / wide_pieces, 0.5, delta=0.2)

    def test_a_killed_worker(self):
        self.stand_a_killed_worker({"exchange.dtype": "bf16"})

    def test_a_stopped_owner_and_one_that_comes_later(self):
        """Others make a stopped owner's sums, and who was killed is replaced and copies the state, which is FP32."""
        self.stand_a_stopped_owner_and_one_that_comes_later({"exchange.dtype": "fp16", "exchange.rounding": "stochastic"})

    def test_other_policies(self):
        for policy in ({"policy.name": "async"}, {"policy.name": "local", "local.steps": 4}):
            with self.subTest(**policy):
                summary, rounds = run(3, {**policy, "exchange.dtype": "bf16", "job.rounds": 0, "job.epochs": 3})
                self.assertEqual(summary["digest_differs"], [])
                self.assertLess(rounds[-1]["loss"], rounds[0]["loss"])

    def test_resume_with_another_type(self):
        forms = [(rounds, f"--exchange.dtype={dtype}") for rounds, dtype in ((20, "bf16"), (30, "fp16"), (40, "f32"))]  # fp32's old name
        self.assertIn("dtype = fp32", self.resume_with(forms))

    def test_a_gradient_beyond_the_type_is_not_finite(self):
        """With such a step the second gradient is large: FP32 and bf16 have a number for it, fp16 has none."""
        options = {"optimizer.lr": 30000, "job.rounds": 2, "policy.name": "full"}
        for dtype in ("fp32", "bf16"):
            summary, _ = run(2, options, exchange__dtype=dtype)
            self.assertEqual(summary["status"], "completed")
        with Job(2, options, exchange__dtype="fp16") as job:
            job.start()
            self.assertEqual(job.wait(), 1)
            self.assertIn("is not finite, or beyond the largest number of exchange.dtype = fp16", job.log("coordinator"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
