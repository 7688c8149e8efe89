// SPDX-License-Identifier: Apache-2.0
#include "plain.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "reference/element.hpp"
#include "reference/score_terms.hpp"
#include "values.hpp"

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

/// The usual f32 form that survives large arguments: off by 2^-24 of the cap. libm's tanh is closer to exact than a kernel of small caps
/// needs to be. Under large ones that error would be all of the score.
float capped(float score, float cap) {
  constexpr float kLarge = 1024;
  const float t = score / cap;
  return cap * (cap > kLarge ? std::tanh(t) : 1.0f - 2.0f / (std::exp(2.0f * t) + 1.0f));
}

/// Hopper's sum of e4m3 products: of 32 products and the sum so far, what lies 13 bits below the largest exponent is cut off.
constexpr std::size_t kE4m3Terms = 32;
constexpr int kE4m3Bits = 13;
/// Terms after which such a sum is added to one in f32.
constexpr std::int64_t kE4m3Chain = 128;

class E4m3Sum {
 public:
  void add(float product) {
    terms_[count_++] = product;
    if (count_ == terms_.size()) flush();
  }
  float total() {
    flush();
    return terms_[0];
  }

 private:
  void flush() {
    float largest = 0, sum = 0;
    for (std::size_t i = 0; i < count_; ++i) largest = std::max(largest, std::fabs(terms_[i]));
    const bool exact = largest == 0 || !std::isfinite(largest);
    const float unit = exact ? 0 : std::ldexp(1.0f, std::ilogb(largest) - kE4m3Bits);
    for (std::size_t i = 0; i < count_; ++i) sum += exact ? terms_[i] : std::trunc(terms_[i] / unit) * unit;
    terms_[0] = sum;
    count_ = 1;
  }
  std::array<float, kE4m3Terms + 1> terms_{};  // the first is the sum so far
  std::size_t count_ = 1;
};

/// The operand P as a matrix unit would take it.
DType weight_dtype(DType input, E4m3Products products) {
  return input == DType::e4m3 && products == E4m3Products::widened ? DType::bf16 : input;
}

/// K or V of one sequence and kv head, dense, as stored (scales come later).
std::vector<float> gather(const BoundCase& bound, const HostileTensor& tensor, std::int64_t sequence, std::int64_t kv_head,
                          std::int64_t dim) {
  const std::int64_t tokens = bound.spec.sequences[index(sequence)].kv;
  const bool is_k = &tensor == &bound.k;
  const KvRowFormat* format = kv_row_format(is_k ? bound.spec.k_format : bound.spec.v_format);
  const HostileTensor& scales = is_k ? bound.k_scale_cache : bound.v_scale_cache;
  std::vector<float> rows(index(tokens * dim));
  std::vector<double> values(index(dim));
  for (std::int64_t token = 0; token < tokens; ++token) {
    const std::int64_t at = bound.kv_offset(tensor, sequence, token, kv_head);
    if (format != nullptr) {  // as a matrix unit takes them
      const DType dtype = scales ? scales.desc().dtype : DType::f32;
      const std::int64_t scales_at = bound.scales_at(scales, sequence, token, kv_head) * static_cast<std::int64_t>(size_of(dtype));
      const std::byte* scale = scales ? scales.as<std::byte>() + scales_at : nullptr;
      reference::decode_kv_row({*format, tensor.as<std::byte>() + at, scale, dtype}, values);
      for (std::int64_t x = 0; x < dim; ++x) rows[index(token * dim + x)] = rounded(bound.spec.dtype, static_cast<float>(values[index(x)]));
      continue;
    }
    for (std::int64_t x = 0; x < dim; ++x) rows[index(token * dim + x)] = tensor.at(at + x);
  }
  return rows;
}

/// The options that the query heads of a kv head share.
PlainRow plain_row(const BoundCase& bound, std::int64_t kv_head, E4m3Products products) {
  const Case& spec = bound.spec;
  const auto of = [&](const HostileTensor& scale) { return scale ? scale.at(spec.scales == Scales::per_head ? kv_head : 0) : 1.0f; };
  const float scale = spec.scale != 0 ? spec.scale : 1.0f / std::sqrt(static_cast<float>(spec.dqk));
  return {.operands = spec.dtype,
          .out = spec.out_dtype,
          .products = products,
          .dqk = spec.dqk,
          .dv = spec.dv,
          .score_scale = scale * of(bound.q_scale) * of(bound.k_scale),
          .value_scale = of(bound.v_scale),
          .softcap = spec.softcap};
}

/// Rows of the keys that a block mask or a packed mask leaves of a band.
struct ListedRows {
  const Case& spec;
  std::vector<float> k{}, v{};
  std::int64_t count = 0;

  void keep(const Generator& values, Index at, Keys keys, const std::vector<float>& all_k, const std::vector<float>& all_v) {
    k.clear(), v.clear(), count = 0;
    for (std::int64_t key = keys.begin; key < keys.end; ++key) {
      if (spec.blocks.q > 0 && !values.sees(at.sequence, at.head, at.token, key)) continue;
      if (!bits_show(spec, at.sequence, at.token, key)) continue;
      k.insert(k.end(), all_k.begin() + key * spec.dqk, all_k.begin() + (key + 1) * spec.dqk);
      v.insert(v.end(), all_v.begin() + key * spec.dv, all_v.begin() + (key + 1) * spec.dv);
      ++count;
    }
  }
};

/// ALiBi and bias in f32, and dropout.
void set_terms(const BoundCase& bound, std::int64_t b, std::int64_t head, std::int64_t row, Keys keys, PlainRow& plain) {
  const Case& spec = bound.spec;
  plain.added.clear();
  plain.kept.clear();
  const Sequence sequence = spec.sequences[index(b)];
  const std::int64_t diagonal = row + (spec.mask.anchor == Anchor::bottom_right ? sequence.kv - sequence.q : 0);
  for (std::int64_t key = keys.begin; key < keys.end; ++key) {
    float added = 0;
    if (spec.alibi) {
      const float slope = bound.alibi_slopes.at(bound.alibi_slopes.desc().rank == 1 ? head : bound.alibi_slopes.offset(b, head));
      added -= slope * static_cast<float>(std::abs(key - diagonal));
    }
    if (spec.bias != BiasShape::none) {
      const auto& shape = bound.bias.desc().shape;
      const auto at = [&](std::size_t axis, std::int64_t i) { return shape[axis] == 1 ? 0 : i; };
      added += bound.bias.at(bound.bias.offset(at(0, b), at(1, head), at(2, row)) + at(3, key) * bound.bias.desc().strides[3]);
    }
    if (spec.alibi || spec.bias != BiasShape::none) plain.added.push_back(added);
    if (spec.dropout > 0) {
      const detail::AttentionCore core{.heads = spec.head, .dropout_p = spec.dropout};
      const AttentionArgs args{.dropout_state = bound.dropout_state.as<const std::int64_t>()};
      plain.kept.push_back(static_cast<float>(reference::kept_share(core, args, {b, head, row, sequence.q, sequence.kv}, key)));
    }
  }
}

void plain_kv_head(const BoundCase& bound, std::int64_t b, std::int64_t kv_head, const std::vector<char>& wanted, E4m3Products products,
                   PlainOutput& result) {
  const Case& spec = bound.spec;
  const Sequence sequence = spec.sequences[index(b)];
  const std::vector<float> k = gather(bound, bound.k, b, kv_head, spec.dqk), v = gather(bound, bound.v, b, kv_head, spec.dv);
  const std::int64_t group = spec.head / spec.kv_head;
  std::vector<float> q(index(spec.dqk));
  const Generator values(spec);
  ListedRows listed{spec};
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    PlainRow plain = plain_row(bound, kv_head, products);
    if (bound.sink) plain.sink = bound.sink.at(head);
    for (std::int64_t row = 0; row < sequence.q; ++row) {
      const std::int64_t flat = bound.flat_row(b, row);
      const Keys keys = visible_keys(spec.mask, sequence, row);
      if (!wanted[index(flat)] || keys.begin == keys.end) continue;
      const std::int64_t at = bound.row_offset(bound.q, flat, head);
      for (std::int64_t x = 0; x < spec.dqk; ++x) q[index(x)] = bound.q.at(at + x);
      PlainKeys seen{&k[index(keys.begin * spec.dqk)], &v[index(keys.begin * spec.dv)], spec.dqk, spec.dv, keys.end - keys.begin};
      if (spec.blocks.q > 0 || spec.mask_bits != MaskBits::none) {
        listed.keep(values, {b, row, head, 0}, keys, k, v);
        seen.k = listed.k.data(), seen.v = listed.v.data(), seen.count = listed.count;
        if (seen.count == 0) continue;
      }
      set_terms(bound, b, head, row, keys, plain);
      plain.attend(q.data(), seen, &result.out[index((flat * spec.head + head) * spec.dv)]);
      result.lse[index(flat * spec.head + head)] = plain.lse;
    }
  }
}

}  // namespace

float PlainRow::score(const float* q, const float* k) const {
  float product = 0;
  if (products == E4m3Products::native && e4m3_scores) {
    E4m3Sum sum;
    for (std::int64_t x = 0; x < dqk; ++x) sum.add(q[x] * k[x]);
    product = sum.total();
  } else {
    product = dot(q, k, index(dqk));
  }
  const float s = score_scale * product;
  return softcap > 0 ? capped(s, softcap) : s;
}

void PlainRow::add_values(const PlainKeys& keys, const std::vector<float>& weights) {
  for (std::int64_t x = 0; x < dv; ++x) {
    for (std::int64_t begin = 0; begin < keys.count; begin += kE4m3Chain) {
      E4m3Sum sum;
      for (std::int64_t key = begin; key < std::min(keys.count, begin + kE4m3Chain); ++key)
        sum.add(weights[index(key)] * keys.v[key * keys.v_stride + x]);
      sums[index(x)] += sum.total();
    }
  }
}

void PlainRow::attend(const float* q, const PlainKeys& keys, float* result) {
  scores.resize(index(keys.count));
  sums.assign(index(dv), 0.0f);
  float largest = -kInf;
  for (std::int64_t key = 0; key < keys.count; ++key) {
    scores[index(key)] = score(q, keys.k + key * keys.k_stride) + (added.empty() ? 0 : added[index(key)]);
    largest = std::max(largest, scores[index(key)]);
  }
  if (largest == -kInf && !added.empty()) {  // a bias of -inf hides every key
    std::fill_n(result, dv, 0.0f);
    lse = max_logit = -kInf;
    return;
  }
  const bool native = products == E4m3Products::native;
  const float one = native ? kLargestE4m3Weight : 1;
  float denominator = 0;
  for (std::int64_t key = 0; key < keys.count; ++key) {
    const float weight = std::exp(scores[index(key)] - largest);
    denominator += weight;
    const float operand = rounded(weight_dtype(operands, products), weight * one) * (kept.empty() ? 1 : kept[index(key)]);
    scores[index(key)] = operand;
    for (std::int64_t x = 0; !native && x < dv; ++x) sums[index(x)] += operand * keys.v[key * keys.v_stride + x];
  }
  if (native) add_values(keys, scores);
  lse = largest + std::log(denominator);
  max_logit = largest;
  denominator += std::exp(sink - largest);
  for (std::int64_t x = 0; x < dv; ++x) result[x] = rounded(out, sums[index(x)] / one / denominator * value_scale);
}

PlainOutput::PlainOutput(std::int64_t rows, std::int64_t dv) : out(index(rows * dv)), lse(index(rows), -kInf), max_logits(lse) {}

PlainOutput plain_attention(const BoundCase& bound, const std::vector<char>& wanted, E4m3Products products) {
  const Case& spec = bound.spec;
  PlainOutput result(bound.flat_rows() * spec.head, spec.dv);
  for (std::int64_t b = 0; b < static_cast<std::int64_t>(spec.sequences.size()); ++b) {
    bool any = false;
    for (std::int64_t row = 0; row < spec.sequences[index(b)].q; ++row) any |= wanted[index(bound.flat_row(b, row))] != 0;
    for (std::int64_t kv_head = 0; any && kv_head < spec.kv_head; ++kv_head) plain_kv_head(bound, b, kv_head, wanted, products, result);
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
