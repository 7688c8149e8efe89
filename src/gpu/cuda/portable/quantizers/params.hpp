// SPDX-License-Identifier: Apache-2.0
/// What a launch passes to the quantisers of 8-bit attention.
#pragma once

#include <cstdint>

#include "fovea/quantized_attention.hpp"
#include "op/common/attention_core.hpp"

namespace fovea::gpu::portable::quantizers {

inline constexpr int kThreads = 256;
inline constexpr int kChunk = 8;          ///< channels of a row that a thread takes at once
inline constexpr int kBlockTokens = 128;  ///< of a CTA that quantises: a block of q, two of k
inline constexpr int kSliceTokens = 512;  ///< of a CTA that looks at channels
inline constexpr int kSumTokens = 16;     ///< whose sum is in f32; longer sums are in double precision

/// The sequences of a batch.
struct Batch {
  const std::int32_t *cu_seqlens_q = nullptr, *cu_seqlens_k = nullptr;  ///< [sequences + 1], of a ragged batch
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

/// What is known of a channel of some tokens.
struct ChannelPart {
  double sum;
  float low, high;
  float not_finite;  ///< 0, or NaN if a value is not finite
};

/// One tensor and its quantised twin.
struct Side {
  Rows<const void*> from{};
  Rows<void*> to{};
  Numbers scale{}, mean{};
  int heads = 0, head_dim = 0;
  ChannelPart* parts = nullptr;  ///< [slice][head][head_dim]
  float* factors = nullptr;      ///< [sequence][head][head_dim], of channels with scales; NaN where a channel is not finite
};

struct Int8Params {
  Batch batch{};
  Side q{}, k{};
  Numbers lse_shift{};
  Int8Groups groups{};
  int q_items = 0;  ///< work items of q, which come first
};

struct ChannelParams {
  Batch batch{};
  Side side{};
};

}  // namespace fovea::gpu::portable::quantizers
