// SPDX-License-Identifier: Apache-2.0
/// What a launch passes to the kernels.
#pragma once

#include <cstdint>

#include "op/common/attention_core.hpp"
#include "op/common/cache_view.hpp"
#include "op/common/fast_divmod.hpp"
#include "op/common/narrow_band.hpp"

namespace fovea::gpu::portable::paged_attention {

struct Cache {
  const std::byte* data = nullptr;
  detail::CacheStrides strides{};  ///< in bytes
  int row_bytes = 0;               ///< of a row's head dim
  bool aligned = false;            ///< every row, to 16 bytes
  const float* scale = nullptr;    ///< or null
  std::int64_t scale_stride = 0;   ///< from head to head
};

/// Largest score of a row, and the sum of powers of two relative to it.
struct RowState {
  float maximum = 0, sum = 0;
};

/// Partial results of query tiles that several parts share: two slots for each part, [slot][kv head][row of the query tile].
struct Partials {
  float* out = nullptr;  ///< normalised, [head_dim_v]
  RowState* states = nullptr;
  /// [part][kv head]: holds the call's number once the part's result of a query tile that begins before it is there. The CTA that
  /// merges makes it 0 again, so a call that a graph repeats finds none of its own.
  std::uint64_t* ready = nullptr;
  std::uint64_t call = 0;  ///< no other call has this number, and it is not 0
};

struct Params {
  const void* q = nullptr;
  void* out = nullptr;
  detail::RowStrides q_strides{}, out_strides{}, lse_strides{};
  Cache k{}, v{};
  const std::int32_t *block_table = nullptr, *cu_seqlens_q = nullptr, *kv_len = nullptr;
  std::int64_t table_stride = 0;
  detail::FastDivmod page{}, group{};  ///< slots of a page; query heads of a kv head
  int blocks = 0;
  int batch = 0, total_q = 0, seq_q = 0, seq_k = 0;  ///< bounds of lengths
  int kv_heads = 0, head_dim_qk = 0, head_dim_v = 0;
  bool q_aligned = false, out_aligned = false;  ///< every row: to 16 bytes, to 8
  // What the launch adds, as registers are scarce:
  bool whole_rows = false;   ///< cache rows are aligned and without padding
  bool in_one_page = false;  ///< and 16 keys of a tile are neighbours in a page, whose strides are short
  bool bf16 = false;         ///< q and out are bf16, else f16
  detail::NarrowMask mask{};
  float scale = 1, softcap = 0, inv_softcap = 0;  ///< inv_softcap: 2 scale / softcap in base 2
  float zero = 0;                                 ///< which no compiler knows: OnlineSoftmax makes order with it
  const float* sink = nullptr;                    ///< [heads], or null
  float* lse = nullptr;                           ///< or null
  int parts = 1;                                  ///< of each kv head
  detail::FastDivmod of_parts{};                  ///< by their number
  bool whole = false;                             ///< query tiles are never split
  bool queued = false;                            ///< there are more parts than run at once: one may be longer than others
  bool co_launched = false;                       ///< the kernel before computes the sequences of more than seq_q tokens
  int stages = 1;
  Partials partials{};
};

}  // namespace fovea::gpu::portable::paged_attention
