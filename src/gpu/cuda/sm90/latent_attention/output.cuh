// SPDX-License-Identifier: Apache-2.0
/// Rows of the result, as the attention itself and the combination of its parts write them.
#pragma once

#include "gpu/cuda/sm90/latent_attention/work.cuh"

namespace fovea::gpu::sm90::latent {

inline constexpr float kNothing = -1e30f;  // maximum of a row that has seen nothing: finite, so that no difference is NaN

/// A row of a tile: query token major, head minor. Rows past the last token are not written.
struct OutputRow {
  __device__ OutputRow(const Params& params, const Request& request, int kv_head, int packed) {
    const int token = packed / params.heads_per_kv;
    const std::int64_t batch = params.cu_seqlens_q != nullptr ? 0 : request.index;
    const std::int64_t row = request.q_begin + token, head = kv_head * params.heads_per_kv + packed - token * params.heads_per_kv;
    valid = token < request.q_rows;
    out = batch * params.out_batch + row * params.out_row + head * params.out_head;
    base = params.out;
    if (params.lse != nullptr) lse = params.lse + batch * params.lse_batch + row * params.lse_row + head * params.lse_head;
  }

  /// Four lanes hold 32 columns between them, each two neighbours of every eight (x). They trade, so that each can store 16 bytes at once;
  /// all lanes of the warp must call.
  template <class Element>
  __device__ void store(int column, int lane, const float (&x)[8]) const {
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = pack<Element>(x[2 * i], x[2 * i + 1]);
    trade<1>(lane, pairs[0], pairs[1]);
    trade<1>(lane, pairs[2], pairs[3]);
    trade<2>(lane, pairs[0], pairs[2]);
    trade<2>(lane, pairs[1], pairs[3]);
    if (valid)
      *reinterpret_cast<uint4*>(static_cast<Element*>(base) + out + column + lane % 4 * 8) = {pairs[0], pairs[1], pairs[2], pairs[3]};
  }

  /// From base 2.
  __device__ void store_lse(float value) const {
    constexpr float kLn2 = 0.693147180559945309f;
    if (valid && lse != nullptr) *lse = value * kLn2;
  }

 private:
  /// A 2 x 2 transposition over the lanes that differ in kLane: the lower keeps `a` and receives the other's `a` as its `b`.
  template <int kLane>
  static __device__ void trade(int lane, std::uint32_t& a, std::uint32_t& b) {
    const bool upper = lane & kLane;
    const std::uint32_t received = __shfl_xor_sync(~0u, upper ? a : b, kLane);
    (upper ? a : b) = received;
  }

  void* base = nullptr;
  float* lse = nullptr;
  std::int64_t out = 0;
  bool valid = false;
};

}  // namespace fovea::gpu::sm90::latent
