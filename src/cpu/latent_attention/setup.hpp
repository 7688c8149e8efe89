// SPDX-License-Identifier: Apache-2.0
/// Shared by the planners of dense and of sparse latent attention.
#pragma once

#include "cpu/attention/plan.hpp"
#include "op/common/latent_cache.hpp"

namespace fovea::cpu {

/// Chooses the tile sizes; README.md has the measurements. The accumulator and the queries of 128 rows take half a megabyte, so no more
/// rows share a tile. A tile (64 keys in f32 take 150 KiB) stays in the second-level cache beside the data of one chunk.
constexpr Tuning choose_latent_tuning(const detail::AttentionCore& core, const AttentionKernels& kernels) {
  const std::int64_t group = core.group(), max_rows = std::max<std::int64_t>(core.max_seq_q, 1) * group;
  Tuning t{};
  t.chunk_rows = kernels.block_rows * (kernels.block_rows <= 8 ? 4 : 2);
  t.kv_tile = kernels.latent_tile;
  const bool packs_from_first_row = kernels.pack_latent[static_cast<std::size_t>(core.kv_dtype)] != nullptr;
  t.few_rows = packs_from_first_row || core.exact_rows ? 0 : 8;
  t.stream_tile = 64;
  t.split_rows = static_cast<int>(std::clamp<std::int64_t>(group, 16, kMostSplitRows));
  t.split_keys = static_cast<int>(core.exact_rows ? kExactSplitKeys : kSplitKeys);
  t.q_rows = static_cast<int>(round_up(std::min(std::max<std::int64_t>(128, t.split_rows), max_rows), kernels.block_rows));
  return t;
}

inline LatentCache latent_cache(const detail::LatentCacheView& view) {
  LatentCache cache{.format = packed_format(view.format), .page = view.page, .slots = view.slots()};
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  cache.strides = {.block = view.strides.block * size, .row = view.strides.token * size, .head = view.strides.head * size};
  if (cache.format != nullptr) cache.strides = {.block = view.block_stride};
  return cache;
}

/// Fills in everything but the lists. If operands are f32, K and V share a tile. bf16 products need two layouts.
template <class Isa>
Setup make_latent_setup(const detail::AttentionCore& core, bool ragged, const detail::LatentCacheView& cache) {
  Setup setup = make_setup<Isa>(core, ragged);
  if (setup.attention == &Isa::kernels().attention) setup.attention = &Isa::kernels().latent;
  const LatentKernels* packed_rows = &Isa::kernels().packed_rows;
  if constexpr (requires { Isa::bf16_latent(); }) {
    if (setup.attention == Isa::bf16()) {
      setup.attention = Isa::bf16_latent();
      packed_rows = Isa::bf16_rows();
    }
  }
  setup.tuning = choose_latent_tuning(core, *setup.attention);
  setup.paged = true;
  setup.page = cache.page;
  setup.latent = Latent{.main = latent_cache(cache), .kernels = packed_rows};
  setup.latent->token_bytes =
      static_cast<int>(setup.latent->main.format != nullptr ? setup.latent->main.format->bytes()
                                                            : cache.row * static_cast<std::int64_t>(size_of(cache.dtype)));
  setup.k = setup.v = setup.latent->main.strides;
  return setup;
}

}  // namespace fovea::cpu
