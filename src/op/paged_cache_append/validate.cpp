// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "op/common/checks.hpp"
#include "op/paged_cache_append/fields.hpp"
#include "op/paged_cache_append/problem.hpp"

namespace fovea::detail {
namespace {

constexpr std::array<std::string_view, 3> kRowAxes{"token", "kv_head", "head_dim"};
constexpr std::array<std::string_view, 4> kCacheAxes{"block", "page", "kv_head", "head_dim"};

void check_side(Checker& check, const NamedTensor& rows, const NamedTensor& cache) {
  constexpr std::array kRowDTypes{DType::f32, DType::f16, DType::bf16};
  check_tensor(check, rows);
  check_tensor(check, cache);
  check_values(check, rows, kRowDTypes);
  const std::array cache_dtypes{rows.desc.dtype, DType::e4m3};
  check_values(check, cache, cache_dtypes);
  check_extent(check, cache, 2, rows.desc.shape[1], "kv_head of the new rows");
  check_extent(check, cache, 3, rows.desc.shape[2], "head_dim of the new rows");
  check.expect(!check.ok() || cache.desc.shape[1] >= 1, "k_cache.shape[1] (page)", cache.desc.shape[1], "1 or more");
}

AppendSide side(const TensorDesc& rows, const TensorDesc& cache, const std::optional<ScaleDesc>& scale) {
  AppendSide side{rows.shape[2], rows.strides[0], rows.strides[1], cache_strides(cache), scale};
  side.rows_alignment = base_alignment(rows);
  side.cache_alignment = base_alignment(cache);
  return side;
}

}  // namespace

Result<PagedCacheAppendProblem> validate(const PagedCacheAppendDesc& desc, const PlanOptions&) {
  const NamedTensor k{"k", desc.k, kRowAxes}, k_cache{"k_cache", desc.k_cache, kCacheAxes, true};
  const NamedTensor v{"v", desc.v, kRowAxes}, v_cache{"v_cache", desc.v_cache, kCacheAxes, true};
  Checker check;
  check_side(check, k, k_cache);
  check_side(check, v, v_cache);
  const std::array k_dtype{desc.k.dtype}, cache_dtype{desc.k_cache.dtype};
  check_values(check, v, k_dtype);
  check_values(check, v_cache, cache_dtype);
  check_extent(check, v, 0, desc.k.shape[0], "tokens of k");
  check_extent(check, v, 1, desc.k.shape[1], "kv_head of k");
  check_extent(check, v_cache, 0, desc.k_cache.shape[0], "blocks of k_cache");
  check_extent(check, v_cache, 1, desc.k_cache.shape[1], "page of k_cache");
  check_scale(check, "k_scale", desc.k_scale, desc.k_cache.dtype);
  check_scale(check, "v_scale", desc.v_scale, desc.v_cache.dtype);
  if (!check.ok()) return check.error();

  PagedCacheAppendProblem problem;
  problem.dtype = desc.k.dtype;
  problem.cache_dtype = desc.k_cache.dtype;
  problem.tokens = desc.k.shape[0];
  problem.kv_heads = desc.k.shape[1];
  problem.blocks = desc.k_cache.shape[0];
  problem.page = desc.k_cache.shape[1];
  problem.k = side(desc.k, desc.k_cache, desc.k_scale);
  problem.v = side(desc.v, desc.v_cache, desc.v_scale);
  problem.extents = extents_of(kPagedCacheAppendFields, desc);
  return problem;
}

Result<void> check_args(const PagedCacheAppendProblem& problem, const PagedCacheAppendArgs& args) {
  Pointers pointers;
  add_pointers(pointers, kPagedCacheAppendFields, problem, args, {problem.extents, Pointers::Access::placed});
  return pointers.result();
}

Result<void> check_slots(const PagedCacheAppendProblem& problem, const PagedCacheAppendArgs& args) {
  return check_slot_mapping({args.slot_mapping, static_cast<std::size_t>(problem.tokens)}, problem.blocks * problem.page);
}

}  // namespace fovea::detail
