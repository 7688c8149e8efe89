// SPDX-License-Identifier: Apache-2.0
#include "plain.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fovea::check {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// One f32 accumulator, term by term: what each lane of a matrix product does.
float dot(const float* a, const float* b, std::size_t size) {
  float sum = 0;
  for (std::size_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

/// The usual f32 form that survives large arguments. libm's is closer to exact than any kernel needs to be.
float saturating_tanh(float x) { return 1.0f - 2.0f / (std::exp(2.0f * x) + 1.0f); }

/// The operand P as a matrix unit would take it.
DType weight_dtype(DType input) { return input == DType::e4m3 ? DType::bf16 : input; }

/// K or V of one sequence and kv head, dense, as stored (scales come later).
std::vector<float> gather(const BoundCase& bound, const HostileTensor& tensor, std::int64_t sequence, std::int64_t kv_head,
                          std::int64_t dim) {
  const std::int64_t tokens = bound.spec.sequences[index(sequence)].kv;
  std::vector<float> rows(index(tokens * dim));
  for (std::int64_t token = 0; token < tokens; ++token) {
    const std::int64_t at = bound.kv_offset(tensor, sequence, token, kv_head);
    for (std::int64_t x = 0; x < dim; ++x) rows[index(token * dim + x)] = tensor.at(at + x);
  }
  return rows;
}

/// What the query heads of a kv head share.
PlainRow plain_row(const BoundCase& bound, std::int64_t kv_head) {
  const Case& spec = bound.spec;
  const auto of = [&](const HostileTensor& scale) { return scale ? scale.at(spec.scales == Scales::per_head ? kv_head : 0) : 1.0f; };
  const float scale = spec.scale != 0 ? spec.scale : 1.0f / std::sqrt(static_cast<float>(spec.dqk));
  return {.operands = spec.dtype,
          .out = spec.out_dtype,
          .dqk = spec.dqk,
          .dv = spec.dv,
          .score_scale = scale * of(bound.q_scale) * of(bound.k_scale),
          .value_scale = of(bound.v_scale),
          .softcap = spec.softcap};
}

void plain_kv_head(const BoundCase& bound, std::int64_t b, std::int64_t kv_head, const std::vector<char>& wanted, PlainOutput& result) {
  const Case& spec = bound.spec;
  const Sequence sequence = spec.sequences[index(b)];
  const std::vector<float> k = gather(bound, bound.k, b, kv_head, spec.dqk), v = gather(bound, bound.v, b, kv_head, spec.dv);
  const std::int64_t group = spec.head / spec.kv_head;
  std::vector<float> q(index(spec.dqk));
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    PlainRow plain = plain_row(bound, kv_head);
    if (bound.sink) plain.sink = bound.sink.at(head);
    for (std::int64_t row = 0; row < sequence.q; ++row) {
      const std::int64_t flat = bound.flat_row(b, row);
      const Keys keys = visible_keys(spec.mask, sequence, row);
      if (!wanted[index(flat)] || keys.begin == keys.end) continue;
      const std::int64_t at = bound.row_offset(bound.q, flat, head);
      for (std::int64_t x = 0; x < spec.dqk; ++x) q[index(x)] = bound.q.at(at + x);
      const PlainKeys seen{&k[index(keys.begin * spec.dqk)], &v[index(keys.begin * spec.dv)], spec.dqk, spec.dv, keys.end - keys.begin};
      plain.attend(q.data(), seen, &result.out[index((flat * spec.head + head) * spec.dv)]);
      result.lse[index(flat * spec.head + head)] = plain.lse;
    }
  }
}

}  // namespace

void PlainRow::attend(const float* q, const PlainKeys& keys, float* result) {
  scores.resize(index(keys.count));
  sums.assign(index(dv), 0.0f);
  float largest = -kInf;
  for (std::int64_t key = 0; key < keys.count; ++key) {
    float s = score_scale * dot(q, keys.k + key * keys.k_stride, index(dqk));
    if (softcap > 0) s = softcap * saturating_tanh(s / softcap);
    scores[index(key)] = s;
    largest = std::max(largest, s);
  }
  float denominator = 0;
  for (std::int64_t key = 0; key < keys.count; ++key) {
    const float weight = std::exp(scores[index(key)] - largest);
    denominator += weight;
    const float operand = rounded(weight_dtype(operands), weight);
    for (std::int64_t x = 0; x < dv; ++x) sums[index(x)] += operand * keys.v[key * keys.v_stride + x];
  }
  lse = largest + std::log(denominator);
  max_logit = largest;
  denominator += std::exp(sink - largest);
  for (std::int64_t x = 0; x < dv; ++x) result[x] = rounded(out, sums[index(x)] / denominator * value_scale);
}

PlainOutput::PlainOutput(std::int64_t rows, std::int64_t dv) : out(index(rows * dv)), lse(index(rows), -kInf), max_logits(lse) {}

PlainOutput plain_attention(const BoundCase& bound, const std::vector<char>& wanted) {
  const Case& spec = bound.spec;
  PlainOutput result(bound.flat_rows() * spec.head, spec.dv);
  for (std::int64_t b = 0; b < static_cast<std::int64_t>(spec.sequences.size()); ++b) {
    bool any = false;
    for (std::int64_t row = 0; row < spec.sequences[index(b)].q; ++row) any |= wanted[index(bound.flat_row(b, row))] != 0;
    for (std::int64_t kv_head = 0; any && kv_head < spec.kv_head; ++kv_head) plain_kv_head(bound, b, kv_head, wanted, result);
  }
  return result;
}

PlainOutput plain_merge_states(const BoundCase& bound) {
  const Case& spec = bound.spec;
  PlainOutput result(bound.flat_rows() * spec.head, spec.dv);
  for (std::int64_t row = 0; row < bound.flat_rows(); ++row)
    for (std::int64_t head = 0; head < spec.head; ++head) {
      float largest = -kInf, sum = 0;
      for (const PartTensors& part : bound.parts) {
        const float lse = part.lse.at(part.lse.offset(row, head));
        if (std::isfinite(lse)) largest = std::max(largest, lse);
      }
      std::vector<float> sums(index(spec.dv));
      for (const PartTensors& part : bound.parts) {
        const float lse = part.lse.at(part.lse.offset(row, head));
        if (!std::isfinite(lse)) continue;
        const float weight = std::exp(lse - largest);
        sum += weight;
        for (std::int64_t x = 0; x < spec.dv; ++x) sums[index(x)] += weight * part.out.at(part.out.offset(row, head) + x);
      }
      for (std::int64_t x = 0; x < spec.dv; ++x)
        result.out[index((row * spec.head + head) * spec.dv + x)] = rounded(spec.out_dtype, sum > 0 ? sums[index(x)] / sum : 0.0f);
      if (sum > 0) result.lse[index(row * spec.head + head)] = largest + std::log(sum);
    }
  return result;
}

}  // namespace fovea::check
