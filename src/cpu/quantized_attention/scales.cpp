// SPDX-License-Identifier: Apache-2.0
/// Applies the scales of quantised tensors for the attention engine.
#include "cpu/attention/item.hpp"

namespace fovea::cpu {

void load_q_scales(const Item& item) {
  const Int8& int8 = *item.setup.int8;
  const Sequence& s = item.sequence;
  const std::int64_t group = item.setup.core.group(), q_block = Int8Groups::kQBlock;
  const std::int64_t first = item.setup.ragged ? Int8Groups::first_block(s.first_q, s.index, q_block) * int8.groups.q_per_block() : 0;
  const float* scales = item.call.q_scale + s.batch * int8.q_scales.batch;
  for (int row = 0; row < item.rows; ++row) {
    const std::int64_t flat = item.entry.row_begin + row, head = item.kv_head * group + flat % group;
    item.scratch.q_scales[row] = scales[head * int8.q_scales.head + (first + int8.groups.q_group(flat / group)) * int8.q_scales.row];
  }
}

void load_k_scales(const Item& item, detail::KeyRange keys, float* k_scales) {
  const Int8& int8 = *item.setup.int8;
  const Sequence& s = item.sequence;
  const std::int64_t k_block = Int8Groups::kKBlock;
  const std::int64_t first = item.setup.ragged ? Int8Groups::first_block(s.first_k, s.index, k_block) * int8.groups.k_per_block() : 0;
  const float* scales = item.call.k_scale + s.batch * int8.k_scales.batch + item.kv_head * int8.k_scales.head;
  for (std::int64_t key = keys.begin; key < keys.end; ++key) *k_scales++ = scales[(first + int8.groups.k_group(key)) * int8.k_scales.row];
}

void restore_values(const Item& item, const float* acc, float total, float* values) {
  const Int8& int8 = *item.setup.int8;
  const auto channels = [&](const float* base, const detail::RowStrides& strides) {
    return base + item.sequence.index * strides.batch + item.kv_head * strides.head;
  };
  const std::int64_t count = item.setup.core.head_dim_v;
  for (std::int64_t d = 0; d < count; ++d) values[d] = acc[d] / total;
  if (item.call.v_scale != nullptr) {
    const float* scale = channels(item.call.v_scale, int8.v_scales);
    for (std::int64_t d = 0; d < count; ++d) values[d] *= scale[d];
  }
  if (item.call.v_mean != nullptr) {
    const float* mean = channels(item.call.v_mean, int8.v_means);
    for (std::int64_t d = 0; d < count; ++d) values[d] += mean[d];
  }
}

double lse_shift(const Item& item, int row) {
  if (item.call.lse_shift == nullptr) return 0;
  const detail::AttentionCore& core = item.setup.core;
  const detail::RowStrides& strides = item.setup.int8->lse_shift;
  const std::int64_t flat = item.entry.row_begin + row, head = item.kv_head * core.group() + flat % core.group();
  const std::int64_t query = item.sequence.first_q + flat / core.group();
  return core.scale *
         static_cast<double>(item.call.lse_shift[item.sequence.batch * strides.batch + query * strides.row + head * strides.head]);
}

}  // namespace fovea::cpu
