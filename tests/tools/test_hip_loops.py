# SPDX-License-Identifier: Apache-2.0
import unittest

from tool import load

hip_loops = load("hip_loops.py")

# A loop of two MFMAs and one load of 16 bytes, whose branch past a mask a usual turn takes, and whose other exit ends it.
CODE = """
0000000000001000 <attend>:
\ts_mov_b32 s0, 0                                            // 000000001000: BE800080
\tglobal_load_dwordx4 v[0:3], v[4:5], off                    // 000000001004: DC5C8000 007F0004
\tv_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], 0          // 00000000100C: D3CD0000 02020D04
\ts_cbranch_vccz 4                                           // 000000001014: BF860004 <attend+0x28>
\tv_cmp_lt_i32_e32 vcc, v0, v1                               // 000000001018: 7D820300
\tv_cndmask_b32_e32 v0, v1, v2, vcc                          // 00000000101C: 00000501
\tv_cndmask_b32_e32 v0, v1, v2, vcc                          // 000000001020: 00000501
\tv_cndmask_b32_e32 v0, v1, v2, vcc                          // 000000001024: 00000501
\tv_exp_f32_e32 v0, v1                                       // 000000001028: 7E004101
\tv_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]     // 00000000102C: D3CD0000 04020D04
\tv_add_f32_e32 v0, v1, v2                                   // 000000001034: 02000501
\ts_cbranch_scc0 65522                                       // 000000001038: BF84FFF2 <attend+0x4>
\ts_endpgm                                                   // 00000000103C: BF810000
"""
TURN = {"vector": 1, "slow": 1, "mfma": 2, "lds": 0, "memory": 1, "scalar": 2}


class HipLoops(unittest.TestCase):
    def test_counts_the_usual_turn(self):
        self.assertEqual(hip_loops.usual_turn(hip_loops.blocks_of(CODE), 2, 16), TURN)

    def test_wants_the_work_of_a_tile(self):
        self.assertIsNone(hip_loops.usual_turn(hip_loops.blocks_of(CODE), 3, 16))
        self.assertIsNone(hip_loops.usual_turn(hip_loops.blocks_of(CODE), 2, 17))

    def test_takes_the_way_that_loads(self):
        # Without the branch past the mask there is one way alone.
        code = CODE.replace("\ts_cbranch_vccz 4 ", "\ts_nop 0 ").replace(" <attend+0x28>", "")
        found = hip_loops.usual_turn(hip_loops.blocks_of(code), 2, 16)
        self.assertEqual((found["vector"], found["slow"]), (5, 1))


if __name__ == "__main__":
    unittest.main()
