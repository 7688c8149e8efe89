// SPDX-License-Identifier: Apache-2.0
/// The schedule of a batch.
#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/sm90/latent_attention/params.hpp"
#include "gpu/cuda/sm90/latent_attention/work.cuh"

namespace fovea::gpu::sm90::latent {
namespace {

inline constexpr int kScheduleThreads = 1024;  // at most

/// One block: sums the costs of all sequences, chooses the line on which they lie, and writes the first work tile of each part.
__global__ void __launch_bounds__(kScheduleThreads) schedule_sequences(const __grid_constant__ Params params) {
  __shared__ int kept[kScheduleThreads + 1], warp_sums[32], carry, size;
  const int threads = blockDim.x, thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  int* sums = params.batch <= kScheduleThreads ? kept : params.prefix;  // the nearer memory
  grid_dependency_wait();
  launch_dependents();
  if (thread == 0) sums[0] = carry = 0;
  const int flags = params.ctas > 1 ? params.ctas * params.kv_heads * params.query_tiles * kMathWarps : 0;
  for (int i = thread; i < flags; i += threads) params.partial_ready[i] = 0;
  bool alike = true;
  __syncthreads();
  for (int first = 0; first < params.batch; first += threads) {
    const int index = first + thread, pairs = index < params.batch ? sequence_at(params, index).pairs() : 0;
    int sum = pairs;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) warp_sums[warp] = sum;
    if (index == 0) size = pairs;
    __syncthreads();
    alike = alike && (index >= params.batch || pairs == size);
    sum += carry;
    for (int w = 0; w < warp; ++w) sum += warp_sums[w];
    if (index < params.batch) sums[index + 1] = sum;
    __syncthreads();
    if (thread == threads - 1) carry = sum;
    __syncthreads();
  }
  const bool all_alike = __syncthreads_and(alike);
  const detail::SplitLine line = detail::split_line(params.ctas, params.batch, carry, all_alike ? size : 0, params.overhead);
  for (int i = thread; i < params.batch; i += threads) {
    params.prefix[i + 1] = sums[i + 1] += (i + 1) * line.overhead;
  }
  if (thread == 0) {
    params.prefix[0] = 0;
    params.prefix[params.batch + 1] = line.length;
    params.prefix[params.batch + 2] = line.overhead;
  }
  __syncthreads();
  const detail::SplitSchedule schedule{
      .prefix = sums, .batch = params.batch, .length = line.length, .overhead = line.overhead, .whole = params.whole};
  for (int cta = thread; cta < params.ctas; cta += threads) {
    WorkTile work = WorkTile::from(schedule.first_sequence(cta), params, schedule, cta);
    work.place(schedule, cta);
    params.first_work[cta] = work;
  }
}

}  // namespace

CudaStatus launch_schedule(const Params& params, Stream stream) {
  const int threads = params.batch <= 256 ? 256 : kScheduleThreads;  // each step waits for all of them
  const LaunchShape shape{.grid = dim3(1), .block = dim3(threads), .programmatic = true};
  return launch(&schedule_sequences, shape, stream, params);
}

}  // namespace fovea::gpu::sm90::latent
