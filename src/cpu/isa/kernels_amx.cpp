// SPDX-License-Identifier: Apache-2.0
/// The kernels whose products run on AMX tiles; everything else comes from the AVX-512 object.
#include FOVEA_ISA_HEADER

#include "cpu/attention/gemm_amx.hpp"
#include "cpu/attention/pack.hpp"
#include "cpu/attention/softmax.hpp"
#include "cpu/attention/stream.hpp"
#include "cpu/attention_backward/gradient.hpp"
#include "cpu/latent_attention/packed_row.hpp"
#include "cpu/latent_attention/tiles_amx.hpp"
#include "cpu/quantized_attention/int8_amx.hpp"

namespace fovea::cpu::FOVEA_ISA {

extern constexpr AttentionKernels kAttention{
    .arithmetic = "bf16 AMX",
    .block_rows = 2 * kTileRows,
    .panel = kPanel,
    .depth = kTileDepth,
    .operand_bytes = sizeof(BF16Math::Operand),
    .row_bytes = kRowBytes,
    .tile_bytes = kTileBytes,
    .enter = enter_tiles,
    .leave = leave_tiles,
    .load_q = {nullptr, nullptr, load_q<BF16Math, BF16>, load_q<BF16Math, E4M3>},
    .pack_keys = {nullptr, nullptr, pack_keys<BF16Math, BF16>, pack_keys<BF16Math, E4M3>},
    .pack_values = {nullptr, nullptr, pack_values<BF16Math, BF16>, pack_values<BF16Math, E4M3>},
    .scores = tile_scores,
    .softmax = softmax<BF16Math>,
    .values = tile_values,
    .stream_scores = {nullptr, nullptr, stream_scores<BF16Math, BF16>, stream_scores<BF16Math, E4M3>},
    .gradient = gradient<BF16Math>,
    .transpose_gradient = transpose_gradient<BF16Math>,
};

extern constexpr AttentionKernels kLatent{kLatentTileKernels};

extern constexpr LatentKernels kLatentRows{.decode = {{nullptr, nullptr, decode_row<0, BF16>},
                                                      {nullptr, nullptr, decode_row<1, BF16>},
                                                      {nullptr, nullptr, decode_row<2, BF16>},
                                                      {nullptr, nullptr, decode_row<3, BF16>},
                                                      {nullptr, nullptr, decode_row<4, BF16>}}};

extern constexpr AttentionKernels kInt8{
    .arithmetic = "int8 AMX scores, bf16 AMX values,",
    .block_rows = 2 * kTileRows,
    .panel = kPanel,
    .depth = kTileDepth,
    .operand_bytes = sizeof(BF16Math::Operand),
    .qk_operand_bytes = sizeof(Int8TileMath::Operand),
    .row_bytes = kRowBytes,
    .tile_bytes = kTileBytes,
    .enter = enter_tiles,
    .leave = leave_tiles,
    .load_q = {nullptr, nullptr, nullptr, nullptr, load_q<Int8TileMath, I8>},
    .pack_keys = {nullptr, nullptr, nullptr, nullptr, pack_keys<Int8TileMath, I8>},
    .pack_values = {nullptr, pack_values<BF16Math, F16>, nullptr, pack_values<BF16Math, E4M3>, nullptr},
    .scores = int8_tile_scores,
    .softmax = softmax<BF16Math>,
    .values = tile_values,
    .attend = int8_attend,
};

}  // namespace fovea::cpu::FOVEA_ISA
