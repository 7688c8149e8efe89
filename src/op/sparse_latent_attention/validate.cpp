// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "op/common/attention_core.hpp"
#include "op/sparse_latent_attention/problem.hpp"

namespace fovea::detail {
namespace {

constexpr std::array<std::string_view, 4> kQAxes{"batch", "seq_q", "head", "d"};
constexpr std::array<std::string_view, 4> kOutAxes{"batch", "seq_q", "head", "latent"};
constexpr std::array<std::string_view, 3> kIndexAxes{"batch", "seq_q", "topk"};

/// The axes of a flat tensor are those of a paged one without the batch.
std::span<const std::string_view> axes(bool flat, std::span<const std::string_view> all) { return flat ? all.subspan(1) : all; }

void check_queries(Checker& check, const SparseLatentAttentionDesc& desc, bool flat) {
  constexpr std::array kQueryDTypes{DType::f32, DType::f16, DType::bf16};
  const NamedTensor q{"q", desc.q, axes(flat, kQAxes)};
  const NamedTensor out{"out", desc.out, axes(flat, kOutAxes), true};
  check_tensor(check, q);
  check_tensor(check, out);
  check_values(check, q, kQueryDTypes);
  const std::array same{desc.q.dtype};
  check_values(check, out, same);
  if (!check.ok()) return;
  const int dims = desc.q.rank - 1;
  for (int axis = 0; axis < dims; ++axis) check_extent(check, out, axis, desc.q.shape[static_cast<std::size_t>(axis)], "q.shape");
  check_extent(check, out, dims, kLatentDim, "the latent values of a row");
}

/// Checks one cache with its indices and turns them into a selection.
SparseSelection check_selection(Checker& check, const std::string& name, const SparseLatentAttentionDesc::Selection& desc,
                                const TensorDesc& q) {
  constexpr std::array kIndexDTypes{DType::i32};
  const bool flat = q.rank == 3;
  SparseSelection selection;
  selection.cache = check_latent_cache(check, name + ".cache", desc.cache);
  const std::string indices_name = name + ".indices";
  const NamedTensor indices{indices_name, desc.indices, axes(flat, kIndexAxes)};
  check_tensor(check, indices);
  check_dtype(check, indices, kIndexDTypes);
  if (!check.ok()) return selection;
  for (int axis = 0; axis < q.rank - 2; ++axis) check_extent(check, indices, axis, q.shape[static_cast<std::size_t>(axis)], "q.shape");
  const auto last = static_cast<std::size_t>(desc.indices.rank - 1);
  const std::int64_t d = q.shape[static_cast<std::size_t>(q.rank - 1)];
  const LatentCacheView& cache = selection.cache;
  if (check.ok() && cache.row != d) {
    check.fail(invalid(name + ".cache (values in a row)", cache.row, std::to_string(d) + " (d of q)"));
  } else if (check.ok() && cache.kv_heads != 1) {
    check.fail(invalid(name + ".cache.rows.shape[2] (kv_head)", cache.kv_heads, "1"));
  } else if (check.ok() && cache.format != CacheFormat::rows && q.dtype != DType::bf16) {
    check.fail(declined("q.dtype", name_of(q.dtype), "bf16 (over a packed cache)"));
  } else if (check.ok() && cache.format == CacheFormat::rows && cache.dtype != q.dtype) {
    check.fail(invalid(name + ".cache.rows.dtype", name_of(cache.dtype), std::string(name_of(q.dtype)) + " (the dtype of q)"));
    if (cache.dtype == DType::e4m3) check.decline();
  }
  selection.topk = desc.indices.shape[last];
  selection.batch_stride = flat ? 0 : desc.indices.strides[0];
  selection.row_stride = desc.indices.strides[last - 1];
  selection.has_topk_length = desc.has_topk_length;
  selection.cache_extent = extent_of(desc.cache);
  selection.indices_extent = extent_of(desc.indices);
  selection.lengths_extent = extent_of_bytes(q.shape[0] * static_cast<std::int64_t>(sizeof(std::int32_t)));
  return selection;
}

SparseLatentAttentionProblem normalise(const SparseLatentAttentionDesc& desc) {
  SparseLatentAttentionProblem problem;
  problem.flat = desc.q.rank == 3;
  const std::size_t first = problem.flat ? 0 : 1;
  problem.q_dtype = problem.out_dtype = problem.kv_dtype = desc.q.dtype;
  problem.batch = problem.flat ? 1 : desc.q.shape[0];
  problem.max_seq_q = desc.q.shape[first];
  problem.total_q = problem.batch * problem.max_seq_q;
  problem.heads = desc.q.shape[first + 1];
  problem.kv_heads = 1;
  problem.head_dim_qk = desc.q.shape[first + 2];
  problem.head_dim_v = kLatentDim;
  const auto strides = [&](const TensorDesc& t) {
    return RowStrides{problem.flat ? 0 : t.strides[0], t.strides[first], t.strides[first + 1]};
  };
  problem.q = strides(desc.q);
  problem.out = strides(desc.out);
  problem.has_sink = desc.has_sink;
  problem.q_extent = extent_of(desc.q);
  problem.out_extent = extent_of(desc.out);
  problem.sink_extent = extent_of_bytes(problem.heads * static_cast<std::int64_t>(sizeof(float)));
  set_alignments(problem, desc.q, rows_of(desc.main.cache), rows_of(desc.main.cache), desc.out);
  return problem;
}

}  // namespace

Result<SparseLatentAttentionProblem> validate(const SparseLatentAttentionDesc& desc, const PlanOptions& options) {
  const bool flat = desc.q.rank == 3;
  Checker check;
  check_queries(check, desc, flat);
  if (!check.ok()) return check.error();
  const SparseSelection main = check_selection(check, "main", desc.main, desc.q);
  check.expect(main.cache.format != CacheFormat::v41_fp4, "main.cache.format", "v41_fp4",
               "another format (fp4 rows occur only in the extra cache)");
  std::optional<SparseSelection> extra;
  if (desc.extra) extra = check_selection(check, "extra", *desc.extra, desc.q);
  if (!check.ok()) return check.error();

  SparseLatentAttentionProblem problem = normalise(desc);
  problem.batch_invariant = options.batch_invariant;
  problem.exact_rows = options.exact_rows;
  problem.main = main;
  problem.extra = extra;
  problem.max_seq_k = main.topk + (extra ? extra->topk : 0);
  check_scalars(check, desc.scale, problem);
  check_lse(check, "lse", desc.lse, problem, flat);
  if (desc.max_logits && check.ok()) {
    problem.max_logits = check_row_numbers(check, "max_logits", *desc.max_logits, problem, flat);
    problem.has_max_logits = true;
  }
  if (!check.ok()) return check.error();
  if (desc.lse) problem.lse_extent = extent_of(*desc.lse);
  if (desc.max_logits) problem.max_logits_extent = extent_of(*desc.max_logits);
  return problem;
}

namespace {

/// Whole names: a run that composed them would allocate.
struct SelectionNames {
  std::string_view cache, indices, topk_length;
};
constexpr SelectionNames kMain{"main.cache", "main.indices", "main.topk_length"};
constexpr SelectionNames kExtra{"extra.cache", "extra.indices", "extra.topk_length"};

void add_selection(Pointers& pointers, const SelectionNames& names, const SparseSelection& selection,
                   const SparseLatentAttentionArgs::Selection& args, bool any_q) {
  const bool any = any_q && selection.topk > 0;
  pointers.read(names.cache, {args.cache, &selection.cache_extent}, any && selection.cache.blocks > 0, selection.cache.alignment);
  pointers.read(names.indices, {args.indices, &selection.indices_extent}, any, sizeof(std::int32_t));
  pointers.read(names.topk_length, {args.topk_length, &selection.lengths_extent}, any && selection.has_topk_length, sizeof(std::int32_t));
}

}  // namespace

Result<void> check_args(const SparseLatentAttentionProblem& problem, const SparseLatentAttentionArgs& args) {
  Pointers pointers;
  const bool any_q = problem.total_q > 0;
  pointers.read("q", {args.q, &problem.q_extent}, any_q, problem.q_base_alignment);
  pointers.written("out", {args.out, &problem.out_extent}, any_q, problem.out_base_alignment);
  add_selection(pointers, kMain, problem.main, args.main, any_q);
  if (problem.extra) add_selection(pointers, kExtra, *problem.extra, args.extra, any_q);
  pointers.written("lse", {args.lse, &problem.lse_extent}, any_q && problem.has_lse, sizeof(float));
  pointers.written("max_logits", {args.max_logits, &problem.max_logits_extent}, any_q && problem.has_max_logits, sizeof(float));
  pointers.read("sink", {args.sink, &problem.sink_extent}, any_q && problem.has_sink, sizeof(float));
  return pointers.result();
}

}  // namespace fovea::detail
