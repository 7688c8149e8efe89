// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/hip/cdna/paged_attention/epilogue.hpp"
#include "gpu/hip/cdna/paged_attention/math.hpp"

namespace fovea::gpu::cdna::paged_attention {

/// Grid: (most query tiles of the batch, kv heads, splits).
template <class Config>
__device__ __forceinline__ void attend(const Params& arguments) {
  Work work;
  if (!WorkFinder<Config>(arguments)(work)) return;
  const Params& params = reloaded(arguments);
  const Rows<Config> rows(params, work);
  const ScoreTransform<Wave> scores = score_transform(params, work.kv_head);
  State<Config> state;
  if (work.first < work.last) {
    if (params.general) {
      Math<Config, true>(params, work, rows, scores)(state);
    } else {
      Math<Config, false>(params, work, rows, scores)(state);
    }
  }
  Epilogue<Config>(reloaded(params), work, rows, scores)(state);
}

}  // namespace fovea::gpu::cdna::paged_attention

/// The kernels of a tuning: each type of queries, on a cache of this type and of e4m3.
#define FOVEA_PAGED_ATTENTION_CONFIG(Element, Cache, kTuning) \
  fovea::gpu::cdna::paged_attention::Config<fovea::gpu::cdna::Element, fovea::gpu::cdna::Cache, kTuning>
#define FOVEA_PAGED_ATTENTION_KERNEL(suffix, Element, Cache, kTuning)                                         \
  FOVEA_CDNA_KERNEL(paged_attention_##suffix, fovea::gpu::cdna::paged_attention::Params, 256,                 \
                    (FOVEA_PAGED_ATTENTION_CONFIG(Element, Cache, kTuning)::kResidentWaves)) {                \
    fovea::gpu::cdna::paged_attention::attend<FOVEA_PAGED_ATTENTION_CONFIG(Element, Cache, kTuning)>(params); \
  }
#define FOVEA_PAGED_ATTENTION_KERNELS(tiles, kTuning)                        \
  FOVEA_PAGED_ATTENTION_KERNEL(tiles##_f16, F16, SameCache, kTuning)         \
  FOVEA_PAGED_ATTENTION_KERNEL(tiles##_bf16, Bf16, SameCache, kTuning)       \
  FOVEA_PAGED_ATTENTION_KERNEL(tiles##_f16_on_e4m3, F16, E4m3Cache, kTuning) \
  FOVEA_PAGED_ATTENTION_KERNEL(tiles##_bf16_on_e4m3, Bf16, E4m3Cache, kTuning)
