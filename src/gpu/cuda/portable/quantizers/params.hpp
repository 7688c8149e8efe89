// SPDX-License-Identifier: Apache-2.0
/// Parameters of the quantisers of 8-bit attention.
#pragma once

#include <cstdint>

#include "fovea/quantized_attention.hpp"
#include "gpu/cuda/common/value_tiles.hpp"
#include "gpu/cuda/portable/quantizers/item_order.hpp"
#include "op/common/strides.hpp"

namespace fovea::gpu::portable::quantizers {

inline constexpr int kChunk = 8;          ///< channels of a row that a thread takes at once
inline constexpr int kRowsAtOnce = 16;    ///< rows that the threads of a CTA take at once, where a thread keeps to its channels
inline constexpr int kBlockTokens = 128;  ///< of an item that quantises: a block of q, two of k
inline constexpr int kSliceTokens = 256;  ///< of an item that looks at channels: a thread's sum of 16 is in f32, longer ones are double

static_assert(kBlockTokens == kQuantizedValueKeys);

/// Threads that a token's head_dim channels are worth.
constexpr int threads_for(std::int64_t head_dim) { return head_dim == 64 ? 128 : head_dim == 256 ? 512 : 256; }
/// CTAs that are meant to be on a multiprocessor together.
constexpr int ctas_for(std::int64_t head_dim) { return head_dim == 64 ? 6 : head_dim == 256 ? 1 : 3; }

/// The sequences of a batch.
struct Batch {
  const std::int32_t* cu_seqlens_q = nullptr;  ///< [sequences + 1], of a ragged batch
  const std::int32_t* cu_seqlens_k = nullptr;  ///< likewise
  int sequences = 0;
  int seq_q = 0, seq_k = 0;  ///< lengths, which are bounds of a ragged batch
  bool masked = false;       ///< keys that no row sees do not count
  BandMask mask{};
};

/// A tensor of rows. `aligned`: every chunk of a row to its own bytes.
template <class Pointer>
struct Rows {
  Pointer data = nullptr;
  detail::RowStrides strides{};
  bool aligned = false;
};
/// Numbers in f32, of groups or channels; null where there are none.
using Numbers = Rows<float*>;

/// Sum and extremes of a channel over some tokens. Extremes are NaN if a value is.
struct alignas(16) ChannelPart {
  double sum;
  float low, high;
};

/// One tensor and its quantised twin.
struct Side {
  Rows<const void*> from{};
  Rows<void*> to{};
  Numbers scale{}, mean{};
  int heads = 0;
  ChannelPart* parts = nullptr;  ///< [slice][column][head_dim]
  unsigned* arrivals = nullptr;  ///< [sequence][head]: slices that have been read, then kReady; null without means and scales
  float* means = nullptr;        ///< [sequence][head][head_dim], a dense twin of `mean`
  float* factors = nullptr;      ///< likewise, of channels with scales; NaN where a channel is not finite
};
inline constexpr unsigned kReady = ~0u;

/// The int8 groups of the tokens of an item, from the item's first one on.
struct GroupTable {
  alignas(4) std::uint8_t of[kBlockTokens]{};
  int per_block = 0, blocks = 1, block_tokens = 0;
};

struct Params {
  Batch batch{};
  Side q{}, k{}, v{};
  GroupTable q_groups{}, k_groups{};
  Numbers lse_shift{};
  ItemOrder order{};
  int items = 0;  ///< of `order`
  int kv_heads = 0;
  bool values_as_f16 = false;
  bool values_in_tiles = false;  ///< e4m3 by gpu/cuda/common/value_tiles.hpp, not by the strides of `v.to`
  unsigned* ticket = nullptr;    ///< the next item; without it, a CTA has the item of its index
};

}  // namespace fovea::gpu::portable::quantizers
