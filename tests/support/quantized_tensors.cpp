// SPDX-License-Identifier: Apache-2.0
#include "quantized_tensors.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "noise.hpp"

namespace fovea::check {
namespace {

using Kind = QuantizedCase::Values;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// A value that follows from the position alone.
float noise(std::uint64_t tag, std::int64_t token, std::int64_t head, std::int64_t channel) {
  const auto fold = [](std::uint64_t bits, std::int64_t x) { return mix(bits + static_cast<std::uint64_t>(x) + 1); };
  return near_normal(fold(fold(fold(mix(tag), token), head), channel));
}

HostileTensor cumulative(const std::vector<std::int64_t>& begins) {
  HostileTensor tensor(contiguous(DType::i32, {static_cast<std::int64_t>(begins.size())}));
  for (std::size_t b = 0; b < begins.size(); ++b) tensor.as<std::int32_t>()[b] = static_cast<std::int32_t>(begins[b]);
  return tensor;
}

}  // namespace

QuantizedTensors::QuantizedTensors(const QuantizedCase& of) : spec(of) {
  RaggedDesc bounds{.batch = batch()};
  for (const Sequence& s : spec.sequences) {  // bounds need not be tight
    q_begin_.push_back(q_begin_.back() + s.q);
    k_begin_.push_back(k_begin_.back() + s.kv);
    bounds.max_seq_q = std::max(bounds.max_seq_q, s.q + 5);
    bounds.max_seq_k = std::max(bounds.max_seq_k, s.kv + 5);
  }
  if (spec.ragged) ragged = bounds;
  allocate();
  fill();
  spoil();
}

void QuantizedTensors::allocate() {
  constexpr std::int64_t kPadding = 3;  // rows of no sequence
  const auto tensor = [&](std::int64_t total, std::int64_t heads, DType dtype) {
    const TensorDesc dense = spec.ragged ? contiguous(dtype, {total + kPadding, heads, spec.dim})
                                         : contiguous(dtype, {batch(), total / batch(), heads, spec.dim});
    TensorDesc desc = with_gaps(dense, spec.gap * (size_of(dtype) == 1 ? 2 : 1));  // 8 elements of 16 bits are 16 of 8
    desc.alignment = promised_alignment(spec.gap);
    return HostileTensor(desc, spec.gap % 8 != 0 ? size_of(dtype) : 0);
  };
  const std::int64_t total_q = q_begin_.back(), total_k = k_begin_.back(), gap = spec.gap > 0 ? 3 : 0;
  q = tensor(total_q, spec.head, spec.dtype);
  out = tensor(total_q, spec.head, spec.dtype);
  q_int8 = tensor(total_q, spec.head, DType::i8);
  k = tensor(total_k, spec.kv_head, spec.dtype);
  v = tensor(total_k, spec.kv_head, spec.dtype);
  k_int8 = tensor(total_k, spec.kv_head, DType::i8);
  v_out = tensor(total_k, spec.kv_head, spec.v_dtype);
  const auto numbers = [&](const TensorDesc& dense) { return HostileTensor(with_gaps(dense, gap)); };
  q_scale = numbers(spec.groups.q_scale(q.desc(), ragged));
  k_scale = numbers(spec.groups.k_scale(k.desc(), ragged));
  for (HostileTensor* channels : {&k_mean, &v_mean, &v_scale}) *channels = numbers(Int8Groups::channels(k.desc(), ragged));
  for (HostileTensor* rows : {&lse, &lse_shift})
    *rows = numbers(spec.ragged ? contiguous(DType::f32, {total_q + kPadding, spec.head})
                                : contiguous(DType::f32, {batch(), spec.head, total_q / batch()}));
  if (!spec.ragged) return;
  cu_q = cumulative(q_begin_);
  cu_k = cumulative(k_begin_);
}

void QuantizedTensors::fill() {
  const bool zeros = spec.values == Kind::zero_groups;
  const float k_bias = spec.values == Kind::biased || spec.values == Kind::biased_k ? 8.0f : 0.0f;
  const float v_bias = spec.values == Kind::biased ? 8.0f : 0.0f;
  for (std::int64_t b = 0; b < batch(); ++b) {
    for (std::int64_t row = 0; row < sequence(b).q; ++row)
      for (std::int64_t head = 0; head < spec.head; ++head)
        for (std::int64_t d = 0; d < spec.dim; ++d) {
          const float ordinary = zeros && row % 32 < 20 ? 0.0f : noise(1, q_begin_[index(b)] + row, head, d);
          q.set(query_at(q, b, row, head) + d, spec.vast ? spec.vast.q(d, spec.scale) : ordinary);
        }
    for (std::int64_t key = 0; key < sequence(b).kv; ++key)
      for (std::int64_t head = 0; head < spec.kv_head; ++head)
        for (std::int64_t d = 0; d < spec.dim; ++d) {
          const std::int64_t at = key_at(k, b, key, head) + d, flat = k_begin_[index(b)] + key;
          const bool zero = zeros && key / 64 % 2 == 0;
          const float ordinary = zero ? 0.0f : k_bias * noise(4, 0, head, d) + noise(2, flat, head, d);
          k.set(at, spec.vast && d == 0 ? spec.vast.k(key) : ordinary);
          v.set(at, zero || (zeros && d % 7 == 0) ? 0.0f : v_bias * noise(5, 0, head, d) + noise(3, flat, head, d));
        }
  }
}

void QuantizedTensors::spoil() {
  for (std::int64_t b = 0; b < batch(); ++b) {
    const auto [rows, keys] = sequence(b);
    if (spec.values == Kind::unseen_nan) {
      const std::vector<char> seen = this->seen(b);
      for (std::int64_t key = 0; key < keys; ++key)
        for (std::int64_t head = 0; seen[index(key)] == 0 && head < spec.kv_head; ++head)
          for (std::int64_t d = 0; d < spec.dim; ++d) k.set(key_at(k, b, key, head) + d, kNan), v.set(key_at(v, b, key, head) + d, kInf);
    }
    if (spec.values != Kind::not_finite || rows == 0 || keys == 0) continue;
    q.set(query_at(q, b, rows / 2, 0) + 5, kNan);
    q.set(query_at(q, b, rows - 1, spec.head - 1) + 6, -kInf);
    k.set(key_at(k, b, keys / 2, 0) + 7, kNan);
    k.set(key_at(k, b, keys - 1, spec.kv_head - 1) + 8, kInf);
    v.set(key_at(v, b, keys / 2, 0) + 9, kNan);
    v.set(key_at(v, b, keys - 1, spec.kv_head - 1) + 10, -kInf);
  }
}

std::vector<char> QuantizedTensors::seen(std::int64_t b) const {
  std::vector<char> seen(index(sequence(b).kv));
  for (std::int64_t row = 0; row < sequence(b).q; ++row) {
    const Keys keys = visible_keys(spec.mask, sequence(b), row);
    std::fill(seen.begin() + keys.begin, seen.begin() + keys.end, 1);
  }
  return seen;
}

std::int64_t QuantizedTensors::query_at(const HostileTensor& t, std::int64_t b, std::int64_t row, std::int64_t head) const {
  return spec.ragged ? t.offset(q_begin_[index(b)] + row, head) : t.offset(b, row, head);
}

std::int64_t QuantizedTensors::key_at(const HostileTensor& t, std::int64_t b, std::int64_t key, std::int64_t head) const {
  return spec.ragged ? t.offset(k_begin_[index(b)] + key, head) : t.offset(b, key, head);
}

std::int64_t QuantizedTensors::number_at(const HostileTensor& t, std::int64_t b, std::int64_t row, std::int64_t head) const {
  return spec.ragged ? t.offset(q_begin_[index(b)] + row, head) : t.offset(b, head, row);
}

std::int64_t QuantizedTensors::q_scale_at(std::int64_t b, std::int64_t head, std::int64_t group) const {
  const std::int64_t block = Int8Groups::first_block(q_begin_[index(b)], b, Int8Groups::kQBlock);
  return spec.ragged ? q_scale.offset(head, block * spec.groups.q_per_block() + group) : q_scale.offset(b, head, group);
}

std::int64_t QuantizedTensors::k_scale_at(std::int64_t b, std::int64_t head, std::int64_t group) const {
  const std::int64_t block = Int8Groups::first_block(k_begin_[index(b)], b, Int8Groups::kKBlock);
  return spec.ragged ? k_scale.offset(head, block * spec.groups.k_per_block() + group) : k_scale.offset(b, head, group);
}

PlainTokens QuantizedTensors::queries(std::int64_t b, std::int64_t head) const {
  PlainTokens tokens{.dim = spec.dim, .counts = std::vector<char>(index(sequence(b).q), 1)};
  for (std::int64_t row = 0; row < sequence(b).q; ++row)
    for (std::int64_t d = 0; d < spec.dim; ++d) tokens.values.push_back(q.at(query_at(q, b, row, head) + d));
  return tokens;
}

PlainTokens QuantizedTensors::keys(const HostileTensor& t, std::int64_t b, std::int64_t head) const {
  PlainTokens tokens{.dim = spec.dim, .counts = seen_only() ? seen(b) : std::vector<char>(index(sequence(b).kv), 1)};
  for (std::int64_t key = 0; key < sequence(b).kv; ++key)
    for (std::int64_t d = 0; d < spec.dim; ++d) tokens.values.push_back(t.at(key_at(t, b, key, head) + d));
  return tokens;
}

QuantizedHead QuantizedTensors::quantized(KvHead at) const {
  QuantizedHead head{};
  PlainTokens keys = this->keys(k, at.sequence, at.head), values = this->keys(v, at.sequence, at.head);
  if (spec.smooth_k) head.k_mean = keys.mean(), keys = keys.less(head.k_mean);
  if (spec.smooth_v) head.v_mean = values.mean(), values = values.less(head.v_mean);
  head.k = plain_int8(keys, spec.groups, false);
  head.v = plain_v(values, spec.v_dtype);
  for (std::int64_t i = 0; i < group(); ++i) {
    const PlainTokens rows = queries(at.sequence, at.head * group() + i);
    head.q.push_back(plain_int8(rows, spec.groups, true));
    std::vector<float>& shift = head.lse_shift.emplace_back();
    for (std::int64_t row = 0; spec.smooth_k && row < rows.tokens(); ++row) {
      float sum = 0;
      for (std::int64_t d = 0; d < spec.dim; ++d) sum += rows.row(row)[d] * head.k_mean[index(d)];
      shift.push_back(sum);
    }
  }
  return head;
}

void QuantizedTensors::store(KvHead at) {
  const auto [b, kv_head] = at;
  const QuantizedHead from = quantized(at);
  const std::vector<char> counts = keys(k, b, kv_head).counts;
  for (std::int64_t i = 0; i < group(); ++i) {
    const std::int64_t head = kv_head * group() + i;
    const PlainCodes& codes = from.q[index(i)];
    for (std::size_t g = 0; g < codes.scales.size(); ++g)
      q_scale.set(q_scale_at(b, head, static_cast<std::int64_t>(g)), codes.has_member[g] != 0 ? codes.scales[g] : kNan);
    for (std::int64_t row = 0; row < sequence(b).q; ++row) {
      if (spec.smooth_k) lse_shift.set(number_at(lse_shift, b, row, head), from.lse_shift[index(i)][index(row)]);
      for (std::int64_t d = 0; d < spec.dim; ++d) q_int8.set(query_at(q_int8, b, row, head) + d, codes.code(row, d));
    }
  }
  for (std::size_t g = 0; g < from.k.scales.size(); ++g)
    k_scale.set(k_scale_at(b, kv_head, static_cast<std::int64_t>(g)), from.k.has_member[g] != 0 ? from.k.scales[g] : kNan);
  for (std::int64_t key = 0; key < sequence(b).kv; ++key)
    for (std::int64_t d = 0; counts[index(key)] != 0 && d < spec.dim; ++d) {
      k_int8.set(key_at(k_int8, b, key, kv_head) + d, from.k.code(key, d));
      v_out.set(key_at(v_out, b, key, kv_head) + d, from.v.code(key, d));
    }
  for (std::int64_t d = 0; d < spec.dim; ++d) {
    if (!from.v.scales.empty()) v_scale.set(v_scale.offset(b, kv_head, d), from.v.scales[index(d)]);
    if (spec.smooth_v) v_mean.set(v_mean.offset(b, kv_head, d), from.v_mean[index(d)]);
  }
}

void QuantizedTensors::store_quantized() {
  for (std::int64_t b = 0; b < batch(); ++b)
    for (std::int64_t kv_head = 0; kv_head < spec.kv_head; ++kv_head) store({b, kv_head});
}

}  // namespace fovea::check
