// SPDX-License-Identifier: Apache-2.0
/// The C structures in C++ words. Values that have no C++ counterpart (an enumerator that does not exist) are refused by name.
#pragma once

#include <optional>
#include <string_view>

#include "fovea/c.h"
#include "fovea/c_quantized_attention.h"
#include "fovea/fovea.hpp"

namespace fovea::c_api {

DType dtype(fovea_dtype from, std::string_view name);
TensorDesc tensor(const fovea_tensor& from, std::string_view name);
BandMask mask(const fovea_mask& from);
Device device(const fovea_options* from);
PlanOptions plan_options(const fovea_options* from);
AttentionDesc convert(const fovea_attention_desc& from);
AttentionArgs convert(const fovea_attention_args& from);
LatentCacheDesc latent_cache(const fovea_latent_cache& from, std::string_view name);
ScaleRule scale_rule(fovea_scale_rule from);
Int8Groups groups(const fovea_int8_groups* from);

inline std::optional<TensorDesc> optional_tensor(const fovea_tensor* from, std::string_view name) {
  return from == nullptr ? std::nullopt : std::optional(tensor(*from, name));
}

inline std::optional<ScaleDesc> optional_scale(const fovea_scale* from) {
  return from == nullptr ? std::nullopt : std::optional(ScaleDesc{from->batch_stride, from->head_stride});
}

inline std::optional<RaggedDesc> optional_ragged(const fovea_ragged* from) {
  return from == nullptr ? std::nullopt : std::optional(RaggedDesc{from->batch, from->max_seq_q, from->max_seq_k});
}

}  // namespace fovea::c_api
