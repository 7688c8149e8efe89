// SPDX-License-Identifier: Apache-2.0
#include "bound_case.hpp"

#include <algorithm>
#include <numeric>

#include "values.hpp"

namespace fovea::check {
namespace {

/// An impossible block number: read as one, it leaves any cache.
constexpr std::int32_t kGarbageBlock = 2147480000;

std::size_t misalignment(const Case& spec, DType dtype) { return spec.layout == Layout::unaligned ? size_of(dtype) : 0; }

HostileTensor allocate(const Case& spec, const TensorDesc& desc) { return HostileTensor(desc, misalignment(spec, desc.dtype)); }

/// Stores real values; those of an e4m3 tensor divided by its scale.
struct Scaled {
  const Case& spec;
  const Generator& values;
  char tensor;

  float operator()(DType dtype, float value, std::int64_t kv_head) const {
    return dtype == DType::e4m3 && spec.scales != Scales::none ? value / values.scale(tensor, kv_head) : value;
  }
};

HostileTensor vector_of(const std::vector<std::int32_t>& values) {
  HostileTensor tensor(contiguous(DType::i32, {static_cast<std::int64_t>(values.size())}));
  std::copy(values.begin(), values.end(), tensor.as<std::int32_t>());
  return tensor;
}

/// Row numbers at which sequences start, and the end.
HostileTensor cumulative(const Case& spec, std::int64_t Sequence::*length) {
  std::vector<std::int32_t> starts{0};
  for (const Sequence& sequence : spec.sequences) starts.push_back(starts.back() + static_cast<std::int32_t>(sequence.*length));
  return vector_of(starts);
}

std::vector<std::int32_t> shuffled(const Generator& values, std::int64_t count) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[values.hash(20, static_cast<std::int64_t>(i)) % i]);
  return order;
}

void bind_scales(BoundCase& bound, const Generator& values) {
  const Case& spec = bound.spec;
  if (spec.scales == Scales::none || (spec.kv_dtype != DType::e4m3)) return;
  // Only dense attention has a scale per sequence; its sequences all use the same ones.
  const bool dense = spec.operation == Operation::attention;
  const std::int64_t batch = dense ? std::max<std::int64_t>(static_cast<std::int64_t>(spec.sequences.size()), 1) : 1;
  const bool per_head = spec.scales == Scales::per_head;
  const auto make = [&](char tensor) {
    HostileTensor scale(contiguous(DType::f32, {per_head ? batch * spec.kv_head : 1}));
    for_each_element(scale.desc(), [&](std::int64_t i, auto, auto, auto, std::int64_t offset) {
      scale.set(offset, values.scale(tensor, per_head ? i % spec.kv_head : 0));
    });
    return scale;
  };
  if (dense) bound.q_scale = make('q');
  bound.k_scale = make('k');
  bound.v_scale = make('v');
}

void bind_sink(BoundCase& bound, const Generator& values) {
  if (bound.spec.sink == Sink::none) return;
  bound.sink = HostileTensor(contiguous(DType::f32, {bound.spec.head}));
  for (std::int64_t head = 0; head < bound.spec.head; ++head) bound.sink.set(head, values.sink(head));
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

/// K and V in one allocation if they alternate, else one each.
void allocate_caches(BoundCase& bound, const TensorDesc& k, const TensorDesc& v) {
  if (bound.spec.layout != Layout::interleaved) {
    bound.k = allocate(bound.spec, k);
    bound.v = allocate(bound.spec, v);
    return;
  }
  const std::int64_t elements = k.shape[0] * k.strides[0];
  const auto storage = std::make_shared<Storage>(static_cast<std::size_t>(elements) * size_of(k.dtype), 0);
  bound.k = HostileTensor(k, storage, 0);
  bound.v = HostileTensor(v, storage, bound.spec.kv_head * bound.spec.dqk);
}

/// q of all sequences; padding rows stay poisoned.
void fill_q(BoundCase& bound, const Generator& values) {
  const Case& spec = bound.spec;
  const Scaled scaled{spec, values, 'q'};
  const std::int64_t group = spec.head / spec.kv_head;
  for (std::int64_t b = 0; b < static_cast<std::int64_t>(spec.sequences.size()); ++b)
    for (std::int64_t row = 0; row < spec.sequences[static_cast<std::size_t>(b)].q; ++row)
      for (std::int64_t head = 0; head < spec.head; ++head) {
        const std::int64_t at = bound.row_offset(bound.q, bound.flat_row(b, row), head);
        for (std::int64_t x = 0; x < spec.dqk; ++x) bound.q.set(at + x, scaled(spec.dtype, values.q({b, row, head, x}), head / group));
      }
}

void fill_kv(BoundCase& bound, const Generator& values) {
  const Case& spec = bound.spec;
  const Scaled scaled_k{spec, values, 'k'}, scaled_v{spec, values, 'v'};
  for (std::int64_t b = 0; b < static_cast<std::int64_t>(spec.sequences.size()); ++b) {
    const std::int64_t kv = spec.sequences[static_cast<std::size_t>(b)].kv;
    for (std::int64_t token = 0; token < kv; ++token) {
      if (bits_hide(spec, b, token)) continue;
      for (std::int64_t head = 0; head < spec.kv_head; ++head) {
        const std::int64_t k = bound.kv_offset(bound.k, b, token, head), v = bound.kv_offset(bound.v, b, token, head);
        for (std::int64_t x = 0; x < spec.dqk; ++x) bound.k.set(k + x, scaled_k(spec.kv_dtype, values.k({b, token, head, x}, kv), head));
        for (std::int64_t x = 0; x < spec.dv; ++x) bound.v.set(v + x, scaled_v(spec.kv_dtype, values.v({b, token, head, x}, kv), head));
      }
    }
  }
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

void bind_attention(BoundCase& bound, const Generator& values, Request<AttentionDesc, AttentionArgs>& request) {
  const Case& spec = bound.spec;
  const AttentionDesc& desc = request.desc;
  bound.q = allocate(spec, desc.q);
  bound.k = allocate(spec, desc.k);
  bound.v = allocate(spec, desc.v);
  bound.out = allocate(spec, desc.out);
  if (desc.lse) bound.lse = allocate(spec, *desc.lse);
  bound.cu_q = cumulative(spec, &Sequence::q);
  bound.cu_k = cumulative(spec, &Sequence::kv);
  fill_q(bound, values);
  fill_kv(bound, values);
  bind_blocks(bound, values, desc);
  request.args = {.q = bound.q.data(),
                  .k = bound.k.data(),
                  .v = bound.v.data(),
                  .out = bound.out.data(),
                  .lse = bound.lse.as<float>(),
                  .sink = bound.sink.as<float>(),
                  .cu_seqlens_q = spec.ragged ? bound.cu_q.as<std::int32_t>() : nullptr,
                  .cu_seqlens_k = spec.ragged ? bound.cu_k.as<std::int32_t>() : nullptr,
                  .q_scale = bound.q_scale.as<float>(),
                  .k_scale = bound.k_scale.as<float>(),
                  .v_scale = bound.v_scale.as<float>(),
                  .full_block_counts = bound.full_counts.as<std::int32_t>(),
                  .full_block_indices = bound.full_indices.as<std::int32_t>(),
                  .partial_block_counts = bound.partial_counts.as<std::int32_t>(),
                  .partial_block_indices = bound.partial_indices.as<std::int32_t>(),
                  .partial_block_bits = bound.partial_bits.as<std::int32_t>(),
                  .packed_mask = bound.packed_mask.as<std::uint8_t>(),
                  .mask_indptr = bound.mask_indptr.as<std::int32_t>()};
  bind_score_bias(bound, values, request);
}

/// Blocks in random order. Entries that no token needs hold garbage, and so do gaps between rows.
HostileTensor make_block_table(const Case& spec, const Generator& values, const TensorDesc& desc, std::int64_t blocks) {
  HostileTensor table(desc);
  std::fill_n(table.as<std::int32_t>(), span_of(desc), kGarbageBlock);
  std::int64_t shared = 0;
  if (spec.shared_prefix) {
    shared = max_kv(spec);
    for (const Sequence& sequence : spec.sequences) shared = std::min(shared, sequence.kv);
    shared /= spec.page;
  }
  const std::vector<std::int32_t> order = shuffled(values, blocks);
  auto next = order.begin();
  for (std::size_t b = 0; b < spec.sequences.size(); ++b) {
    auto* row = table.as<std::int32_t>() + table.offset(static_cast<std::int64_t>(b));
    for (std::int64_t i = 0; i * spec.page < spec.sequences[b].kv; ++i)
      row[i] = b > 0 && i < shared ? table.as<std::int32_t>()[i] : *next++;
  }
  return table;
}

void bind_paged(BoundCase& bound, const Generator& values, Request<PagedAttentionDesc, PagedAttentionArgs>& request) {
  const Case& spec = bound.spec;
  const PagedAttentionDesc& desc = request.desc;
  bound.q = allocate(spec, desc.q);
  allocate_caches(bound, desc.k_cache, desc.v_cache);
  bound.out = allocate(spec, desc.out);
  if (desc.lse) bound.lse = allocate(spec, *desc.lse);
  bound.cu_q = cumulative(spec, &Sequence::q);
  std::vector<std::int32_t> lengths;
  for (const Sequence& sequence : spec.sequences) lengths.push_back(static_cast<std::int32_t>(sequence.kv));
  bound.kv_len = vector_of(lengths);
  bound.block_table = make_block_table(spec, values, desc.block_table, desc.k_cache.shape[0]);
  fill_q(bound, values);
  fill_kv(bound, values);
  request.args = {.q = bound.q.data(),
                  .k_cache = bound.k.data(),
                  .v_cache = bound.v.data(),
                  .out = bound.out.data(),
                  .lse = bound.lse.as<float>(),
                  .sink = bound.sink.as<float>(),
                  .block_table = bound.block_table.as<std::int32_t>(),
                  .cu_seqlens_q = bound.cu_q.as<std::int32_t>(),
                  .kv_len = bound.kv_len.as<std::int32_t>(),
                  .k_scale = bound.k_scale.as<float>(),
                  .v_scale = bound.v_scale.as<float>(),
                  .packed_mask = bound.packed_mask.as<std::uint8_t>(),
                  .mask_indptr = bound.mask_indptr.as<std::int32_t>()};
}

void bind_append(BoundCase& bound, const Generator& values, Request<PagedCacheAppendDesc, PagedCacheAppendArgs>& request) {
  const Case& spec = bound.spec;
  const PagedCacheAppendDesc& desc = request.desc;
  allocate_caches(bound, desc.k_cache, desc.v_cache);
  bound.new_k = allocate(spec, desc.k);
  bound.new_v = allocate(spec, desc.v);
  const std::int64_t rows = desc.k.shape[0];
  const auto fill = [&](HostileTensor& tensor, auto value) {
    for_each_element(tensor.desc(), [&](std::int64_t row, std::int64_t head, std::int64_t x, auto, std::int64_t offset) {
      tensor.set(offset, value(Index{0, row, head, x}));
    });
  };
  fill(bound.new_k, [&](Index at) { return values.k(at, rows); });
  fill(bound.new_v, [&](Index at) { return values.v(at, rows); });
  const std::vector<std::int32_t> order = shuffled(values, desc.k_cache.shape[0] * spec.page);
  bound.slots = HostileTensor(contiguous(DType::i64, {rows}));
  for (std::int64_t row = 0; row < rows; ++row)
    bound.slots.as<std::int64_t>()[row] = row % 5 == 3 ? -1 : order[static_cast<std::size_t>(row)];
  request.args = {.k = bound.new_k.data(),
                  .v = bound.new_v.data(),
                  .k_cache = bound.k.data(),
                  .v_cache = bound.v.data(),
                  .slot_mapping = bound.slots.as<std::int64_t>(),
                  .k_scale = bound.k_scale.as<float>(),
                  .v_scale = bound.v_scale.as<float>()};
}

void bind_merge(BoundCase& bound, const Generator& values, Request<MergeStatesDesc, MergeStatesArgs>& request) {
  const Case& spec = bound.spec;
  for (int part = 0; part < spec.parts; ++part) {
    const auto& desc = request.desc.parts[static_cast<std::size_t>(part)];
    PartTensors tensors{allocate(spec, desc.out), allocate(spec, desc.lse)};
    for_each_element(desc.out, [&](std::int64_t row, std::int64_t head, std::int64_t x, auto, std::int64_t offset) {
      tensors.out.set(offset, values.part_out(part, row, head, x));
    });
    for_each_element(desc.lse, [&](std::int64_t row, std::int64_t head, auto, auto, std::int64_t offset) {
      tensors.lse.set(offset, values.part_lse(part, row, head));
    });
    bound.part_args.push_back({tensors.out.data(), tensors.lse.as<float>()});
    bound.parts.push_back(std::move(tensors));
  }
  bound.out = spec.in_place ? bound.parts[0].out : allocate(spec, request.desc.out);
  if (spec.lse) bound.lse = spec.in_place ? bound.parts[0].lse : allocate(spec, *request.desc.lse);
  request.args = {.parts = bound.part_args, .out = bound.out.data(), .lse = bound.lse.as<float>()};
}

}  // namespace

std::int64_t BoundCase::flat_rows() const {
  const bool fixed = spec.operation == Operation::attention && !spec.ragged;
  return fixed ? static_cast<std::int64_t>(spec.sequences.size()) * max_q(spec) : total_q(spec);
}

std::int64_t BoundCase::flat_row(std::int64_t sequence, std::int64_t row) const { return cu_q.as<std::int32_t>()[sequence] + row; }

std::int64_t BoundCase::row_offset(const HostileTensor& tensor, std::int64_t flat, std::int64_t head) const {
  if (tensor.desc().rank == 3) return tensor.offset(flat, head);
  return tensor.offset(flat / tensor.desc().shape[1], flat % tensor.desc().shape[1], head);
}

std::int64_t BoundCase::lse_offset(std::int64_t flat, std::int64_t head) const {
  if (lse.desc().rank == 2) return lse.offset(flat, head);
  return lse.offset(flat / lse.desc().shape[2], head, flat % lse.desc().shape[2]);
}

std::int64_t BoundCase::kv_offset(const HostileTensor& tensor, std::int64_t sequence, std::int64_t token, std::int64_t head) const {
  if (spec.operation == Operation::paged_attention) {
    const std::int64_t block = block_table.as<std::int32_t>()[block_table.offset(sequence, token / spec.page)];
    return tensor.offset(block, token % spec.page, head);
  }
  return spec.ragged ? tensor.offset(cu_k.as<std::int32_t>()[sequence] + token, head) : tensor.offset(sequence, token, head);
}

std::int64_t BoundCase::slot_offset(const HostileTensor& cache, std::int64_t slot, std::int64_t head) const {
  return cache.offset(slot / spec.page, slot % spec.page, head);
}

std::vector<Named> BoundCase::inputs() const {
  std::vector<Named> list{{"q", q},
                          {"cu_seqlens_q", cu_q},
                          {"cu_seqlens_k", cu_k},
                          {"kv_len", kv_len},
                          {"block_table", block_table},
                          {"slots", slots},
                          {"sink", sink},
                          {"q_scale", q_scale},
                          {"k_scale", k_scale},
                          {"v_scale", v_scale},
                          {"full_block_counts", full_counts},
                          {"full_block_indices", full_indices},
                          {"partial_block_counts", partial_counts},
                          {"partial_block_indices", partial_indices},
                          {"partial_block_bits", partial_bits},
                          {"packed_mask", packed_mask},
                          {"mask_indptr", mask_indptr},
                          {"alibi_slopes", alibi_slopes},
                          {"bias", bias},
                          {"dropout_state", dropout_state},
                          {"k", new_k},
                          {"v", new_v}};
  if (spec.operation != Operation::paged_cache_append) list.insert(list.end(), {{"k", k}, {"v", v}});
  for (std::size_t i = spec.in_place ? 1 : 0; i < parts.size(); ++i)
    list.insert(list.end(), {{"parts.out", parts[i].out}, {"parts.lse", parts[i].lse}});
  std::erase_if(list, [](const Named& named) { return !named.tensor; });
  return list;
}

std::vector<Named> BoundCase::outputs() const {
  std::vector<Named> list{{"out", out}, {"lse", lse}};
  if (spec.operation == Operation::paged_cache_append) list = {{"k_cache", k}, {"v_cache", v}};
  std::erase_if(list, [](const Named& named) { return !named.tensor; });
  return list;
}

Result<AnyPlan> BoundCase::plan(const PlanOptions& options, const Place& place) const { return check::plan(request, options, place); }

std::unique_ptr<BoundCase> bind(const Case& spec) {
  auto bound = std::make_unique<BoundCase>();
  bound->spec = spec;
  bound->request = describe(spec);
  const Generator values(bound->spec);
  bind_scales(*bound, values);
  bind_sink(*bound, values);
  bind_mask(*bound);
  struct Binder {
    BoundCase& bound;
    const Generator& values;
    void operator()(Request<AttentionDesc, AttentionArgs>& request) { bind_attention(bound, values, request); }
    void operator()(Request<PagedAttentionDesc, PagedAttentionArgs>& request) { bind_paged(bound, values, request); }
    void operator()(Request<PagedCacheAppendDesc, PagedCacheAppendArgs>& request) { bind_append(bound, values, request); }
    void operator()(Request<MergeStatesDesc, MergeStatesArgs>& request) { bind_merge(bound, values, request); }
  };
  std::visit(Binder{*bound, values}, bound->request);
  bound->seal();
  return bound;
}

namespace {

auto plan_of(const AttentionDesc& desc, const PlanOptions& options, Device device) { return plan_attention(desc, device, options); }
auto plan_of(const PagedAttentionDesc& desc, const PlanOptions& options, Device device) {
  return plan_paged_attention(desc, device, options);
}
auto plan_of(const PagedCacheAppendDesc& desc, const PlanOptions& options, Device device) {
  return plan_paged_cache_append(desc, device, options);
}
auto plan_of(const MergeStatesDesc& desc, const PlanOptions& options, Device device) { return plan_merge_states(desc, device, options); }

}  // namespace

Result<AnyPlan> plan(const AnyRequest& request, const PlanOptions& options, const Place& place) {
  return std::visit(
      [&](const auto& one) -> Result<AnyPlan> { return forget_operation(plan_of(one.desc, options, place.device), one.args, place); },
      request);
}

}  // namespace fovea::check
