// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "op/latent_cache_conversion/problem.hpp"

namespace fovea::detail {
namespace {

constexpr std::array<std::string_view, 2> kRowAxes{"token", "d"};

template <class Problem>
Result<Problem> validate_conversion(const LatentCacheConversionDesc& desc, bool rows_are_output) {
  constexpr std::array kRowDTypes{DType::f32, DType::f16, DType::bf16};
  const NamedTensor rows{"rows", desc.rows, kRowAxes, rows_are_output};
  Checker check;
  check_tensor(check, rows);
  check_values(check, rows, kRowDTypes);
  check.expect(desc.cache.format != CacheFormat::rows, "cache.format", "rows", "a packed format");
  const LatentCacheView cache = check_latent_cache(check, "cache", desc.cache);
  check_extent(check, rows, 1, cache.row, "values in a row of the cache");
  if (!check.ok()) return check.error();
  Problem problem;
  problem.dtype = desc.rows.dtype;
  problem.tokens = desc.rows.shape[0];
  problem.row_stride = desc.rows.strides[0];
  problem.rows_are_output = rows_are_output;
  problem.rows_alignment = base_alignment(desc.rows);
  problem.cache = cache;
  problem.rule = desc.rule;
  problem.rows_extent = extent_of(desc.rows);
  problem.cache_extent = extent_of(desc.cache);
  problem.slots_extent = extent_of_bytes(problem.tokens * static_cast<std::int64_t>(sizeof(std::int64_t)));
  return problem;
}

}  // namespace

Result<QuantizeLatentCacheProblem> validate_quantize(const LatentCacheConversionDesc& desc) {
  return validate_conversion<QuantizeLatentCacheProblem>(desc, false);
}

Result<DequantizeLatentCacheProblem> validate_dequantize(const LatentCacheConversionDesc& desc) {
  return validate_conversion<DequantizeLatentCacheProblem>(desc, true);
}

template <class Args>
static Result<void> check_pointers(const LatentCacheConversionProblem& problem, const Args& args) {
  Pointers pointers;
  const bool any = problem.tokens > 0, any_slot = any && problem.cache.slots() > 0;  // all tokens of a cache without slots are skipped
  using enum Pointers::Access;
  pointers.add(problem.rows_are_output ? written : read, "rows", {args.rows, &problem.rows_extent}, any, problem.rows_alignment);
  pointers.add(problem.rows_are_output ? read : written, "cache", {args.cache, &problem.cache_extent}, any_slot, problem.cache.alignment);
  pointers.read("slot_mapping", {args.slot_mapping, &problem.slots_extent}, any, sizeof(std::int64_t));
  return pointers.result();
}

Result<void> check_args(const QuantizeLatentCacheProblem& problem, const QuantizeLatentCacheArgs& args) {
  return check_pointers(problem, args);
}
Result<void> check_args(const DequantizeLatentCacheProblem& problem, const DequantizeLatentCacheArgs& args) {
  return check_pointers(problem, args);
}

Result<void> check_slots(const LatentCacheConversionProblem& problem, const std::int64_t* slot_mapping) {
  return check_slot_mapping({slot_mapping, static_cast<std::size_t>(problem.tokens)}, problem.cache.slots());
}

}  // namespace fovea::detail
