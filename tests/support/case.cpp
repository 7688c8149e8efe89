// SPDX-License-Identifier: Apache-2.0
#include "case.hpp"

#include <algorithm>
#include <array>

#include "../cases.hpp"
#include "cost.hpp"

namespace fovea::check {
namespace {

/// Bytes of a row of K or of V in a cache.
double row_bytes(const Case& spec, KvFormat format, std::int64_t dim) {
  const KvRowFormat* row = kv_row_format(format);
  return static_cast<double>(row == nullptr ? static_cast<std::int64_t>(size_of(spec.kv_dtype)) * dim
                                            : row->row_bytes(dim, scale_dtype_of(spec, *row)));
}

double bytes_of(DType dtype, std::int64_t elements) { return static_cast<double>(size_of(dtype)) * static_cast<double>(elements); }

Work attention_work(const Case& spec) {
  detail::AttentionCore core;
  core.q_dtype = spec.dtype;
  core.kv_dtype = spec.kv_dtype;
  core.out_dtype = spec.out_dtype;
  core.heads = spec.head;
  core.kv_heads = spec.kv_head;
  core.head_dim_qk = spec.dqk;
  core.head_dim_v = spec.dv;
  core.mask = spec.mask;
  detail::Cost cost;
  for (const Sequence& sequence : spec.sequences) cost += detail::sequence_cost(core, sequence.q, sequence.kv);
  const double codes = row_bytes(spec, spec.k_format, spec.dqk) + row_bytes(spec, spec.v_format, spec.dv);
  const double plain = bytes_of(spec.kv_dtype, spec.dqk + spec.dv);
  double rows = 0;  // of the cache, over all heads
  for (const Sequence& sequence : spec.sequences) {
    const detail::Band band = detail::make_band(spec.mask, sequence.q, sequence.kv);
    if (sequence.q > 0) rows += static_cast<double>(detail::keys_seen_by_some(band, 0, sequence.q, sequence.kv).size() * spec.kv_head);
  }
  return {static_cast<double>(cost.flops), static_cast<double>(cost.bytes) + rows * (codes - plain), spec.dtype};
}

}  // namespace

std::string_view name_of(Operation operation) {
  constexpr std::array<std::string_view, 4> kNames{"attention", "paged_attention", "paged_cache_append", "merge_states"};
  return kNames[static_cast<std::size_t>(operation)];
}

DType scale_dtype_of(const Case& spec, const KvRowFormat& format) {
  if (format.scale == KvScale::block_e4m3) return DType::e4m3;
  if (format.scale == KvScale::block_ue8m0) return DType::i8;
  return format.accepts_scales(spec.scale_dtype) ? spec.scale_dtype : DType::f32;
}

bool has_tensor_scale(const Case& spec, KvFormat format) {
  const KvRowFormat* row = kv_row_format(format);
  return spec.scales != Scales::none && (row == nullptr ? spec.kv_dtype == DType::e4m3 : row->has_global);
}

std::int64_t total_q(const Case& spec) {
  std::int64_t rows = spec.padding_rows;
  for (const Sequence& sequence : spec.sequences) rows += sequence.q;
  return rows;
}

std::int64_t max_q(const Case& spec) {
  std::int64_t longest = 0;
  for (const Sequence& sequence : spec.sequences) longest = std::max(longest, sequence.q);
  return longest;
}

std::int64_t max_kv(const Case& spec) {
  std::int64_t longest = 0;
  for (const Sequence& sequence : spec.sequences) longest = std::max(longest, sequence.kv);
  return longest;
}

std::int64_t mask_row_bytes(const Case& spec) { return (spec.mask_tail == 0 ? max_kv(spec) : spec.mask_tail) / 8 + 2; }

Keys visible_keys(const BandMask& mask, Sequence sequence, std::int64_t row) {
  const std::int64_t diagonal = row + (mask.anchor == Anchor::bottom_right ? sequence.kv - sequence.q : 0);
  const std::int64_t everything = sequence.q + sequence.kv;  // a bound this large is no bound
  const std::int64_t left = std::clamp(mask.left, -everything, everything), right = std::clamp(mask.right, -everything, everything);
  const std::int64_t begin = std::clamp<std::int64_t>(diagonal - left, 0, sequence.kv);
  const std::int64_t end = std::clamp<std::int64_t>(diagonal + right + 1, 0, sequence.kv);
  return {begin, std::max(begin, end)};
}

bool bits_show(const Case& spec, std::int64_t b, std::int64_t row, std::int64_t key) {
  const std::int64_t kv = spec.sequences[static_cast<std::size_t>(b)].kv;
  const bool has_bit = spec.mask_bits != MaskBits::none && (spec.mask_tail == 0 || key >= kv - spec.mask_tail);
  if (!has_bit) return true;
  if (bits_hide(spec, b, key) || row % 11 == 5) return false;
  if (row % 7 == 3) return true;
  auto hash = static_cast<std::uint64_t>((b * 8191 + row) * 131071 + key) * 0x9e3779b97f4a7c15u;
  return ((hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9u) >> 63 != 0;
}

bool bits_hide(const Case& spec, std::int64_t b, std::int64_t key) {
  const std::int64_t kv = spec.sequences[static_cast<std::size_t>(b)].kv;
  const bool has_bit = spec.mask_bits != MaskBits::none && (spec.mask_tail == 0 || key >= kv - spec.mask_tail);
  return has_bit && (key + 3 * b) % 13 == 7;
}

double visible_pairs(const BandMask& mask, const std::vector<Sequence>& sequences) {
  std::int64_t pairs = 0;
  for (const Sequence& sequence : sequences)
    for (std::int64_t row = 0; row < sequence.q; ++row) {
      const Keys seen = visible_keys(mask, sequence, row);
      pairs += seen.end - seen.begin;
    }
  return static_cast<double>(pairs);
}

BandMask mask_of_row(const BandMask& mask, Sequence sequence, std::int64_t row) {
  const std::int64_t diagonal = row + (mask.anchor == Anchor::bottom_right ? sequence.kv - sequence.q : 0);
  const std::int64_t shift = diagonal - (sequence.kv - 1);
  BandMask band{.left = mask.left, .right = mask.right};
  if (band.left != kUnbounded) band.left -= shift;
  if (band.right != kUnbounded) band.right += shift;
  return band;
}

Work work_of(const Case& spec) {
  const std::int64_t rows = total_q(spec);
  switch (spec.operation) {
    case Operation::attention:
    case Operation::paged_attention: return attention_work(spec);
    case Operation::paged_cache_append: {
      const std::int64_t elements = rows * spec.kv_head * (spec.dqk + spec.dv);
      const double written =
          static_cast<double>(rows * spec.kv_head) * (row_bytes(spec, spec.k_format, spec.dqk) + row_bytes(spec, spec.v_format, spec.dv));
      return {0, bytes_of(spec.dtype, elements) + written, spec.dtype};
    }
    case Operation::merge_states: {
      const std::int64_t elements = rows * spec.head * spec.dv;
      return {2.0 * static_cast<double>(elements * spec.parts), bytes_of(spec.dtype, elements * (spec.parts + 1)), spec.dtype};
    }
  }
  return {};
}

const std::vector<Case>& core_cases() {
  static const std::vector<Case> table = case_table();
  return table;
}

const Case* find_case(std::string_view name) {
  const auto& table = core_cases();
  const auto found = std::find_if(table.begin(), table.end(), [&](const Case& spec) { return spec.name == name; });
  return found == table.end() ? nullptr : &*found;
}

}  // namespace fovea::check
