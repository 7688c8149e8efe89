// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "op/common/attention_core.hpp"
#include "op/latent_attention/fields.hpp"
#include "op/latent_attention/problem.hpp"

namespace fovea::detail {
namespace {

constexpr std::array<std::string_view, 4> kQAxes{"batch", "seq_q", "head", "d"};
constexpr std::array<std::string_view, 4> kOutAxes{"batch", "seq_q", "head", "latent"};
constexpr std::array<std::string_view, 3> kRaggedQAxes{"total_q", "head", "d"};
constexpr std::array<std::string_view, 3> kRaggedOutAxes{"total_q", "head", "latent"};
constexpr std::array<std::string_view, 2> kTableAxes{"batch", "max_blocks"};
constexpr std::array kQueryDTypes{DType::f32, DType::f16, DType::bf16};

std::span<const std::string_view> axes(bool ragged, const std::array<std::string_view, 4>& fixed,
                                       const std::array<std::string_view, 3>& rows) {
  return ragged ? std::span<const std::string_view>(rows) : std::span<const std::string_view>(fixed);
}

/// q, out and block_table by themselves.
void check_tensors(Checker& check, const LatentAttentionDesc& desc, bool ragged) {
  constexpr std::array kIndexDTypes{DType::i32};
  const NamedTensor q{"q", desc.q, axes(ragged, kQAxes, kRaggedQAxes)};
  const NamedTensor out{"out", desc.out, axes(ragged, kOutAxes, kRaggedOutAxes), true};
  const NamedTensor table{"block_table", desc.block_table, kTableAxes};
  for (const NamedTensor* tensor : {&q, &out, &table}) check_tensor(check, *tensor);
  check_values(check, q, kQueryDTypes);
  const std::array same{desc.q.dtype};
  check_values(check, out, same);
  check_dtype(check, table, kIndexDTypes);
  if (!check.ok()) return;
  const int dims = desc.q.rank - 1;
  for (int axis = 0; axis < dims; ++axis) check_extent(check, out, axis, desc.q.shape[static_cast<std::size_t>(axis)], "q.shape");
  check_extent(check, out, dims, kLatentDim, "the latent values of a row");
  if (!ragged) check_extent(check, table, 0, desc.q.shape[0], "q.shape[0]");
}

void check_cache(Checker& check, const LatentAttentionDesc& desc, const LatentCacheView& cache) {
  if (!check.ok()) return;
  const std::int64_t d = desc.q.shape[static_cast<std::size_t>(desc.q.rank - 1)];
  if (d != cache.row) {
    check.fail(invalid("q.shape (d)", d, std::to_string(cache.row) + " (values in a row of the cache)"));
  } else if (cache.format == CacheFormat::v41_fp4) {
    check.fail(invalid("cache.format", "v41_fp4", "another format (fp4 rows occur only as the extra cache of sparse_latent_attention)"));
  } else if (cache.format != CacheFormat::rows && desc.q.dtype != DType::bf16) {
    check.fail(declined("q.dtype", name_of(desc.q.dtype), "bf16 (over a packed cache)"));
  } else if (cache.format == CacheFormat::rows && cache.dtype != desc.q.dtype && cache.dtype != DType::e4m3) {
    check.fail(invalid("cache.rows.dtype", name_of(cache.dtype), std::string(name_of(desc.q.dtype)) + " (the dtype of q) or e4m3"));
  } else if (desc.has_scale && cache.dtype != DType::e4m3) {
    check.fail(invalid("has_scale", "a scale", "none (only rows of e4m3 have one)"));
  }
}

LatentAttentionProblem normalise(const LatentAttentionDesc& desc, const LatentCacheView& cache, bool ragged) {
  LatentAttentionProblem problem;
  const std::size_t first = ragged ? 0 : 1;
  problem.q_dtype = problem.out_dtype = desc.q.dtype;
  problem.kv_dtype = cache.dtype;
  problem.ragged = ragged;
  problem.batch = desc.block_table.shape[0];
  problem.total_q = ragged ? desc.q.shape[0] : desc.q.shape[0] * desc.q.shape[1];
  problem.heads = desc.q.shape[first + 1];
  problem.kv_heads = cache.kv_heads;
  problem.head_dim_qk = cache.row;
  problem.head_dim_v = kLatentDim;
  const auto strides = [&](const TensorDesc& t) { return RowStrides{ragged ? 0 : t.strides[0], t.strides[first], t.strides[first + 1]}; };
  problem.q = strides(desc.q);
  problem.out = strides(desc.out);
  copy_options(kLatentAttentionFields, desc, problem);
  problem.cache = cache;
  problem.max_blocks = desc.block_table.shape[1];
  problem.table_stride = desc.block_table.strides[0];
  const std::int64_t bound = desc.max_seq_q == 0 ? problem.total_q : std::min(desc.max_seq_q, problem.total_q);
  problem.max_seq_q = ragged ? bound : desc.q.shape[1];
  problem.max_seq_k = bound_of_keys(desc.max_kv_len, problem.max_blocks, cache.page);
  set_alignments(problem, desc.q, rows_of(desc.cache), rows_of(desc.cache), desc.out);
  return problem;
}

void check_bounds(Checker& check, const LatentAttentionDesc& desc) {
  check_bound(check, "max_seq_q", desc.max_seq_q);
  check_bound(check, "max_kv_len", desc.max_kv_len);
  check.expect(desc.mask.anchor == Anchor::bottom_right, "mask.anchor", "top_left",
               "bottom_right (queries are the last rows of a sequence)");
}

}  // namespace

Result<LatentAttentionProblem> validate(const LatentAttentionDesc& desc, const PlanOptions& options) {
  const bool ragged = desc.q.rank == 3;
  Checker check;
  check_tensors(check, desc, ragged);
  const LatentCacheView cache = check_latent_cache(check, "cache", desc.cache);
  check_cache(check, desc, cache);
  if (!check.ok()) return check.error();

  LatentAttentionProblem problem = normalise(desc, cache, ragged);
  problem.batch_invariant = options.batch_invariant;
  problem.exact_rows = options.exact_rows;
  check_bounds(check, desc);
  check_scalars(check, desc.scale, problem);
  check_lse(check, "lse", desc.lse, problem, ragged);
  if (!check.ok()) return check.error();
  problem.extents = extents_of(kLatentAttentionFields, desc);
  return problem;
}

Result<void> check_args(const LatentAttentionProblem& problem, const LatentAttentionArgs& args) {
  return check_pointers(kLatentAttentionFields, problem, args);
}

Result<void> check_lengths(const LatentAttentionProblem& problem, const LatentAttentionArgs& args) {
  Checker check;
  if (problem.ragged) {
    const std::span cu(args.cu_seqlens_q, static_cast<std::size_t>(problem.batch) + 1);
    check_cu_seqlens(check, "cu_seqlens_q", cu, problem.total_q, problem.max_seq_q);
  }
  const BlockTableView table{args.block_table, problem.table_stride, problem.cache.page, problem.cache.blocks, problem.max_seq_k};
  for (std::int64_t b = 0; check.ok() && b < problem.batch; ++b) {
    const std::int64_t seq_q = problem.ragged ? args.cu_seqlens_q[b + 1] - args.cu_seqlens_q[b] : problem.max_seq_q;
    check_sequence_blocks(check, table, problem.mask, b, seq_q, args.kv_len[b]);
  }
  if (!check.ok()) return check.error();
  return {};
}

}  // namespace fovea::detail
