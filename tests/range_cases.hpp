// SPDX-License-Identifier: Apache-2.0
/// Scores at the ends of what floats hold: caps and scales of any magnitude, and large scores beside keys that no row sees, which are NaN.
#pragma once

#include "case_parts.hpp"

namespace fovea::check {

inline constexpr BandMask kTopLeft = causal(Anchor::top_left);

inline Case with_softcap(Case spec, float softcap, Values values = Values::normal) {
  spec.softcap = softcap;
  spec.values = values;
  return spec;
}
inline Case with_values(Case spec, Values values) {
  spec.values = values;
  return spec;
}
/// Scores between 4 and 8, by a scale whose product with log2(e) is no float.
inline Case with_vast_scale(Case spec) {
  spec = with_vast(std::move(spec), Vast{4, Vast::Keys::mixed});
  spec.scale = 3e38f;
  return spec;
}

inline void attention_range(Table& table) {
  const auto add_quick = [&](const char* variant, Case spec) {
    add(table, fmt::format("range/{}", variant), std::move(spec), Tier::quick);
  };
  const auto bf16 = [](std::int64_t dqk, std::int64_t dv) {
    return with_dims(attention(DType::bf16, {{33, 150}, {33, 150}}, causal()), dqk, dv);
  };
  add_quick("bf16-softcap1e-30", with_softcap(bf16(64, 64), 1e-30f));
  add_quick("bf16-sharp-softcap4e37", with_softcap(bf16(128, 128), 4e37f, Values::sharp));
  add_quick("f16-sharp-softcap3e38", with_softcap(sized(bf16(96, 96), DType::f16), 3e38f, Values::sharp));
  add_quick("bf16-1e36-softcap4e37", with_softcap(with_vast(bf16(64, 64), {5.3e35f, Vast::Keys::mixed}), 4e37f));
  add_quick("bf16-scale3e38", with_vast_scale(bf16(64, 64)));
  Case spec = with_heads(with_dims(attention(DType::bf16, {{1, 100}}, kTopLeft), 128, 128), 8, 1);
  add_quick("bf16-loud-nan-tail-one-row", with_values(spec, Values::nan_tail));
  spec = with_dims(attention(DType::bf16, {{70, 150}}, kTopLeft), 192, 128);
  add_quick("bf16-loud-nan-tail-192x128", with_values(spec, Values::nan_tail));
  spec = with_dims(attention(DType::f16, {{70, 150}}, {.left = 40, .right = 3, .anchor = Anchor::top_left}), 256, 256);
  add_quick("f16-loud-nan-tail-256x256", with_values(spec, Values::nan_tail));
  spec = ragged(DType::e4m3, {{0, 255}, {0, 1025}, {191, 500}}, {.left = 128, .right = 3, .anchor = Anchor::top_left});
  spec = with_heads(with_dims(spec, 96, 96), 12, 3);
  spec.scale = 0.05f;
  add_quick("e4m3-loud-nan-tail-96x96-ragged", with_values(spec, Values::nan_tail));
}

inline void paged_range(Table& table) {
  const auto add_quick = [&](const char* variant, Case spec) {
    add(table, fmt::format("range/{}", variant), std::move(spec), Tier::quick);
  };
  const DType bf16 = DType::bf16;
  add_quick("bf16-split-sharp-softcap4e37", with_softcap(paged(bf16, bf16, {{1, 3000}, {4, 70}}), 4e37f, Values::sharp));
  add_quick("bf16-on-e4m3-softcap3e38", with_softcap(paged(bf16, DType::e4m3, {{1, 150}, {33, 95}}), 3e38f, Values::sharp));
  add_quick("bf16-scale3e38", with_vast_scale(paged(bf16, bf16, {{1, 150}, {20, 20}})));
  const Case behind = with_mask(paged(bf16, bf16, {{1, 3000}, {33, 150}}), {.left = 2500, .right = -1200});
  add_quick("bf16-split-loud-nan-tail", with_values(behind, Values::nan_tail));
}

}  // namespace fovea::check
