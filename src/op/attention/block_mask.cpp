// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "op/attention/problem.hpp"
#include "op/common/division.hpp"

namespace fovea::detail {
namespace {

constexpr std::array<std::string_view, 4> kListAxes{"batch", "head", "q_block", "slot"};
constexpr std::array<std::string_view, 4> kBitsAxes{"batch", "head", "q_block", "word"};
constexpr std::int64_t kLargestBlock = 8192, kMostSlots = std::int64_t{1} << 31, kWordBits = 32;

/// One tensor of a list: i32, and broadcast over the batch and the heads where these are 1.
void check_part(Checker& check, const NamedTensor& tensor, const AttentionProblem& problem) {
  check_tensor(check, tensor);
  constexpr std::array kInteger{DType::i32};
  check_dtype(check, tensor, kInteger);
  if (!check.ok()) return;
  if (tensor.desc.shape[0] != 1) check_extent(check, tensor, 0, problem.batch, "1 or the batch");
  if (tensor.desc.shape[1] != 1) check_extent(check, tensor, 1, problem.heads, "1 or head of q");
  check_extent(check, tensor, 2, ceil_div(problem.max_seq_q, problem.block_q), "seq_q / block_q, rounded up");
}

struct ListNames {
  std::string_view counts, indices;
};

void check_list(Checker& check, const ListNames& names, const std::optional<TensorDesc>& counts, const std::optional<TensorDesc>& indices,
                const AttentionProblem& problem) {
  check.expect(counts.has_value() || !indices, names.counts, "none", "a tensor, as there are indices");
  check.expect(indices.has_value() || !counts, names.indices, "none", "a tensor, as there are counts");
  if (!check.ok() || !counts) return;
  check_part(check, {names.counts, *counts, std::span(kListAxes).first(3), false, false}, problem);
  check_part(check, {names.indices, *indices, kListAxes}, problem);
  if (check.ok()) check.expect(indices->shape[3] < kMostSlots, names.indices, indices->shape[3], "fewer than 2^31 slots");
}

}  // namespace

void check_block_mask(Checker& check, const AttentionDesc& desc, AttentionProblem& problem) {
  const bool given = desc.full_block_counts || desc.full_block_indices || desc.partial_block_counts || desc.partial_block_indices;
  if (!given) {
    check.expect(!desc.partial_block_bits, "partial_block_bits", "a tensor", "none, as there are no lists of blocks");
    check.expect(desc.block_q == 0, "block_q", desc.block_q, "0, as there are no lists of blocks");
    check.expect(desc.block_k == 0, "block_k", desc.block_k, "0, as there are no lists of blocks");
    return;
  }
  check.expect(!problem.ragged, "ragged", "bounds", "none, as a block mask is of a fixed batch");
  check.expect(desc.block_q > 0 && desc.block_q <= kLargestBlock, "block_q", desc.block_q, "1 to 8192");
  check.expect(desc.block_k > 0 && desc.block_k <= kLargestBlock && desc.block_k % kWordBits == 0, "block_k", desc.block_k,
               "a multiple of 32 up to 8192");
  if (!check.ok()) return;
  problem.block_q = desc.block_q;
  problem.block_k = desc.block_k;
  check_list(check, {"full_block_counts", "full_block_indices"}, desc.full_block_counts, desc.full_block_indices, problem);
  check_list(check, {"partial_block_counts", "partial_block_indices"}, desc.partial_block_counts, desc.partial_block_indices, problem);
  const bool partial = desc.partial_block_indices.has_value();
  check.expect(desc.partial_block_bits.has_value() == partial, "partial_block_bits", partial ? "none" : "a tensor",
               partial ? "a tensor, as there are partial blocks" : "none, as there are no partial blocks");
  if (check.ok() && partial) {
    const NamedTensor bits{"partial_block_bits", *desc.partial_block_bits, kBitsAxes};
    check_part(check, bits, problem);
    if (!check.ok()) return;
    check_extent(check, bits, 3, desc.partial_block_indices->shape[3] * (desc.block_q * desc.block_k / kWordBits),
                 "slots * block_q * block_k / 32");
  }
  if (!check.ok()) return;
  problem.full_block_counts = desc.full_block_counts.value_or(TensorDesc{});
  problem.partial_block_counts = desc.partial_block_counts.value_or(TensorDesc{});
  problem.partial_block_bits = desc.partial_block_bits.value_or(TensorDesc{});
}

}  // namespace fovea::detail
