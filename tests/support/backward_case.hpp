// SPDX-License-Identifier: Apache-2.0
/// Cases of attention_backward: plain data (tests/backward_cases.hpp has the table).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "case.hpp"

namespace fovea::check {

struct BackwardCase {
  enum class Values : std::uint8_t { normal, sharp, nan_query, nan_key, nan_value, nan_dout, nan_dlse, infinite_key, unseen_nan };

  std::string name{};
  Tier tier = Tier::quick;
  DType dtype = DType::bf16;
  std::int64_t head = 2, kv_head = 2, dqk = 64, dv = 64;
  std::vector<Sequence> sequences{{64, 64}};
  bool ragged = false;
  BandMask mask{};
  Blocks blocks{};
  MaskBits mask_bits = MaskBits::none;
  std::int64_t mask_tail = 0;  ///< the last keys that have bits; 0: all
  float scale = 0, softcap = 0;
  bool sink = false;  ///< 0.5, -inf, +inf and -1 by head
  bool dlse = false;
  bool padded = false;  ///< gaps in every stride, rows aligned to the element only, rows of no sequence
  Values values = Values::normal;
  Vast vast{};  ///< q and the first channel of K; a row of dout is zero but for one channel, so that gradients of q and K cancel exactly

  /// Rows of no sequence.
  std::int64_t padding_rows() const { return ragged && padded ? 3 : 0; }
};

std::unique_ptr<Trial> bind(const BackwardCase& spec);

}  // namespace fovea::check
