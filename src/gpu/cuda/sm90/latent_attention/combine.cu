// SPDX-License-Identifier: Apache-2.0
/// The combining kernel, for sequences of more splits than the attention kernel reduces.
#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/sm90/latent_attention/output.cuh"
#include "gpu/cuda/sm90/latent_attention/params.hpp"
#include "gpu/cuda/sm90/latent_attention/partial.cuh"

namespace fovea::gpu::sm90::latent {

/// Whether blockIdx.y counts sequences. Otherwise it counts CTAs of the schedule that stand in for a combined sequence, if these are fewer.
/// Even schedules count sequences, because each has more than kMostReduced splits.
__host__ __device__ constexpr bool by_sequences(const Params& params) {
  return params.batch <= (params.ctas - 1) / detail::SplitSchedule::kMostReduced;
}

/// The sequence that blocks of this y may have to combine, and whether they do. The schedule and the lengths are read before this kernel
/// waits. All blocks of the attention kernel have waited for their writer before they let this kernel start.
struct Combination {
  __device__ explicit Combination(const Params& params) {
    const int index = blockIdx.y, stand_in = (index + 1) * Schedule::kMostReduced;
    if (by_sequences(params)) {
      sequence = sequence_at(params, index);
      ctas = params.even.size > 0 ? params.even.parts_of(0, index) : schedule_of(params).parts_of(index);
      wanted = Schedule::combined(ctas);
    } else {
      const WorkTile& work = params.first_work[stand_in];
      sequence = work.sequence;
      ctas = work.ctas;
      wanted = Schedule::combined(ctas) && Schedule::stand_in(ctas) == stand_in;
    }
  }

  using Schedule = detail::SplitSchedule;
  Sequence sequence;
  detail::TileRange ctas;  // that have its splits
  bool wanted;             // whether it is combined here
};

/// Weights of the splits of each row, relative to 2^base.
template <int kRows>
struct Weights {
  static constexpr int kLanes = kMathThreads / kRows;  // lanes of a row
  float of[kMaxCtas][kRows], total[kRows], base[kRows];

  /// Called by the whole block. The lanes of a row interleave its splits and issue several loads at once. `stats_of(split, row)` returns
  /// the RowStats of one of `rows` rows.
  template <class StatsOf>
  __device__ void find(int count, int rows, float scale_log2, StatsOf&& stats_of) {
    constexpr int kAtOnce = 4;
    const int row = threadIdx.x / kLanes, own = threadIdx.x % kLanes;
    const int own_count = row < rows ? count : 0;
    float largest = -INFINITY, sum = 0;
#pragma unroll 1  // unrolled, the instructions would take longer to load
    for (int first = own; first < count; first += kAtOnce * kLanes) {
      float lse[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int split = first + i * kLanes;
        lse[i] = split < own_count ? stats_of(split, row)[RowStats::kLse] : -INFINITY;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * kLanes < count) of[first + i * kLanes][row] = lse[i];
        largest = fmaxf(largest, lse[i]);
      }
    }
    for (int step = kLanes / 2; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    if (largest == -INFINITY) largest = 0;  // no split has seen a key
    const bool exact = !is_plain(largest);  // so large an LSE has lost the logarithm of the sum
#pragma unroll 1
    for (int split = own; split < count; split += kLanes) {
      of[split][row] = exact ? 0 : exp2f(of[split][row] - largest);
      sum += of[split][row];
    }
    if (__any_sync(~0u, exact)) {
      const float maximum = find_exact(exact ? own_count : 0, scale_log2, sum, stats_of);
      largest = exact ? maximum * scale_log2 : largest;
    }
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (own == 0) {
      total[row] = sum;
      base[row] = largest;
    }
    __syncthreads();
  }

 private:
  /// Finds weights from maxima and sums instead of LSE. Returns the largest maximum.
  template <class StatsOf>
  __device__ float find_exact(int count, float scale_log2, float& sum, StatsOf&& stats_of) {
    const int row = threadIdx.x / kLanes, own = threadIdx.x % kLanes;
    float largest = -INFINITY;
#pragma unroll 1
    for (int split = own; split < count; split += kLanes) largest = fmaxf(largest, stats_of(split, row)[RowStats::kMaximum]);
    for (int step = kLanes / 2; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
#pragma unroll 1
    for (int split = own; split < count; split += kLanes) {
      const float* stats = stats_of(split, row);
      of[split][row] = stats[RowStats::kSum] * rescale_factor<Warp>(stats[RowStats::kMaximum], largest, scale_log2);
      sum += of[split][row];
    }
    return largest;
  }
};

/// Adds a chunk (half a piece): two columns of each of two rows, each row with its weight.
__device__ inline void add(float4& to, const float4& x, float upper, float lower) {
  to = {to.x + upper * x.x, to.y + upper * x.y, to.z + lower * x.z, to.w + lower * x.w};
}

/// Adds the sums of all groups of warps into those of the first group. Returns whether this thread is in the first group.
template <int kGroups, int kColumns, int kPlaces>
__device__ bool add_up(float4 (&sums)[kGroups][kColumns][kPlaces], float4 (&out)[kColumns]) {
  const int group = threadIdx.x / kPlaces, place = threadIdx.x % kPlaces;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) sums[group][i][place] = out[i];
  __syncthreads();
  if (group > 0) return false;
  for (int other = 1; other < kGroups; ++other) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) add(out[i], sums[other][i][place], 1, 1);
  }
  return true;
}

/// Stores the r-th of a thread's two rows, from `column` on.
template <class Element, int kColumns>
__device__ void store_row(const OutputRow& row, int r, int column, float normalise, const float4 (&out)[kColumns]) {
#pragma unroll
  for (int i = 0; i < kColumns; i += 2) {
    float x[4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      x[2 * j] = (r == 0 ? out[i + j].x : out[i + j].z) * normalise;
      x[2 * j + 1] = (r == 0 ? out[i + j].y : out[i + j].w) * normalise;
    }
    row.store<Element>(column + 8 * i, lane_index(), x);
  }
}

template <class StatsOf>
__device__ float largest_of_splits(int count, StatsOf&& stats_of) {
  float largest = -INFINITY;
  for (int split = 0; split < count; ++split) largest = fmaxf(largest, stats_of(split)[RowStats::kLargest]);
  return largest;
}

/// Each group of warps adds its splits in order, then the groups are added in order. Grid (query tiles x column blocks x kGroups, y, kv
/// heads). A thread has the rows of a math thread and kColumns chunks of its accumulators. The kGroups groups interleave the splits of the
/// same rows, and each issues loads of kAtOnce splits before it waits. With two chunks that is nine: eight groups then have all splits of
/// a sequence in flight.
template <class Element, int kGroups, int kColumns>
__global__ void __launch_bounds__(kMathThreads) combine(const __grid_constant__ Params params) {
  constexpr int kPieces = kColumns / 2, kBlocks = kPartialPieces / kPieces, kAtOnce = kColumns == 2 ? 9 : 4;
  constexpr int kWarps = kMathWarps / kGroups, kRows = kWarps >= 4 ? kQueryTile : kWarps * kMathWarpRows;  // of a group
  __shared__ Weights<kRows> weights;
  __shared__ float4 sums[kGroups][kColumns][kWarps * 32];
  static_assert(sizeof weights + (kGroups > 1 ? sizeof sums : 0) <= 48 * 1024);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / kWarps;
  const int first_warp = blockIdx.x % kGroups * kWarps, math_warp = first_warp + warp % kWarps;
  const int piece = blockIdx.x / kGroups % kBlocks * kPieces, tile = blockIdx.x / kGroups / kBlocks;
  const int row_begin = first_warp % 4 * kMathWarpRows, warp_row = math_warp % 4 * kMathWarpRows, first_row = warp_row + lane / 4;
  const Combination combination(params);
  const int rows = combination.sequence.q_rows * params.heads_per_kv.divisor - tile * kQueryTile,
            count = combination.ctas.end - combination.ctas.begin;
  const int own_count = warp_row < rows ? count : 0;  // nothing has been stored for rows past the end
  grid_dependency_wait();
  if (!combination.wanted || row_begin >= rows) return;
  const PartialPlace first_place(params, Combination::Schedule::slot(combination.ctas.begin, true), blockIdx.z, tile, 0);
  const auto place_of = [&](int split) { return first_place.slots_on(Combination::Schedule::slot(split, split > 0)); };
  const int own = (math_warp * kPartialPieces + piece) * kPieceWords * 32 + lane;
  Piece loaded[kAtOnce][kPieces];
  const auto issue = [&](int first) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j * kGroups >= own_count) continue;
      const uint2* from = place_of(first + j * kGroups).sums() + own;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) loaded[j][i] = Piece(from + i * kPieceWords * 32);
    }
  };
  issue(group);
  const float scale_log2 = scale_log2_of(params);
  weights.find(count, rows - row_begin, scale_log2, [&](int split, int row) { return place_of(split).row_stats(row_begin + row); });
  const int at = tile * kQueryTile + first_row, kv_head = blockIdx.z;  // computed while the loads are in flight
  const OutputRow output[2] = {{params, combination.sequence, kv_head, at}, {params, combination.sequence, kv_head, at + 8}};
  float4 out[kColumns] = {};
  for (int first = group; first < count; first += kAtOnce * kGroups) {
    if (first > group) issue(first);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j * kGroups >= count) break;
      const float* weight = &weights.of[first + j * kGroups][first_row - row_begin];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) add(out[i], loaded[j][i / 2].chunk(i % 2), weight[0], weight[8]);
    }
  }
  if constexpr (kGroups > 1) {
    if (!add_up(sums, out)) return;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float total = weights.total[first_row - row_begin + 8 * r], base = weights.base[first_row - row_begin + 8 * r];
    store_row<Element>(output[r], r, math_warp / 4 * (kValueDim / 2) + 16 * piece, output[r].normalise(params, total, base), out);
    if (piece > 0 || math_warp >= 4 || lane % 4 != 0) continue;
    output[r].store_lse(params, lse_of(total, base));
    if (params.max_logits == nullptr) continue;
    // The warps of the right half have stored the largest scores.
    const auto right = [&](int split) { return place_of(split).row_stats(kQueryTile + first_row + 8 * r); };
    output[r].store_largest(params, largest_of_splits(own_count, right), scale_log2);
  }
}

template <class Element, int kGroups, int kColumns>
CudaStatus launch_with(const Params& params, int sequences, Stream stream) {
  const LaunchShape shape{.grid = dim3(params.query_tiles * kPartialPieces * 2 / kColumns * kGroups, sequences, params.kv_heads),
                          .block = dim3(kMathThreads),
                          .programmatic = true};
  return launch(&combine<Element, kGroups, kColumns>, shape, stream, params);
}

template <class Element>
CudaStatus launch_combine(const Params& params, int blocks, Stream stream) {
  const int stand_ins = (params.ctas - 1) / detail::SplitSchedule::kMostReduced;
  if (stand_ins == 0) return {};  // the attention kernel reduces all splits
  const int sequences = by_sequences(params) ? params.batch : stand_ins;
  const int least = params.query_tiles * kPartialPieces * sequences * params.kv_heads;
  const auto chosen = least * 8 <= blocks   ? &launch_with<Element, 8, 2>
                      : least * 4 <= blocks ? &launch_with<Element, 4, 2>
                      : least * 2 <= blocks ? &launch_with<Element, 2, 2>
                      : least <= blocks     ? &launch_with<Element, 1, 2>
                                            : &launch_with<Element, 1, 4>;
  return chosen(params, sequences, stream);
}

template CudaStatus launch_combine<__half>(const Params&, int, Stream);
template CudaStatus launch_combine<__nv_bfloat16>(const Params&, int, Stream);

}  // namespace fovea::gpu::sm90::latent
