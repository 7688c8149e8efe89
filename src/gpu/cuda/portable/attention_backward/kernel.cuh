// SPDX-License-Identifier: Apache-2.0
/// The kernels of dq, and of dk and dv: a CTA keeps rows and reads columns tile by tile.
#pragma once

#include "gpu/cuda/portable/attention_backward/config.hpp"
#include "gpu/cuda/portable/attention_backward/fused_math.cuh"
#include "gpu/cuda/portable/attention_backward/math.cuh"

namespace fovea::gpu::portable::attention_backward {

/// Whether a device of this target can run the kernel; else it is compiled to nothing.
template <class Config>
inline constexpr bool kRuns = kHasMma<typename Config::Element>&& kTarget != 75;

template <class Config>
__global__ void __launch_bounds__(Config::kThreads) differentiate(const __grid_constant__ Params params) {
  if constexpr (kRuns<Config>) {
    extern __shared__ __align__(128) std::byte shared[];
    auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
    if (threadIdx.x == 0) {
      const int index = static_cast<int>(blockIdx.x);
      storage.work = Config::kRowsAreQueries ? query_rows_at<Config>(params, index) : key_rows_at<Config>(params, index);
    }
    __syncthreads();
    if (!storage.work.none) Math<Config>{params, storage}(Loader<Config>(params, storage));
  }
}

/// Each CTA has keys of a kv head, and adds to dq of all queries that see them.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) differentiate_fused(const __grid_constant__ Params params) {
  if constexpr (kRuns<Config>) {
    extern __shared__ __align__(128) std::byte shared[];
    auto& storage = *reinterpret_cast<FusedStorage<Config>*>(shared);
    if (threadIdx.x == 0) storage.work = key_rows_at<Config>(params, static_cast<int>(blockIdx.x));
    __syncthreads();
    if (!storage.work.none) FusedMath<Config>{params, storage}(Loader<Config>(params, storage));
  }
}

template <class Config>
Result<void> launch_one(const Params& params, int ordinal, Stream stream) {
  static_assert(sizeof(Work) + sizeof(Storage<Config>::stats) <= Tuning::kOtherBytes);
  if (Result<void> good = allow_shared_bytes<&differentiate<Config>>(ordinal, sizeof(Storage<Config>)); !good) return good;
  const int ctas = Config::kRowsAreQueries ? params.row_tiles * params.heads : params.key_tiles * params.kv_heads;
  if (ctas == 0) return {};
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(ctas)), .block = dim3(Config::kThreads), .shared_bytes = sizeof(Storage<Config>)};
  return launch(&differentiate<Config>, shape, stream, params);
}

template <class Element, int kRow>
Result<void> launch_differentiate(const Params& params, int ordinal, Stream stream) {
  if (Result<void> done = launch_one<Config<Element, kRow, Gradients::dq>>(params, ordinal, stream); !done) return done;
  if constexpr (kTunings[kRow].keys_at_once) {
    return launch_one<Config<Element, kRow, Gradients::dk_dv>>(params, ordinal, stream);
  } else {
    if (Result<void> done = launch_one<Config<Element, kRow, Gradients::dk>>(params, ordinal, stream); !done) return done;
    return launch_one<Config<Element, kRow, Gradients::dv>>(params, ordinal, stream);
  }
}

template <class Element, int kRow>
Result<void> launch_fused(const Params& params, int ordinal, Stream stream) {
  if constexpr (kTunings[kRow].fused.key_warps > 0) {
    using Config = FusedConfig<Element, Tuning(kTunings[kRow])>;
    using Sums = typename Config::Sums;
    constexpr auto kKernel = &differentiate_fused<Config>;
    constexpr std::size_t kBytes = sizeof(FusedStorage<Config>);
    static_assert(kBytes <= kTunings[kRow].fused.shared_bytes(Config::kHeadDimQk + Config::kHeadDimV));
    const unsigned ctas = static_cast<unsigned>(params.key_tiles) * static_cast<unsigned>(params.kv_heads);
    const std::size_t sums = sizeof(float) * Sums::kCount * params.query_tiles * params.heads;
    if (Result<void> good = allow_shared_bytes<kKernel>(ordinal, kBytes); !good) return good;
    const auto status = cudaMemsetAsync(params.dq_sums, 0, sums, native(stream));
    if (Result<void> cleared = check("cudaMemsetAsync", status); !cleared) return cleared;
    const LaunchShape of_keys{.grid = dim3(ctas), .block = dim3(Config::kThreads), .shared_bytes = kBytes};
    if (ctas > 0) {
      if (Result<void> done = launch(kKernel, of_keys, stream, params); !done) return done;
    }
    const LaunchShape of_queries{.grid = dim3(static_cast<unsigned>(params.query_tiles), static_cast<unsigned>(params.heads)),
                                 .block = dim3(kSumsThreads)};
    return launch(&round_dq<Element, Sums, Config::kHeadDimQk>, of_queries, stream, params);
  } else {
    return launch_differentiate<Element, kRow>(params, ordinal, stream);
  }
}

}  // namespace fovea::gpu::portable::attention_backward
