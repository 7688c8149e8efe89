// SPDX-License-Identifier: Apache-2.0
/// Shared memory of a CTA, and the loads of rows and columns by all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpu/cuda/common/copy_async.cuh"
#include "gpu/cuda/common/gradient/sequence_index.cuh"
#include "gpu/cuda/common/score_bias.cuh"
#include "gpu/cuda/portable/attention_backward/config.hpp"
#include "gpu/cuda/portable/attention_backward/work.cuh"

namespace fovea::gpu::portable::attention_backward {

/// Numbers of a tile of queries, where they are columns.
template <int kColumns>
struct alignas(16) ColumnStats {
  static constexpr int kCells = (kColumns + kQueryTile - 1) / kQueryTile;  // RowStats that they are of
  float minus_lse[kColumns], delta[kColumns];
  int natural[kCells];
};

/// With the keys that dropout leaves.
template <class Config>
struct BiasedStats : ColumnStats<Config::kColumns> {
  static constexpr int kQueries = Config::kRowsAreQueries ? Config::kRows : Config::kColumns;
  static constexpr int kBlocks = Config::kRows * Config::kColumns / kQueries / detail::kDropoutKeys;
  std::uint32_t kept[kBlocks][kQueries];  // 32 keys each
  detail::PhiloxKey random;               // of the first stage
};

/// Rows and columns of q and dout, or of k and v, as SwizzledRows.
template <class Config>
struct Storage {
  alignas(128) std::byte rows_qk[Config::kRows * 2 * Config::kHeadDimQk];
  alignas(128) std::byte rows_v[Config::kRows * 2 * Config::kHeadDimV];
  alignas(128) std::byte columns_qk[Config::kStages][Config::kColumns * 2 * Config::kHeadDimQk];
  alignas(128) std::byte columns_v[Config::kStages][Config::kColumns * 2 * Config::kHeadDimV];
  alignas(128) std::conditional_t<Config::kBiased, BiasedStats<Config>, ColumnStats<Config::kColumns>> stats[Config::kStages];
  Work work;
};

template <class Config>
class Loader {
 public:
  using Element = typename Config::Element;

  __device__ Loader(const Params& params_, Storage<Config>& storage_) : params(params_), storage(storage_) {}

  __device__ __forceinline__ void rows() const {
    const Work& work = storage.work;
    const int begin = kQueries ? work.sequence.q_begin : work.sequence.k_begin;
    const Place place{begin, work.row, work.rows, work.head};
    copy<Config::kHeadDimQk, Config::kRows>(storage.rows_qk, kQueries ? params.q : params.k, place, params.head_dim_qk);
    if (Config::kOfScores)
      copy<Config::kHeadDimV, Config::kRows>(storage.rows_v, kQueries ? params.dout : params.v, place, params.head_dim_v);
  }

  __device__ __forceinline__ void columns(Step step, int stage) const {
    const Sequence& at = storage.work.sequence;
    const int token = step.tile * Config::kColumns;
    const Place place{kQueries ? at.k_begin : at.q_begin, token, kQueries ? at.seq_k : at.seq_q, step.head};
    copy<Config::kHeadDimQk, Config::kColumns>(storage.columns_qk[stage], kQueries ? params.k : params.q, place, params.head_dim_qk);
    copy<Config::kHeadDimV, Config::kColumns>(storage.columns_v[stage], kQueries ? params.v : params.dout, place, params.head_dim_v);
    if (!kQueries) stats(step.head, token, stage);
    if constexpr (Config::kBiased) {
      if (params.bias.dropout_state != nullptr) find_kept(step, stage);
    }
  }

 private:
  static constexpr bool kQueries = Config::kRowsAreQueries;

  struct Place {
    int begin, token, tokens, head;  // of the tensor, the sequence's first row; of the sequence
  };
  /// Evaluates philox for each query and each two of every eight keys. The four lanes of a query share a word.
  __device__ __forceinline__ void find_kept(Step step, int stage) const {
    using Stats = BiasedStats<Config>;
    constexpr int kEvaluations = Stats::kQueries * Stats::kBlocks * 4, kOwn = kEvaluations / Config::kThreads;
    static_assert(kEvaluations % Config::kThreads == 0);
    const Work& work = storage.work;
    const auto number = [](int x) { return static_cast<std::uint32_t>(x); };
    std::uint32_t thread = threadIdx.x;
    asm volatile("" : "+r"(thread));  // what follows from it, kept from tile to tile, would take registers
    const int column = step.tile * Config::kColumns, query = kQueries ? work.row : column, key = kQueries ? column : work.row;
    const std::uint32_t head =
        number(sequence_index(params, work.sequence)) * number(params.heads) + number(kQueries ? work.head : step.head);
    detail::PhiloxWords words[kOwn];
    const auto place = [&](int i) { return (thread + number(i * Config::kThreads)) / 4; };  // of a word in `kept`
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const std::uint32_t block = number(key) / detail::kDropoutKeys + place(i) / Stats::kQueries;
      words[i] = {4 * block + thread % 4, number(query) + place(i) % Stats::kQueries, head, 0};
    }
    philox(words, storage.stats[0].random);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      std::uint32_t kept = 0;
#pragma unroll
      for (int eight = 0; eight < 4; ++eight) {
        const std::uint32_t word = words[i].word(eight);
        if (stays(word, false, params.bias.last_dropped)) kept |= 1u << 8 * eight;
        if (stays(word, true, params.bias.last_dropped)) kept |= 2u << 8 * eight;
      }
      kept <<= 2 * (thread % 4);
      kept |= __shfl_xor_sync(~0u, kept, 1);
      kept |= __shfl_xor_sync(~0u, kept, 2);
      if (thread % 4 == 0) storage.stats[stage].kept[place(i) / Stats::kQueries][place(i) % Stats::kQueries] = kept;
    }
  }

  template <int kColumns, int kRows>
  __device__ __forceinline__ void copy(const std::byte* to, const Tensor& tensor, Place place, int columns) const {
    const std::int64_t offset = storage.work.sequence.offset(tensor.strides, place.begin, place.token, place.head);
    const Element* from = static_cast<const Element*>(tensor.data) + offset;
    RowCopy<kColumns, kRows, Config::kThreads>()(shared_address(to), place.tokens - place.token, columns, tensor.aligned,
                                                 [&](int row) { return from + row * tensor.strides.row; });
  }

  __device__ __forceinline__ void stats(int head, int token, int stage) const {
    constexpr int kLanes = Config::kColumns / 4;  // with 16 bytes of a list each
    using Stats = ColumnStats<Config::kColumns>;
    static_assert(2 * kLanes + Stats::kCells <= Config::kThreads);
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread % kLanes * 4, list = thread / kLanes;
    const Sequence& at = storage.work.sequence;
    const std::int64_t first = std::int64_t{head} * params.query_tiles + at.query_tile;
    const RowStats* const cells = params.stats + first;
    Stats& to = storage.stats[stage];
    if (list < 2) {
      const int query = token + lane;
      const RowStats& from = cells[query / kQueryTile];
      float* const place = (list == 0 ? to.minus_lse : to.delta) + lane;
      if (Stats::kCells == 1 || query / kQueryTile * kQueryTile < at.seq_q) {
        const float* const numbers = list == 0 ? from.minus_lse : from.delta;
        copy_async(shared_address(place), numbers + query % kQueryTile);
      } else {
        const float absent = list == 0 ? -INFINITY : 0;
        *reinterpret_cast<float4*>(place) = {absent, absent, absent, absent};
      }
    } else if (const int cell = thread - 2 * kLanes; cell < Stats::kCells) {
      if (Stats::kCells == 1 || token + cell * kQueryTile < at.seq_q) {
        const RowStats& from = cells[token / kQueryTile + cell];
        copy_async_word(shared_address(&to.natural[cell]), &from.natural);
      } else {
        to.natural[cell] = 0;
      }
    }
  }

  const Params& params;
  Storage<Config>& storage;
};

}  // namespace fovea::gpu::portable::attention_backward
