// SPDX-License-Identifier: Apache-2.0
/// The kernels whose products are bf16 dot products; everything else comes from the AVX-512 object.
#include FOVEA_ISA_HEADER

#include "cpu/attention/gemm.hpp"
#include "cpu/attention/pack.hpp"
#include "cpu/attention/softmax.hpp"
#include "cpu/attention/stream.hpp"
#include "cpu/attention_backward/gradient.hpp"

namespace fovea::cpu::FOVEA_ISA {

extern constexpr AttentionKernels kAttention{
    .arithmetic = "bf16 dot",
    .block_rows = kBlockRows,
    .panel = kPanel,
    .depth = 16,  // what one transposition packs
    .operand_bytes = sizeof(BF16Math::Operand),
    .row_bytes = kRowBytes,
    .tile_bytes = kTileBytes,
    .load_q = {nullptr, nullptr, load_q<BF16Math, BF16>, load_q<BF16Math, E4M3>},
    .pack_keys = {nullptr, nullptr, pack_keys<BF16Math, BF16>, pack_keys<BF16Math, E4M3>},
    .pack_values = {nullptr, nullptr, pack_values<BF16Math, BF16>, pack_values<BF16Math, E4M3>},
    .scores = scores<BF16Math>,
    .softmax = softmax<BF16Math>,
    .values = values<BF16Math>,
    .stream_scores = {nullptr, nullptr, stream_scores<BF16Math, BF16>, stream_scores<BF16Math, E4M3>},
    .gradient = gradient<BF16Math>,
    .transpose_gradient = transpose_gradient<BF16Math>,
};

}  // namespace fovea::cpu::FOVEA_ISA
