// SPDX-License-Identifier: Apache-2.0
/// The C structures in C++ words. Values that have no C++ counterpart (an enumerator that does not exist) are refused by name.
#pragma once

#include <optional>
#include <string_view>

#include "fovea/c.h"
#include "fovea/c_quantized_attention.h"
#include "fovea/fovea.hpp"
#include "op/common/fields.hpp"

namespace fovea::c_api {

DType dtype(fovea_dtype from, std::string_view name);
TensorDesc tensor(const fovea_tensor& from, std::string_view name);
BandMask mask(const fovea_mask& from);
Device device(const fovea_options* from);
PlanOptions plan_options(const fovea_options* from);
AttentionDesc convert(const fovea_attention_desc& from);
AttentionArgs convert(const fovea_attention_args& from);
LatentCacheDesc latent_cache(const fovea_latent_cache& from, std::string_view name);
KvFormat kv_format(fovea_kv_format from, std::string_view name);
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

inline void assign(TensorDesc& to, const fovea_tensor& from, std::string_view name) { to = tensor(from, name); }
inline void assign(std::optional<TensorDesc>& to, const fovea_tensor* from, std::string_view name) { to = optional_tensor(from, name); }
inline void assign(std::optional<ScaleDesc>& to, const fovea_scale* from, std::string_view) { to = optional_scale(from); }
inline void assign(std::optional<RaggedDesc>& to, const fovea_ragged* from, std::string_view) { to = optional_ragged(from); }
inline void assign(std::optional<PackedMaskDesc>& to, const fovea_packed_mask* from, std::string_view) {
  if (from != nullptr) to = PackedMaskDesc{from->bytes, from->tail, from->row_bytes};
}
inline void assign(LatentCacheDesc& to, const fovea_latent_cache& from, std::string_view name) { to = latent_cache(from, name); }
inline void assign(Int8Groups& to, const fovea_int8_groups* from, std::string_view) { to = groups(from); }
inline void assign(DType& to, fovea_dtype from, std::string_view name) { to = dtype(from, name); }
inline void assign(KvFormat& to, fovea_kv_format from, std::string_view name) { to = kv_format(from, name); }
inline void assign(BandMask& to, const fovea_mask* from, std::string_view) {
  if (from != nullptr) to = mask(*from);  // else the operation's own
}
template <class To, class From>
requires std::is_arithmetic_v<To> && std::is_arithmetic_v<From>
void assign(To& to, From from, std::string_view) { to = static_cast<To>(from); }

template <const auto& table>
auto convert_desc(const typename detail::TypesOf<table>::CDesc& from) {
  typename detail::TypesOf<table>::Desc desc{};
  detail::for_each_field(table, [&](const auto& field) {
    using Row = std::remove_cvref_t<decltype(field)>;
    if constexpr (!std::is_void_v<typename Row::InDesc>) assign(desc.*Row::kDesc, from.*Row::kCDesc, field.name);
  });
  return desc;
}

template <const auto& table>
auto convert_args(const typename detail::TypesOf<table>::CArgs& from) {
  typename detail::TypesOf<table>::Args args{};
  detail::for_each_field(table, [&](const auto& field) {
    using Row = std::remove_cvref_t<decltype(field)>;
    if constexpr (Row::kHasPointer) args.*Row::kArgs = from.*Row::kCArgs;
  });
  return args;
}

}  // namespace fovea::c_api
