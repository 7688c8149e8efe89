// SPDX-License-Identifier: Apache-2.0
/// The MMAs and the softmax of a warp by blocks of 32 query rows and 32 keys, key tile by key tile. Each operand that is read from shared
/// memory serves two MMAs or more. Accumulators stay in registers.
#pragma once

#include <algorithm>

#include "gpu/common/score_transform.cuh"
#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/mma.cuh"
#include "gpu/cuda/common/named_barrier.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/latent_attention/rows.cuh"

namespace fovea::gpu::portable::latent_attention {

/// Named barriers: 0 is that of the CTA, then come those of the pairs of warps and of the row groups.
struct BlockBarriers {
  static __device__ __forceinline__ void pair(int warp) { named_sync(1 + warp / 2, 64); }
  static __device__ __forceinline__ void group(int group) { named_sync(1 + kWarps / 2 + group, 128); }
  /// Whether `condition` holds for any thread of the row group.
  static __device__ __forceinline__ bool any_of_group(int group, bool condition) {
    int any;
    asm volatile(
        "{\n.reg .pred own, all;\n"
        "setp.ne.s32 own, %2, 0;\n"
        "bar.red.or.pred all, %1, 128, own;\n"
        "selp.s32 %0, 1, 0, all;\n}"
        : "=r"(any)
        : "r"(1 + kWarps / 2 + group), "r"(static_cast<int>(condition))
        : "memory");
    return any != 0;
  }
};

/// The softmax of 16 rows over every second 32 keys. Another warp has the other keys of these rows, and the same maxima.
struct BlockSoftmax : OnlineSoftmax<Warp, 16> {
  /// Turns scores into probabilities by the current maxima. Returns whether they are void, as a maximum has to follow.
  __device__ __forceinline__ bool apply(const float (&scores)[16], float (&p)[16], float scale, float zero) {
    float largest[2], offset[2];
    find_largest(scores, largest);
    bool outgrown = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      offset[r] = maximum[r] * scale;
      outgrown |= ((largest[r] - maximum[r]) * scale > kSlack) | !is_plain(offset[r]);
    }
    exponentiate_copy(scores, p, scale, offset, zero);
    return outgrown;
  }
  __device__ __forceinline__ void find(const float (&scores)[16], float (&largest)[2]) const {
    find_largest(scores, largest);
#pragma unroll
    for (float& x : largest) x = Warp::largest_of_row(x);
  }
  /// The same after maxima have followed. `largest`: of all scores of the tile.
  __device__ __forceinline__ void apply_grown(float (&scores)[16], float (&p)[16], float scale, const float (&largest)[2], float zero) {
    float offset[2];
    grow(scores, scale, largest, offset);
    quick = false;
    exponentiate_copy(scores, p, scale, offset, zero);
  }

 private:
  __device__ __forceinline__ void exponentiate_copy(const float (&scores)[16], float (&p)[16], float scale, float (&offset)[2],
                                                    float zero) {
#pragma unroll
    for (int i = 0; i < 16; ++i) p[i] = scores[i];
    const float factor[1] = {scale};
    exponentiate(p, factor, offset, zero);
  }
};

template <class Config>
class BlockMath {
  using Element = typename Config::Element;
  using Rows = KeyRows<Config>;
  using Queries = QueryRows<Config>;
  static constexpr int kScores = 16, kOut = Config::kColumns / 2, kShared = Config::kSteps - Config::kRegisterSteps;

 public:
  __device__ BlockMath(const Params& params_, Storage<Config>& storage_, int kv_head_)
      : params(params_), storage(storage_), kv_head(kv_head_) {
    const MatrixPlace place = a_operand_place(lane()), values = b_operand_place(lane());
    const std::uint32_t queries = shared_address(storage.queries);
    q_from = queries + (static_cast<std::uint32_t>(Queries::offset(row_of_block(part()) + place.row, place.chunk)) ^ (32 * part()));
    q_other = queries + (static_cast<std::uint32_t>(Queries::offset(row_of_block(1 - part()) + place.row, place.chunk)) ^ (32 * part()));
    k_from = storage.keys(0) + (static_cast<std::uint32_t>(Rows::offset(first_key() + place.row, place.chunk)) ^ (32 * part()));
    v_from = storage.keys(0) + static_cast<std::uint32_t>(Rows::offset(values.row, values.chunk) + first_value() * 2);
  }

  /// Issues copies of the queries of a work tile, before those of its keys.
  __device__ __forceinline__ void copy_queries(const WorkTile& work) const {
    constexpr int kRowThreads = Queries::kSpanChunks, kPassRows = kThreads / kRowThreads;
    const int chunk = static_cast<int>(threadIdx.x) % kRowThreads;
#pragma unroll 1
    for (int own = static_cast<int>(threadIdx.x) / kRowThreads; own < Config::kRowTile; own += kPassRows) {
      const std::uint32_t to = shared_address(storage.queries) + static_cast<std::uint32_t>(Queries::offset(own, chunk));
      TileRow<Config>{params, work, kv_head, own}.copy_chunks(to, chunk, Queries::kSpans);
    }
  }

  __device__ __forceinline__ void begin(const WorkTile& work_) {
    work = &work_;
    softmax.begin();
    largest[0] = largest[1] = -INFINITY;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (float& x : out[m]) x = 0;
#pragma unroll
      for (int r = 0; Config::kRegisterSteps > 0 && r < 2; ++r) {
        const int own = row_of_block(m == 0 ? part() : 1 - part()) + lane_row(lane()) + 8 * r;
        TileRow<Config>{params, *work, kv_head, own}.template load<kShared>(16 * part() + lane_column(lane()), r, last_queries[m]);
      }
    }
  }

  /// Products of this warp's part of the columns. Those of its own rows stay, the others go to the other warp of the pair.
  __device__ __forceinline__ void multiply_keys(int buffer) {
    float products[2][kScores] = {};
    const std::uint32_t keys = k_from + buffer * Config::kStageBytes;
#pragma unroll
    for (int step = 0; step < Config::kSteps; ++step) {
      std::uint32_t q[2][4];
      if (step < kShared) {
        ldmatrix(q[0], Queries::advanced(q_from, first_column<Config>(step)));
        ldmatrix(q[1], Queries::advanced(q_other, first_column<Config>(step)));
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) q[i / 4][i % 4] = last_queries[i / 4][step - kShared][i % 4];
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        std::uint32_t k[4];
        ldmatrix(k, Rows::advanced(keys, first_column<Config>(step)) + 16 * n * Rows::kRowBytes);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma<Element>(&products[m][8 * n], q[m], k[0], k[2]);
          mma<Element>(&products[m][8 * n + 4], q[m], k[1], k[3]);
        }
      }
    }
    auto& to = storage.products[warp() ^ 1];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float* x = &products[1][4 * n];
      to[n][lane()] = {x[0], x[1], x[2], x[3]};
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i] = products[0][i];
  }

  /// Waits until the other warp of the pair has stored its products.
  __device__ __forceinline__ void await_products() const { BlockBarriers::pair(warp()); }

  /// Softmax and values of a tile, after that barrier. `masked`: not all rows see all keys.
  __device__ __forceinline__ void accumulate(int tile, int stage, bool masked, int buffer) {
    add_products();
    const ScoreTransform<Warp> score = score_transform(params);  // made again instead of kept, which would spill
    score(scores);
    if (masked) mask(tile * Config::kKeys + first_key());
    if (params.listed) hide_absent(stage);
    if (params.max_logits != nullptr) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) largest[gpu::row_of(i)] = fmaxf(largest[gpu::row_of(i)], scores[i]);
    }
    const float sum[2] = {softmax.sum[0], softmax.sum[1]};
    float p[kScores];
    const bool outgrown = softmax.apply(scores, p, score.scale_log2, params.zero);
    store_probabilities(p);
    if (BlockBarriers::any_of_group(group(), outgrown)) {
      softmax.sum[0] = sum[0];
      softmax.sum[1] = sum[1];
      grow(score.scale_log2);
    }
    multiply_values(buffer);
  }

  /// Stores the results of a work tile, or partial ones.
  __device__ __forceinline__ void store(const WorkTile& of) {
    softmax.reduce_sum();
    const int first = row_of_block(part()) + lane_row(lane());
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float most = Warp::largest_of_row(largest[r]);
      if (lane() % 4 == 0) {
        storage.sum[key_half()][first + 8 * r] = softmax.sum[r];
        storage.largest[key_half()][first + 8 * r] = most;
        storage.maximum[first + 8 * r] = softmax.maximum[r];
      }
    }
    BlockBarriers::group(group());
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = i / 2, r = i % 2, own = row_of_block(m) + lane_row(lane()) + 8 * r;
      const float total = storage.sum[0][own] + storage.sum[1][own], most = fmaxf(storage.largest[0][own], storage.largest[1][own]);
      TileRow<Config>{params, of, kv_head, own}.store({storage.maximum[own], total}, most, score_transform(params).scale_log2,
                                                      first_value() + lane_column(lane()), out[m], r);
    }
  }

 private:
  __device__ __forceinline__ void add_products() {
    const auto& from = storage.products[warp()];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float4 x = from[n][lane()];
      scores[4 * n] += x.x;
      scores[4 * n + 1] += x.y;
      scores[4 * n + 2] += x.z;
      scores[4 * n + 3] += x.w;
    }
  }

  __device__ __forceinline__ void mask(int first) {
    const int key = first + lane_column(lane());
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = params.group.quotient(work->row + row_of_block(part()) + lane_row(lane()) + 8 * r);
      mask_row(scores, r, max(token + work->low, work->begin) - key, min(token + work->high + 1, work->end) - key);
    }
  }

  /// Hides scores of keys that the tile lacks.
  __device__ __forceinline__ void hide_absent(int stage) {
    const unsigned present = __ballot_sync(~0u, storage.sources[stage][first_key() + lane()] != kAbsent) >> lane_column(lane());
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      if ((present >> column_of(i) & 1) == 0) scores[i] = -INFINITY;
    }
  }

  __device__ __forceinline__ void store_probabilities(const float (&p)[kScores]) const {
    __syncwarp();  // the region's products have been read
    const int row = lane_row(lane());
    const std::uint32_t to = shared_address(storage.products[warp()]) + 4 * (lane() % 4);
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      store_shared_32(to + static_cast<std::uint32_t>(ProbabilityRows::offset(row + 8 * gpu::row_of(i), i / 4)),
                      pack<Element>(p[i], p[i + 1]));
    }
  }

  /// The maxima follow the scores of the whole row group, which then has new probabilities. Called by all of its warps.
  __device__ __forceinline__ void grow(float scale_log2) {
    float most[2], p[kScores];
    softmax.find(scores, most);
    const int first = row_of_block(part()) + lane_row(lane());
    if (lane() % 4 == 0) {
      storage.largest[key_half()][first] = most[0];
      storage.largest[key_half()][first + 8] = most[1];
    }
    BlockBarriers::group(group());
#pragma unroll
    for (int r = 0; r < 2; ++r) most[r] = fmaxf(most[r], storage.largest[1 - key_half()][first + 8 * r]);
    softmax.apply_grown(scores, p, scale_log2, most, params.zero);
    store_probabilities(p);
    if (key_half() == 0 && lane() % 4 == 0) {
      storage.rescale[first] = softmax.rescale[0];
      storage.rescale[first + 8] = softmax.rescale[1];
    }
    BlockBarriers::group(group());
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int own = row_of_block(m) + lane_row(lane());
      const float factor[2] = {storage.rescale[own], storage.rescale[own + 8]};
#pragma unroll
      for (int i = 0; i < kOut; ++i) out[m][i] *= factor[gpu::row_of(i)];
    }
  }

  __device__ __forceinline__ void multiply_values(int buffer) {
    const std::uint32_t values = v_from + buffer * Config::kStageBytes;
    const MatrixPlace place = a_operand_place(lane());
    const std::uint32_t from = shared_address(storage.products[group() * Config::kGroupWarps]) +
                               static_cast<std::uint32_t>(ProbabilityRows::offset(place.row, place.chunk));
    constexpr int kRegion = sizeof(storage.products[0]);
#pragma unroll
    for (int n = 0; n < Config::kKeys / 16; ++n) {
      std::uint32_t p[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) ldmatrix(p[m], ProbabilityRows::advanced(from, n % 2 * 16) + (n / 2 * 2 + m) * kRegion);
#pragma unroll
      for (int column = 0; column < Config::kColumns; column += 16) {
        std::uint32_t v[4];
        ldmatrix_trans(v, Rows::advanced(values, column) + 16 * n * Rows::kRowBytes);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma<Element>(&out[m][column / 2], p[m], v[0], v[2]);
          mma<Element>(&out[m][column / 2 + 4], p[m], v[1], v[3]);
        }
      }
    }
  }

  static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ int group() { return warp() / Config::kGroupWarps; }
  static __device__ int part() { return warp() % 2; }
  static __device__ int key_half() { return warp() / 2 % 2; }
  static __device__ int first_key() { return 32 * key_half(); }
  static __device__ int first_value() { return warp() % Config::kGroupWarps * Config::kColumns; }
  static __device__ int row_of_block(int m) { return group() * 32 + m * 16; }

  const Params& params;
  Storage<Config>& storage;
  const int kv_head;
  const WorkTile* work = nullptr;
  std::uint32_t q_from, q_other, k_from, v_from;  // addresses of the lane's row and chunk; own rows first
  std::uint32_t last_queries[2][std::max(Config::kRegisterSteps, 1)][4];
  float scores[kScores];
  float out[2][kOut];
  float largest[2];  // scores, if max_logits are wanted
  BlockSoftmax softmax;
};

}  // namespace fovea::gpu::portable::latent_attention
