// SPDX-License-Identifier: Apache-2.0
/// Parameters of the kernels.
#pragma once

#include <cstdint>

#include "fovea/kv_format.hpp"
#include "gpu/cuda/common/packed_mask.hpp"
#include "op/common/band.hpp"
#include "op/common/division.hpp"
#include "op/common/strides.hpp"

namespace fovea::gpu::portable::paged_attention {

struct Cache {
  const std::byte* data = nullptr;
  detail::CacheStrides strides{};        ///< in bytes
  int row_bytes = 0;                     ///< bytes of the head dim
  bool aligned = false;                  ///< every row, to 16 bytes
  bool in_words = false;                 ///< every row, to 4 bytes
  const std::byte* scales = nullptr;     ///< of codes, beside each row; or null
  detail::CacheStrides scale_strides{};  ///< in bytes
  int scale_bytes = 0;                   ///< of a row
  bool scale_words = false;              ///< they are whole words of 4 bytes, f32 or of blocks; else f16, or bytes
  const float* scale = nullptr;          ///< of a head, or null
  std::int64_t scale_stride = 0;         ///< from head to head
};

/// Codes of a row and their scales, for kernels that decode what they load.
struct RowCodes {
  bool elements = false;  ///< plain 16-bit elements
  KvCode code = KvCode::e4m3;
  KvScale scale = KvScale::none;
  int group = 0;  ///< values that share a scale of blocks, else 0
};

/// Softmax state of a row: its largest score, and the sum of powers of two relative to it.
struct RowState {
  float maximum = 0;
  float sum = 0;
};

/// Partial results of query tiles that several splits share: [slot][kv head][row of the query tile], two slots a split.
struct Partials {
  float* out = nullptr;  ///< normalised, [head_dim_v]
  RowState* states = nullptr;
  /// Flags, [split][kv head]. A split stores the call's number once its result of a query tile that begins before it
  /// is stored. The reducing CTA resets the flag to 0, so a replayed graph does not find its own number.
  std::uint64_t* ready = nullptr;
  std::uint64_t call = 0;  ///< unique number of the call, not 0
};

struct Params {
  const void* q = nullptr;
  void* out = nullptr;
  detail::RowStrides q_strides{};
  detail::RowStrides out_strides{};
  detail::RowStrides lse_strides{};
  Cache k{};
  Cache v{};
  const std::int32_t* block_table = nullptr;
  const std::int32_t* cu_seqlens_q = nullptr;
  const std::int32_t* kv_len = nullptr;
  std::int64_t table_stride = 0;
  detail::FastDivmod page{};   ///< slots of a page
  detail::FastDivmod group{};  ///< query heads of a kv head
  int blocks = 0;
  int batch = 0;
  int total_q = 0;
  int seq_q = 0;  ///< bound of the query lengths
  int seq_k = 0;  ///< bound of the key lengths
  int kv_heads = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  bool q_aligned = false;    ///< every row, to 16 bytes
  bool out_aligned = false;  ///< every row, to 8 bytes
  bool whole_rows = false;   ///< cache rows are aligned and without padding; set by the launch
  bool word_rows = false;    ///< cache rows are aligned to 4 bytes and without padding; set by the launch
  bool in_one_page = false;  ///< also, a warp's 16 keys lie in one page, whose strides are short; set by the launch
  bool bf16 = false;         ///< q and out are bf16, else f16
  detail::NarrowMask mask{};
  float scale = 1;
  float softcap = 0;
  float inv_softcap = 0;        ///< 2 log2(e) scale / softcap
  float zero = 0;               ///< unknown to the compiler: OnlineSoftmax orders instructions by it
  const float* sink = nullptr;  ///< [heads], or null
  float* lse = nullptr;         ///< or null
  int splits = 1;               ///< of each kv head
  detail::FastDivmod splits_divmod{};
  bool whole = false;        ///< query tiles are never split
  bool queued = false;       ///< there are more splits than run at once, so one may be longer than others
  bool co_launched = false;  ///< the kernel before computes the sequences of more than seq_q tokens
  int stages = 1;
  Partials partials{};
  MaskParams bits{};   ///< of kernels with a packed mask
  RowCodes k_codes{};  ///< of kernels that decode
  RowCodes v_codes{};
};

}  // namespace fovea::gpu::portable::paged_attention
