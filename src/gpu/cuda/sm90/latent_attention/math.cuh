// SPDX-License-Identifier: Apache-2.0
/// The math warpgroups. A 64 x 512 accumulator needs half of the register file, so the two split it by columns: warpgroup 0 owns columns
/// [0, 256), warpgroup 1 the rest. Each scores every other key tile (0 the even ones, 1 the odd ones of the share), and both multiply the
/// probabilities of all tiles with their half of V. The order below lets one's softmax run beside the other's products, and gives each
/// quarter of a tile pair back to the loader as soon as its last reader is done.
#pragma once

#include "gpu/cuda/sm90/latent_attention/output.cuh"
#include "gpu/cuda/sm90/latent_attention/storage.cuh"
#include "gpu/cuda/sm90/latent_attention/work.cuh"

namespace fovea::gpu::sm90::latent {

/// Named barriers, with who arrives and who waits. 0 is that of the whole CTA.
enum : int {
  kEvenReady = 1,   // maximum[0], rescale[0] and P of the even tile, with the last also sum[0]: warpgroup 0 arrives, 1 waits
  kOddReady = 2,    // maximum[1], rescale[1] and P of the odd tile, with the last also sum[1]: 1 arrives, 0 waits
  kEvenScored = 3,  // the scores of the next even tile are issued, so those of the odd one queue behind them: 0 arrives, 1 waits
  kWarpgroup = 4,   // and 5: one warpgroup alone
};

inline constexpr float kSlack = 8.0f;  // powers of two by which a row may outgrow its maximum before the accumulators are rescaled

template <class Config, int kWarpgroupIndex>
struct Math {
  using Element = typename Config::Element;
  using Mma = Product<Element>;

  __device__ Math(const Params& params_, Storage<Config>& storage_) : params(params_), storage(storage_) {}

  __device__ void operator()() {
    for (;;) {
      barrier_wait(shared_address(&storage.q_full), q_parity);
      const Job& job = storage.jobs[q_parity];
      q_parity ^= 1;
      if (job.done()) break;
      begin(job.request);
      const int first = uniform(job.begin), end = uniform(job.end);
      if constexpr (kWarpgroupIndex == 0) {
        even_tiles(first, end);
      } else {
        odd_tiles(first, end);
      }
      finish(job.request, job.slot);
    }
  }

 private:
  // ---- the two loops ------------------------------------------------------------------------------------------------------------

  /// Both go over pairs of an even and an odd tile, and both do O = O * rescale + P V for the even tile, then for the odd one. Between
  /// them a product whose accumulators are not waited for stands only where nothing else touches `out`: ptxas serialises the rest.
  __device__ void even_tiles(int pair, int end) {
    start_scores<0>();
    end_scores<0>();
    for (; pair + 1 < end; ++pair) even_tile<true>(pair * kPair);
    even_tile<false>(pair * kPair);
  }

  template <bool kNext>
  __device__ void even_tile(int key) {
    float rescale[2];
    products_wait<0>();
    pin(scores);
    if (!kNext) release_queries();
    weigh<0>(key, rescale);
    if (!kNext) publish_sum<0>();
    rescale_out(rescale);
    clear_unseen_values<0>(key);
    values_from_registers<0>();
    named_sync(kWarpgroup, 128);  // every warp's scores are done: their slice of K may become P
    store_probabilities(shared_address(storage.k[0]) + 8 * kGroupBytes, kKeyGroup);
    fence_shared_for_async();
    named_arrive(kEvenReady, kMathThreads);
    products_wait<0>();
    pin(out);
    release<0, 0>();

    named_sync(kOddReady, kMathThreads);
    read_back<1>(rescale);
    if (!kNext) take_sum<1>();
    rescale_out(rescale);
    wait_full<1, 0>();
    clear_unseen_values<1>(key + kKeyTile);
    values_from_shared<1>(shared_address(storage.p), kGroupBytes);
    parity ^= 1;
    if constexpr (kNext) {
      start_scores<0>();
      products_wait<1>();
    } else {
      products_wait<0>();
    }
    pin(out);
    release<1, 0>();
    if constexpr (kNext) {
      end_scores<0>();
      named_arrive(kEvenScored, kMathThreads);
    }
  }

  __device__ void odd_tiles(int pair, int end) {
    start_scores<1>();
    end_scores<1>();
    for (; pair + 1 < end; ++pair) odd_tile<true>(pair * kPair);
    odd_tile<false>(pair * kPair);
  }

  template <bool kNext>
  __device__ void odd_tile(int key) {
    float rescale[2];
    products_wait<0>();
    pin(scores);
    if (!kNext) release_queries();
    named_sync(kEvenReady, kMathThreads);
    read_back<0>(rescale);
    if (!kNext) add_sum<0>();
    rescale_out(rescale);
    wait_full<0, 1>();
    clear_unseen_values<0>(key);
    values_from_shared<0>(shared_address(storage.k[0]) + 8 * kGroupBytes, kKeyGroup);

    weigh<1>(key + kKeyTile, rescale);
    if (!kNext) publish_sum<1>();
    store_probabilities(shared_address(storage.p), kGroupBytes);
    fence_shared_for_async();
    named_arrive(kOddReady, kMathThreads);
    products_wait<0>();
    pin(out);
    release<0, 1>();
    rescale_out(rescale);
    clear_unseen_values<1>(key + kKeyTile);
    values_from_registers<1>();
    products_wait<0>();
    pin(out);
    release<1, 1>();
    parity ^= 1;
    if constexpr (kNext) {
      named_sync(kEvenScored, kMathThreads);  // side by side, both would end late, and no softmax run beside a product
      start_scores<1>();
      end_scores<1>();
    }
  }

  // ---- scores -------------------------------------------------------------------------------------------------------------------

  /// The first half of scores = Q K^T to arrive, then the other: left before right for the even tiles, right before left for the odd ones.
  template <int kBuffer>
  __device__ void start_scores() {
    wait_full<kBuffer, kBuffer>();
    pin(scores);
    products_begin();
    add_scores<kBuffer, kBuffer>(false);
    products_commit();
  }
  template <int kBuffer>
  __device__ void end_scores() {
    wait_full<kBuffer, 1 - kBuffer>();
    products_begin();
    add_scores<kBuffer, 1 - kBuffer>(true);
    products_commit();
  }

  template <int kBuffer, int kHalf>
  __device__ void add_scores(bool accumulate) {
    constexpr int kBegin = kHalf * kHalfSlices, kEnd = kHalf == 0 ? kHalfSlices : Config::kSlices;
    const std::uint64_t q = operand_at(shared_address(storage.q), 16, Config::kQueryGroup);
    const std::uint64_t k = operand_at(shared_address(storage.k[kBuffer]), 16, kKeyGroup);
#pragma unroll
    for (int slice = kBegin; slice < kEnd; ++slice) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int at = slice * kGroupBytes + step * 32;
        Mma::scores(scores, advanced(q, at), advanced(k, at), accumulate || slice > kBegin || step > 0);
      }
    }
  }

  /// Scores become probabilities: masked, against the new maximum, which the other warpgroup is told.
  template <int kOwner>
  __device__ void weigh(int key, float (&rescale)[2]) {
    mask(key);
    grow_maximum(rescale);
    exponentiate(rescale);
    publish<kOwner>(rescale);
  }

  __device__ void mask(int key) {
    const bool whole = key >= seen[0].begin && key >= seen[1].begin && key + kKeyTile <= seen[0].end && key + kKeyTile <= seen[1].end;
    if (__all_sync(~0u, whole)) return;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int column = key + i / 4 * 8 + lane() % 4 * 2 + i % 2;
      const detail::TileRange& row = seen[i / 2 % 2];
      if (column < row.begin || column >= row.end) scores[i] = -INFINITY;
    }
  }

  // ---- softmax ------------------------------------------------------------------------------------------------------------------

  /// The maximum follows only when a row outgrows it by kSlack: the sum absorbs the factor, and the accumulators stay as they are.
  __device__ void grow_maximum(float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = -INFINITY;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if (i / 2 % 2 == r) largest = fmaxf(largest, scores[i]);
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      largest *= params.scale_log2;
      const float old = maximum[r];
      if (largest > old + kSlack) maximum[r] = largest;
      rescale[r] = exp2_approximate(old - maximum[r]);
    }
  }

  /// scores become probabilities, in f32; `probabilities` the same as operands.
  __device__ void exponentiate(const float (&rescale)[2]) {
    rescale_sum(rescale);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      scores[i] = exp2_approximate(fmaf(scores[i], params.scale_log2, -maximum[i / 2 % 2]));
      sum[i / 2 % 2] += scores[i];
    }
    pack_probabilities();
  }

  __device__ void rescale_sum(const float (&rescale)[2]) {
    sum[0] *= rescale[0];
    sum[1] *= rescale[1];
  }

  __device__ void pack_probabilities() {
#pragma unroll
    for (int i = 0; i < 16; ++i) probabilities[i] = pack<Element>(scores[2 * i], scores[2 * i + 1]);
  }

  static __device__ bool changes(const float (&rescale)[2]) { return __any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f); }

  __device__ void rescale_out(const float (&rescale)[2]) {
    if (!changes(rescale)) return;
#pragma unroll
    for (int i = 0; i < 128; ++i) out[i] *= rescale[i / 2 % 2];
  }

  template <int kOwner>
  __device__ void publish(const float (&rescale)[2]) {
    if (lane() % 4 == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        storage.maximum[kOwner][first_row() + 8 * r] = maximum[r];
        storage.rescale[kOwner][first_row() + 8 * r] = rescale[r];
      }
    }
  }
  template <int kOwner>
  __device__ void read_back(float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      maximum[r] = storage.maximum[kOwner][first_row() + 8 * r];
      rescale[r] = storage.rescale[kOwner][first_row() + 8 * r];
    }
    rescale_sum(rescale);
  }

  // The sum of a row lies with four lanes. With the last pair the warpgroups also exchange what each has of it: the even tiles' sum goes to
  // the odd ones' warpgroup, which adds its own and gives the total back.
  __device__ void reduce_sum() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    }
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

  /// P as rows of 128 bytes, for the other warpgroup.
  __device__ void store_probabilities(std::uint32_t to, int group_bytes) {
    const int row = warp() * 16 + lane() % 16;
    const std::uint32_t row_at = to + row / 8 * group_bytes + row % 8 * 128;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int chunk = 2 * step + lane() / 16;
      std::uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) packed[i] = pack<Element>(scores[8 * step + 2 * i], scores[8 * step + 2 * i + 1]);
      store_matrices(row_at + (chunk ^ (row % 8)) * 16, packed[0], packed[1], packed[2], packed[3]);
    }
  }

  // ---- values -------------------------------------------------------------------------------------------------------------------

  template <int kBuffer>
  __device__ std::uint64_t values_operand() const {
    return operand_at(shared_address(storage.k[kBuffer]) + kWarpgroupIndex * kHalfSlices * kGroupBytes, kGroupBytes, kKeyGroup);
  }

  template <int kBuffer>
  __device__ void values_from_registers() {
    const std::uint64_t v = values_operand<kBuffer>();
    pin(probabilities);
    pin(out);
    products_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) Mma::values(out, &probabilities[4 * step], advanced(v, step * 2 * kKeyGroup), true);
    products_commit();
  }

  template <int kBuffer>
  __device__ void values_from_shared(std::uint32_t p, int group_bytes) {
    const std::uint64_t a = operand_at(p, 16, group_bytes), v = values_operand<kBuffer>();
    pin(out);
    products_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) Mma::values(out, advanced(a, step * 32), advanced(v, step * 2 * kKeyGroup), true);
    products_commit();
  }

  /// Slots that no row sees may hold anything, and zero times NaN is NaN: their values become zeros.
  template <int kBuffer>
  __device__ void clear_unseen_values(int key) {
    if (key >= keys.begin && key + kKeyTile <= keys.end) return;
    const std::uint32_t to = shared_address(storage.k[kBuffer]) + kWarpgroupIndex * kHalfSlices * kGroupBytes;
#pragma unroll 1
    for (int i = threadIdx.x % 128; i < kKeyTile * kHalfSlices * 8; i += 128) {
      const int row = i / (kHalfSlices * 8), chunk = i % (kHalfSlices * 8);
      if (key + row >= keys.begin && key + row < keys.end) continue;
      const std::uint32_t at = to + row / 8 * kKeyGroup + chunk / 8 * kGroupBytes + row % 8 * 128 + chunk % 8 * 16;
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
    }
    fence_shared_for_async();
    named_sync(kWarpgroup + kWarpgroupIndex, 128);
  }

  // ---- barriers -----------------------------------------------------------------------------------------------------------------

  template <int kBuffer, int kHalf>
  __device__ void wait_full() {
    barrier_wait(shared_address(&storage.full[kBuffer * 2 + kHalf]), parity);
  }

  /// This warp has read the half for the last time.
  template <int kBuffer, int kHalf>
  __device__ void release() {
    const std::uint32_t empty = shared_address(&storage.empty[kBuffer * 2 + kHalf]);
    if constexpr (Config::kCluster > 1) {
      if (lane() < Config::kCluster) barrier_arrive(empty, lane());
    } else {
      if (lane() == 0) barrier_arrive(empty);
    }
  }

  __device__ void release_queries() { barrier_arrive(shared_address(&storage.q_empty)); }

  // ---- a request ----------------------------------------------------------------------------------------------------------------

  __device__ void begin(const Request& request) {
    keys = request.keys;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      maximum[r] = kNothing;
      sum[r] = 0;
      const int token = (blockIdx.x * kRowTile + first_row() + 8 * r) / params.heads_per_kv;
      seen[r] = {};
      if (token < request.q_rows) {
        const detail::KeyRange row = detail::keys_seen_by(request.band, token, request.kv_len);
        seen[r] = {static_cast<int>(row.begin), static_cast<int>(row.end)};
      }
    }
#pragma unroll
    for (float& x : out) x = 0;
  }

  __device__ void finish(const Request& request, int slot) {
    reduce_sum();
    float normalise[2], lse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      normalise[r] = sum[r] == 0 ? 0.0f : 1.0f / sum[r];
      lse[r] = sum[r] == 0 ? -INFINITY : maximum[r] + log2f(sum[r]);
    }
    slot >= 0 ? store_partial(slot, normalise, lse) : store(request, normalise, lse);
  }

  __device__ void store(const Request& request, const float (&normalise)[2], const float (&lse)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const OutputRow row(params, request, blockIdx.y, blockIdx.x * kRowTile + first_row() + 8 * r);
#pragma unroll
      for (int i = 0; i < 32; i += 4) {
        float x[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = out[4 * (i + j / 2) + 2 * r + j % 2] * normalise[r];
        row.template store<Element>(kWarpgroupIndex * (kValueDim / 2) + 8 * i, lane(), x);
      }
      if (kWarpgroupIndex == 0 && lane() % 4 == 0) row.store_lse(lse[r]);
    }
  }

  /// In the order of the accumulator's registers, so that each store of a warp is contiguous; combine() reads them alike.
  __device__ void store_partial(int slot, const float (&normalise)[2], const float (&lse)[2]) {
    const std::int64_t tile = (static_cast<std::int64_t>(slot) * params.kv_heads + blockIdx.y) * params.row_tiles + blockIdx.x;
    float4* to = params.partial + (tile * kPartialChunks) * kMathThreads + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kPartialChunks; ++i) {
      to[i * kMathThreads] = {out[4 * i] * normalise[0], out[4 * i + 1] * normalise[0], out[4 * i + 2] * normalise[1],
                              out[4 * i + 3] * normalise[1]};
    }
    if (kWarpgroupIndex == 0 && lane() % 4 == 0) {
      params.partial_lse[tile * kRowTile + first_row()] = lse[0];
      params.partial_lse[tile * kRowTile + first_row() + 8] = lse[1];
    }
  }

  // Asked for where they are needed: kept, they would cost registers that the accumulators have.
  static __device__ int lane() { return lane_index(); }
  static __device__ int warp() { return threadIdx.x % 128 / 32; }
  static __device__ int first_row() { return warp() * 16 + lane() / 4; }

  const Params& params;
  Storage<Config>& storage;
  detail::TileRange keys;     // that some row of the request sees
  detail::TileRange seen[2];  // keys that this thread's two rows see
  float out[128], scores[32], maximum[2], sum[2];
  std::uint32_t probabilities[16];
  std::uint32_t parity = 0, q_parity = 0;
};

}  // namespace fovea::gpu::sm90::latent
