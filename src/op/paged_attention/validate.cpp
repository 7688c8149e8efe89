// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "op/common/attention_core.hpp"
#include "op/common/kv_side.hpp"
#include "op/common/packed_mask.hpp"
#include "op/paged_attention/fields.hpp"
#include "op/paged_attention/problem.hpp"

namespace fovea::detail {
namespace {

constexpr std::array<std::string_view, 3> kQAxes{"total_q", "head", "head_dim_qk"};
constexpr std::array<std::string_view, 4> kKAxes{"block", "page", "kv_head", "head_dim_qk"};
constexpr std::array<std::string_view, 4> kVAxes{"block", "page", "kv_head", "head_dim_v"};
constexpr std::array<std::string_view, 3> kOutAxes{"total_q", "head", "head_dim_v"};
constexpr std::array<std::string_view, 2> kTableAxes{"batch", "max_blocks"};

struct Tensors {
  NamedTensor q, k_cache, v_cache, out, block_table;
};

void check_dtypes(Checker& check, const Tensors& t) {
  constexpr std::array kQueryDTypes{DType::f32, DType::f16, DType::bf16};
  constexpr std::array kIndexDTypes{DType::i32};
  const std::array query{t.q.desc.dtype};
  check_values(check, t.q, kQueryDTypes);
  check_values(check, t.out, query);
  check_dtype(check, t.block_table, kIndexDTypes);
}

/// Formats, dtypes and last extents of the caches, which go together.
void check_caches(Checker& check, const Tensors& t, const KvSide& k, const KvSide& v) {
  const std::array cache{t.q.desc.dtype, DType::e4m3};
  const std::array key{t.k_cache.desc.dtype};
  const bool plain_v = v.format == KvFormat::rows, plain = plain_v && k.format == KvFormat::rows;
  check_kv_side(check, k, {"q", "head_dim_qk", t.q.desc.shape[2]}, cache);
  if (plain_v) check_extent(check, t.out, 2, t.v_cache.desc.shape[3], "head_dim_v of v_cache");
  check_kv_side(check, v, {"out", "head_dim_v", t.out.desc.shape[2]}, plain ? std::span<const DType>(key) : cache);
}

void check_shapes(Checker& check, const Tensors& t) {
  check_extent(check, t.v_cache, 0, t.k_cache.desc.shape[0], "blocks of k_cache");
  check_extent(check, t.v_cache, 1, t.k_cache.desc.shape[1], "page of k_cache");
  check_extent(check, t.v_cache, 2, t.k_cache.desc.shape[2], "kv_head of k_cache");
  check_extent(check, t.out, 0, t.q.desc.shape[0], "rows of q");
  check_extent(check, t.out, 1, t.q.desc.shape[1], "head of q");
  const auto positive = [&](const NamedTensor& tensor, std::size_t axis, std::string_view subject) {
    check.expect(tensor.desc.shape[axis] >= 1, subject, tensor.desc.shape[axis], "1 or more");
  };
  positive(t.k_cache, 1, "k_cache.shape[1] (page)");
  constexpr std::int64_t kMostBlocks = std::int64_t{1} << 31;
  check.expect(t.k_cache.desc.shape[0] < kMostBlocks, "k_cache.shape[0] (block)", t.k_cache.desc.shape[0],
               "less than 2^31 (block numbers are i32)");
}

void check_bounds(Checker& check, const PagedAttentionDesc& desc) {
  check_bound(check, "max_seq_q", desc.max_seq_q);
  check_bound(check, "max_kv_len", desc.max_kv_len);
  check.expect(desc.mask.anchor == Anchor::bottom_right, "mask.anchor", "top_left",
               "bottom_right (queries are the last rows of a sequence)");
}

PagedAttentionProblem normalise(const PagedAttentionDesc& desc, const PlanOptions& options) {
  PagedAttentionProblem problem;
  problem.q_dtype = desc.q.dtype;
  problem.kv_dtype = desc.k_format != KvFormat::rows && desc.v_format == KvFormat::rows ? desc.v_cache.dtype : desc.k_cache.dtype;
  problem.out_dtype = desc.out.dtype;
  problem.batch = desc.block_table.shape[0];
  problem.total_q = desc.q.shape[0];
  problem.heads = desc.q.shape[1];
  problem.kv_heads = desc.k_cache.shape[2];
  problem.head_dim_qk = desc.q.shape[2];
  problem.head_dim_v = desc.out.shape[2];
  problem.q = {0, desc.q.strides[0], desc.q.strides[1]};
  problem.out = {0, desc.out.strides[0], desc.out.strides[1]};
  problem.batch_invariant = options.batch_invariant;
  problem.exact_rows = options.exact_rows;
  copy_options(kPagedAttentionFields, desc, problem);
  problem.blocks = desc.k_cache.shape[0];
  problem.page = desc.k_cache.shape[1];
  problem.max_blocks = desc.block_table.shape[1];
  problem.table_stride = desc.block_table.strides[0];
  problem.k = cache_strides(desc.k_cache);
  problem.v = cache_strides(desc.v_cache);
  problem.max_seq_q = desc.max_seq_q == 0 ? problem.total_q : std::min(desc.max_seq_q, problem.total_q);
  problem.max_seq_k = bound_of_keys(desc.max_kv_len, problem.max_blocks, problem.page);
  set_alignments(problem, desc.q, desc.k_cache, desc.v_cache, desc.out);
  return problem;
}

}  // namespace

Result<PagedAttentionProblem> validate(const PagedAttentionDesc& desc, const PlanOptions& options) {
  const Tensors tensors{{"q", desc.q, kQAxes},
                        {"k_cache", desc.k_cache, kKAxes},
                        {"v_cache", desc.v_cache, kVAxes},
                        {"out", desc.out, kOutAxes, true},
                        {"block_table", desc.block_table, kTableAxes}};
  Checker check;
  for (const NamedTensor* tensor : {&tensors.q, &tensors.k_cache, &tensors.v_cache, &tensors.out, &tensors.block_table}) {
    check_tensor(check, *tensor);
  }
  if (!check.ok()) return check.error();
  check_dtypes(check, tensors);
  check_caches(check, tensors, {kKNames, tensors.k_cache, desc.k_format, desc.k_scale, desc.k_scale_cache},
               {kVNames, tensors.v_cache, desc.v_format, desc.v_scale, desc.v_scale_cache});
  check_shapes(check, tensors);
  if (!check.ok()) return check.error();

  PagedAttentionProblem problem = normalise(desc, options);
  check_bounds(check, desc);
  check_scalars(check, desc.scale, problem);
  check_lse(check, "lse", desc.lse, problem, true);
  if (problem.packed_mask) check_packed_mask(check, *problem.packed_mask, problem);
  if (!check.ok()) return check.error();
  problem.extents = extents_of(kPagedAttentionFields, desc);
  return problem;
}

Result<void> check_args(const PagedAttentionProblem& problem, const PagedAttentionArgs& args) {
  return check_pointers(kPagedAttentionFields, problem, args);
}

Result<void> check_lengths(const PagedAttentionProblem& problem, const PagedAttentionArgs& args) {
  Checker check;
  check_cu_seqlens(check, "cu_seqlens_q", {args.cu_seqlens_q, static_cast<std::size_t>(problem.batch) + 1}, problem.total_q,
                   problem.max_seq_q);
  const BlockTableView table{args.block_table, problem.table_stride, problem.page, problem.blocks, problem.max_seq_k};
  for (std::int64_t b = 0; check.ok() && b < problem.batch; ++b) {
    const std::int64_t seq_q = args.cu_seqlens_q[b + 1] - args.cu_seqlens_q[b];
    check_sequence_blocks(check, table, problem.mask, b, seq_q, args.kv_len[b]);
    if (problem.packed_mask) check_sequence_mask(check, *problem.packed_mask, args.mask_indptr, b, seq_q, args.kv_len[b]);
  }
  if (!check.ok()) return check.error();
  return {};
}

}  // namespace fovea::detail
