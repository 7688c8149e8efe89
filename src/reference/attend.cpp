// SPDX-License-Identifier: Apache-2.0
#include "reference/attend.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/element.hpp"

namespace fovea::reference {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Matrix gather(DType dtype, const void* data, std::span<const std::int64_t> at, std::int64_t columns) {
  Matrix rows(static_cast<std::int64_t>(at.size()), columns);
  for (std::size_t i = 0; i < at.size(); ++i) {
    for (std::int64_t c = 0; at[i] >= 0 && c < columns; ++c) rows.row(static_cast<std::int64_t>(i))[c] = load(dtype, data, at[i] + c);
  }
  return rows;
}

double dot(const double* a, const double* b, std::int64_t size) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

double score(const double* q, const double* k, std::int64_t size, const RowOptions& options) {
  const double s = options.scale * dot(q, k, size);
  return options.softcap > 0 ? options.softcap * std::tanh(s / options.softcap) : s;
}

RowResult attend(const double* q, const Matrix& k, const Matrix& v, std::span<const std::int64_t> visible, const RowOptions& options,
                 double* out) {
  std::vector<double> scores;
  scores.reserve(visible.size());
  double largest = -kInfinity;  // a NaN score does not count for the maximum; it reaches the sum
  for (const std::int64_t key : visible) {
    scores.push_back(score(q, k.row(key), k.columns, options) + (options.added ? options.added(key) : 0));
    largest = std::max(largest, scores.back());
  }
  const double shift = largest == -kInfinity ? 0 : largest;
  double sum = 0;
  std::fill(out, out + v.columns, 0.0);
  for (std::size_t i = 0; i < visible.size(); ++i) {
    if (scores[i] == -kInfinity) continue;  // a weight of exactly zero
    const double p = std::exp(scores[i] - shift);
    sum += p;
    const double weight = options.kept ? p * options.kept(visible[i]) : p;
    const double* values = v.row(visible[i]);
    for (std::int64_t c = 0; c < v.columns; ++c) out[c] += weight * values[c];
  }
  if (sum == 0) return {-kInfinity, largest};  // the row sees no key: out stays 0

  const double total = options.sink ? sum + std::exp(*options.sink - shift) : sum;
  for (std::int64_t c = 0; c < v.columns; ++c) out[c] = std::isinf(total) ? 0 : out[c] / total * options.v_scale;
  return {shift + std::log(sum), largest};
}

std::vector<std::int64_t> visible_keys(const BandMask& mask, std::int64_t row, std::int64_t seq_q, std::int64_t seq_k) {
  constexpr std::int64_t kFar = std::int64_t{1} << 60;
  const std::int64_t offset = mask.anchor == Anchor::bottom_right ? seq_k - seq_q : 0;
  std::vector<std::int64_t> keys;
  for (std::int64_t key = 0; key < seq_k; ++key) {
    const std::int64_t distance = key - (row + offset);
    if (-std::clamp(mask.left, -kFar, kFar) <= distance && distance <= std::clamp(mask.right, -kFar, kFar)) keys.push_back(key);
  }
  return keys;
}

void hide_masked(std::vector<std::int64_t>& keys, const MaskedSequence& sequence, std::int64_t row, std::int64_t seq_k) {
  const PackedMaskDesc& mask = sequence.mask;
  const std::int64_t columns = mask.tail > 0 ? mask.tail : seq_k;
  std::erase_if(keys, [&](std::int64_t key) {
    const std::int64_t column = key - (seq_k - columns);
    if (column < 0) return false;
    const std::int64_t bit = mask.row_bytes > 0 ? row * mask.row_bytes * 8 + column : row * columns + column;
    return (sequence.bytes[sequence.begin + bit / 8] >> (bit % 8) & 1) == 0;
  });
}

std::vector<char> keys_seen(const BandMask& mask, std::int64_t seq_q, std::int64_t seq_k) {
  std::vector<char> seen(static_cast<std::size_t>(seq_k));
  for (std::int64_t row = 0; row < seq_q; ++row) {
    for (const std::int64_t key : visible_keys(mask, row, seq_q, seq_k)) seen[static_cast<std::size_t>(key)] = 1;
  }
  return seen;
}

}  // namespace fovea::reference
