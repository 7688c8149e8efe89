// SPDX-License-Identifier: Apache-2.0
/// Paged caches in formats of codes and scales: attention over them, and appending to them.
#pragma once

#include "case_parts.hpp"

namespace fovea::check {

inline Case with_formats(Case spec, KvFormat k, KvFormat v) {
  spec.k_format = k;
  spec.v_format = v;
  if (spec.scales == Scales::none && (kv_row_format(k)->has_global || kv_row_format(v)->has_global)) spec.scales = Scales::per_head;
  return spec;
}

/// Attention over one format for K and V. Dims that leave tails, where the format takes them.
inline void kv_format_rows(Table& table, const KvRowFormat& format) {
  const KvFormat both = format.format;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Tier tier = dtype == DType::bf16 ? Tier::quick : Tier::full;
    const std::string name = fmt::format("kv/{}-{}", format.name, name_of(dtype));
    const Case base = with_formats(paged(dtype, dtype, {{1, 75}, {34, 75}, {2, 33}, {1, 0}, {0, 5}}), both, both);
    add(table, name + "-d64", base, tier);
    add(table, name + "-d128", with_heads(with_dims(base, 128, 128), 8, 2), tier);
    add(table, name + "-d96x32", with_dims(base, 96, 32));
    if (format.dim_step() <= 16) add(table, name + "-d16x80", with_dims(base, 16, 80));
    add(table, name + "-split", with_formats(paged(dtype, dtype, {{1, 3000}, {4, 1100}}), both, both), tier);
    add(table, name + "-window", with_mask(base, sliding_window(40)));
    add(table, name + "-mha", with_heads(base, 3, 3));
    Case page = base;
    page.page = 1;
    add(table, name + "-page1", page);
    page.page = 64;
    page.sequences = {{1, 500}, {130, 300}};
    add(table, name + "-page64", page, tier);
  }
}

/// Where scales lie, and what they are.
inline void kv_layout_rows(Table& table, const KvRowFormat& format) {
  const KvFormat both = format.format;
  const Case base = with_formats(paged(DType::bf16, DType::bf16, {{1, 75}, {34, 75}, {2, 33}}), both, both);
  for (const auto& [name, layout] : {std::pair{"padded", Layout::padded},
                                     {"odd-rows", Layout::odd_rows},
                                     {"unaligned", Layout::unaligned},
                                     {"head-major", Layout::head_major}}) {
    Case spec = base;
    spec.layout = layout;
    add(table, fmt::format("kv/{}-{}", format.name, name), spec, Tier::quick);
  }
  if (!format.has_scales()) return;
  for (const auto& [name, layout] : {std::pair{"inline", Layout::contiguous}, {"inline-head-major", Layout::head_major}}) {
    Case spec = base;
    spec.layout = layout;
    spec.inline_scales = true;
    add(table, fmt::format("kv/{}-{}", format.name, name), spec, Tier::quick);
    spec.scale_dtype = DType::f16;
    if (format.accepts_scales(DType::f16)) add(table, fmt::format("kv/{}-{}-f16", format.name, name), spec, Tier::quick);
  }
  Case halves = base;
  halves.scale_dtype = DType::f16;
  if (format.accepts_scales(DType::f16)) add(table, fmt::format("kv/{}-f16-scales", format.name), halves, Tier::quick);
}

/// Everything that attention combines with, over a format.
inline void kv_option_rows(Table& table, const KvRowFormat& format) {
  Case all = with_formats(paged(DType::bf16, DType::bf16, {{1, 2100}, {7, 300}, {60, 60}}), format.format, format.format);
  all.softcap = 20;
  all.sink = Sink::finite;
  all.mask = sliding_window(700);
  add(table, fmt::format("kv/{}-options", format.name), all, Tier::quick);
  Case sharp = with_formats(paged(DType::bf16, DType::bf16, {{1, 300}, {20, 100}}), format.format, format.format);
  sharp.values = Values::sharp;
  add(table, fmt::format("kv/{}-sharp", format.name), sharp);
  if (!format.has_global) return;
  for (const auto& [name, scales] : {std::pair{"one", Scales::one_value}, {"none", Scales::none}}) {
    Case spec = with_formats(paged(DType::bf16, DType::bf16, {{1, 75}, {34, 75}}), format.format, format.format);
    spec.scales = scales;
    add(table, fmt::format("kv/{}-{}-global", format.name, name), spec, Tier::quick);
  }
}

/// Scales that are powers of two: blocks of one row differ by up to 2^19, values are near 2^-60, and zeros have the scale 1.
inline void kv_power_rows(Table& table, const KvRowFormat& format) {
  if (format.scale != KvScale::block_ue8m0) return;
  Case spread = with_formats(paged(DType::bf16, DType::bf16, {{1, 300}, {1, 75}, {34, 75}, {2, 33}}), format.format, format.format);
  spread.values = Values::spread;
  add(table, fmt::format("kv/{}-spread", format.name), spread, Tier::quick);
  add(table, fmt::format("kv/{}-spread-d256x128", format.name), with_dims(spread, 256, 128), Tier::quick);
  spread.sequences = {{1, 3000}, {4, 1100}};
  add(table, fmt::format("kv/{}-spread-split", format.name), with_heads(with_dims(spread, 128, 128), 8, 2), Tier::quick);
}

inline void kv_append_rows(Table& table, const KvRowFormat& format) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Case base = sized({.operation = Operation::paged_cache_append, .sequences = {{41, 0}}, .lse = false}, dtype);
    base = with_formats(base, format.format, format.format);
    const std::string name = fmt::format("kv/{}-{}", format.name, name_of(dtype));
    add(table, name + "-d64", base, Tier::quick);
    add(table, name + "-d128x96", with_dims(base, 128, 96), Tier::quick);
    add(table, name + "-d256x32", with_heads(with_dims(base, 256, 32), 1, 1));
    Case spec = base;
    spec.page = 1;
    add(table, name + "-page1", spec);
    spec = base;
    spec.layout = Layout::padded;
    add(table, name + "-padded", spec, Tier::quick);
    spec.layout = Layout::odd_rows;
    add(table, name + "-odd-rows", spec);
    spec.layout = Layout::contiguous;
    spec.inline_scales = format.has_scales();
    add(table, name + "-inline", spec, Tier::quick);
    spec.scale_dtype = DType::f16;
    if (format.accepts_scales(DType::f16)) add(table, name + "-inline-f16", spec, Tier::quick);
  }
}

/// Two formats in other layouts, head dims and numbers of rows.
inline void mixed_layouts(Table& table, const Case& base) {
  for (const auto& [name, layout] : {std::pair{"odd-rows", Layout::odd_rows}, {"unaligned", Layout::unaligned}}) {
    Case spec = base;
    spec.layout = layout;
    add(table, fmt::format("kv/mixed-{}", name), spec, Tier::quick);
  }
  Case spec = base;
  spec.inline_scales = true;
  add(table, "kv/mixed-inline", spec, Tier::quick);
  add(table, "kv/mixed-d128x96", with_heads(with_dims(base, 128, 96), 8, 2), Tier::quick);
  add(table, "kv/mixed-d256x32", with_dims(base, 256, 32), Tier::quick);
  add(table, "kv/mixed-d32x256", with_dims(base, 32, 256), Tier::quick);
  spec = base;
  spec.page = 1;
  spec.sequences = {{1, 700}, {4, 33}, {1, 0}, {0, 5}};
  add(table, "kv/mixed-page1", with_heads(spec, 8, 1), Tier::quick);
  add(table, "kv/mixed-window", with_mask(spec, sliding_window(40)), Tier::quick);
}

inline void kv_cases(Table& table) {
  for (const KvRowFormat& format : kKvFormats) {
    kv_format_rows(table, format);
    kv_layout_rows(table, format);
    kv_option_rows(table, format);
    kv_power_rows(table, format);
    kv_append_rows(table, format);
  }
  for (const KvFormat format :
       {KvFormat::int8_token, KvFormat::e4m3_token, KvFormat::int4_token, KvFormat::nvfp4, KvFormat::mxfp4, KvFormat::mxfp8}) {
    Case spec = with_formats(paged(DType::bf16, DType::bf16, std::vector<Sequence>(16, Sequence{1, 4096})), format, format);
    spec.lse = false;
    add(table, fmt::format("bench/kv/{}-decode-bf16-d128-h32x8-page16-b16-kv4096", name_of(format)),
        with_heads(with_dims(std::move(spec), 128, 128), 32, 8), Tier::bench);
  }
  const auto mixed = [&](const char* name, KvFormat k, KvFormat v, DType plain, DType dtype = DType::bf16) {
    Case spec = paged(dtype, plain, {{1, 75}, {34, 75}, {2, 1100}});
    spec.k_format = k;
    spec.v_format = v;
    add(table, fmt::format("kv/mixed-{}", name), spec, Tier::quick);
    return spec;
  };
  mixed("int8-int4", KvFormat::int8_token, KvFormat::int4_token, DType::bf16);
  mixed("rows-nvfp4", KvFormat::rows, KvFormat::nvfp4, DType::bf16);
  mixed("e4m3-rows-int4", KvFormat::rows, KvFormat::int4_token, DType::e4m3);
  mixed("e4m3-token-rows", KvFormat::e4m3_token, KvFormat::rows, DType::bf16);
  mixed("e5m2-mxfp8", KvFormat::e5m2, KvFormat::mxfp8, DType::bf16);
  mixed("e5m2-mxfp8-f16", KvFormat::e5m2, KvFormat::mxfp8, DType::f16, DType::f16);
  mixed("rows-int8-f16", KvFormat::rows, KvFormat::int8_token, DType::f16, DType::f16);
  mixed("int4-nvfp4-f16", KvFormat::int4_token, KvFormat::nvfp4, DType::f16, DType::f16);
  mixed_layouts(table, mixed("int8-nvfp4", KvFormat::int8_token, KvFormat::nvfp4, DType::bf16));
}

}  // namespace fovea::check
