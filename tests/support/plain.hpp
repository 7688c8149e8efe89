// SPDX-License-Identifier: Apache-2.0
/// The plain same-precision implementations whose error sets the tolerance. Arithmetic is f32, operands and results are rounded where
/// 16-bit hardware rounds them, and there are no tiles or tricks.
#pragma once

#include <limits>
#include <vector>

#include "bound_case.hpp"

namespace fovea::check {

/// The largest weight where a matrix unit takes weights as e4m3, which ends at 448.
inline constexpr float kLargestE4m3Weight = 256;

/// Dense rows of one head. Latent rows have V at the beginning of K.
struct PlainKeys {
  const float *k, *v;
  std::int64_t k_stride, v_stride, count;
};

/// Attention of one query row over at least one key, all of them seen.
struct PlainRow {
  DType operands{}, out{};  ///< types of a matrix unit's operands and results
  E4m3Products products = E4m3Products::widened;
  bool e4m3_scores = true;  ///< where products are native, those of queries and keys are so too
  std::int64_t dqk = 0, dv = 0;
  float score_scale = 1, value_scale = 1, softcap = 0, sink = -std::numeric_limits<float>::infinity();
  std::vector<float> added{}, kept{};   ///< to each key's score, and what its weight is multiplied by; empty without
  std::vector<float> scores{}, sums{};  ///< scratch
  float lse = 0, max_logit = 0;         ///< of the last row

  void attend(const float* q, const PlainKeys& keys, float* result);

 private:
  float score(const float* q, const float* k) const;
  void add_values(const PlainKeys& keys, const std::vector<float>& weights);
};

/// out [rows, head, dv], rounded to the output's dtype; lse and the largest scores [rows, head], -inf for rows without keys.
struct PlainOutput {
  PlainOutput(std::int64_t rows, std::int64_t dv);
  std::vector<float> out, lse, max_logits;
};

/// Rows are heads of flat rows. Only flat rows in `wanted` are computed.
PlainOutput plain_attention(const BoundCase& bound, const std::vector<char>& wanted, E4m3Products products = E4m3Products::widened);
PlainOutput plain_merge_states(const BoundCase& bound);

}  // namespace fovea::check
