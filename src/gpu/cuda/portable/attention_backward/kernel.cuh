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

/// Leaves the key of philox in shared memory, by one thread.
template <class Config>
__device__ __forceinline__ void find_random(const Params& params, Storage<Config>& storage) {
  if constexpr (Config::kBiased) {
    const std::int64_t* const state = params.bias.dropout_state;
    if (state != nullptr) storage.stats[0].random = detail::philox_key(state[0], state[1]);
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads) differentiate(const __grid_constant__ typename Config::Params params) {
  if constexpr (kRuns<Config>) {
    extern __shared__ __align__(128) std::byte shared[];
    auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
    if (threadIdx.x == 0) {
      const int index = static_cast<int>(blockIdx.x);
      storage.work = Config::kRowsAreQueries ? query_rows_at<Config>(params, index) : key_rows_at<Config>(params, index);
      find_random(params, storage);
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
    if (threadIdx.x == 0) {
      const int index = static_cast<int>(blockIdx.x);
      storage.work = params.fixed.count > 0 ? fixed_key_rows_at<Config>(params, index) : key_rows_at<Config>(params, index);
      find_random(params, storage);
    }
    __syncthreads();
    if (!storage.work.none) FusedMath<Config>{params, storage}(Loader<Config>(params, storage));
  }
}

template <class Config>
CudaStatus launch_one(const typename Config::Params& params, int ordinal, Stream stream) {
  constexpr int kMost = Tuning::kOtherBytes + (Config::kBiased ? Tuning::kBiasedBytes : 0);
  static_assert(sizeof(Work) + sizeof(Storage<Config>::stats) <= kMost);
  static_assert(!Config::kBiased || sizeof(Storage<Config>) <= 99 * 1024);
  if (const CudaStatus good = allow_shared_bytes<&differentiate<Config>>(ordinal, sizeof(Storage<Config>)); !good) return good;
  const int ctas = Config::kRowsAreQueries ? params.row_tiles * params.heads : params.key_tiles * params.kv_heads;
  if (ctas == 0) return {};
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(ctas)), .block = dim3(Config::kThreads), .shared_bytes = sizeof(Storage<Config>)};
  return launch(&differentiate<Config>, shape, stream, params);
}

template <class Element, int kRow>
CudaStatus launch_differentiate(const Params& params, int ordinal, Stream stream) {
  if (const CudaStatus done = launch_one<Config<Element, kRow, Gradients::dq>>(params, ordinal, stream); !done) return done;
  if constexpr (kTunings[kRow].keys_at_once) {
    return launch_one<Config<Element, kRow, Gradients::dk_dv>>(params, ordinal, stream);
  } else {
    if (const CudaStatus done = launch_one<Config<Element, kRow, Gradients::dk>>(params, ordinal, stream); !done) return done;
    return launch_one<Config<Element, kRow, Gradients::dv>>(params, ordinal, stream);
  }
}

template <class Element, int kRow>
CudaStatus launch_biased(const Params& params, int ordinal, Stream stream) {
  static_assert(kBiasedTunings[kRow].keys_at_once);
  if (const CudaStatus done = launch_one<BiasedConfig<Element, kRow, Gradients::dq>>(params, ordinal, stream); !done) return done;
  return launch_one<BiasedConfig<Element, kRow, Gradients::dk_dv>>(params, ordinal, stream);
}

/// The fused kernel, between those that clear and round sums of dq.
template <class Config>
CudaStatus launch_fused_config(const Params& params, int ordinal, Stream stream) {
  using Element = typename Config::Element;
  using Sums = typename Config::Sums;
  constexpr auto kKernel = &differentiate_fused<Config>;
  constexpr std::size_t kBytes = sizeof(FusedStorage<Config>);
  const unsigned ctas = static_cast<unsigned>(params.key_tiles) * static_cast<unsigned>(params.kv_heads);
  const std::size_t sums = sizeof(float) * Sums::kCount * params.query_tiles * params.heads;
  if (const CudaStatus good = allow_shared_bytes<kKernel>(ordinal, kBytes); !good) return good;
  const auto status = cudaMemsetAsync(params.dq_sums, 0, sums, native(stream));
  if (const CudaStatus cleared("cudaMemsetAsync", status); !cleared) return cleared;
  const LaunchShape of_keys{.grid = dim3(ctas), .block = dim3(Config::kThreads), .shared_bytes = kBytes};
  if (ctas > 0) {
    if (const CudaStatus done = launch(kKernel, of_keys, stream, params); !done) return done;
  }
  const LaunchShape of_queries{.grid = dim3(static_cast<unsigned>(params.query_tiles), static_cast<unsigned>(params.heads)),
                               .block = dim3(kSumsThreads)};
  return launch(&round_dq<Element, Sums, Config::kHeadDimQk>, of_queries, stream, params);
}

template <class Element, int kRow>
CudaStatus launch_fused(const Params& params, int ordinal, Stream stream) {
  if constexpr (kTunings[kRow].fused.key_warps > 0) {
    using Config = FusedConfig<Element, Tuning(kTunings[kRow])>;
    static_assert(sizeof(FusedStorage<Config>) <= kTunings[kRow].fused.shared_bytes(Config::kHeadDimQk + Config::kHeadDimV));
    return launch_fused_config<Config>(params, ordinal, stream);
  } else {
    return launch_differentiate<Element, kRow>(params, ordinal, stream);
  }
}

template <class Element, int kRow>
CudaStatus launch_biased_fused(const Params& params, int ordinal, Stream stream) {
  using Config = BiasedFusedConfig<Element, kRow>;
  static_assert(sizeof(FusedStorage<Config>) <= biased_fused_bytes(kBiasedTunings[kRow]));
  return launch_fused_config<Config>(params, ordinal, stream);
}

}  // namespace fovea::gpu::portable::attention_backward
