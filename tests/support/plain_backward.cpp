// SPDX-License-Identifier: Apache-2.0
#include "plain_backward.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "numeric.hpp"

namespace fovea::check {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

float dot(const float* a, const float* b, std::int64_t size) {
  float sum = 0;
  for (std::int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

/// Each sum rounded towards zero, as GPUs' matrix units add.
float truncated_dot(const float* a, const float* b, std::int64_t size) {
  float sum = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    const double exact = double{sum} + double{a[i]} * double{b[i]};
    sum = static_cast<float>(exact);
    if (std::isfinite(sum) && std::fabs(double{sum}) > std::fabs(exact)) sum = std::nextafter(sum, 0.0f);
  }
  return sum;
}

/// Delta is summed on its own in every implementation. Summed in the order of dP, it would cancel exactly, and no test may rely on that.
float backwards_dot(const float* a, const float* b, std::int64_t size) {
  float sum = 0;
  for (std::int64_t i = size; i-- > 0;) sum += a[i] * b[i];
  return sum;
}

}  // namespace

PlainGradients::PlainGradients(const Sequence& sequence, std::int64_t group_, std::int64_t dqk, std::int64_t dv_)
    : group(group_),
      dq(index(sequence.q * group_ * dqk)),
      dk(index(sequence.kv * dqk)),
      dv(index(sequence.kv * dv_)),
      dsink(index(group_)) {}

void PlainGradients::round(DType dtype) {
  for (std::vector<float>* gradient : {&dq, &dk, &dv})
    for (float& x : *gradient) x = rounded(dtype, x);
}

void PlainBackward::add_head(const Head& head, PlainGradients& gradients) const {
  for (std::int64_t row = 0; row < sequence.q; ++row) add_row(head, row, gradients);
}

void PlainBackward::add_row(const Head& head, std::int64_t row, PlainGradients& gradients) const {
  const float lse = head.lse[index(row)];
  if (lse == -kInf) return;
  const float total =
      std::isnan(lse) || head.sink == kInf ? lse + head.sink : std::max(lse, head.sink) + std::log1p(std::exp(-std::fabs(lse - head.sink)));
  const float *q = &head.q[index(row * dqk)], *dout = &head.dout[index(row * dv)];
  const float delta = backwards_dot(dout, &head.out[index(row * dv)], dv);
  if (head.sink != kInf) gradients.dsink[index(head.index)] -= std::exp(head.sink - total) * delta;
  float* dq = &gradients.dq[index((row * gradients.group + head.index) * dqk)];
  const Keys seen = visible_keys(mask, sequence, row);
  for (std::int64_t key = seen.begin; key < seen.end; ++key) {
    if (!head.sees(row, key)) continue;
    const float* k_row = &k[index(key * dqk)];
    float s = scale * dot(q, k_row, dqk);
    if (softcap > 0) s = softcap * std::tanh(s / softcap);
    const float p = std::exp(s - total), of_lse = std::exp(s - lse) * head.dlse[index(row)];
    const float slope = softcap > 0 ? 1 - (s / softcap) * (s / softcap) : 1.0f;
    const float dp = (size_of(dtype) == 2 ? truncated_dot : dot)(dout, &v[index(key * dv)], dv);
    const float ds = rounded(dtype, (p * (dp - delta) + of_lse) * slope) * scale;
    const float weight = rounded(dtype, p);
    float *dk_row = &gradients.dk[index(key * dqk)], *dv_row = &gradients.dv[index(key * dv)];
    for (std::int64_t d = 0; d < dqk; ++d) {
      dq[d] += ds * k_row[d];
      dk_row[d] += ds * q[d];
    }
    for (std::int64_t d = 0; d < dv; ++d) dv_row[d] += weight * dout[d];
  }
}

}  // namespace fovea::check
