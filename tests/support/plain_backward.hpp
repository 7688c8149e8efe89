// SPDX-License-Identifier: Apache-2.0
/// The plain same-precision backward pass: the usual formula in f32, with P and dS rounded as a matrix unit would take them.
#pragma once

#include <functional>
#include <vector>

#include "case.hpp"

namespace fovea::check {

/// Gradients of one kv head of one sequence: dq [q, group, dqk], dk [kv, dqk], dv [kv, dv], dsink [group].
struct PlainGradients {
  PlainGradients(const Sequence& sequence, std::int64_t group_, std::int64_t dqk, std::int64_t dv_);
  void round(DType dtype);

  std::int64_t group = 1;
  std::vector<float> dq, dk, dv, dsink;
};

struct PlainBackward {
  DType dtype{};
  std::int64_t dqk = 0, dv = 0;
  float scale = 1, softcap = 0;
  BandMask mask{};
  Sequence sequence{};
  std::vector<float> k{}, v{};  ///< [kv, dqk], [kv, dv]

  /// A query head of the group.
  struct Head {
    std::vector<float> q, out, dout, lse, dlse;  ///< dlse: zeros in a call without
    float sink = 0;
    std::int64_t index = 0;
    std::function<bool(std::int64_t row, std::int64_t key)> sees{};  ///< beside the band
  };
  void add_head(const Head& head, PlainGradients& gradients) const;

 private:
  void add_row(const Head& head, std::int64_t row, PlainGradients& gradients) const;
};

}  // namespace fovea::check
