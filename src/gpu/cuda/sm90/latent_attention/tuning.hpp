// SPDX-License-Identifier: Apache-2.0
/// Which kernel a call gets, how its keys are loaded, and whether CTAs share them. Only speed depends on it.
#pragma once

#include <array>
#include <cstddef>

#include "fovea/tensor.hpp"
#include "gpu/common/tuning_table.hpp"
#include "gpu/cuda/sm90/latent_attention/tiles.hpp"

namespace fovea::gpu::sm90::latent {

/// Each has a folder.
enum class Kernel { pingpong, specialised };

/// The properties of a call on which the choice depends.
struct Call {
  DType dtype = DType::bf16;  ///< of q
  int head_dim = 576;
  Row rows = Row::plain;  ///< in all caches; Row::any for a mixture without a kernel of its own
  bool tma = false;       ///< dense attention over pages and strides that TMA boxes of eight keys take
  bool pairs = false;     ///< the query tiles of a sequence come in pairs, which see the same keys
  bool edges = false;     ///< rows of a query tile may see different keys
};

struct Tuning {
  // The calls that it takes.
  Row rows = Row::any;       ///< Row::any: every kind
  bool tma = false;          ///< only these
  bool pairs = false;        ///< only these
  bool specialised = false;  ///< compiled for these rows alone: only bf16 queries, without edges
  int head_dim = 0;          ///< 0: 576 and 512
  // Their kernel.
  Kernel kernel = Kernel::pingpong;
  Load load = Load::quantised;
  int cluster = 1;  ///< CTAs that share their keys

  constexpr bool has_instance(DType dtype, int dim, bool edges) const {
    return (!specialised || (dtype == DType::bf16 && !edges)) && (head_dim == 0 || head_dim == dim);
  }
  constexpr bool takes(const Call& call) const {
    return (rows == Row::any || rows == call.rows) && (!tma || call.tma) && (!pairs || call.pairs) &&
           has_instance(call.dtype, call.head_dim, call.edges);
  }
  /// The kind of rows that it knows at compile time.
  constexpr Row known_rows() const { return specialised ? rows : Row::any; }
};

/// A call gets the first row that takes it. Measured on an H200, TFLOP/s: 128 sequences of 4096 keys and 128 heads with bf16 queries, from
/// bench/results/nvidia-h200/2026-11-23-latent-decode.json unless a row names another file.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"tma_cluster", {.rows = Row::plain, .tma = true, .pairs = true, .load = Load::tma, .cluster = 2}},  // 592; rows of 512 values: 590
    {"tma", {.rows = Row::plain, .tma = true, .load = Load::tma}},  // with 64 heads 432, which is 86 % of the rate of copies
    {"gather", {.rows = Row::plain, .load = Load::gather}},         // in pages of one key: 500
    {"v32", {.rows = Row::v32, .specialised = true, .head_dim = 576, .kernel = Kernel::specialised}},  // 446
    {"v4", {.rows = Row::v4, .specialised = true, .head_dim = 512, .kernel = Kernel::specialised}},    // 476
    {"v41", {.rows = Row::v41, .specialised = true, .head_dim = 512, .kernel = Kernel::specialised}},  // 457
    // 274 with 64 heads that list 128 and 512 keys, where v41 alone has 328 (2026-11-24-sparse-latent.json).
    {"v41_and_fp4", {.rows = Row::v41_and_fp4, .specialised = true, .head_dim = 512, .kernel = Kernel::specialised}},
    {"e4m3_cluster", {.rows = Row::e4m3, .pairs = true, .specialised = true, .cluster = 2}},  // 478; rows of 512 values: 488
    {"e4m3", {.rows = Row::e4m3, .specialised = true}},                                       // not measured alone
    {"quantised", {}},                                                                        // e4m3 rows with f16 queries: 369
});

/// The last row takes every call.
constexpr std::size_t tuning_index(const Call& call) {
  std::size_t index = 0;
  while (!kTunings[index].takes(call)) ++index;
  return index;
}

/// The kernel of a Config.
constexpr Kernel kernel_of(Load load, Row known_rows) {
  for (const Tuning& tuning : kTunings) {
    if (tuning.load == load && tuning.known_rows() == known_rows) return tuning.kernel;
  }
  return Kernel::pingpong;
}

}  // namespace fovea::gpu::sm90::latent
