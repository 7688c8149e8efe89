// SPDX-License-Identifier: Apache-2.0
/// Sizes and memory of the backward pass. An item is one query head of one sequence; every buffer grows at most linearly with a length.
#pragma once

#include "cpu/attention/setup.hpp"
#include "cpu/parallel.hpp"
#include "op/attention_backward/problem.hpp"

namespace fovea::cpu {

/// Tile sizes decide speed and the grouping of sums. None depends on the number of threads.
struct BackwardTuning {
  int q_tile = 0;      ///< queries whose scores are in the cache at once, a multiple of the panel
  int kv_tile = 0;     ///< keys whose gradients are accumulated while the loop runs over the queries
  int chunk_keys = 0;  ///< keys of one step, a multiple of 8 and of the micro-kernel's rows
};

struct BackwardSetup {
  Setup forward{};                                                    ///< q, k, v, mask, kernels and threads
  detail::RowStrides q{}, k{}, v{}, out{}, dout{}, dq{}, dk{}, dv{};  // bytes
  detail::RowStrides dlse{};                                          // elements
  detail::BiasStrides dbias{}, dbias_extents{};                       // elements
  std::int64_t dbias_elements = 0;                                    ///< 0: nobody asks for it
  std::int64_t total_k = 0;
  BackwardTuning tuning{};

  /// Each query head has gradients of its own, which are added up in the order of the heads.
  bool shares_keys() const { return forward.core.group() > 1; }
};

struct BackwardCall {
  Call forward{};
  const void* dout = nullptr;
  const float* dlse = nullptr;  ///< or null
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  float* dsink = nullptr;
  void* dbias = nullptr;
};

/// Row lengths of the packed operands and accumulators, in elements.
struct BackwardExtents {
  explicit BackwardExtents(const BackwardSetup& setup);
  std::int64_t qk_row = 0, v_row = 0;        // of K and V as left operands
  std::int64_t qk_keys = 0, v_keys = 0;      // of Q and dO packed as keys
  std::int64_t qk_values = 0, v_values = 0;  // of Q and dO packed as values, and of the sums
  std::int64_t queries = 0;                  // of the longest sequence, whole tiles
  std::int64_t score_stride = 0, ds_stride = 0;
};

/// Elements that are not finite must not meet a weight of zero.
struct Finite {
  bool q = true, dout = true;
};

/// The memory of one thread.
struct BackwardScratch {
  // By query, for the whole item.
  Row *q_rows = nullptr, *dout_rows = nullptr;
  float *shift = nullptr, *delta = nullptr;  // of GradientTile
  std::byte *q_keys = nullptr, *dout_keys = nullptr, *q_values = nullptr, *dout_values = nullptr;
  Finite* finite = nullptr;  // [query tiles]
  float* dq = nullptr;
  // For the key tile.
  Row *k_rows = nullptr, *v_rows = nullptr;
  std::byte *k = nullptr, *v = nullptr, *k_values = nullptr;
  float *dk = nullptr, *dv = nullptr;
  // For one (key tile, query tile) pair.
  float *scores = nullptr, *gradients = nullptr;  // [chunk_keys][score_stride]
  std::byte *p = nullptr, *ds = nullptr;          // operands; the same memory if these are f32
  std::byte* ds_rows = nullptr;                   // [q_tile][ds_stride]
  float *bias = nullptr, *dbias = nullptr;        // [chunk_keys][score_stride] of GradientTile; null without
  float* bias_row = nullptr;                      // [chunk_keys]
  char* kept = nullptr;                           // [chunk_keys][score_stride] whether dropout leaves the pair; null without
  float *ones = nullptr, *exact = nullptr;        // [largest tile]
  KeySpan* visible = nullptr;                     // [kv_tile]
  std::uint32_t* shown = nullptr;                 // [q_tile][words of a key tile] bits of shown pairs; null without a mask of bits
  RowBlock* blocks = nullptr;                     // [largest tile]
};

struct BackwardWorkspace {
  std::int32_t* next = nullptr;        // [2] the next item of each phase
  std::int32_t* order = nullptr;       // [batch] sequences, longest first
  float* dsink = nullptr;              // [batch][head]
  float *dk = nullptr, *dv = nullptr;  // [head][total_k][dim], where query heads share keys
  float* dbias = nullptr;              // [elements of the bias]
  std::byte* scratch = nullptr;
  std::size_t scratch_bytes = 0, bytes = 0;
};

/// The five matrix products of (query, key) pairs.
Work backward_work(const detail::AttentionCore& core, double pairs);

/// Threads that the largest call within the bounds is worth. The plan has memory for these.
int backward_threads(const detail::AttentionCore& core);

/// `block_k`: keys of a block of a block mask; 0 without.
BackwardTuning choose_backward_tuning(const detail::AttentionCore& core, const AttentionKernels& kernels, std::int64_t block_k);

/// With a null base only `bytes` is meaningful.
BackwardWorkspace map_backward_workspace(const BackwardSetup& setup, std::byte* base);
BackwardScratch map_backward_scratch(const BackwardSetup& setup, std::byte* base, std::size_t* bytes = nullptr);

/// Computes a call whose arguments have been checked. Allocates nothing.
void attend_backward(const BackwardSetup& setup, const BackwardCall& call, std::byte* workspace);

}  // namespace fovea::cpu
