// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/common/work_tile.cuh"
#include "gpu/cuda/sm90/dense/tickets.hpp"

namespace fovea::gpu::sm90::dense {

constexpr int kBuckets = 512;  // of lengths, and threads

/// Number of a length's bucket, that of the longest first. Lengths of a bucket differ by 1/16 at most.
static __device__ int bucket_of(int length) {
  constexpr int kExact = 16;
  if (length < kExact) return kBuckets - 1 - length;
  const int shift = 31 - __clz(length) - 4;
  return kBuckets - 1 - (shift * kExact + (length >> shift));
}

/// Keys of a sequence, or 0 without queries.
static __device__ int keys_of(const SequenceLengths& lengths, int sequence) {
  if (sequence_length(lengths.cu_seqlens_q, sequence, lengths.seq_q) == 0) return 0;
  return sequence_length(lengths.cu_seqlens_k, sequence, lengths.seq_k);
}

/// Sorts by counts of the buckets, in one CTA.
static __device__ void sort_sequences(std::int32_t* sequences, const SequenceLengths& lengths) {
  __shared__ int next[kBuckets], of_warp[kBuckets / 32];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  next[thread] = 0;
  __syncthreads();
  for (int i = thread; i < lengths.batch; i += kBuckets) atomicAdd(&next[bucket_of(keys_of(lengths, i))], 1);
  __syncthreads();
  const int own = next[thread], upto = Warp::inclusive_sum(own);
  if (thread % 32 == 31) of_warp[warp] = upto;
  __syncthreads();
  int before = upto - own;
  for (int i = 0; i < warp; ++i) before += of_warp[i];
  next[thread] = before;
  __syncthreads();
  for (int i = thread; i < lengths.batch; i += kBuckets) sequences[atomicAdd(&next[bucket_of(keys_of(lengths, i))], 1)] = i;
}

__global__ void __launch_bounds__(kBuckets) prepare_tickets(Tickets tickets, SequenceLengths lengths) {
  grid_dependency_wait();
  launch_dependents();
  if (threadIdx.x == 0) *tickets.drawn = 0;
  if (tickets.sequences != nullptr) sort_sequences(tickets.sequences, lengths);
}

CudaStatus launch_prepare(const Tickets& tickets, const SequenceLengths& lengths, Stream stream) {
  const LaunchShape shape{
      .grid = dim3(1), .block = dim3(tickets.sequences != nullptr ? kBuckets : 32), .shared_bytes = 0, .programmatic = true};
  return launch(&prepare_tickets, shape, stream, tickets, lengths);
}

}  // namespace fovea::gpu::sm90::dense
