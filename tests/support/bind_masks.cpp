// SPDX-License-Identifier: Apache-2.0
#include "bind_masks.hpp"

#include <algorithm>
#include <numeric>

namespace fovea::check {

HostileTensor vector_of(const std::vector<std::int32_t>& values) {
  HostileTensor tensor(contiguous(DType::i32, {static_cast<std::int64_t>(values.size())}));
  std::copy(values.begin(), values.end(), tensor.as<std::int32_t>());
  return tensor;
}

std::vector<std::int32_t> shuffled(const Generator& values, std::int64_t count) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[values.hash(20, static_cast<std::int64_t>(i)) % i]);
  return order;
}

/// Bits as the case says, and ones wherever a bit counts for nothing.
void bind_mask(BoundCase& bound) {
  const Case& spec = bound.spec;
  if (spec.mask_bits == MaskBits::none) return;
  const bool flat = spec.mask_bits == MaskBits::flat;
  const std::int64_t row_bytes = mask_row_bytes(spec);
  std::vector<std::int32_t> begins{flat ? 3 : 0};
  std::vector<std::uint8_t> bytes(flat ? 3 : static_cast<std::size_t>(bound.flat_rows() * row_bytes), 0xff);
  std::int64_t flat_row = 0;
  for (std::int64_t b = 0; b < static_cast<std::int64_t>(spec.sequences.size()); ++b) {
    const Sequence s = spec.sequences[static_cast<std::size_t>(b)];
    const std::int64_t columns = spec.mask_tail == 0 ? s.kv : spec.mask_tail;
    if (flat) bytes.resize(bytes.size() + static_cast<std::size_t>((s.q * columns + 7) / 8 + b % 3), 0xff);
    for (std::int64_t row = 0; row < s.q; ++row, ++flat_row)
      for (std::int64_t column = std::max<std::int64_t>(columns - s.kv, 0); column < columns; ++column) {
        if (bits_show(spec, b, row, s.kv - columns + column)) continue;
        const std::int64_t bit = flat ? 8 * begins.back() + row * columns + column : 8 * flat_row * row_bytes + column;
        bytes[static_cast<std::size_t>(bit / 8)] &= static_cast<std::uint8_t>(~(1u << (bit % 8)));
      }
    if (flat) begins.push_back(static_cast<std::int32_t>(bytes.size()));
  }
  bound.packed_mask = HostileTensor(contiguous(DType::i8, {static_cast<std::int64_t>(bytes.size())}));
  std::copy(bytes.begin(), bytes.end(), bound.packed_mask.as<std::uint8_t>());
  if (flat) bound.mask_indptr = vector_of(begins);
}

/// The lists of a block mask: the kinds of blocks in random order, among numbers of no block, and garbage in what is never read.
void bind_blocks(BoundCase& bound, const Generator& values, const AttentionDesc& desc) {
  if (bound.spec.blocks.q == 0) return;
  const Blocks& blocks = bound.spec.blocks;
  const std::int64_t seq_q = max_q(bound.spec), seq_k = max_kv(bound.spec);
  const std::int64_t k_blocks = (seq_k + blocks.k - 1) / blocks.k, words = blocks.k / 32;
  const auto fill = [&](Generator::Block kind, const TensorDesc& counts_desc, const TensorDesc& indices_desc, HostileTensor& counts,
                        HostileTensor& indices) {
    counts = HostileTensor(counts_desc);
    indices = HostileTensor(indices_desc);
    std::fill_n(indices.as<std::int32_t>(), span_of(indices_desc), kGarbageBlock);
    for_each_element(counts_desc, [&](std::int64_t b, std::int64_t head, std::int64_t q_block, auto, std::int64_t offset) {
      std::int32_t count = 0;
      const auto add = [&](std::int64_t block) {
        indices.as<std::int32_t>()[indices.offset(b, head, q_block, count++)] = static_cast<std::int32_t>(block);
      };
      if (q_block % 3 == 1) add(q_block % 2 == 0 ? -5 : k_blocks + 7);  // no block
      for (const std::int32_t block : shuffled(values, k_blocks)) {
        const bool listed = values.block(b, head, q_block, block) == kind;
        if (listed) add(block);
        for (std::int64_t word = 0; listed && kind == Generator::Block::partial && word < blocks.q * words; ++word) {
          std::uint32_t bits = 0;
          for (std::int64_t bit = 0; bit < 32; ++bit) {
            const std::int64_t row = q_block * blocks.q + word / words, key = block * blocks.k + word % words * 32 + bit;
            const bool seen = row >= seq_q || key >= seq_k || values.sees(b, head, row, key);  // past the ends all ones
            bits |= static_cast<std::uint32_t>(seen) << bit;
          }
          const std::int64_t slot = count - 1;
          bound.partial_bits.as<std::int32_t>()[bound.partial_bits.offset(b, head, q_block, slot * blocks.q * words + word)] =
              static_cast<std::int32_t>(bits);
        }
      }
      counts.as<std::int32_t>()[offset] = count;
    });
  };
  if (desc.partial_block_bits) bound.partial_bits = HostileTensor(*desc.partial_block_bits);
  if (blocks.full) fill(Generator::Block::full, *desc.full_block_counts, *desc.full_block_indices, bound.full_counts, bound.full_indices);
  if (blocks.partial) {
    fill(Generator::Block::partial, *desc.partial_block_counts, *desc.partial_block_indices, bound.partial_counts, bound.partial_indices);
  }
}

void bind_score_bias(BoundCase& bound, const Generator& values, Request<AttentionDesc, AttentionArgs>& request) {
  const Case& spec = bound.spec;
  if (request.desc.alibi_slopes) {
    bound.alibi_slopes = HostileTensor(*request.desc.alibi_slopes);
    for_each_element(bound.alibi_slopes.desc(), [&](std::int64_t a, std::int64_t b, auto, auto, std::int64_t offset) {
      bound.alibi_slopes.set(offset, spec.ragged ? values.slope(a, b) : values.slope(0, a));
    });
  }
  if (request.desc.bias) {  // what no sequence has stays poisoned
    const TensorDesc& desc = *request.desc.bias;
    bound.bias = HostileTensor(desc);
    for_each_element(desc, [&](std::int64_t b, std::int64_t head, std::int64_t row, std::int64_t key, std::int64_t offset) {
      const bool all = desc.shape[0] == 1;
      const Sequence own = all ? Sequence{max_q(spec), max_kv(spec)} : spec.sequences[static_cast<std::size_t>(b)];
      const bool is_used = (desc.shape[2] == 1 || row < own.q) && (desc.shape[3] == 1 || key < own.kv);
      if (is_used) bound.bias.set(offset, values.bias(b, head, row, key));
    });
  }
  if (spec.dropout > 0) {
    bound.dropout_state = HostileTensor(contiguous(DType::i64, {2}));
    bound.dropout_state.as<std::int64_t>()[0] = static_cast<std::int64_t>(values.hash(41, 0));
    bound.dropout_state.as<std::int64_t>()[1] = static_cast<std::int64_t>(values.hash(41, 1));
  }
  request.args.alibi_slopes = bound.alibi_slopes.as<float>();
  request.args.bias = bound.bias.data();
  request.args.dropout_state = bound.dropout_state.as<std::int64_t>();
}

}  // namespace fovea::check
