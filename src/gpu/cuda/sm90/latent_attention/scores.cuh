// SPDX-License-Identifier: Apache-2.0
/// The score warpgroup of four roles: Q K^T, softmax, P. The left half of Q is in shared memory, the rest in registers, which makes room
/// for codes to be staged.
#pragma once

#include "gpu/cuda/sm90/latent_attention/output.cuh"
#include "gpu/cuda/sm90/latent_attention/softmax.cuh"
#include "gpu/cuda/sm90/latent_attention/storage.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
class Scorer {
 public:
  __device__ Scorer(const Params& params_, Storage<Config>& storage_)
      : params(params_), storage(storage_), warp(threadIdx.x % Config::kScoreThreads / 32), lane(threadIdx.x % 32) {
    asm("" : "+r"(warp), "+r"(lane));  // kept: to ask for them again takes longer
    scale_log2 = fmaxf(params.scale_log2, kLeastScale);
  }

  __device__ __forceinline__ void operator()() {
    bool done = storage.job_at(0).done();
    if (!done) ask_queries(storage.jobs[0].request);  // to return here instead makes the loop below a quarter longer
    std::uint32_t tile = 0;
    for (std::uint32_t jobs = 0; !done; ++jobs) {
      const int slot = Jobs::slot(jobs);
      const Job& job = storage.jobs[slot];
      begin(job.request, slot);
      barrier_wait(shared_address(&storage.q_full), jobs & 1);
      const std::uint32_t end = tile + uniform(job.tiles());
#pragma unroll 1
      for (int key = job.begin * kPair; tile != end; key += kKeyTile) {
        const int buffer = Tiles::slot(tile);
        start_scores(buffer);
        // What can be known before the scores are:
        const uint2 present = present_in(tile);
        const bool whole = __all_sync(~0u, sees_all(seen, key) && (present.x & present.y) == ~0u);
        products_wait<0>();
        pin(scores);
        if (!whole) mask_scores<true>(scores, seen, key, present, lane);
        const bool last = tile + 1 == end;
        if (last) {
          barrier_arrive(shared_address(&storage.q_empty));
          const Job& next = storage.job_at(jobs + 1);
          done = next.done();
          if (!done) ask_queries(next.request);  // they come while there is softmax to do
        }
        exponentiate(buffer, slot, key == job.begin * kPair);
        if (last) finish(slot);
        // For the value warps too, whose fence would wait for shared memory beside the next scores.
        fence_shared_for_async();
        named_arrive(kFull + buffer, kMathThreads + Config::kScoreThreads);
        ++tile;
      }
      if (uniform(job.collects)) barrier_arrive(shared_address(&storage.tiles_done));
      barrier_arrive(shared_address(&storage.job_empty[slot]));
    }
    if (tile == 0) return;                                            // there was no job
    for (int i = 0; i < 2; ++i, ++tile) wait_for(Tiles::slot(tile));  // the value warps arrive for two tiles more
  }

 private:
  using Element = typename Config::Element;
  using Mma = Product<Element>;
  using Jobs = typename Storage<Config>::Jobs;
  using Plans = typename Storage<Config>::Plans;
  using Tiles = typename Storage<Config>::Tiles;

  static constexpr int kOwnSlices = Config::kSlices - Config::kSharedSlices;

  __device__ int first_row() const { return warp * 16 + lane / 4; }

  // ---- a tile -------------------------------------------------------------------------------------------------------------------

  /// A bit for each key. One lane reads them, and gives the plan back.
  __device__ __forceinline__ uint2 present_in(std::uint32_t tile) const {
    const int slot = Plans::slot(tile);
    barrier_wait(shared_address(&storage.plan_full[slot]), Plans::parity(tile));
    uint2 present{};
    load_shared_if(lane == 0, shared_address(&storage.plans[slot].present), present);
    if (lane == 0) barrier_arrive(shared_address(&storage.plan_empty[slot]));
    return {static_cast<std::uint32_t>(uniform(present.x)), static_cast<std::uint32_t>(uniform(present.y))};
  }

  /// The tile is decoded.
  static __device__ void wait_for(int buffer) {
    named_sync(kDecoded + buffer, kMathThreads + Config::kScoreThreads);
    fence_shared_for_async();
  }

  __device__ __forceinline__ void start_scores(int buffer) {
    wait_for(buffer);
    const std::uint64_t k = operand_at(shared_address(storage.k[buffer]), 16, kKeyGroup);
    const std::uint64_t q = operand_at(shared_address(storage.q), 16, Config::kQueryGroup);
    pin(scores);
    for (std::uint32_t(&slice)[16] : own) pin(slice);
    products_begin();
#pragma unroll
    for (int slice = 0; slice < Config::kSlices; ++slice) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int at = slice * kGroupBytes + step * 32;
        if (slice < Config::kSharedSlices) {
          Mma::scores(scores, advanced(q, at), advanced(k, at), slice > 0 || step > 0);
        } else {
          Mma::scores(scores, &own[slice - Config::kSharedSlices][4 * step], advanced(k, at), true);
        }
      }
    }
    products_commit();
  }

  // ---- softmax ------------------------------------------------------------------------------------------------------------------

  /// Scores become probabilities, as rows of 128 bytes, where the ninth slice of the buffer is. first: nothing is there to be rescaled.
  __device__ __forceinline__ void exponentiate(int buffer, int slot, bool first) {
    float largest[2];
    find_largest(scores, largest);
    bool grown = params.max_logits != nullptr;
#pragma unroll
    for (int r = 0; r < 2; ++r) grown = grown || largest[r] * scale_log2 > maximum[r] + kSlack;
    grown = __any_sync(~0u, grown);
    if (grown) grow_maxima(buffer, slot, largest);
    if (lane == 0) storage.grown[buffer][warp] = grown && !first;
    std::uint32_t p[16];
    latent::exponentiate<Element>(scores, scale_log2, maximum, sum, p);
    if (Config::kRopeBecomesP) named_sync(kScorers, Config::kScoreThreads);  // every warp's scores are done: their slice of K may become P
    store_probabilities(p, shared_address(storage.k[buffer]) + (kKeySlices - 1) * kGroupBytes, kKeyGroup, warp, lane);
  }

  /// The maxima that have been outgrown follow; the value warpgroups are told by what to rescale.
  __device__ void grow_maxima(int buffer, int slot, const float (&largest)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float all = largest_of_row(largest[r]) * scale_log2;
      const float after = all > maximum[r] + kSlack ? all : maximum[r], factor = exp2_approximate(maximum[r] - after);
      maximum[r] = after;
      sum[r] *= factor;
      if (lane % 4 != 0) continue;
      storage.rescale[buffer][first_row() + 8 * r] = factor;
      float& noted = storage.largest[slot][first_row() + 8 * r];
      noted = fmaxf(noted, all);
    }
  }

  // ---- a job --------------------------------------------------------------------------------------------------------------------

  /// This lane's part of the slices of Q that are kept in registers.
  __device__ __forceinline__ void ask_queries(const Request& request) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Element* row = query_row<Element>(params, request, blockIdx.x * kRowTile + first_row() + 8 * r);
      const auto* from = reinterpret_cast<const std::uint32_t*>(row + Config::kSharedSlices * kSlice) + lane % 4;
#pragma unroll
      for (int slice = 0; slice < kOwnSlices; ++slice) {
#pragma unroll
        for (int i = 0; i < 8; ++i) own[slice][i / 2 * 4 + i % 2 * 2 + r] = row != nullptr ? from[slice * (kSlice / 2) + i * 4] : 0;
      }
    }
  }

  __device__ void begin(const Request& request, int slot) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      maximum[r] = kNothing;
      sum[r] = 0;
      if (lane % 4 == 0) storage.largest[slot][first_row() + 8 * r] = -INFINITY;
      const int token = params.heads_per_kv.quotient(blockIdx.x * kRowTile + first_row() + 8 * r);
      seen[r] = {0, kKeyLimit};  // rows past the end: whatever
      if (token < request.q_rows) {
        const detail::KeyRange keys = detail::keys_seen_by(request.band, token, request.kv_len);
        seen[r] = {static_cast<int>(keys.begin), static_cast<int>(keys.end)};
      }
    }
  }

  /// Sums and maxima for the value warpgroups.
  __device__ void finish(int slot) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float all = sum_of_row(sum[r]);
      if (lane % 4 != 0) continue;
      const int row = first_row() + 8 * r;
      storage.sum[slot][row] = all;
      storage.maximum[slot][row] = maximum[r];
    }
  }

  const Params& params;
  Storage<Config>& storage;
  int warp, lane;
  detail::TileRange seen[2];  // keys that this thread's two rows see
  float scale_log2;
  float scores[32], sum[2], maximum[2];
  std::uint32_t own[kOwnSlices][16];  // slices of Q
};

}  // namespace fovea::gpu::sm90::latent
