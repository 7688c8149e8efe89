// SPDX-License-Identifier: Apache-2.0
#include "backward_masks.hpp"

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

BackwardMasks::BackwardMasks(const BackwardCase& spec) {
  bound_->spec = {.operation = Operation::attention,
                  .head = spec.head,
                  .kv_head = spec.kv_head,
                  .sequences = spec.sequences,
                  .ragged = spec.ragged,
                  .padding_rows = spec.padding_rows(),
                  .blocks = spec.blocks,
                  .layout = spec.padded ? Layout::padded : Layout::contiguous,
                  .mask_bits = spec.mask_bits,
                  .mask_tail = spec.mask_tail};
  values_ = std::make_unique<Generator>(bound_->spec);
  desc_ = std::get<Request<AttentionDesc, AttentionArgs>>(describe(bound_->spec)).desc;
  bind_blocks(*bound_, *values_, desc_);
  bind_mask(*bound_);
}

bool BackwardMasks::sees(std::int64_t sequence, std::int64_t head, std::int64_t row, std::int64_t key) const {
  const bool listed = bound_->spec.blocks.q == 0 || values_->sees(sequence, head, row, key);
  return listed && bits_show(bound_->spec, sequence, row, key);
}

void BackwardMasks::add_to(AttentionDesc& desc, AttentionArgs& args) const {
  desc.full_block_counts = desc_.full_block_counts;
  desc.full_block_indices = desc_.full_block_indices;
  desc.partial_block_counts = desc_.partial_block_counts;
  desc.partial_block_indices = desc_.partial_block_indices;
  desc.partial_block_bits = desc_.partial_block_bits;
  desc.block_q = desc_.block_q;
  desc.block_k = desc_.block_k;
  desc.packed_mask = desc_.packed_mask;
  args.full_block_counts = bound_->full_counts.as<const std::int32_t>();
  args.full_block_indices = bound_->full_indices.as<const std::int32_t>();
  args.partial_block_counts = bound_->partial_counts.as<const std::int32_t>();
  args.partial_block_indices = bound_->partial_indices.as<const std::int32_t>();
  args.partial_block_bits = bound_->partial_bits.as<const std::int32_t>();
  args.packed_mask = bound_->packed_mask.as<const std::uint8_t>();
  args.mask_indptr = bound_->mask_indptr.as<const std::int32_t>();
}

void BackwardMasks::add_part(std::int64_t sequence, std::int64_t head, std::int64_t count, AttentionDesc& desc, AttentionArgs& args) const {
  add_to(desc, args);
  const auto take = [&](std::optional<TensorDesc>& part, const HostileTensor& tensor, const std::int32_t*& data) {
    if (part) data = cut(*part, tensor, sequence, head, count);
  };
  take(desc.full_block_counts, bound_->full_counts, args.full_block_counts);
  take(desc.full_block_indices, bound_->full_indices, args.full_block_indices);
  take(desc.partial_block_counts, bound_->partial_counts, args.partial_block_counts);
  take(desc.partial_block_indices, bound_->partial_indices, args.partial_block_indices);
  take(desc.partial_block_bits, bound_->partial_bits, args.partial_block_bits);
  if (desc.packed_mask) cut_bits(sequence, *desc.packed_mask, args);
}

/// The bytes of one sequence, which need no mask_indptr.
void BackwardMasks::cut_bits(std::int64_t sequence, PackedMaskDesc& desc, AttentionArgs& args) const {
  std::int64_t begin = 0;
  if (desc.row_bytes == 0) {
    begin = args.mask_indptr[sequence];
    desc.bytes = args.mask_indptr[sequence + 1] - begin;
  } else {
    const std::vector<Sequence>& sequences = bound_->spec.sequences;
    for (std::int64_t b = 0; b < sequence; ++b) begin += sequences[static_cast<std::size_t>(b)].q * desc.row_bytes;
    desc.bytes = sequences[static_cast<std::size_t>(sequence)].q * desc.row_bytes;
  }
  args.packed_mask += begin;
  args.mask_indptr = nullptr;
}

std::vector<Named> BackwardMasks::inputs() const {
  return {{"full_block_counts", bound_->full_counts},
          {"full_block_indices", bound_->full_indices},
          {"partial_block_counts", bound_->partial_counts},
          {"partial_block_indices", bound_->partial_indices},
          {"partial_block_bits", bound_->partial_bits},
          {"packed_mask", bound_->packed_mask},
          {"mask_indptr", bound_->mask_indptr}};
}

}  // namespace fovea::check
