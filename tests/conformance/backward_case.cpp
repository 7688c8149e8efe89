// SPDX-License-Identifier: Apache-2.0
#include "backward_case.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "compare.hpp"
#include "op/attention_backward/validate.hpp"
#include "reference/reference.hpp"

namespace fovea::check {
namespace {

using Values = BackwardCase::Values;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Near-normal with variance 1, from the position alone.
float noise(std::uint64_t tag, std::int64_t flat, std::int64_t head, std::int64_t channel) {
  float sum = 0;
  for (std::uint64_t i = 0; i < 4; ++i) {
    const std::uint64_t bits =
        mixed(mixed(mixed(mixed(tag * 4 + i + 1) + static_cast<std::uint64_t>(flat)) + static_cast<std::uint64_t>(head)) +
              static_cast<std::uint64_t>(channel));
    sum += static_cast<float>(bits >> 40) * 0x1p-24f - 0.5f;
  }
  return sum * 1.7320508f;
}

bool sees(const BandMask& mask, std::int64_t row, std::int64_t key, const BackwardCase::Lengths& s) {
  const std::int64_t distance = key - row - (mask.anchor == Anchor::bottom_right ? s.k - s.q : 0);
  return (mask.left == kUnbounded || distance >= -mask.left) && (mask.right == kUnbounded || distance <= mask.right);
}

TensorDesc with_gaps(TensorDesc desc, bool padded) {
  if (!padded) return desc;
  std::int64_t stride = 1;
  for (int axis = desc.rank - 1; axis >= 0; --axis) {
    desc.strides[index(axis)] = stride;
    stride = stride * desc.shape[index(axis)] + (axis == 0 ? 0 : 3);
  }
  return desc;
}

float dot(const std::vector<float>& a, const std::vector<float>& b) {
  float sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Delta is a product of its own in any implementation: summed the same way as dP, it would cancel exactly where it must not be relied on.
float backwards_dot(const std::vector<float>& a, const std::vector<float>& b) {
  float sum = 0;
  for (std::size_t i = a.size(); i-- > 0;) sum += a[i] * b[i];
  return sum;
}

}  // namespace

BoundBackward::BoundBackward(const BackwardCase& spec) : spec_(spec) {
  for (const auto& s : spec_.sequences) {
    total_q_ += s.q;
    total_k_ += s.k;
  }
  describe();
  fill();
  run_forward();
  const auto output = [&](const char* name, HostileTensor& tensor) { outputs_.push_back({name, &tensor, {}, {}}); };
  output("dq", dq_);
  output("dk", dk_);
  output("dv", dv_);
  if (spec_.sink) output("dsink", dsink_);
  for (Output& each : outputs_) each.tensor->storage().seal(true);
  for (HostileTensor* input : {&q_, &k_, &v_, &out_, &dout_, &lse_}) input->storage().seal(false);
  compute_exact();
  compute_plain();
}

void BoundBackward::describe() {
  const auto batch = static_cast<std::int64_t>(spec_.sequences.size());
  const std::int64_t padding = spec_.ragged && spec_.padded ? 3 : 0;
  const auto tensor = [&](bool of_queries, std::int64_t heads, std::int64_t dim) {
    const std::int64_t total = of_queries ? total_q_ : total_k_;
    const TensorDesc desc =
        spec_.ragged ? contiguous(spec_.dtype, {total + padding, heads, dim}) : contiguous(spec_.dtype, {batch, total / batch, heads, dim});
    return HostileTensor(with_gaps(desc, spec_.padded), spec_.padded ? size_of(spec_.dtype) : 0);
  };
  q_ = tensor(true, spec_.head, spec_.dqk);
  dq_ = tensor(true, spec_.head, spec_.dqk);
  out_ = tensor(true, spec_.head, spec_.dv);
  dout_ = tensor(true, spec_.head, spec_.dv);
  k_ = tensor(false, spec_.kv_head, spec_.dqk);
  dk_ = tensor(false, spec_.kv_head, spec_.dqk);
  v_ = tensor(false, spec_.kv_head, spec_.dv);
  dv_ = tensor(false, spec_.kv_head, spec_.dv);
  const TensorDesc lse = spec_.ragged ? contiguous(DType::f32, {total_q_ + padding, spec_.head})
                                      : contiguous(DType::f32, {batch, spec_.head, total_q_ / batch});
  lse_ = HostileTensor(with_gaps(lse, spec_.padded));
  desc.forward = {.q = q_.desc(),
                  .k = k_.desc(),
                  .v = v_.desc(),
                  .out = out_.desc(),
                  .lse = lse_.desc(),
                  .mask = spec_.mask,
                  .scale = spec_.scale,
                  .softcap = spec_.softcap,
                  .has_sink = spec_.sink};
  desc.dout = dout_.desc();
  desc.dq = dq_.desc();
  desc.dk = dk_.desc();
  desc.dv = dv_.desc();
  if (!spec_.ragged) return;
  RaggedDesc bounds{.batch = batch};
  cu_q_ = HostileTensor(contiguous(DType::i32, {batch + 1}));
  cu_k_ = HostileTensor(contiguous(DType::i32, {batch + 1}));
  cu_q_.as<std::int32_t>()[0] = cu_k_.as<std::int32_t>()[0] = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto& s = spec_.sequences[index(b)];
    cu_q_.as<std::int32_t>()[b + 1] = cu_q_.as<std::int32_t>()[b] + static_cast<std::int32_t>(s.q);
    cu_k_.as<std::int32_t>()[b + 1] = cu_k_.as<std::int32_t>()[b] + static_cast<std::int32_t>(s.k);
    bounds.max_seq_q = std::max(bounds.max_seq_q, s.q + 5);
    bounds.max_seq_k = std::max(bounds.max_seq_k, s.k + 5);
  }
  desc.forward.ragged = bounds;
}

void BoundBackward::fill() {
  const auto fill = [&](HostileTensor& tensor, std::uint64_t tag, std::int64_t rows, std::int64_t heads, float factor) {
    const std::int64_t dim = tensor.desc().shape[index(tensor.desc().rank - 1)];
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t d = 0; d < dim; ++d) tensor.set(offset(tensor, row, h) + d, factor * noise(tag, row, h, d));
  };
  fill(q_, 1, total_q_, spec_.head, spec_.values == Values::sharp ? 20.0f : 1.0f);
  fill(k_, 2, total_k_, spec_.kv_head, 1);
  fill(v_, 3, total_k_, spec_.kv_head, 1);
  fill(dout_, 4, total_q_, spec_.head, 1);
  const auto spoil = [&](HostileTensor& tensor, std::int64_t flat, float value) { tensor.set(offset(tensor, flat, 0) + 5, value); };
  const std::int64_t q_middle = total_q_ / 2, k_middle = total_k_ / 2;
  if (spec_.values == Values::nan_query) spoil(q_, q_middle, kNan);
  if (spec_.values == Values::nan_key) spoil(k_, k_middle, kNan);
  if (spec_.values == Values::nan_value) spoil(v_, k_middle, kNan);
  if (spec_.values == Values::nan_dout) spoil(dout_, q_middle, kNan);
  if (spec_.values == Values::infinite_key) {
    spoil(k_, 0, -kInf);
    for (std::int64_t row = 0; row < total_q_; ++row)
      for (std::int64_t h = 0; h < spec_.head; ++h) q_.set(offset(q_, row, h) + 5, 1.0f);
  }
  std::int64_t q0 = 0, k0 = 0;
  for (const auto& s : spec_.sequences) {
    for (std::int64_t key = 0; key < s.k && spec_.values == Values::unseen_nan; ++key) {
      bool seen = false;
      for (std::int64_t row = 0; row < s.q; ++row) seen = seen || sees(spec_.mask, row, key, s);
      if (!seen) spoil(k_, k0 + key, kNan), spoil(v_, k0 + key, kInf);
    }
    for (std::int64_t row = 0; row < s.q && spec_.values == Values::unseen_nan; ++row) {
      bool seen = false;
      for (std::int64_t key = 0; key < s.k; ++key) seen = seen || sees(spec_.mask, row, key, s);
      if (!seen) spoil(q_, q0 + row, kInf), spoil(dout_, q0 + row, kNan);
    }
    q0 += s.q;
    k0 += s.k;
  }
  if (!spec_.sink) return;
  sink_ = HostileTensor(contiguous(DType::f32, {spec_.head}));
  dsink_ = HostileTensor(contiguous(DType::f32, {spec_.head}));
  constexpr float kSinks[] = {0.5f, -kInf, kInf, -1.0f};
  for (std::int64_t h = 0; h < spec_.head; ++h) sink_.set(h, kSinks[h % 4]);
}

void BoundBackward::run_forward() {
  args.forward = {.q = q_.data(),
                  .k = k_.data(),
                  .v = v_.data(),
                  .out = out_.data(),
                  .lse = lse_.as<float>(),
                  .sink = sink_.as<const float>(),
                  .cu_seqlens_q = cu_q_.as<const std::int32_t>(),
                  .cu_seqlens_k = cu_k_.as<const std::int32_t>()};
  args.dout = dout_.data();
  args.dq = dq_.data();
  args.dk = dk_.data();
  args.dv = dv_.data();
  args.dsink = dsink_.as<float>();
  const auto plan = plan_attention(desc.forward, {}, {.implementation = "reference.attention"});
  if (!plan) throw std::runtime_error(plan.error().message);
  if (const auto done = plan->run(args.forward); !done) throw std::runtime_error(done.error().message);
}

std::int64_t BoundBackward::offset(const HostileTensor& tensor, std::int64_t flat, std::int64_t head) const {
  const TensorDesc& d = tensor.desc();
  return d.rank == 4 ? tensor.offset(flat / d.shape[1], flat % d.shape[1], head) : tensor.offset(flat, head);
}

std::int64_t BoundBackward::lse_offset(std::int64_t flat, std::int64_t head) const {
  const TensorDesc& d = lse_.desc();
  return d.rank == 3 ? lse_.offset(flat / d.shape[2], head, flat % d.shape[2]) : lse_.offset(flat, head);
}

std::vector<float> BoundBackward::row_of(const HostileTensor& tensor, std::int64_t flat, std::int64_t head) const {
  std::vector<float> row(index(tensor.desc().shape[index(tensor.desc().rank - 1)]));
  for (std::size_t d = 0; d < row.size(); ++d) row[d] = tensor.at(offset(tensor, flat, head) + static_cast<std::int64_t>(d));
  return row;
}

void BoundBackward::compute_exact() {
  const auto problem = detail::validate(desc, {});
  if (!problem) throw std::runtime_error(problem.error().message);
  reference::BackwardOutput exact = reference::attention_backward(*problem, args);
  outputs_[0].gradients.exact = std::move(exact.dq);
  outputs_[1].gradients.exact = std::move(exact.dk);
  outputs_[2].gradients.exact = std::move(exact.dv);
  outputs_[0].written = std::move(exact.q_written);
  outputs_[1].written = outputs_[2].written = std::move(exact.k_written);
  if (spec_.sink) {
    outputs_[3].gradients.exact = std::move(exact.dsink);
    outputs_[3].written = {1};
  }
  for (Output& output : outputs_) output.gradients.plain.assign(output.gradients.exact.size(), 0.0f);
}

struct BoundBackward::PlainHead {
  std::int64_t q_begin, k_begin, head, kv_head;
  BackwardCase::Lengths lengths;
};

/// The usual formula in f32, with P and dS rounded as a matrix unit would take them.
void BoundBackward::plain_row(const PlainHead& at, std::int64_t row) {
  const float scale = spec_.scale != 0 ? spec_.scale : 1 / std::sqrt(static_cast<float>(spec_.dqk)), cap = spec_.softcap;
  const std::int64_t flat = at.q_begin + row;
  const float lse = lse_.at(lse_offset(flat, at.head)), sink = spec_.sink ? sink_.at(at.head) : -kInf;
  if (lse == -kInf || sink == kInf) return;
  const float total = std::isnan(lse) ? lse : std::max(lse, sink) + std::log1p(std::exp(-std::fabs(lse - sink)));
  const std::vector<float> q = row_of(q_, flat, at.head), dout = row_of(dout_, flat, at.head);
  const float delta = backwards_dot(dout, row_of(out_, flat, at.head));
  const auto gradient = [&](std::size_t which, std::int64_t r, std::int64_t heads, std::int64_t h, std::int64_t dim) {
    return &outputs_[which].gradients.plain[index((r * heads + h) * dim)];
  };
  if (spec_.sink) *gradient(3, 0, spec_.head, at.head, 1) -= std::exp(sink - total) * delta;
  float* dq = gradient(0, flat, spec_.head, at.head, spec_.dqk);
  for (std::int64_t key = 0; key < at.lengths.k; ++key) {
    if (!sees(spec_.mask, row, key, at.lengths)) continue;
    const std::vector<float> k = row_of(k_, at.k_begin + key, at.kv_head);
    float s = scale * dot(q, k);
    if (cap > 0) s = cap * std::tanh(s / cap);
    const float p = std::exp(s - total);
    const float slope = cap > 0 ? 1 - (s / cap) * (s / cap) : 1.0f;
    const float ds = rounded(spec_.dtype, p * (dot(dout, row_of(v_, at.k_begin + key, at.kv_head)) - delta) * slope) * scale;
    const float weight = rounded(spec_.dtype, p);
    float* dk = gradient(1, at.k_begin + key, spec_.kv_head, at.kv_head, spec_.dqk);
    float* dv = gradient(2, at.k_begin + key, spec_.kv_head, at.kv_head, spec_.dv);
    for (std::int64_t d = 0; d < spec_.dqk; ++d) {
      dq[d] += ds * k[index(d)];
      dk[d] += ds * q[index(d)];
    }
    for (std::int64_t d = 0; d < spec_.dv; ++d) dv[d] += weight * dout[index(d)];
  }
}

void BoundBackward::compute_plain() {
  PlainHead at{};
  for (const auto& s : spec_.sequences) {
    at.lengths = s;
    for (at.head = 0; at.head < spec_.head; ++at.head) {
      at.kv_head = at.head / (spec_.head / spec_.kv_head);
      for (std::int64_t row = 0; row < s.q; ++row) plain_row(at, row);
    }
    at.q_begin += s.q;
    at.k_begin += s.k;
  }
  for (Output& output : outputs_)
    for (float& x : output.gradients.plain) x = rounded(output.tensor->desc().dtype, x);
}

std::string BoundBackward::judge_output(Output& output) {
  const TensorDesc& d = output.tensor->desc();
  const bool sink = output.name == "dsink";
  const std::int64_t heads = sink ? 1 : d.shape[index(d.rank - 2)], dim = d.shape[index(d.rank - 1)];
  std::vector<float> got, plain;
  std::vector<double> want;
  for (std::int64_t row = 0; row < static_cast<std::int64_t>(output.written.size()); ++row) {
    if (!output.written[index(row)]) continue;
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t at = sink ? 0 : offset(*output.tensor, row, h);
      for (std::int64_t i = 0; i < dim; ++i) {
        got.push_back(output.tensor->at(at + i));
        want.push_back(output.gradients.exact[index((row * heads + h) * dim + i)]);
        plain.push_back(output.gradients.plain[index((row * heads + h) * dim + i)]);
      }
      output.tensor->restore(at, dim);
    }
  }
  const double half_ulp = ulp(d.dtype, largest_magnitude(want)) / 2;
  const Comparison result = compare(got, want, {.absolute = 2 * largest_error(plain, want) + half_ulp});
  std::string message =
      result.ok()
          ? ""
          : output.name + ": " + check::describe(result, {static_cast<std::int64_t>(got.size()) / (heads * dim), heads, dim}) + "\n";
  if (!output.tensor->storage().sealed_contents_intact()) message += output.name + ": memory beside the written rows has changed\n";
  return message;
}

std::string BoundBackward::judge() {
  std::string message;
  for (Output& output : outputs_) message += judge_output(output);
  for (const HostileTensor* input : {&q_, &k_, &v_, &out_, &dout_, &lse_}) {
    if (!input->storage().sealed_contents_intact()) message += "an input has changed\n";
  }
  reset();
  return message;
}

std::vector<std::byte> BoundBackward::output_bits() const {
  std::vector<std::byte> bits;
  for (const Output& output : outputs_) {
    const Storage& storage = output.tensor->storage();
    bits.insert(bits.end(), storage.data(), storage.data() + storage.bytes());
  }
  return bits;
}

void BoundBackward::reset() {
  for (Output& output : outputs_) output.tensor->storage().restore();
}

}  // namespace fovea::check
