// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "op/common/checks.hpp"
#include "op/common/kv_side.hpp"
#include "op/paged_cache_append/fields.hpp"
#include "op/paged_cache_append/problem.hpp"

namespace fovea::detail {
namespace {

constexpr std::array<std::string_view, 3> kRowAxes{"token", "kv_head", "head_dim"};
constexpr std::array<std::string_view, 4> kCacheAxes{"block", "page", "kv_head", "head_dim"};

/// Plain rows of a cache have the dtype of the new rows, or e4m3, and that of `other`, where the other side is plain too.
void check_side(Checker& check, const NamedTensor& rows, const KvSide& side, const KvSide* other) {
  const NamedTensor& cache = side.cache;
  constexpr std::array kRowDTypes{DType::f32, DType::f16, DType::bf16};
  check_tensor(check, rows);
  check_tensor(check, cache);
  check_values(check, rows, kRowDTypes);
  const std::array cache_dtypes{rows.desc.dtype, DType::e4m3};
  const bool plain = other != nullptr && other->format == KvFormat::rows && side.format == KvFormat::rows;
  const std::array same{plain ? other->cache.desc.dtype : rows.desc.dtype};
  if (side.format == KvFormat::rows) check_values(check, cache, cache_dtypes);
  check_extent(check, cache, 2, rows.desc.shape[1], "kv_head of the new rows");
  check_kv_side(check, side, {rows.name, "head_dim", rows.desc.shape[2]}, plain ? std::span<const DType>(same) : cache_dtypes);
  check.expect(!check.ok() || cache.desc.shape[1] >= 1, "k_cache.shape[1] (page)", cache.desc.shape[1], "1 or more");
}

AppendSide side_of(const TensorDesc& rows, const KvSide& from) {
  AppendSide side{rows.shape[2], rows.strides[0], rows.strides[1], cache_strides(from.cache.desc), from.scale};
  side.format = from.format;
  side.scale_cache = from.scale_cache;
  side.rows_alignment = base_alignment(rows);
  side.cache_alignment = base_alignment(from.cache.desc);
  return side;
}

}  // namespace

Result<PagedCacheAppendProblem> validate(const PagedCacheAppendDesc& desc, const PlanOptions&) {
  const NamedTensor k{"k", desc.k, kRowAxes}, k_cache{"k_cache", desc.k_cache, kCacheAxes, true};
  const NamedTensor v{"v", desc.v, kRowAxes}, v_cache{"v_cache", desc.v_cache, kCacheAxes, true};
  const KvSide k_side{kKNames, k_cache, desc.k_format, desc.k_scale, desc.k_scale_cache};
  const KvSide v_side{kVNames, v_cache, desc.v_format, desc.v_scale, desc.v_scale_cache};
  Checker check;
  check_side(check, k, k_side, nullptr);
  check_side(check, v, v_side, &k_side);
  const std::array k_dtype{desc.k.dtype};
  check_values(check, v, k_dtype);
  check_extent(check, v, 0, desc.k.shape[0], "tokens of k");
  check_extent(check, v, 1, desc.k.shape[1], "kv_head of k");
  check_extent(check, v_cache, 0, desc.k_cache.shape[0], "blocks of k_cache");
  check_extent(check, v_cache, 1, desc.k_cache.shape[1], "page of k_cache");
  if (!check.ok()) return check.error();

  PagedCacheAppendProblem problem;
  problem.dtype = desc.k.dtype;
  problem.cache_dtype = desc.k_format == KvFormat::rows ? desc.k_cache.dtype : desc.v_cache.dtype;
  problem.tokens = desc.k.shape[0];
  problem.kv_heads = desc.k.shape[1];
  problem.blocks = desc.k_cache.shape[0];
  problem.page = desc.k_cache.shape[1];
  problem.k = side_of(desc.k, k_side);
  problem.v = side_of(desc.v, v_side);
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
