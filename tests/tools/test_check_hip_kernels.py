# SPDX-License-Identifier: Apache-2.0
import unittest

from tool import load

check_hip_kernels = load("check_hip_kernels")

NOTES = """
amdhsa.kernels:
  - .agpr_count:     4
    .args:
      - .offset:         0
        .size:           72
        .value_kind:     by_value
    .group_segment_fixed_size: 8704
    .max_flat_workgroup_size: 256
    .name:           attend
    .private_segment_fixed_size: 0
    .sgpr_count:     96
    .sgpr_spill_count: 0
    .symbol:         attend.kd
    .vgpr_count:     168
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.target:   amdgcn-amd-amdhsa--gfx90a
"""
CODE = """
0000000000001500 <attend>:
\tv_mfma_f32_16x16x16f16 v[2:5], v[8:9], v[12:13], 0     // 000000001604: D3E70002 02021908
\tv_add_f32 v0, v1, v2
\tv_mfma_f32_16x16x16f16 v[2:5], v[8:9], v[12:13], v[2:5]
"""
ROW = {
    "registers": 168,
    "accumulators": 4,
    "scalar_registers": 96,
    "scalar_spills": 0,
    "spills": 0,
    "lds_bytes": 8704,
    "scratch_bytes": 0,
    "waves": 3,
}
MFMA = {"v_mfma_f32_16x16x16f16": 2}


class CheckHipKernels(unittest.TestCase):
    def test_reads_what_llvm_prints(self):
        self.assertEqual(check_hip_kernels.usages(NOTES), {"attend": ROW})
        found = check_hip_kernels.functions(CODE)
        self.assertEqual({name: check_hip_kernels.matrix_instructions(code) for name, code in found.items()}, {"attend": MFMA})
        self.assertEqual(check_hip_kernels.tunings()["128_decode"], (256, 1, 32))
        self.assertEqual(check_hip_kernels.tunings()["latent_576_decode"], (576 + 512, 1, 16))

    def test_occupancy_is_bounded_by_registers_and_lds(self):
        self.assertEqual(check_hip_kernels.occupancy(registers=32, lds_bytes=0, threads=256), 8)
        self.assertEqual(check_hip_kernels.occupancy(registers=129, lds_bytes=0, threads=256), 3)
        self.assertEqual(check_hip_kernels.occupancy(registers=256, lds_bytes=0, threads=256), 2)
        self.assertEqual(check_hip_kernels.occupancy(registers=257, lds_bytes=0, threads=256), 1)
        self.assertEqual(check_hip_kernels.occupancy(registers=128, lds_bytes=32 << 10, threads=256), 2)

    def one(self, **changes: object) -> str:
        row = {**ROW, "mfma": MFMA}
        findings = check_hip_kernels.differences({"k": {**row, **changes}}, {"k": row})
        return findings[0] if findings else ""

    def test_differences(self):
        self.assertEqual(self.one(), "")
        self.assertIn("registers: got 170, want 168", self.one(registers=170))
        self.assertIn("mfma", self.one(mfma={}))
        self.assertIn("spills", self.one(scratch_bytes=8))
        self.assertIn("spills", self.one(spills=1))
        self.assertIn("waves: got 1", self.one(waves=1))

    def test_kernels_come_and_go(self):
        row = {**ROW, "mfma": MFMA}
        self.assertEqual(check_hip_kernels.differences({"k": row}, {}), ["k: not recorded"])
        self.assertEqual(check_hip_kernels.differences({}, {"k": row}), ["k: recorded, but not compiled"])


if __name__ == "__main__":
    unittest.main()
