// SPDX-License-Identifier: Apache-2.0
/// The kernels of dq, and of dk and dv: a CTA keeps rows and reads columns tile by tile.
#pragma once

#include "gpu/cuda/portable/attention_backward/config.hpp"
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

}  // namespace fovea::gpu::portable::attention_backward
