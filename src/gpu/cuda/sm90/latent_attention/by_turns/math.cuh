// SPDX-License-Identifier: Apache-2.0
/// The math warpgroups. A 64 x 512 accumulator needs half of the register file, so the two split it by columns: warpgroup 0 owns columns
/// [0, 256), warpgroup 1 the rest. Each scores every other key tile (0 the even ones, 1 the odd ones of the share), and both multiply the
/// probabilities of all tiles with their half of V. The order below lets one's softmax run beside the other's products, and gives each
/// quarter of a tile pair back to the loader as soon as its last reader is done.
#pragma once

#include "gpu/cuda/sm90/latent_attention/by_turns/edge.cuh"
#include "gpu/cuda/sm90/latent_attention/by_turns/storage.cuh"
#include "gpu/cuda/sm90/latent_attention/results.cuh"
#include "gpu/cuda/sm90/latent_attention/softmax.cuh"
#include "gpu/cuda/sm90/latent_attention/work.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
struct Math {
  using Element = typename Config::Element;
  using Mma = Product<Element>;

  __device__ Math(const Params& params_, Storage<Config>& storage_, int half_) : params(params_), storage(storage_), half(half_) {
    if (Config::kLoad == Load::codes) scale_of_codes = scale_log2_of(params);
  }

  __device__ __forceinline__ void operator()() {
    for (;;) {
      if constexpr (kStages) clear_out();
      barrier_wait(shared_address(&storage.q_full), q_parity);
      const Job& job = storage.jobs[q_parity];
      q_parity ^= 1;
      if (job.done()) {
        if constexpr (kStages) stores_wait_read();
        return tell();
      }
      begin(job.request);
      if constexpr (kStages) stages = params.store_boxes && uniform((job.slot < 0) & (job.collects == 0));
      const int first = uniform(job.begin), end = uniform(job.end);
      if (half == 0) {
        even_tiles(first, end);
      } else {
        odd_tiles(first, end);
      }
      finish(job);
    }
  }

 private:
  static constexpr bool kSingleKeys = Config::kLoad != Load::boxes;
  static constexpr bool kStages = Config::kLoad == Load::rows;  // whether whole results may leave through the odd tile
  /// Decoded keys are long in coming: the odd tiles' warpgroup multiplies the even tile's P V, which makes room for others, before it waits
  /// for the second half of its own keys.
  static constexpr bool kEvenFirst = Config::kLoad == Load::codes;

  // ---- the two loops ------------------------------------------------------------------------------------------------------------

  /// Both go over pairs of an even and an odd tile, and both do O = O * rescale + P V for the even tile, then for the odd one. Between
  /// them a product whose accumulators are not waited for stands only where nothing else touches `out`: ptxas serialises the rest, and
  /// any product in a branch.
  __device__ void even_tiles(int pair, int end) {
    start_scores<0>();
    end_scores<0>();
    give_back_staging();
    tell();
    for (bool first = true;; first = false) {
      const bool last = pair + 1 == end;
      even_tile(pair * kPair, first, last);
      parity ^= 1;
      if (last) break;
      ++pair;
      values_from_shared<1>(shared_address(storage.p), kGroupBytes);
      start_scores<0>();
      products_wait<1>();
      pin(out);
      release<1, 0>();
      end_scores<0>();
      named_arrive(kEvenScored, kMathThreads);
    }
    values_from_shared<1>(shared_address(storage.p), kGroupBytes);
    products_wait<0>();
    pin(out);
    if (!(kStages && stages)) release<1, 0>();
  }

  __device__ void even_tile(int key, bool first, bool last) {
    products_wait<0>();
    pin(scores);
    if (last) release_queries();
    mask<0>(key);
    float largest[2], rescale[2], offset[2];
    find_largest(scores, largest);
    if (grow_maximum<0>(first, largest, rescale, offset) & !skips_first(first)) rescale_out(rescale);
    exponentiate(offset);
    if (last) publish_sum<0>();
    if (last) publish_largest();
    hide_values<0>(key);
    named_sync(kWarpgroup, 128);  // every warp's scores are done: their slice of K may become P
    store_probabilities(shared_address(storage.k[0]) + 8 * kGroupBytes, kKeyGroup);
    fence_shared_for_async();
    named_arrive(kEvenReady, kMathThreads);
    values_from_registers<0>();
    products_wait<0>();
    pin(out);
    release<0, 0>();

    named_sync(kOddReady, kMathThreads);
    follow_maximum<1>(false);
    if (last) take_sum<1>();
    wait_full<1, 0>();
    hide_values<1>(key + kKeyTile);
  }

  __device__ void odd_tiles(int pair, int end) {
    give_back_staging();
    start_scores<1>();
    if (!kEvenFirst) end_scores<1>();
    tell();
    for (bool first = true;; first = false) {
      const bool last = pair + 1 == end;
      odd_tile(pair * kPair, first, last);
      parity ^= 1;
      if (last) break;
      ++pair;
      named_sync(kEvenScored, kMathThreads);  // side by side, both would end late, and no softmax run beside a product
      start_scores<1>();
      if (!kEvenFirst) end_scores<1>();
    }
  }

  __device__ void odd_tile(int key, bool first, bool last) {
    if constexpr (kEvenFirst) {
      go_on_with_scores<1>();
      even_values(key, first, last);
      products_wait<0>();
      pin(out);
      release<0, 1>();
      pin(scores);
      finish_scores<1>();
    }
    products_wait<0>();
    pin(scores);
    if (last) release_queries();
    mask<1>(key + kKeyTile);
    float largest[2], rescale[2], offset[2];
    find_largest(scores, largest);
    if constexpr (!kEvenFirst) even_values(key, first, last);

    const bool grown = grow_maximum<1>(first, largest, rescale, offset);
    exponentiate(offset);
    if (last) publish_sum<1>();
    store_probabilities(shared_address(storage.p), kGroupBytes);
    fence_shared_for_async();
    named_arrive(kOddReady, kMathThreads);
    if constexpr (!kEvenFirst) {
      products_wait<0>();
      pin(out);
      release<0, 1>();
    }
    if (grown) rescale_out(rescale);
    hide_values<1>(key + kKeyTile);
    values_from_registers<1>();
    products_wait<0>();
    pin(out);
    if (!(kStages && (last & stages))) release<1, 1>();
  }

  __device__ void even_values(int key, bool first, bool last) {
    named_sync(kEvenReady, kMathThreads);
    if constexpr (kEvenFirst) {  // long done; but rescaling, which not all warps do, may not have products beside it
      products_wait<0>();
      pin(scores);
    }
    follow_maximum<0>(skips_first(first));
    if (last) add_sum<0>();
    if (last) take_largest();
    wait_full<0, 1>();
    hide_values<0>(key);
    values_from_shared<0>(shared_address(storage.k[0]) + 8 * kGroupBytes, kKeyGroup);
  }

  // ---- scores -------------------------------------------------------------------------------------------------------------------

  /// The first slice of scores = Q K^T, so that the products have something to go on with while those before it are waited for. The half
  /// that arrives first goes first: the left of even tiles, the right of odd ones.
  template <int kBuffer>
  __device__ void start_scores() {
    wait_full<kBuffer, kBuffer>();
    pin(scores);
    products_begin();
    add_scores<kBuffer, kBuffer, 0, 1>(false);
    products_commit();
  }
  template <int kBuffer>
  __device__ void end_scores() {
    go_on_with_scores<kBuffer>();
    finish_scores<kBuffer>();
  }
  template <int kBuffer>
  __device__ void go_on_with_scores() {
    products_begin();
    add_scores<kBuffer, kBuffer, 1>(true);
    products_commit();
  }
  template <int kBuffer>
  __device__ void finish_scores() {
    wait_full<kBuffer, 1 - kBuffer>();
    products_begin();
    add_scores<kBuffer, 1 - kBuffer>(true);
    products_commit();
  }

  /// Slices [kFirst, kEnd) of a half.
  template <int kBuffer, int kHalf, int kFirst = 0, int kEnd = kHalf == 0 ? kHalfSlices : Config::kSlices - kHalfSlices>
  __device__ void add_scores(bool accumulate) {
    const std::uint64_t q = operand_at(shared_address(storage.q), 16, Config::kQueryGroup);
    const std::uint64_t k = operand_at(shared_address(storage.k[kBuffer]), 16, kKeyGroup);
#pragma unroll
    for (int slice = kFirst; slice < kEnd; ++slice) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int at = (kHalf * kHalfSlices + slice) * kGroupBytes + step * 32;
        Mma::scores(scores, advanced(q, at), advanced(k, at), accumulate || slice > kFirst || step > 0);
      }
    }
  }

  template <int kOwner>
  __device__ void mask(int key) {
    const bool whole = sees_all(seen, key);
    uint2 bits{~0u, ~0u};  // one for each key
    // By the lane that gives the tile back: then even a checker that knows no warps sees that this comes before.
    if (kSingleKeys) load_shared_if(lane() == 0, shared_address(storage.present[kOwner]), bits);
    if (__all_sync(~0u, whole && (bits.x & bits.y) == ~0u)) return;
    const uint2 present{__shfl_sync(~0u, bits.x, 0), __shfl_sync(~0u, bits.y, 0)};
    mask_scores<kSingleKeys>(scores, seen, key, present, lane());
  }

  // ---- softmax ------------------------------------------------------------------------------------------------------------------

  // The maximum follows only when a row outgrows it by kSlack: the sum absorbs the factor, and the accumulators stay as they are. So after
  // a request's first tiles a vote is all that it takes. Exchanges through shared memory, shuffles too, would wait for the products of
  // scores beside them, whose operands leave no time for others there.

  /// Whether rows of this warp have new maxima, which the other warpgroup is told. The first tile of a job always sets them.
  template <int kOwner>
  __device__ bool grow_maximum(bool first, const float (&largest)[2], float (&rescale)[2], float (&offset)[2]) {
    bool grown = first;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (kSingleKeys) top[r] = fmaxf(top[r], largest[r]);
      rescale[r] = 1;
      offset[r] = maximum[r] * scale_log2();
      grown |= outgrows(largest[r], maximum[r], scale_log2(), offset[r]);
    }
    if (!__any_sync(~0u, grown)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float all = largest_of_row(largest[r]);
      rescale[r] = move_maximum(r, (all - maximum[r]) * scale_log2() > kSlack ? all : maximum[r]);
      if (lane() % 4 == 0) storage.maximum[kOwner][first_row() + 8 * r] = maximum[r];
    }
    find_offsets(maximum, scale_log2(), scores, offset);
    return true;
  }

  /// Takes over the maxima of the other warpgroup's tile. Where it had nothing to tell, an older and lower one lies there. `first`: before
  /// this warpgroup's first product, whose accumulators are zeros.
  template <int kOwner>
  __device__ void follow_maximum(bool first) {
    float told[2], rescale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) told[r] = storage.maximum[kOwner][first_row() + 8 * r];
    if (!__any_sync(~0u, told[0] > maximum[0] || told[1] > maximum[1])) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) rescale[r] = move_maximum(r, fmaxf(maximum[r], told[r]));
    if (!first) rescale_out(rescale);
  }

  /// Returns what the sum has been multiplied by.
  __device__ float move_maximum(int r, float to) {
    const float rescale = rescale_factor(maximum[r], to, scale_log2());
    maximum[r] = to;
    sum[r] *= rescale;
    return rescale;
  }

  // The odd tiles' warpgroup takes over the largest scores of the even tiles, with the last of them.
  __device__ void publish_largest() {
    if constexpr (kSingleKeys) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float all = largest_of_row(top[r]);
        if (lane() % 4 == 0) storage.largest[first_row() + 8 * r] = all;
      }
    }
  }
  __device__ void take_largest() {
    if constexpr (kSingleKeys) {
#pragma unroll
      for (int r = 0; r < 2; ++r) top[r] = fmaxf(top[r], storage.largest[first_row() + 8 * r]);
    }
  }

  __device__ void exponentiate(const float (&offset)[2]) {
    latent::exponentiate<Element>(scores, scale_log2(), offset, sum, probabilities);
  }

  __device__ void rescale_out(const float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < 128; ++i) out[i] *= rescale[i / 2 % 2];
  }

  // The sum of a row lies with four lanes. With the last pair the warpgroups also exchange what each has of it: the even tiles' sum goes to
  // the odd ones' warpgroup, which adds its own and gives the total back.
  __device__ void reduce_sum() {
#pragma unroll
    for (float& x : sum) x = sum_of_row(x);
  }
  template <int kOwner>
  __device__ void publish_sum() {
    reduce_sum();
    keep_sum_once();
    if (lane() % 4 == 0) {
      storage.sum[kOwner][first_row()] = sum[0];
      storage.sum[kOwner][first_row() + 8] = sum[1];
    }
  }
  template <int kOwner>
  __device__ void add_sum() {
    if (lane() % 4 == 0) {
      sum[0] += storage.sum[kOwner][first_row()];
      sum[1] += storage.sum[kOwner][first_row() + 8];
    }
  }
  template <int kOwner>
  __device__ void take_sum() {
    sum[0] = sum[1] = 0;
    add_sum<kOwner>();
  }
  __device__ void keep_sum_once() {
    if (lane() % 4 != 0) sum[0] = sum[1] = 0;
  }

  /// P, for the other warpgroup.
  __device__ void store_probabilities(std::uint32_t to, int group_bytes) {
    latent::store_probabilities(probabilities, to, group_bytes, warp(), lane());
  }

  // ---- values -------------------------------------------------------------------------------------------------------------------

  template <int kBuffer>
  __device__ std::uint64_t values_operand() const {
    return operand_at(shared_address(storage.k[kBuffer]) + half * kHalfSlices * kGroupBytes, kGroupBytes, kKeyGroup);
  }

  template <int kBuffer>
  __device__ void values_from_registers() {
    const std::uint64_t v = values_operand<kBuffer>();
    pin(probabilities);
    pin(out);
    products_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) add_values(&probabilities[4 * step], advanced(v, step * 2 * kKeyGroup));
    products_commit();
  }

  /// Of 16 keys: one product, or one for each half of the columns.
  template <class Probabilities>
  __device__ void add_values(Probabilities p, std::uint64_t v) {
    if constexpr (Config::kWideProducts) {
      Mma::values(out, p, v, true);
    } else {
      Mma::half_values(&out[0], p, v, true);
      Mma::half_values(&out[64], p, advanced(v, kHalfSlices / 2 * kGroupBytes), true);
    }
  }

  template <int kBuffer>
  __device__ void values_from_shared(std::uint32_t p, int group_bytes) {
    const std::uint64_t a = operand_at(p, 16, group_bytes), v = values_operand<kBuffer>();
    pin(out);
    products_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) add_values(advanced(a, step * 32), advanced(v, step * 2 * kKeyGroup));
    products_commit();
  }

  /// Values of keys that not all rows see, so that a probability of 0 does not meet what is not finite.
  template <int kBuffer>
  __device__ void hide_values(int key) {
    if (!Config::kEdges && kSingleKeys && Config::kCluster == 1) return;  // keys that no row of the tile sees come as zeros
    const detail::TileRange all = Config::kEdges ? seen_by_all : seen[0];
    if (key >= all.begin && key + kKeyTile <= all.end) return;
    const std::uint32_t values = shared_address(storage.k[kBuffer]) + half * kHalfSlices * kGroupBytes;
    if constexpr (Config::kEdges) {
      const Request& request = storage.jobs[q_parity ^ 1].request;
      EdgeTile<Element>{values, half, key, visible_to(params, request, blockIdx.x, 1)}.hide();
    } else {
      EdgeTile<Element>{values, half, key, {all, all}}.clear();
    }
  }

  // ---- barriers -----------------------------------------------------------------------------------------------------------------

  template <int kBuffer, int kHalf>
  __device__ void wait_full() {
    barrier_wait(shared_address(&storage.full[kBuffer * 2 + kHalf]), parity);
    if (kSingleKeys) fence_shared_for_async();  // their loaders do not wait for their copies until they could do it
  }

  /// This warp has read the half for the last time.
  template <int kBuffer, int kHalf>
  __device__ void release() {
    const std::uint32_t empty = shared_address(&storage.empty[kBuffer * 2 + kHalf]);
    if (lane() != 0) return;  // one lane tells both CTAs, the one that has read which keys there are
    if constexpr (Config::kCluster > 1) {
      static_assert(Config::kCluster == 2);
      barrier_arrive_at(empty, cluster_rank() ^ 1);
    }
    barrier_arrive(empty);
  }

  __device__ void release_queries() { barrier_arrive(shared_address(&storage.q_empty)); }

  // ---- a request ----------------------------------------------------------------------------------------------------------------

  __device__ void begin(const Request& request) {
    if (Config::kEdges) seen_by_all = visible_to(params, request, blockIdx.x, 1).every;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      maximum[r] = top[r] = -INFINITY;
      sum[r] = 0;
      seen[r] = kStages && params.listed ? request.keys : seen_by(params, request, first_row() + 8 * r);
    }
    if constexpr (!kStages) clear_out();
  }

  /// Accumulators of zeros are not rescaled. Of codes, who decodes has no register left for the question.
  static __device__ bool skips_first(bool first) { return kStages && first; }
  __device__ void clear_out() {
#pragma unroll
    for (float& x : out) x = 0;
  }

  __device__ void finish(const Job& job) {
    reduce_sum();
    if constexpr (kSingleKeys) {
#pragma unroll
      for (float& x : top) x = largest_of_row(x);
    }
    if (kStages && stages) {
      named_sync(kWarpgroup + half, 128);  // every warp has read this half of the odd tile
      results().store_boxes(job.request, staging());
      staged = true;
      return;
    }
    if (job.slot >= 0) return results().store_partial(job.request, job.slot, [] {});
    if (uniform(job.collects)) results().collect(storage, uniform(job.parts.end));
    results().store(job.request);
  }

  /// Half of the odd tile, through which a whole result leaves. It goes back to the loader once the result has been read, which the next
  /// job's first scores need not wait for.
  __device__ std::uint32_t staging() const { return shared_address(storage.k[1]) + half * kHalfSlices * kGroupBytes; }
  __device__ void give_back_staging() {
    if (!kStages || !staged) return;
    stores_wait_read();
    __syncwarp();
    half == 0 ? release<1, 0>() : release<1, 1>();
    staged = false;
  }

  /// The last job's partial result is there, for a part that waits for it. Said while the first scores of the next are computed.
  __device__ void tell() {
    const Job& last = storage.jobs[q_parity];
    if (uniform(last.collected)) results().tell(last.request, own_part(params));
  }

  __device__ Results<Element> results() { return {params, out, sum, maximum, top, scale_log2(), half, kSingleKeys && half == 1}; }

  // Asked for where they are needed: kept, they would cost registers that the accumulators have.
  static __device__ int lane() { return lane_index(); }
  __device__ float scale_log2() const { return Config::kLoad == Load::codes ? scale_of_codes : params.scale_log2; }
  static __device__ int warp() { return threadIdx.x % 128 / 32; }
  static __device__ int first_row() { return warp() * 16 + lane() / 4; }

  const Params& params;
  Storage<Config>& storage;
  int half;                       // of the columns: the warpgroup
  detail::TileRange seen_by_all;  // keys that all rows of the tile see (kEdges; otherwise as any row)
  detail::TileRange seen[2];      // keys that this thread's two rows see
  float out[128], scores[32], maximum[2], sum[2];
  float top[2];              // this lane's largest scores: the maximum does not follow its row closely (not Load::boxes)
  bool stages = false;       // whether this job's result leaves through half of the odd tile
  bool staged = false;       // whether the last one's may still be on its way through it
  float scale_of_codes = 0;  // scale_log2 and the magnitude of the cache's scale; above 0, so that minus infinity stays what it is
  std::uint32_t probabilities[16];
  std::uint32_t parity = 0, q_parity = 0;
};

}  // namespace fovea::gpu::sm90::latent
