# SPDX-License-Identifier: Apache-2.0
import tempfile
import unittest
from pathlib import Path

from tool import load

check_kernels = load("check_kernels")

USAGE = """
Fatbin elf code:
================
arch = sm_90a
Resource usage:
 Common:
  GLOBAL:0
 Function _Z4stepILb1EEvv:
  REG:168 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:528 TEXTURE:0
"""
SASS = """
arch = sm_90a
\t\tFunction : _Z4stepILb1EEvv
        /*0100*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], RZ, !UPT ;
        /*0110*/                   FADD R0, R1, R2 ;
"""
ROW = {"registers": 168, "shared_bytes": 1024, "stack_bytes": 0, "matrix": ["HGMMA"]}


class CheckKernels(unittest.TestCase):
    def test_reads_what_cuobjdump_prints(self):
        outputs = {"--dump-resource-usage": USAGE, "-sass": SASS}
        original = check_kernels.cuobjdump
        check_kernels.cuobjdump = lambda argument, file: outputs[argument]
        try:
            self.assertEqual(check_kernels.kernels_of("any.o"), {"sm_90a step<true>": ROW})
        finally:
            check_kernels.cuobjdump = original

    def one(self, **changes: object) -> str:
        findings = check_kernels.differences({"k": {**ROW, **changes}}, {"k": ROW})
        return findings[0] if findings else ""

    def test_differences(self):
        self.assertEqual(self.one(), "")
        self.assertIn("registers: got 200, want 168", self.one(registers=200))
        self.assertIn("matrix", self.one(matrix=["HMMA"]))
        self.assertIn("spills", self.one(stack_bytes=8))

    def test_kernels_come_and_go(self):
        self.assertEqual(check_kernels.differences({"k": ROW}, {}), ["k: not recorded"])
        self.assertEqual(check_kernels.differences({}, {"k": ROW}), ["k: recorded, but not compiled"])
        self.assertIn("spills", check_kernels.differences({"k": {**ROW, "stack_bytes": 4}}, {})[0])

    def test_a_recorded_stack_is_no_spill(self):
        row = {**ROW, "stack_bytes": 32}
        self.assertEqual(check_kernels.differences({"k": row}, {"k": row}), [])

    def test_a_sample_has_a_kernel_for_one_architecture(self):
        record = {"sm_75 a": ROW, "sm_80 a": ROW, "sm_80 b": ROW}
        self.assertEqual(check_kernels.differences({"sm_80 a": ROW, "sm_80 b": ROW}, record, sample=True), [])
        self.assertEqual(check_kernels.differences({"sm_75 a": ROW}, record, sample=True), ["b: recorded, but not compiled"])
        self.assertEqual(check_kernels.differences({"sm_90a b": ROW}, {"sm_80 b": ROW}, sample=True), ["sm_90a b: not recorded"])

    def test_a_sample_is_known_by_its_cache(self):
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder) / "CMakeCache.txt"
            self.assertFalse(check_kernels.is_sample(Path(folder)))
            cache.write_text("FOVEA_CUDA_SAMPLE:BOOL=OFF\n", encoding="utf-8")
            self.assertFalse(check_kernels.is_sample(Path(folder)))
            cache.write_text("FOVEA_CUDA_SAMPLE:BOOL=ON\n", encoding="utf-8")
            self.assertTrue(check_kernels.is_sample(Path(folder)))


if __name__ == "__main__":
    unittest.main()
