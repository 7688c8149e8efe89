// SPDX-License-Identifier: Apache-2.0
/// The f32 kernels of one instruction set. They are compiled once for each set, with its flags, into its namespace.
#include FOVEA_ISA_HEADER

#include "cpu/attention/gemm.hpp"
#include "cpu/attention/pack.hpp"
#include "cpu/attention_backward/gradient.hpp"
#include "cpu/latent_attention/packed_row.hpp"
#include "cpu/latent_attention/shared_tile.hpp"
#include "cpu/paged_attention/kv_row.hpp"
#include "cpu/quantized_attention/int8_kernels.hpp"
#include "cpu/rows.hpp"

namespace fovea::cpu::FOVEA_ISA {

extern constexpr Kernels kKernels{
    .attention =
        {
            .arithmetic = "f32",
            .block_rows = kBlockRows,
            .panel = kPanel,
            .depth = 1,
            .operand_bytes = sizeof(float),
            .row_bytes = kRowBytes,
            .tile_bytes = kTileBytes,
            .load_q = {load_q<F32Math, F32>, load_q<F32Math, F16>, load_q<F32Math, BF16>, load_q<F32Math, E4M3>},
            .pack_keys = {pack_keys<F32Math, F32>, pack_keys<F32Math, F16>, pack_keys<F32Math, BF16>, pack_keys<F32Math, E4M3>},
            .pack_values = {pack_values<F32Math, F32>, pack_values<F32Math, F16>, pack_values<F32Math, BF16>, pack_values<F32Math, E4M3>},
            .scores = scores<F32Math>,
            .softmax = softmax<F32Math>,
            .values = values<F32Math>,
            .arrange_q = {nullptr, nullptr, arrange_q<BF16>, nullptr},
            .stream_scores = {stream_scores<F32Math, F32>, stream_scores<F32Math, F16>, stream_scores<F32Math, BF16>,
                              stream_scores<F32Math, E4M3>},
            .gradient = gradient<F32Math>,
            .transpose_gradient = transpose_gradient<F32Math>,
        },
    .rows = kRowKernels,
    .latent = kSharedTileKernels,
    .packed_rows = kLatentKernels,
    .int8 = kInt8Kernels<Int8Math>,
    .quantize = kQuantizeKernels,
    .kv_rows = kKvRowKernels,
};

}  // namespace fovea::cpu::FOVEA_ISA
