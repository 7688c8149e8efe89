// SPDX-License-Identifier: Apache-2.0
/// Latent caches as torch holds them.
#pragma once

#include "arguments.hpp"

namespace fovea::binding {

/// `format` "rows": a plain tensor, described as it is. Otherwise the name of a packed format, and `cache` is uint8
/// [blocks, page, bytes of a token] with a free block stride; in a planar format only the size of the last two dimensions means something.
LatentCacheDesc describe_cache(const Tensor& cache, const std::string& format, const char* name);

}  // namespace fovea::binding
