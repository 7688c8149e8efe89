// SPDX-License-Identifier: Apache-2.0
#include "case.hpp"

#include <algorithm>
#include <array>

#include "../cases.hpp"
#include "cost.hpp"

namespace fovea::check {
namespace {

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
  return {static_cast<double>(cost.flops), static_cast<double>(cost.bytes), spec.dtype};
}

}  // namespace

std::string_view name_of(Operation operation) {
  constexpr std::array<std::string_view, 4> kNames{"attention", "paged_attention", "paged_cache_append", "merge_states"};
  return kNames[static_cast<std::size_t>(operation)];
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
      return {0, bytes_of(spec.dtype, elements) + bytes_of(spec.kv_dtype, elements), spec.dtype};
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
