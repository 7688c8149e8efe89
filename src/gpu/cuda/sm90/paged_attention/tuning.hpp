// SPDX-License-Identifier: Apache-2.0
/// The rows of attention/tuning.hpp that serve paged attention, and the calls that the portable kernel
/// takes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <string_view>

#include "gpu/cuda/sm90/attention/tuning.hpp"

namespace fovea::gpu::sm90::paged_attention {

struct Kernel {
  std::int64_t rows_from = 0;  ///< least query rows of a sequence
};

/// Names of rows of attention::kTunings, narrowest first; of equal head dims, the one for more query rows
/// first. Tiles of 192 rows load fewer keys for each query. With tiles of 192 and 128 rows, 3072 causal rows
/// over pages of 16 take 153 and 166 us, four times 2048 take 292 and 299, four times 1024 take 99 and 96
/// (bench/results/nvidia-h100/2026-11-25-paged-prefill-clocks.json).
inline constexpr auto kKernels = std::to_array<Named<Kernel>>({
    {"64", {}},
    {"96", {}},
    {"128_tall", {1024}},
    {"128", {}},
    {"192x128", {}},
    {"256", {}},
});

/// The row of attention::kTunings with the name of a kernel.
constexpr int row_of(int kernel) { return row_named(attention::kTunings, kKernels[static_cast<std::size_t>(kernel)].name); }
constexpr const attention::Tuning& tuning_of(int kernel) { return attention::kTunings[static_cast<std::size_t>(row_of(kernel))]; }

/// The first kernel that takes these head dims, both at most 256, and `query_rows` of a sequence. A causal
/// mask halves query_rows.
constexpr int kernel_of(std::int64_t head_dim_qk, std::int64_t head_dim_v, std::int64_t query_rows) {
  int kernel = 0;
  const auto takes = [&](const attention::Tuning& tiles, std::int64_t rows_from) {
    return tiles.head_dim_qk >= head_dim_qk && tiles.head_dim_v >= head_dim_v && query_rows >= rows_from;
  };
  while (!takes(tuning_of(kernel), kKernels[static_cast<std::size_t>(kernel)].rows_from)) ++kernel;
  return kernel;
}

inline constexpr int kGroupRows = 8;  // rows of a swizzle atom; pages are multiples of it

/// Rows of a key tile that one page holds, the same for each tile.
constexpr int box_rows(std::int64_t page, int key_tile) { return static_cast<int>(std::gcd(page, std::int64_t{key_tile})); }

/// Returns why the portable kernel is faster, else empty. It splits keys, and has narrow tiles for
/// few query rows. `rows`: average query rows of a sequence and kv head, as only the device knows the
/// lengths. From 64 rows on this kernel is ahead (8 x 4096 keys: 65 us, 82); with 32 they are level. On a
/// quarter of the multiprocessors it is level with the portable kernel on all of them (214 us, 224). Both:
/// bench/results/nvidia-h200/2026-11-25-paged-prefill.json.
constexpr std::string_view outdone_by_portable(std::int64_t rows, std::int64_t work_tiles, int multiprocessors) {
  if (rows < 64) return "sequences have less than 64 query rows for each kv head on average, too few for tiles of 128";
  if (4 * work_tiles < multiprocessors) return "too few query tiles for a device of which this kernel splits no keys";
  return {};
}

// ---- two kernels for one call -----------------------------------------------------------------------------------------------

/// Bounds of a call, known before it runs. `tokens`: the most query tokens of a sequence.
struct Bounds {
  std::int64_t batch = 0, total_q = 0, tokens = 0, group = 1;
};

/// Query rows of the portable kernel's tile, which are the most of a sequence of several tokens there. Its
/// warps split the keys. The narrow tile takes 2 to 4 % less time beside a prefill. It serves one long
/// sequence beside decodes, where the bounds equal the lengths.
constexpr std::int64_t short_rows(const Bounds& call) {
  const std::int64_t others = call.batch > 1 ? (call.total_q - call.tokens) / (call.batch - 1) : 0;
  return others >= 1 && others * call.group <= 8 ? 8 : 16;
}

/// Least query tokens of a sequence that this kernel computes: more than such a tile, and more than one.
constexpr std::int64_t prefill_from(const Bounds& call) { return std::max<std::int64_t>(short_rows(call) / call.group, 1) + 1; }

/// Returns why one kernel is faster than two co-launched ones, else empty. Two need bounds that allow both
/// prefills and decodes. Few short sequences are slower in two: 16 decodes of 512 beside a prefill of 128
/// take 24 us here, 27 in two, and 84 in the portable kernel, whose tiles are as wide as the bounds.
/// README.md has other figures (H100, 2026-11-25).
constexpr std::string_view outdone_by_one(const Bounds& call) {
  const std::int64_t prefill = prefill_from(call);
  if (call.tokens < prefill) return "no sequence has more query rows than a tile of the portable kernel";
  if (call.total_q > (call.batch - 1) * call.tokens + prefill - 1) return "all sequences have many query rows";
  return {};
}

/// Cost of a key tile of a query tile here, relative to the same keys of a kv head in the co-launched
/// portable kernel. With the resulting CTAs, four prefills of 4096 beside four decodes of 8192 take 986 us,
/// with 108 CTAs 1202 (H100, 2026-11-25).
inline constexpr float kTileCost = 1.6f;

}  // namespace fovea::gpu::sm90::paged_attention
