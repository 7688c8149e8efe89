// SPDX-License-Identifier: Apache-2.0
/// The kernel of values: the softmax of a cell's scores by several warps, and P V of few columns by one.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/copy_async.cuh"
#include "gpu/cuda/common/global_memory.cuh"
#include "gpu/cuda/common/mma.cuh"
#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/paged_attention/columns/cell.cuh"
#include "gpu/cuda/sm90/paged_attention/columns/finish.cuh"

namespace fovea::gpu::sm90::paged_attention::columns {

/// kGroups: columns of a CTA, in groups of eight. kRowsOfLane: 2, or 1 where a cell has at most eight rows.
template <int kKeyTile_, int kGroups_, int kRowsOfLane_>
struct ValueShared {
  static constexpr int kKeyTile = kKeyTile_, kGroups = kGroups_, kRowsOfLane = kRowsOfLane_;
  static constexpr int kWarps = kRowsOfLane == 1 ? (kGroups > 2 ? 11 : 15) : kGroups > 2 ? 10 : 11;  // of the softmax
  static constexpr int kThreads = 32 * (kWarps + 1);
  static constexpr int kSteps = kKeyTile / 16, kKeys = (kKeyTile + 31) / 32 * 32;  // keys: of whole ldmatrix
  struct alignas(8 * kRowsOfLane) Weights {                                        // of an operand a of P V
    std::uint32_t pairs[2][kRowsOfLane];
  };
  struct Slot {  // of a softmax warp
    alignas(16) Weights weights[kSteps][32];
    float2 maximum[32], rescale[32];  // of the lane's two rows
    uint4 values[kValueStages][kGroups][kKeys];
  };
  Slot slots[kWarps];
  // Maximum and sum of the rows so far, in the order of key tiles. A warp passes them on to the next one.
  float2 maximum[32], sum[32];
  std::uint64_t full[kWarps], empty[kWarps];  // weights and values of a slot
  std::uint64_t maximum_turn[kWarps], sum_turn[kWarps];

  __device__ void init(int thread) {
    if (thread < 32) {
      maximum[thread] = {-INFINITY, -INFINITY};
      sum[thread] = {0, 0};
    }
    if (thread != 0) return;
    for (auto* barriers : {&full, &empty, &maximum_turn, &sum_turn}) barriers_init(*barriers, 1);
    fence_barrier_init();
    barrier_arrive(shared_address(&maximum_turn[0]));
    barrier_arrive(shared_address(&sum_turn[0]));
  }
};

/// A key tile of a cell, counted from the last: all warps compute them in this order. The softmax warps take turns.
template <int kWarps>
struct TileOfTurn {
  int turn;

  __device__ int warp() const { return turn % kWarps; }
  __device__ int round() const { return turn / kWarps; }
  __device__ std::uint32_t parity() const { return round() & 1; }
};

template <class Element, class Shared>
class SoftmaxWarp {
 public:
  __device__ SoftmaxWarp(const Params& params_, Shared& shared_, const Cell& cell_, int warp_)
      : params(params_), shared(shared_), slot(shared_.slots[warp_]), cell(cell_), warp(warp_), lane(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void operator()() {
    const float scale = log2_scale(params);
#pragma unroll
    for (int i = 0; i < kValueStages - 1; ++i) {
      find_blocks(warp + i * kWarps);
      load_values(warp + i * kWarps);
    }
    for (Turn at{warp}; at.turn < cell.tiles(); at.turn += kWarps) {
      const int ahead = at.turn + (kValueStages - 1) * kWarps;
      find_blocks(ahead);
      load_scores(tile_of(at.turn));
      follow_maximum(at, scale);
      exponentiate(scale);
      // The next key tile's values follow those of the one before.
      if (at.round() > 0) barrier_wait(shared_address(&shared.empty[warp]), (at.round() - 1) & 1);
      load_values(ahead);
      store_weights();
      copy_async_wait<kValueStages - 1>();
      pass(shared.full[warp]);
      add_sum(at);
    }
    copy_async_wait<0>();
  }

 private:
  static constexpr int kKeyTile = Shared::kKeyTile, kGroups = Shared::kGroups, kWarps = Shared::kWarps, kRows = Shared::kRowsOfLane;
  static constexpr int kScores = kKeyTile / 4 * kRows;            // of a lane
  static constexpr int kCopies = (kKeyTile * kGroups + 31) / 32;  // of a lane, for a tile's values
  using Turn = TileOfTurn<kWarps>;

  __device__ int tile_of(int turn) const { return cell.work.last - 1 - turn; }
  /// Arrives after what all lanes have stored.
  __device__ void pass(std::uint64_t& barrier) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&barrier));
  }

  /// The chunk of eight columns that is the lane's i-th copy.
  __device__ int row_of_copy(int i) const { return (i * 32 + lane) / kGroups; }

  /// Finds the blocks of a tile's values, which arrive while the warp waits for scores.
  __device__ void find_blocks(int turn) {
    if (turn >= cell.tiles()) return;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int key = tile_of(turn) * kKeyTile + row_of_copy(i);
      blocks[i] = cell.sees(key) ? cell.block_of(key) : -1;
    }
  }
  __device__ void load_values(int turn) const {
    if (turn < cell.tiles()) {
      const int stage = turn / kWarps % kValueStages, group = lane % kGroups;
      const int column = (static_cast<int>(blockIdx.x) * kGroups + group) * 8;
      const auto* v = static_cast<const Element*>(params.v.data) + cell.kv_head * params.v.strides.head + column;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int row = row_of_copy(i);
        const bool present = params.has(blocks[i]) && column < params.head_dim_v;
        const auto* from = v + cell.offset_in_head(params.v.strides, tile_of(turn) * kKeyTile + row, present ? blocks[i] : 0);
        if (row < kKeyTile) gpu::copy_async(shared_address(&slot.values[stage][group][row]), from, present);
      }
    }
    copy_async_commit();
  }

  /// Waits for the scores of a tile. Rows that the cell does not have see nothing.
  __device__ void load_scores(int tile) {
    if (lane == 0) flag_wait(cell.ready(tile), 1);
    __syncwarp();
    const auto* from = reinterpret_cast<const float4*>(cell.scores_of(tile, kKeyTile));
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = lane_row(lane) + 8 * r;
      const bool present = row < cell.rows;
#pragma unroll
      for (int i = 0; i < kKeyTile / 16; ++i) {
        const float4 x =
            present ? __ldcg(from + (i * params.score_rows + row) * 4 + lane % 4) : float4{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        float* first = scores + 2 * (2 * i * kRows + r);
        first[0] = x.x;
        first[1] = x.y;
        first[2 * kRows] = x.z;
        first[2 * kRows + 1] = x.w;
      }
    }
  }
  /// Row of the lane's i-th score: as gpu::row_of() of two.
  static constexpr __device__ int row_of_score(int i) { return i / 2 % kRows; }

  /// Updates the maximum of each row as OnlineSoftmax does.
  __device__ void follow_maximum(Turn at, float scale) {
    float largest[kRows];
#pragma unroll
    for (float& x : largest) x = -INFINITY;
#pragma unroll
    for (int i = 0; i < kScores; ++i) largest[row_of_score(i)] = fmaxf(largest[row_of_score(i)], scores[i]);
#pragma unroll
    for (float& x : largest) x = Warp::largest_of_row(x);
    barrier_wait(shared_address(&shared.maximum_turn[warp]), at.parity());
    const float2 before = shared.maximum[lane];
    const float after = followed(before.x, largest[0], scale), other = kRows > 1 ? followed(before.y, largest[kRows - 1], scale) : before.y;
    shared.maximum[lane] = slot.maximum[lane] = {after, other};
    pass(shared.maximum_turn[Turn{at.turn + 1}.warp()]);
    // Read again, so that exponentials do not precede the arrival, for which other warps wait.
    asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(maximum[0]), "=f"(maximum[1])
                 : "r"(shared_address(&slot.maximum[lane]))
                 : "memory");
    rescale = {rescale_factor<Warp>(before.x, maximum[0], scale), kRows > 1 ? rescale_factor<Warp>(before.y, maximum[1], scale) : 1};
  }

  /// Turns scores into probabilities, with the roundings of OnlineSoftmax.
  __device__ void exponentiate(float scale) {
    float base[kRows], offset[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      offset[r] = maximum[r] * scale;
      const bool plain = is_plain(offset[r]);
      base[r] = plain || maximum[r] == -INFINITY ? 0 : maximum[r];
      offset[r] = plain ? offset[r] : 0;
      odd[r] = 0;
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i] = Warp::exp2(fmaf(scores[i] - base[row_of_score(i)], scale, -offset[row_of_score(i)]));
#pragma unroll
    for (int i = 1; i < kScores; i += 2) odd[row_of_score(i)] += scores[i];
  }

  __device__ void store_weights() const {
#pragma unroll
    for (int step = 0; step < Shared::kSteps; ++step) {
      typename Shared::Weights weights;
#pragma unroll
      for (int i = 0; i < 2 * kRows; ++i)
        weights.pairs[i / kRows][i % kRows] = pack<Element>(scores[4 * kRows * step + 2 * i], scores[4 * kRows * step + 2 * i + 1]);
      slot.weights[step][lane] = weights;
    }
    slot.rescale[lane] = rescale;
  }

  /// Adds the lane's probabilities to its share of the sums, after those of the key tile before.
  __device__ void add_sum(Turn at) {
    barrier_wait(shared_address(&shared.sum_turn[warp]), at.parity());
    const float2 before = shared.sum[lane];
    float sum[2] = {__fmul_rn(before.x, rescale.x), __fmul_rn(before.y, rescale.y)};
#pragma unroll
    for (int i = 0; i < kScores; i += 2) sum[row_of_score(i)] = __fadd_rn(sum[row_of_score(i)], scores[i]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] = __fadd_rn(sum[r], odd[r]);
    shared.sum[lane] = {sum[0], sum[1]};
    pass(shared.sum_turn[Turn{at.turn + 1}.warp()]);
  }

  const Params& params;
  Shared& shared;
  typename Shared::Slot& slot;
  const Cell& cell;
  const int warp, lane;
  int blocks[kCopies];
  float scores[kScores], maximum[2], odd[kRows];
  float2 rescale;
};

/// The warp of P V: one chain of MMAs for each group of columns, in the order of the keys.
template <class Element, class Shared>
class ValueWarp {
 public:
  static constexpr int kGroups = Shared::kGroups, kSteps = Shared::kSteps, kPairs = (kSteps + 1) / 2;
  using Turn = TileOfTurn<Shared::kWarps>;

  __device__ ValueWarp(Shared& shared_, int tiles_) : shared(shared_), tiles(tiles_), lane(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void operator()(float (&out)[4 * kGroups]) {
#pragma unroll
    for (float& x : out) x = 0;
    load({0}, 0, pairs[0]);
    for (int turn = 0; turn < tiles; turn += 2) {
      multiply<0>({turn}, out);
      if (turn + 1 < tiles) multiply<kPairs % 2>({turn + 1}, out);
    }
  }

 private:
  /// Operands of two MMAs of each chain, which are loaded beside the two before.
  struct Pair {
    std::uint32_t a[2][4], b[kGroups][4];
  };

  __device__ __forceinline__ void load(Turn at, int pair, Pair& to) {
    if (at.turn >= tiles) return;
    typename Shared::Slot& slot = shared.slots[at.warp()];
    if (pair == 0) {
      barrier_wait(shared_address(&shared.full[at.warp()]), at.parity());
      rescale = slot.rescale[lane];
    }
#pragma unroll
    for (int i = 0; i < 2 && 2 * pair + i < kSteps; ++i) {
      const typename Shared::Weights weights = slot.weights[2 * pair + i][lane];
#pragma unroll
      for (int part = 0; part < 4; ++part) to.a[i][part] = part % 2 < Shared::kRowsOfLane ? weights.pairs[part / 2][part % 2] : 0;
    }
    const int stage = at.round() % kValueStages;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) ldmatrix_trans(to.b[group], shared_address(&slot.values[stage][group][32 * pair + lane]));
  }

  /// Adds the products of a key tile, whose first operands are in pairs[kFirst].
  template <int kFirst>
  __device__ __forceinline__ void multiply(Turn at, float (&out)[4 * kGroups]) {
#pragma unroll
    for (int i = 0; i < 4 * kGroups; ++i) out[i] *= gpu::row_of(i) == 0 ? rescale.x : rescale.y;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const Pair& now = pairs[(kFirst + pair) % 2];
      const bool last = pair + 1 == kPairs;
      load(last ? Turn{at.turn + 1} : at, last ? 0 : pair + 1, pairs[(kFirst + pair + 1) % 2]);
#pragma unroll
      for (int i = 0; i < 2 && 2 * pair + i < kSteps; ++i) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) mma<Element>(out + 4 * group, now.a[i], now.b[group][2 * i], now.b[group][2 * i + 1]);
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&shared.empty[at.warp()]));
  }

  Shared& shared;
  const int tiles, lane;
  Pair pairs[2];
  float2 rescale;  // of the key tile whose operands were loaded last
};

/// CTAs of a cell have 8 kGroups columns each. They need not wait for the kernel of scores to end, but for each key tile.
template <class Element, int kKeyTile, int kGroups, int kRowsOfLane>
__global__ void __launch_bounds__(ValueShared<kKeyTile, kGroups, kRowsOfLane>::kThreads)
    weigh_values(const __grid_constant__ Params params) {
  extern __shared__ __align__(16) std::byte memory[];
  using Shared = ValueShared<kKeyTile, kGroups, kRowsOfLane>;
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Cell cell(params, static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y), kKeyTile);
  shared.init(static_cast<int>(threadIdx.x));
  __syncthreads();
  if (cell.rows > 0 && warp < Shared::kWarps) SoftmaxWarp<Element, Shared>(params, shared, cell, warp)();
  if (warp < Shared::kWarps) return;
  float out[4 * kGroups];
  if (cell.rows > 0) ValueWarp<Element, Shared>(shared, cell.tiles())(out);
  // This kernel is complete after the one of scores.
  grid_dependency_wait();
  if (cell.rows == 0) return;
  const TileOfTurn<Shared::kWarps> end{cell.tiles()};
  barrier_wait(shared_address(&shared.sum_turn[end.warp()]), end.parity());
  const float2 maximum = shared.maximum[threadIdx.x % 32], sum = shared.sum[threadIdx.x % 32];
  Finish<Element, kGroups>(params, cell, maximum, sum)(out);
}

}  // namespace fovea::gpu::sm90::paged_attention::columns
