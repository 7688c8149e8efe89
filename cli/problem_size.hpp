// SPDX-License-Identifier: Apache-2.0
/// The numbers that describe a problem, as options have them.
#pragma once

#include <cstdint>
#include <optional>

#include "problems.hpp"

namespace fovea::cli {

/// 0 or an empty value stands for the usual value of the operation.
struct ProblemSize {
  DType dtype = DType::bf16;
  std::optional<DType> cache{};
  std::optional<CacheFormat> format{};
  std::optional<CacheFormat> extra{};
  std::optional<KvFormat> kv{};
  std::int64_t batch = 1, seq_q = 1, seq_k = 4096, heads = 32, kv_heads = 0, dim_qk = 0, dim_v = 0, page = 0;
  std::int64_t topk = 2048, extra_topk = 128, parts = 2;
  bool causal = false, sink = false, lse = false, flat = false;
  std::int64_t window = 0, mask_tail = 0, block_size = 0;
  float softcap = 0, dropout = 0;
  bool alibi = false, bias = false;
};

inline CacheFormat format_of(const ProblemSize& size) { return size.format.value_or(CacheFormat::rows); }

}  // namespace fovea::cli
