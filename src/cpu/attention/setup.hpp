// SPDX-License-Identifier: Apache-2.0
/// The fixed part of a plan, and the arguments of a call. Dense, ragged and paged attention are one problem from here on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "cpu/attention/listed.hpp"
#include "cpu/kernels.hpp"
#include "fovea/cache_format.hpp"
#include "fovea/quantized_attention.hpp"
#include "op/common/attention_core.hpp"
#include "op/common/band.hpp"
#include "op/common/division.hpp"
#include "op/common/packed_mask.hpp"

namespace fovea::cpu {

using detail::ceil_div;
using detail::round_up;

/// Tile sizes. They decide speed and the grouping of sums, never which keys count. None depends on the batch or the number of threads
/// except q_rows, and no sum depends on q_rows.
struct Tuning {
  int q_rows = 0;          ///< query rows (of all heads of a group) that share one packing of K and V
  int chunk_rows = 0;      ///< query rows whose scores are in the cache at once
  int kv_tile = 0;         ///< keys packed at once
  int few_rows = 0;        ///< sequences with at most this many rows take several kv heads at once
  bool packs_few = false;  ///< these are packed as all others, tile by tile and head by head; else they are streamed
  int stream_tile = 0;     ///< keys of one softmax step when streaming
  int split_rows = 0;      ///< sequences with at most this many rows are split over keys
  int split_keys = 0;      ///< keys of one split, a multiple of both tiles
};

/// q_rows is at least this, unless every sequence is shorter.
inline constexpr std::int64_t kMinQRows = 64;

/// Keys of one split of a short sequence, unless there are too many splits.
inline constexpr std::int64_t kSplitKeys = 1024;

/// The same where rows are exact: every sequence has these parts, so none is short.
inline constexpr std::int64_t kExactSplitKeys = 4096;

/// split_rows is at most this: no group of heads that memory holds has more.
inline constexpr std::int64_t kMostSplitRows = 1 << 20;

/// Most rows of an item of several kv heads.
inline constexpr int kItemRows = 64;

/// Strides of K or V in bytes. Dense rows have batch, row and head; a cache has block, row (token) and head.
struct KvStrides {
  std::int64_t batch = 0, block = 0, row = 0, head = 0;
};

/// A latent cache and, for sparse attention, the lists of tokens of each query row. Strides of the cache are in bytes.
struct LatentCache {
  const PackedFormat* format = nullptr;  // null for plain rows
  std::int64_t page = 1, slots = 0;
  KvStrides strides{};
  std::int64_t topk = 0, batch_stride = 0, row_stride = 0;  // of the indices
  bool has_topk_length = false;
};

/// V is the beginning of K. With lists, each query row is a sequence of its own. Its keys are positions in the main list, then in the extra
/// one.
struct Latent {
  LatentCache main{};
  std::optional<LatentCache> extra{};
  bool sparse = false, length_of_row = false;  // topk_length counts rows, not batch items
  std::int64_t seq_q = 1;                      // sparse: query rows of a batch item
  int token_bytes = 0;                         // bytes of a token that lie side by side, main cache
  detail::RowStrides max_logits{};
  const LatentKernels* kernels = nullptr;

  bool packed() const { return main.format != nullptr || (extra && extra->format != nullptr); }
};

/// Longest row of K: latent and rotary values.
inline constexpr std::int64_t kLongestRow = 576;

/// int8 Q and K, with a scale for each group of tokens. V has a dtype of its own, and scales and means by channel.
struct Int8 {
  DType v_dtype{};
  Int8Groups groups{};
  detail::RowStrides q_scales{}, k_scales{}, v_scales{}, v_means{}, lse_shift{};
};

/// K or V of a cache in a format of codes.
struct KvCodes {
  void (*decode)(const KvRowsSource&, float* rows, std::int64_t stride, int dim) = nullptr;  // null for plain rows
  bool has_scales = false, f16_scale = false;
  KvStrides scales{};       // in bytes
  std::int64_t dim = 0;     // values in a row
  std::int64_t stride = 0;  // floats of a decoded row
  std::int64_t bytes = 0;   // of the codes of a row
};

/// A cache of which K or V is in such a format. Rows are decoded to f32, which is then the dtype of `core`.
struct KvCache {
  KvCodes k{}, v{};
  DType rows_dtype{};  // of the plain side
};

/// Rows of one head that are decoded before they are multiplied, when streaming: these stay in the first-level cache.
inline constexpr int kDecodedRows = 8;

struct Setup {
  detail::AttentionCore core{};
  std::optional<ScaleDesc> q_scale{};
  bool ragged = false, paged = false;
  std::int64_t page = 1, table_stride = 0;
  KvStrides k{}, v{};
  const AttentionKernels* attention = nullptr;
  const RowKernels* rows = nullptr;
  Tuning tuning{};
  int threads = 1;
  std::optional<Latent> latent{};
  std::optional<Int8> int8{};
  std::optional<KvCache> kv_cache{};
  std::optional<BlockLists> blocks{};

  DType v_dtype() const { return int8 ? int8->v_dtype : core.kv_dtype; }
};

/// Pointers of one run.
struct Call {
  struct List {
    const void* cache = nullptr;
    const std::int32_t *indices = nullptr, *topk_length = nullptr;
  };
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  const float *sink = nullptr, *q_scale = nullptr, *k_scale = nullptr, *v_scale = nullptr, *v_mean = nullptr, *lse_shift = nullptr;
  const void *k_scale_cache = nullptr, *v_scale_cache = nullptr;
  const std::int32_t *cu_seqlens_q = nullptr, *cu_seqlens_k = nullptr, *kv_len = nullptr, *block_table = nullptr;
  detail::MaskBytes packed_mask{};
  BlockArgs blocks{};
  List main{}, extra{};  // sparse latent attention
  float* max_logits = nullptr;
  const float* alibi_slopes = nullptr;
  const void* bias = nullptr;
  const std::int64_t* dropout_state = nullptr;
};

/// One sequence of the batch.
struct Sequence {
  std::int64_t index = 0;
  std::int64_t batch = 0, first_q = 0, first_k = 0;  // where its rows begin: batch item of fixed tensors, row of ragged ones
  std::int64_t seq_q = 0, seq_k = 0;
  std::int64_t main_k = 0;  // sparse: positions in the main list
  detail::Band band{};
};

/// Number of positions in the list of a row. The given lengths may be arbitrary.
inline std::int64_t list_length(const LatentCache& cache, const std::int32_t* topk_length, std::int64_t at) {
  return cache.has_topk_length && cache.topk > 0 ? std::clamp<std::int64_t>(topk_length[at], 0, cache.topk) : cache.topk;
}

inline void find_lists(const Latent& latent, const Call& call, Sequence& s) {
  s.batch = s.index / latent.seq_q;
  s.first_q = s.index % latent.seq_q;
  const std::int64_t at = latent.length_of_row ? s.first_q : s.batch;
  s.main_k = list_length(latent.main, call.main.topk_length, at);
  s.seq_k = s.main_k + (latent.extra ? list_length(*latent.extra, call.extra.topk_length, at) : 0);
}

inline Sequence sequence_of(const Setup& setup, const Call& call, std::int64_t index) {
  Sequence s{.index = index, .batch = setup.ragged ? 0 : index, .seq_q = setup.core.max_seq_q, .seq_k = setup.core.max_seq_k};
  if (call.cu_seqlens_q != nullptr) {
    s.first_q = call.cu_seqlens_q[index];
    s.seq_q = call.cu_seqlens_q[index + 1] - call.cu_seqlens_q[index];
  }
  if (call.cu_seqlens_k != nullptr) {
    s.first_k = call.cu_seqlens_k[index];
    s.seq_k = call.cu_seqlens_k[index + 1] - call.cu_seqlens_k[index];
  }
  if (call.kv_len != nullptr) s.seq_k = call.kv_len[index];
  if (setup.latent && setup.latent->sparse) find_lists(*setup.latent, call, s);
  s.band = detail::make_band(setup.core.mask, s.seq_q, s.seq_k);
  return s;
}

/// The packed mask of a call that has one, as far as it is the sequence's.
inline detail::SequenceBits bits_of(const Setup& setup, const Call& call, const Sequence& s) {
  const std::int64_t first_row = setup.ragged ? s.first_q : s.index * s.seq_q;
  return detail::sequence_bits(*setup.core.packed_mask, call.packed_mask, s.index, first_row, s.seq_k);
}

}  // namespace fovea::cpu
