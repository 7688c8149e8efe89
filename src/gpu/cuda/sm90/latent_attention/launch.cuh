// SPDX-License-Identifier: Apache-2.0
/// What instances/ instantiate.
#pragma once

#include "gpu/cuda/sm90/latent_attention/kernel.cuh"
#include "gpu/cuda/sm90/latent_attention/launch.hpp"

namespace fovea::gpu::sm90::latent {

template <class Config>
Result<void> launch_attend(const Params& params, int ordinal, Stream stream) {
  static_assert(sizeof(Storage<Config>) <= 227 * 1024);
  if (Result<void> good = allow_shared_bytes<&attend<Config>>(ordinal, sizeof(Storage<Config>)); !good) return good;
  const LaunchShape shape{.grid = dim3(params.row_tiles, params.kv_heads, params.parts),
                          .block = dim3(Config::kThreads),
                          .shared_bytes = sizeof(Storage<Config>),
                          .cluster = dim3(Config::kCluster),
                          .programmatic = true};
  return launch(&attend<Config>, shape, stream, params);
}

}  // namespace fovea::gpu::sm90::latent
