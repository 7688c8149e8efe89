// SPDX-License-Identifier: Apache-2.0
/// Cases of 8-bit attention: plain data (tests/quantized_cases.hpp has the table).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "case.hpp"
#include "fovea/quantized_attention.hpp"

namespace fovea::check {

struct QuantizedCase {
  enum class Step : std::uint8_t { quantize_qk, quantize_v, attend, whole };
  /// zero_groups: zeros in whole groups and channels. biased: K and V far from zero; biased_k: K alone. not_finite: a NaN and infinities,
  /// each in a group of its own. unseen_nan: keys that no row sees are NaN, and so are their quantised values and scales.
  enum class Values : std::uint8_t { normal, biased, biased_k, zero_groups, not_finite, unseen_nan };

  std::string name{};
  Tier tier = Tier::quick;
  Step step = Step::whole;
  DType dtype = DType::bf16, v_dtype = DType::f16;
  Int8Groups groups{};
  std::int64_t head = 2, kv_head = 2, dim = 64;
  std::vector<Sequence> sequences{{70, 70}};  ///< all equal unless ragged
  bool ragged = false, smooth_k = true, smooth_v = false, lse = true;
  BandMask mask{};
  float scale = 0;
  std::int64_t gap = 8;  ///< between rows; with a gap that is not a multiple of 8, rows are aligned to the element only
  Values values = Values::normal;
  Vast vast{};        ///< q and the first channel of K
  bool gate = false;  ///< large and ordinary enough to check the accuracy that the operation promises
};

std::unique_ptr<Trial> bind(const QuantizedCase& spec);

}  // namespace fovea::check
