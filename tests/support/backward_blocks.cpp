// SPDX-License-Identifier: Apache-2.0
#include "backward_blocks.hpp"

#include "backward_case.hpp"

namespace fovea::check {
namespace {

/// One tensor of a list for some heads of one sequence: where it is the same for all, it stays so.
const std::int32_t* cut(TensorDesc& desc, const HostileTensor& tensor, std::int64_t sequence, std::int64_t head, std::int64_t count) {
  const bool own_batch = desc.shape[0] != 1, own_head = desc.shape[1] != 1;
  desc.shape[0] = 1;
  if (own_head) desc.shape[1] = count;
  return tensor.as<const std::int32_t>() + (own_batch ? sequence * desc.strides[0] : 0) + (own_head ? head * desc.strides[1] : 0);
}

}  // namespace

BackwardBlocks::BackwardBlocks(const BackwardCase& spec) {
  bound_->spec = {.operation = Operation::attention,
                  .head = spec.head,
                  .kv_head = spec.kv_head,
                  .sequences = spec.sequences,
                  .blocks = spec.blocks,
                  .layout = spec.padded ? Layout::padded : Layout::contiguous};
  values_ = std::make_unique<Generator>(bound_->spec);
  if (spec.blocks.q == 0) return;
  desc_ = std::get<Request<AttentionDesc, AttentionArgs>>(describe(bound_->spec)).desc;
  bind_blocks(*bound_, *values_, desc_);
}

bool BackwardBlocks::sees(std::int64_t sequence, std::int64_t head, std::int64_t row, std::int64_t key) const {
  return bound_->spec.blocks.q == 0 || values_->sees(sequence, head, row, key);
}

void BackwardBlocks::add_to(AttentionDesc& desc, AttentionArgs& args) const {
  desc.full_block_counts = desc_.full_block_counts;
  desc.full_block_indices = desc_.full_block_indices;
  desc.partial_block_counts = desc_.partial_block_counts;
  desc.partial_block_indices = desc_.partial_block_indices;
  desc.partial_block_bits = desc_.partial_block_bits;
  desc.block_q = desc_.block_q;
  desc.block_k = desc_.block_k;
  args.full_block_counts = bound_->full_counts.as<const std::int32_t>();
  args.full_block_indices = bound_->full_indices.as<const std::int32_t>();
  args.partial_block_counts = bound_->partial_counts.as<const std::int32_t>();
  args.partial_block_indices = bound_->partial_indices.as<const std::int32_t>();
  args.partial_block_bits = bound_->partial_bits.as<const std::int32_t>();
}

void BackwardBlocks::add_part(std::int64_t sequence, std::int64_t head, std::int64_t count, AttentionDesc& desc,
                              AttentionArgs& args) const {
  add_to(desc, args);
  const auto take = [&](std::optional<TensorDesc>& part, const HostileTensor& tensor, const std::int32_t*& data) {
    if (part) data = cut(*part, tensor, sequence, head, count);
  };
  take(desc.full_block_counts, bound_->full_counts, args.full_block_counts);
  take(desc.full_block_indices, bound_->full_indices, args.full_block_indices);
  take(desc.partial_block_counts, bound_->partial_counts, args.partial_block_counts);
  take(desc.partial_block_indices, bound_->partial_indices, args.partial_block_indices);
  take(desc.partial_block_bits, bound_->partial_bits, args.partial_block_bits);
}

std::vector<Named> BackwardBlocks::inputs() const {
  return {{"full_block_counts", bound_->full_counts},
          {"full_block_indices", bound_->full_indices},
          {"partial_block_counts", bound_->partial_counts},
          {"partial_block_indices", bound_->partial_indices},
          {"partial_block_bits", bound_->partial_bits}};
}

}  // namespace fovea::check
