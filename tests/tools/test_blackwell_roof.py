# SPDX-License-Identifier: Apache-2.0
import json
import tempfile
import unittest
from fractions import Fraction
from pathlib import Path

from tool import load

roof = load("blackwell_roof")
EIGHTH = Fraction(1, 8)


class BlackwellRoof(unittest.TestCase):
    def test_units_of_128_columns(self):
        """As in FlashAttention-4's paper for one query tile: 1024 clocks of MMAs and of exponentials, and 768 of operands."""
        units = roof.Step(128, 128).units()
        self.assertEqual(units["MMA"], 2 * 1024)
        self.assertEqual(units["exponentials"], 2 * 1024)
        arriving = 2 * 128 * 128 * 2 // 128
        self.assertEqual(units["shared memory"], 2 * 768 + arriving)

    def test_values_of_fewer_columns(self):
        step = roof.Step(192, 128)
        self.assertEqual(step.flops, 2 * 256 * 128 * (192 + 128))
        self.assertEqual(step.mma, 1536 + 1024)
        self.assertEqual(step.shared, (2 * (192 + 192 + 128) + 192 + 128) * 128 * 2 // 128)

    def test_polynomials_trade_exponentials_for_instructions(self):
        plain, mixed = roof.Step(64, 64), roof.Step(64, 64, EIGHTH)
        self.assertEqual(mixed.exponentials, plain.exponentials * (1 - EIGHTH))
        self.assertEqual(mixed.issue - plain.issue, 2 * 128 * 128 * EIGHTH * 5 / 128)
        self.assertEqual(128 * mixed.slots, 464)

    def test_short_rows_wait_for_exponentials_and_long_ones_for_mmas(self):
        for share in roof.SHARES:
            units = roof.Step(64, 64, share).units()
            self.assertEqual(max(units.values()), units["exponentials"])
        self.assertEqual(roof.Step(128, 128, Fraction(1, 4)).clocks(roof.BEST), roof.Step(128, 128).mma)

    def test_a_chain_can_bind(self):
        slow = roof.Ends(clock_ghz=1.0, signals=10_000)
        step = roof.Step(128, 128, EIGHTH)
        self.assertEqual(step.clocks(slow), step.chain(10_000))
        self.assertEqual(step.chain(10_000) - step.chain(0), 10_000)
        self.assertEqual(step.teraflops(slow), float(step.flops / step.chain(10_000)) * 148 / 1000)

    def test_the_peak_is_that_of_the_data_sheet(self):
        peak = roof.FLOPS * roof.SMS * roof.BEST.clock_ghz / 1000
        self.assertAlmostEqual(peak, 2250, delta=10)
        for dims in roof.HEAD_DIMS:
            for share in roof.SHARES:
                self.assertLessEqual(roof.Step(*dims, share).teraflops(roof.BEST), peak)

    def test_ranges_hold_what_others_measure(self):
        """FlashAttention-4 has an eighth of polynomials at 64 columns."""
        step = roof.Step(64, 64, EIGHTH)
        self.assertLess(step.teraflops(roof.WORST), 1236)
        self.assertGreater(step.teraflops(roof.BEST), 1236)

    def test_prints_every_head_dim(self):
        for text in (roof.clocks_of_units(), roof.predictions()):
            head = text.splitlines()[0]
            self.assertTrue(all(roof.title(dims) in text for dims in roof.HEAD_DIMS), head)

    def test_what_was_measured_stands_beside_its_prediction(self):
        row = {"case": "attention/bench/prefill-bf16-d64-h16-s1024-full", "flops": 3e12, "median_s": 0.002}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "bench.json"
            file.write_text(json.dumps({"rows": [row]}), encoding="utf-8")
            line = roof.measured(file).splitlines()[-1]
        slowest = roof.Step(64, 64).teraflops(roof.WORST)
        fastest = roof.Step(64, 64, max(roof.SHARES)).teraflops(roof.BEST)
        self.assertEqual(line, f"| {row['case']} | 1500 | {slowest:.0f} to {fastest:.0f} |")
