// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "bound_case.hpp"

namespace fovea::check {
namespace {

constexpr std::int64_t kTwoGiga = std::int64_t{1} << 31;

std::size_t at(int axis) { return static_cast<std::size_t>(axis); }

/// Strides of an array whose axes lie in memory as `order` says, outermost first, with gaps of `gap[axis]` elements after each extent.
void lay_out(TensorDesc& desc, std::initializer_list<int> order, std::int64_t row_gap, bool outer_gaps) {
  std::int64_t stride = 1, row = 0;
  for (auto axis = std::rbegin(order); axis != std::rend(order); ++axis) {
    desc.strides[at(*axis)] = stride;
    stride *= desc.shape[at(*axis)];
    if (axis == std::rbegin(order))
      stride += row_gap, row = stride;
    else if (outer_gaps)
      stride += row;
  }
}

/// q, k, v, out and caches: the last dimension is contiguous, the others are as the layout says.
TensorDesc strided(TensorDesc desc, Layout layout) {
  const auto per_16_bytes = static_cast<std::int64_t>(16 / size_of(desc.dtype));
  const std::int64_t row = desc.shape[at(desc.rank - 1)];
  switch (layout) {
    case Layout::padded:
    case Layout::odd_rows: {
      const std::int64_t aligned = (row + per_16_bytes - 1) / per_16_bytes * per_16_bytes - row + per_16_bytes;
      const std::int64_t gap = layout == Layout::padded ? aligned : 1;
      if (desc.rank == 3)
        lay_out(desc, {0, 1, 2}, gap, true);
      else
        lay_out(desc, {0, 1, 2, 3}, gap, true);
      break;
    }
    case Layout::head_major:
      if (desc.rank == 3)
        lay_out(desc, {1, 0, 2}, 0, false);
      else
        lay_out(desc, {0, 2, 1, 3}, 0, false);
      break;
    default: break;
  }
  return desc;
}

/// As strided(), plus the layouts that only the inputs K and V may have.
TensorDesc strided_kv(TensorDesc desc, Layout layout) {
  if (layout == Layout::broadcast) {
    desc.strides[at(desc.rank - 2)] = 0;
    if (desc.rank == 4) desc.strides[0] = 0;
  }
  if (layout == Layout::far)
    desc.strides[0] = std::max<std::int64_t>(desc.strides[0], kTwoGiga / std::max<std::int64_t>(desc.shape[0] - 1, 1) + 64);
  return strided(desc, layout);
}

/// lse: every stride is free.
TensorDesc strided_lse(TensorDesc desc, Layout layout) {
  if (layout == Layout::head_major && desc.rank == 2) lay_out(desc, {1, 0}, 0, false);
  if (layout == Layout::head_major && desc.rank == 3) lay_out(desc, {0, 2, 1}, 0, false);
  if (layout == Layout::padded || layout == Layout::odd_rows)
    for (int axis = 0; axis < desc.rank; ++axis) desc.strides[at(axis)] *= 3;
  return desc;
}

/// Codes in place of plain rows. Inline scales lie behind the codes of their row.
void describe_codes(const Case& spec, KvFormat format, std::int64_t dim, TensorDesc& cache, std::optional<TensorDesc>& scale_cache) {
  const KvRowFormat* row = kv_row_format(format);
  if (row == nullptr) return;
  const std::int64_t blocks = cache.shape[0];
  const DType dtype = scale_dtype_of(spec, *row);
  const std::int64_t size = static_cast<std::int64_t>(size_of(dtype)), groups = row->scales(dim);
  TensorDesc codes = contiguous(DType::i8, {blocks, spec.page, spec.kv_head, row->code_bytes(dim)});
  TensorDesc scales = contiguous(dtype, {blocks, spec.page, spec.kv_head, groups});
  if (spec.inline_scales) {
    TensorDesc record = contiguous(DType::i8, {blocks, spec.page, spec.kv_head, row->row_bytes(dim, dtype)});
    record = strided(record, spec.layout == Layout::head_major ? Layout::head_major : Layout::contiguous);
    codes.strides = scales.strides = record.strides;
    for (std::size_t axis = 0; axis < 3; ++axis) scales.strides[axis] /= size;
  } else {
    codes = strided_kv(codes, spec.layout);
    scales = strided(scales, spec.layout);
  }
  if (row->group == 0) scales.rank = 3;
  cache = codes;
  if (row->has_scales()) scale_cache = scales;
}

void caches(const Case& spec, std::int64_t blocks, TensorDesc& k, TensorDesc& v) {
  k = strided_kv(contiguous(spec.kv_dtype, {blocks, spec.page, spec.kv_head, spec.dqk}),
                 spec.layout == Layout::broadcast ? Layout::contiguous : spec.layout);
  v = strided_kv(contiguous(spec.kv_dtype, {blocks, spec.page, spec.kv_head, spec.dv}),
                 spec.layout == Layout::broadcast ? Layout::contiguous : spec.layout);
  if (spec.layout == Layout::broadcast) k.strides[2] = v.strides[2] = 0;
  if (spec.layout == Layout::interleaved) {
    k.strides[1] = v.strides[1] = spec.kv_head * (spec.dqk + spec.dv);
    k.strides[0] = v.strides[0] = spec.page * k.strides[1];
  }
}

std::optional<ScaleDesc> scale_desc(const Case& spec) {
  if (spec.scales == Scales::none) return std::nullopt;
  if (spec.scales != Scales::per_head) return ScaleDesc{};
  return ScaleDesc{.batch_stride = spec.kv_head, .head_stride = 1};
}

/// Lists with slots that are never used. Gaps and broadcast axes as the layout says.
void describe_blocks(const Case& spec, std::int64_t rows, std::int64_t keys, AttentionDesc& desc) {
  const Blocks& blocks = spec.blocks;
  const std::int64_t batch = blocks.own_batch ? static_cast<std::int64_t>(spec.sequences.size()) : 1,
                     head = blocks.own_head ? spec.head : 1;
  const std::int64_t q_blocks = (rows + blocks.q - 1) / blocks.q, slots = (keys + blocks.k - 1) / blocks.k + 2;
  desc.block_q = blocks.q;
  desc.block_k = blocks.k;
  const auto padded = [&](TensorDesc list) {
    for (int axis = 0; axis + 1 < list.rank && spec.layout == Layout::padded; ++axis) list.strides[at(axis)] *= 2;
    return list;
  };
  const TensorDesc counts = padded(contiguous(DType::i32, {batch, head, q_blocks}));
  const TensorDesc indices = padded(contiguous(DType::i32, {batch, head, q_blocks, slots}));
  if (blocks.full) desc.full_block_counts = counts, desc.full_block_indices = indices;
  if (!blocks.partial) return;
  desc.partial_block_counts = counts, desc.partial_block_indices = indices;
  desc.partial_block_bits = padded(contiguous(DType::i32, {batch, head, q_blocks, slots * blocks.q * blocks.k / 32}));
}

/// `rows` of q. The bytes of flat rows follow from all lengths, as bind() lays them out.
std::optional<PackedMaskDesc> mask_desc(const Case& spec, std::int64_t rows) {
  if (spec.mask_bits == MaskBits::none) return std::nullopt;
  if (spec.mask_bits == MaskBits::rows) {
    return PackedMaskDesc{.bytes = rows * mask_row_bytes(spec), .tail = spec.mask_tail, .row_bytes = mask_row_bytes(spec)};
  }
  std::int64_t bytes = 3;
  for (std::size_t b = 0; b < spec.sequences.size(); ++b) {
    const std::int64_t columns = spec.mask_tail == 0 ? spec.sequences[b].kv : spec.mask_tail;
    bytes += (spec.sequences[b].q * columns + 7) / 8 + static_cast<std::int64_t>(b % 3);
  }
  return PackedMaskDesc{.bytes = bytes, .tail = spec.mask_tail};
}

/// Ragged batches have longer lengths than their bounds.
std::optional<TensorDesc> bias_desc(const Case& spec) {
  const auto batch = static_cast<std::int64_t>(spec.sequences.size());
  const std::int64_t more = spec.ragged ? 3 : 0, rows = max_q(spec) + more, keys = max_kv(spec) + more;
  switch (spec.bias) {
    case BiasShape::none: break;
    case BiasShape::full: return contiguous(spec.out_dtype, {batch, spec.head, rows, keys});
    case BiasShape::heads: return contiguous(spec.out_dtype, {1, spec.head, 1, 1});
    case BiasShape::rows: return contiguous(spec.out_dtype, {batch, 1, rows, 1});
    case BiasShape::keys: return contiguous(spec.out_dtype, {1, spec.head, 1, keys});
    case BiasShape::transposed:
      TensorDesc desc = contiguous(spec.out_dtype, {batch, 1, rows, keys});
      lay_out(desc, {0, 1, 3, 2}, 1, true);
      return desc;
  }
  return std::nullopt;
}

/// Formats of both caches, and the scales that multiply whole tensors.
void describe_formats(const Case& spec, auto& desc) {
  describe_codes(spec, spec.k_format, spec.dqk, desc.k_cache, desc.k_scale_cache);
  describe_codes(spec, spec.v_format, spec.dv, desc.v_cache, desc.v_scale_cache);
  desc.k_format = spec.k_format;
  desc.v_format = spec.v_format;
  if (has_tensor_scale(spec, spec.k_format)) desc.k_scale = scale_desc(spec);
  if (has_tensor_scale(spec, spec.v_format)) desc.v_scale = scale_desc(spec);
}

AttentionDesc describe_attention(const Case& spec) {
  const auto batch = static_cast<std::int64_t>(spec.sequences.size());
  AttentionDesc desc{.mask = spec.mask, .scale = spec.scale, .softcap = spec.softcap, .has_sink = spec.sink != Sink::none};
  std::int64_t total_k = 0;
  for (const Sequence& sequence : spec.sequences) total_k += sequence.kv;
  const std::int64_t rows = spec.ragged ? total_q(spec) : max_q(spec), keys = spec.ragged ? total_k : max_kv(spec);
  const auto shaped = [&](DType dtype, std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
    return spec.ragged ? contiguous(dtype, {tokens, heads, dim}) : contiguous(dtype, {batch, tokens, heads, dim});
  };
  desc.q = strided(shaped(spec.dtype, rows, spec.head, spec.dqk), spec.layout);
  desc.k = strided_kv(shaped(spec.kv_dtype, keys, spec.kv_head, spec.dqk), spec.layout);
  desc.v = strided_kv(shaped(spec.kv_dtype, keys, spec.kv_head, spec.dv), spec.layout);
  desc.out = strided(shaped(spec.out_dtype, rows, spec.head, spec.dv), spec.layout);
  if (spec.layout != Layout::unaligned) {  // of the bases; rows are aligned as far as their strides are
    for (TensorDesc* tensor : {&desc.q, &desc.k, &desc.v, &desc.out}) tensor->alignment = 16;
  }
  if (spec.lse)
    desc.lse = strided_lse(spec.ragged ? contiguous(DType::f32, {rows, spec.head}) : contiguous(DType::f32, {batch, spec.head, rows}),
                           spec.layout);
  if (spec.ragged) desc.ragged = RaggedDesc{.batch = batch, .max_seq_q = max_q(spec), .max_seq_k = max_kv(spec)};
  if (spec.dtype == DType::e4m3) desc.q_scale = desc.k_scale = desc.v_scale = scale_desc(spec);
  if (spec.blocks.q > 0) describe_blocks(spec, rows, keys, desc);
  desc.packed_mask = mask_desc(spec, spec.ragged ? rows : batch * rows);
  if (spec.alibi) desc.alibi_slopes = spec.ragged ? contiguous(DType::f32, {batch, spec.head}) : contiguous(DType::f32, {spec.head});
  desc.bias = bias_desc(spec);
  desc.dropout_p = spec.dropout;
  return desc;
}

PagedAttentionDesc describe_paged(const Case& spec) {
  PagedAttentionDesc desc{.max_seq_q = spec.loose_bounds ? 0 : max_q(spec),
                          .max_kv_len = spec.loose_bounds ? 0 : max_kv(spec),
                          .mask = spec.mask,
                          .scale = spec.scale,
                          .softcap = spec.softcap,
                          .has_sink = spec.sink != Sink::none};
  std::int64_t blocks = 3;  // never used
  for (const Sequence& sequence : spec.sequences) blocks += (sequence.kv + spec.page - 1) / spec.page;
  const std::int64_t table_width = (max_kv(spec) + spec.page - 1) / spec.page + 2;
  caches(spec, blocks, desc.k_cache, desc.v_cache);
  desc.q = strided(contiguous(spec.dtype, {total_q(spec), spec.head, spec.dqk}), spec.layout);
  desc.out = strided(contiguous(spec.out_dtype, {total_q(spec), spec.head, spec.dv}), spec.layout);
  desc.block_table = contiguous(DType::i32, {static_cast<std::int64_t>(spec.sequences.size()), table_width});
  if (spec.layout == Layout::padded) desc.block_table.strides[0] += 3;
  if (spec.lse) desc.lse = strided_lse(contiguous(DType::f32, {total_q(spec), spec.head}), spec.layout);
  desc.packed_mask = mask_desc(spec, total_q(spec));
  describe_formats(spec, desc);
  if (spec.layout != Layout::unaligned) {
    for (TensorDesc* tensor : {&desc.q, &desc.k_cache, &desc.v_cache, &desc.out}) tensor->alignment = 16;
  }
  return desc;
}

PagedCacheAppendDesc describe_append(const Case& spec) {
  PagedCacheAppendDesc desc{};
  const std::int64_t rows = total_q(spec);
  // Slots for twice the rows, so that many stay as they are.
  caches(spec, 2 * rows / spec.page + 2, desc.k_cache, desc.v_cache);
  desc.k = strided(contiguous(spec.dtype, {rows, spec.kv_head, spec.dqk}), spec.layout);
  desc.v = strided(contiguous(spec.dtype, {rows, spec.kv_head, spec.dv}), spec.layout);
  describe_formats(spec, desc);
  return desc;
}

MergeStatesDesc describe_merge(const Case& spec) {
  MergeStatesDesc desc{};
  desc.out = strided(contiguous(spec.out_dtype, {total_q(spec), spec.head, spec.dv}), spec.layout);
  const TensorDesc lse = strided_lse(contiguous(DType::f32, {total_q(spec), spec.head}), spec.layout);
  desc.parts.assign(static_cast<std::size_t>(spec.parts), {.out = desc.out, .lse = lse});
  if (spec.lse) desc.lse = lse;
  return desc;
}

}  // namespace

AnyRequest describe(const Case& spec) {
  switch (spec.operation) {
    case Operation::attention: return Request<AttentionDesc, AttentionArgs>{describe_attention(spec), {}};
    case Operation::paged_attention: return Request<PagedAttentionDesc, PagedAttentionArgs>{describe_paged(spec), {}};
    case Operation::paged_cache_append: return Request<PagedCacheAppendDesc, PagedCacheAppendArgs>{describe_append(spec), {}};
    case Operation::merge_states: break;
  }
  return Request<MergeStatesDesc, MergeStatesArgs>{describe_merge(spec), {}};
}

}  // namespace fovea::check
