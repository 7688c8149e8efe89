// SPDX-License-Identifier: Apache-2.0
#include "bound_case.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "bind_masks.hpp"
#include "cache_tensors.hpp"
#include "values.hpp"

namespace fovea::check {
namespace {

/// Stores real values; those of an e4m3 tensor divided by its scale.
struct Scaled {
  const Case& spec;
  const Generator& values;
  char tensor;

  float operator()(DType dtype, float value, std::int64_t kv_head) const {
    return dtype == DType::e4m3 && spec.scales != Scales::none ? value / values.scale(tensor, kv_head) : value;
  }
};

/// Row numbers at which sequences start, and the end.
HostileTensor cumulative(const Case& spec, std::int64_t Sequence::*length) {
  std::vector<std::int32_t> starts{0};
  for (const Sequence& sequence : spec.sequences) starts.push_back(starts.back() + static_cast<std::int32_t>(sequence.*length));
  return vector_of(starts);
}

void bind_scales(BoundCase& bound, const Generator& values) {
  const Case& spec = bound.spec;
  const bool of_k = has_tensor_scale(spec, spec.k_format), of_v = has_tensor_scale(spec, spec.v_format);
  if (!of_k && !of_v) return;
  // Only dense attention has a scale per sequence; its sequences all use the same ones.
  const bool dense = spec.operation == Operation::attention;
  const std::int64_t batch = dense ? std::max<std::int64_t>(static_cast<std::int64_t>(spec.sequences.size()), 1) : 1;
  const bool per_head = spec.scales == Scales::per_head;
  const auto make = [&](char tensor) {
    HostileTensor scale(contiguous(DType::f32, {per_head ? batch * spec.kv_head : 1}));
    for_each_element(scale.desc(), [&](std::int64_t i, auto, auto, auto, std::int64_t offset) {
      const bool nan = spec.nan_scale && tensor == 'k' && i % spec.kv_head == 0;
      scale.set(offset, nan ? std::numeric_limits<float>::quiet_NaN() : values.scale(tensor, per_head ? i % spec.kv_head : 0));
    });
    return scale;
  };
  if (dense) bound.q_scale = make('q');
  if (of_k) bound.k_scale = make('k');
  if (of_v) bound.v_scale = make('v');
}

void bind_sink(BoundCase& bound, const Generator& values) {
  if (bound.spec.sink == Sink::none) return;
  bound.sink = HostileTensor(contiguous(DType::f32, {bound.spec.head}));
  for (std::int64_t head = 0; head < bound.spec.head; ++head) bound.sink.set(head, values.sink(head));
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

/// A row of K or V as the cache has it.
void fill_row(CodeRow to, std::int64_t at, std::int64_t scales_at, const std::vector<float>& row, const Scaled& scaled, std::int64_t head) {
  const Case& spec = scaled.spec;
  const float global = has_tensor_scale(spec, to.format) ? scaled.values.scale(scaled.tensor, head) : 1.0f;
  if (to.format != KvFormat::rows) return to.write(at, scales_at, global, row);
  for (std::size_t x = 0; x < row.size(); ++x) to.codes.set(at + static_cast<std::int64_t>(x), scaled(spec.kv_dtype, row[x], head));
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
        std::vector<float> row;
        for (std::int64_t x = 0; x < spec.dqk; ++x) row.push_back(values.k({b, token, head, x}, kv));
        fill_row({spec.k_format, bound.k, bound.k_scale_cache}, k, bound.scales_at(bound.k_scale_cache, b, token, head), row, scaled_k,
                 head);
        row.clear();
        for (std::int64_t x = 0; x < spec.dv; ++x) row.push_back(values.v({b, token, head, x}, kv));
        fill_row({spec.v_format, bound.v, bound.v_scale_cache}, v, bound.scales_at(bound.v_scale_cache, b, token, head), row, scaled_v,
                 head);
      }
    }
  }
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
  allocate_formats(bound, desc);
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
                  .mask_indptr = bound.mask_indptr.as<std::int32_t>(),
                  .k_scale_cache = bound.k_scale_cache.data(),
                  .v_scale_cache = bound.v_scale_cache.data()};
}

void bind_append(BoundCase& bound, const Generator& values, Request<PagedCacheAppendDesc, PagedCacheAppendArgs>& request) {
  const Case& spec = bound.spec;
  const PagedCacheAppendDesc& desc = request.desc;
  allocate_caches(bound, desc.k_cache, desc.v_cache);
  allocate_formats(bound, desc);
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
                  .v_scale = bound.v_scale.as<float>(),
                  .k_scale_cache = bound.k_scale_cache.data(),
                  .v_scale_cache = bound.v_scale_cache.data()};
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

std::int64_t BoundCase::scales_at(const HostileTensor& scales, std::int64_t sequence, std::int64_t token, std::int64_t head) const {
  return scales ? kv_offset(scales, sequence, token, head) : 0;
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
  if (spec.operation != Operation::paged_cache_append)
    list.insert(list.end(), {{"k", k}, {"v", v}, {"k_scale_cache", k_scale_cache}, {"v_scale_cache", v_scale_cache}});
  for (std::size_t i = spec.in_place ? 1 : 0; i < parts.size(); ++i)
    list.insert(list.end(), {{"parts.out", parts[i].out}, {"parts.lse", parts[i].lse}});
  std::erase_if(list, [](const Named& named) { return !named.tensor; });
  return list;
}

std::vector<Named> BoundCase::outputs() const {
  std::vector<Named> list{{"out", out}, {"lse", lse}};
  if (spec.operation == Operation::paged_cache_append)
    list = {{"k_cache", k}, {"v_cache", v}, {"k_scale_cache", k_scale_cache}, {"v_scale_cache", v_scale_cache}};
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
