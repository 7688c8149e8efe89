// SPDX-License-Identifier: Apache-2.0
/// One item of the backward pass: a query head of one sequence.
#pragma once

#include "cpu/attention/item.hpp"
#include "cpu/attention_backward/setup.hpp"

namespace fovea::cpu {

/// Rows from one that is used to the one that is prefetched. They may lie pages apart, where no hardware prefetcher follows.
inline constexpr std::int64_t kRowsAhead = 4;

struct Head {
  const BackwardSetup& setup;
  const BackwardCall& call;
  const BackwardExtents& extents;
  const BackwardScratch& scratch;
  Sequence sequence{};
  std::int64_t index = 0, kv_index = 0;
  float* dbias = nullptr;  ///< of the head, [row | 1][key | 1] in the bias' shape; null where nobody asks for it

  const detail::AttentionCore& core() const { return setup.forward.core; }
  const AttentionKernels& kernels() const { return *setup.forward.attention; }
  std::int64_t element() const { return static_cast<std::int64_t>(size_of(core().q_dtype)); }
  std::size_t dtype() const { return static_cast<std::size_t>(core().q_dtype); }

  /// Address of a row of the sequence.
  const std::byte* row(const void* base, const detail::RowStrides& bytes, std::int64_t row, std::int64_t head) const {
    return static_cast<const std::byte*>(base) + sequence.batch * bytes.batch + row * bytes.row + head * bytes.head;
  }
  const std::byte* query_row(const void* base, const detail::RowStrides& bytes, std::int64_t query) const {
    return row(base, bytes, sequence.first_q + query, index);
  }
  const std::byte* key_row(const void* base, const detail::RowStrides& bytes, std::int64_t key) const {
    return row(base, bytes, sequence.first_k + key, kv_index);
  }
  std::byte* key_row(void* base, const detail::RowStrides& bytes, std::int64_t key) const {
    return const_cast<std::byte*>(key_row(static_cast<const void*>(base), bytes, key));
  }
  /// Prefetches `dim` elements of the row that is kRowsAhead. Inlined, as prefetch_row() is.
  [[gnu::always_inline]] void prefetch_query(const void* base, const detail::RowStrides& bytes, std::int64_t query,
                                             std::int64_t dim) const {
    if (query + kRowsAhead < sequence.seq_q) prefetch_row(query_row(base, bytes, query + kRowsAhead), dim * element());
  }
  [[gnu::always_inline]] void prefetch_key(const void* base, const detail::RowStrides& bytes, std::int64_t key, std::int64_t dim) const {
    if (key + kRowsAhead < sequence.seq_k) prefetch_row(key_row(base, bytes, key + kRowsAhead), dim * element());
  }
};

/// Packs Q and dO, and computes lse and delta of every row. Returns the head's share of dsink.
float load_head(const Head& head);

/// Accumulates dk and dv of keys [begin, begin + count), one key tile, and adds to dq what these keys contribute.
void differentiate_tile(const Head& head, std::int64_t begin, int count);

}  // namespace fovea::cpu
