// SPDX-License-Identifier: Apache-2.0
/// The score warpgroup of the specialised kernel: Q K^T, softmax, P. The left half of Q is in shared memory and the rest in registers,
/// which leaves shared memory for staged codes.
#pragma once

#include "gpu/cuda/sm90/latent_attention/output.cuh"
#include "gpu/cuda/sm90/latent_attention/softmax.cuh"
#include "gpu/cuda/sm90/latent_attention/specialised/storage.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
class Scorer {
 public:
  __device__ Scorer(const Params& params_, Storage<Config>& storage_)
      : params(params_), storage(storage_), warp(threadIdx.x % Config::kScoreThreads / 32), lane(threadIdx.x % 32) {
    asm("" : "+r"(warp), "+r"(lane));  // kept: to read them again takes longer
    scale_log2 = scale_log2_of(params);
  }

  __device__ __forceinline__ void operator()() {
    bool done = storage.work_at(0).done();
    if (!done) load_queries(storage.work_tiles[0].sequence);  // with a return here, the loop below is a quarter longer
    std::uint32_t tile = 0;
    for (std::uint32_t work_index = 0; !done; ++work_index) {
      const int slot = WorkTiles::stage_of(work_index);
      const WorkTile& work = storage.work_tiles[slot];
      begin(work.sequence, slot);
      barrier_wait(shared_address(&storage.q_full), work_index & 1);
      const std::uint32_t end = tile + uniform(work.tiles());
#pragma unroll 1
      for (int key = work.begin * kPair; tile != end; key += kKeyTile) {
        const int buffer = Tiles::stage_of(tile);
        start_scores(buffer);
        // These do not depend on the scores.
        const uint2 present = present_in(tile);
        const bool whole = key >= seen.begin && key + kKeyTile <= seen.end && (present.x & present.y) == ~0u;
        wgmma_wait<0>();
        fence_operand(scores);
        if (!whole) {  // the lane is read again, because values derived from it would be kept throughout the loop
          mask_scores<true>(scores, {seen, seen}, key, present, lane_index());
        }
        const bool last = tile + 1 == end;
        if (last) {
          barrier_arrive(shared_address(&storage.q_empty));
          const WorkTile& next = storage.work_at(work_index + 1);
          done = next.done();
          if (!done) load_queries(next.sequence);  // in flight beside the softmax
        }
        exponentiate(buffer, slot, key == work.begin * kPair);
        if (last) finish(slot);
        // Value warps rely on this fence: their own would wait for shared memory beside the next scores.
        fence_shared_for_async();
        named_arrive(kFull + buffer, kMathThreads + Config::kScoreThreads);
        ++tile;
      }
      if (uniform(work.reduces)) barrier_arrive(shared_address(&storage.tiles_done));
      barrier_arrive(shared_address(&storage.work_empty[slot]));
    }
    if (tile == 0) return;                                                // there was no work tile
    for (int i = 0; i < 2; ++i, ++tile) wait_for(Tiles::stage_of(tile));  // value warps arrive for two tiles more
  }

 private:
  using Element = typename Config::Element;
  using Mma = Wgmma<Element, kKeyTile>;
  using WorkTiles = typename Storage<Config>::WorkTiles;
  using Plans = typename Storage<Config>::Plans;
  using Tiles = typename Storage<Config>::Tiles;

  static constexpr int kOwnSlices = Config::kSlices - Config::kSharedSlices;

  __device__ int first_row() const { return warp * 16 + lane_row(lane); }

  // ---- a tile -------------------------------------------------------------------------------------------------------------------

  /// A bit for each present key. One lane reads them and releases the plan.
  __device__ __forceinline__ uint2 present_in(std::uint32_t tile) const {
    const int slot = Plans::stage_of(tile);
    barrier_wait(shared_address(&storage.plan_full[slot]), Plans::parity_of(tile));
    uint2 present{};
    load_shared_if(lane == 0, shared_address(&storage.plans[slot].present), present);
    if (lane == 0) barrier_arrive(shared_address(&storage.plan_empty[slot]));
    return {static_cast<std::uint32_t>(uniform(present.x)), static_cast<std::uint32_t>(uniform(present.y))};
  }

  /// Waits until the tile is decoded.
  static __device__ void wait_for(int buffer) {
    named_sync(kDecoded + buffer, kMathThreads + Config::kScoreThreads);
    fence_shared_for_async();
  }

  __device__ __forceinline__ void start_scores(int buffer) {
    wait_for(buffer);
    const std::uint64_t k = smem_descriptor(shared_address(storage.k[buffer]), 16, kKeyGroup);
    const std::uint64_t q = smem_descriptor(shared_address(storage.q), 16, Config::kQueryGroup);
    fence_operand(scores);
    for (std::uint32_t(&slice)[16] : own) fence_operand(slice);
    wgmma_fence();
#pragma unroll
    for (int slice = 0; slice < Config::kSlices; ++slice) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int at = slice * kGroupBytes + step * 32;
        if (slice < Config::kSharedSlices) {
          Mma::template ss<Major::k>(scores, advance_descriptor(q, at), advance_descriptor(k, at), slice > 0 || step > 0);
        } else {
          Mma::template rs<Major::k>(scores, &own[slice - Config::kSharedSlices][4 * step], advance_descriptor(k, at), true);
        }
      }
    }
    wgmma_commit();
  }

  // ---- softmax ------------------------------------------------------------------------------------------------------------------

  /// Turns scores into probabilities and stores them to the ninth slice of the stage: [group][8 rows][64 keys]. `first`: nothing needs to
  /// be rescaled.
  __device__ __forceinline__ void exponentiate(int buffer, int slot, bool first) {
    float largest[2];
    find_largest(scores, largest);
    bool grown = !plain;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(top[r], largest[r]);
      grown |= fmaf(largest[r], scale_log2, -offset[r]) > kSlack;
    }
    grown = __any_sync(~0u, grown);
    if (grown) grow_maxima(buffer, slot, largest);
    if (lane == 0) storage.grown[buffer][warp] = grown && !first;
    std::uint32_t p[16];
    latent::exponentiate<Element>(scores, scale_log2, offset, sum, p);
    if (Config::kRopeBecomesP)
      named_sync(kScorers, Config::kScoreThreads);  // every warp arrives once its scores are complete: their slice of K may become P
    const std::uint32_t to = shared_address(storage.k[buffer]) + (kKeySlices - 1) * kGroupBytes;
    const int own = lane_index(), row = warp * 16 + own % 16;
    store_swizzled_row<kKeyTile>(to + row / 8 * kKeyGroup + row % 8 * 128, row, 0, own, p);
  }

  /// Sets maxima that have been outgrown, and stores the factors for the value warpgroups.
  __device__ void grow_maxima(int buffer, int slot, const float (&largest)[2]) {
    float maximum[2];
    __syncwarp();  // the first of the four lanes of a row has stored its maximum
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float& kept = storage.maximum[slot][first_row() + 8 * r];
      const float before = kept;
      maximum[r] = followed(before, Warp::largest_of_row(largest[r]), scale_log2);
      const float factor = rescale_factor<Warp>(before, maximum[r], scale_log2);
      sum[r] *= factor;
      __syncwarp();
      if (lane % 4 != 0) continue;
      kept = maximum[r];
      storage.rescale[buffer][first_row() + 8 * r] = factor;
    }
    plain = __all_sync(~0u, find_offsets(maximum, scale_log2, scores, offset));
  }

  // ---- a work tile --------------------------------------------------------------------------------------------------------------

  /// Loads this lane's fragments of the slices of Q that are kept in registers.
  __device__ __forceinline__ void load_queries(const Sequence& sequence) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Element* row = query_row<Element>(params, sequence, blockIdx.x * kQueryTile + first_row() + 8 * r);
      const auto* from = reinterpret_cast<const std::uint32_t*>(row + Config::kSharedSlices * kSlice) + lane % 4;
#pragma unroll
      for (int slice = 0; slice < kOwnSlices; ++slice) {
#pragma unroll
        for (int i = 0; i < 8; ++i) own[slice][i / 2 * 4 + i % 2 * 2 + r] = row != nullptr ? from[slice * (kSlice / 2) + i * 4] : 0;
      }
    }
  }

  __device__ void begin(const Sequence& sequence, int slot) {
    plain = false;
    seen = seen_by(params, sequence, 0);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = -INFINITY;
      sum[r] = offset[r] = 0;
      if (lane % 4 == 0) storage.maximum[slot][first_row() + 8 * r] = -INFINITY;
    }
  }

  /// Stores sums and largest scores for the value warpgroups. The maxima are stored already.
  __device__ void finish(int slot) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float all = Warp::sum_of_row(sum[r]), largest = Warp::largest_of_row(top[r]);
      if (lane % 4 != 0) continue;
      const int row = first_row() + 8 * r;
      storage.sum[slot][row] = all;
      storage.largest[slot][row] = largest;
    }
  }

  const Params& params;
  Storage<Config>& storage;
  int warp, lane;
  detail::TileRange seen;  // keys that all rows of the tile see (never kEdges)
  float scale_log2;
  float scores[32], sum[2];           // accumulators: 64 rows x 64 keys; this lane's sums of its two rows
  float offset[2];                    // of find_offsets(); the maxima are in shared memory
  bool plain;                         // whether all rows of the warp have plain offsets
  float top[2];                       // this lane's largest scores, which the maximum follows only roughly
  std::uint32_t own[kOwnSlices][16];  // slices of Q: fragments of operand A
};

}  // namespace fovea::gpu::sm90::latent
