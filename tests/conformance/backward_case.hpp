// SPDX-License-Identifier: Apache-2.0
/// A case of the backward pass made real: hostile tensors, the exact gradients and those of a plain same-precision computation.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fovea/attention_backward.hpp"
#include "hostile_tensor.hpp"

namespace fovea::check {

struct BackwardCase {
  enum class Values { normal, sharp, nan_query, nan_key, nan_value, nan_dout, infinite_key, unseen_nan };
  struct Lengths {
    std::int64_t q = 0, k = 0;
  };

  std::string name{};
  DType dtype = DType::bf16;
  std::int64_t head = 2, kv_head = 2, dqk = 64, dv = 64;
  std::vector<Lengths> sequences{{64, 64}};
  bool ragged = false;
  BandMask mask{};
  float scale = 0, softcap = 0;
  bool sink = false;    ///< 0.5, -inf, +inf and -1 by head
  bool padded = false;  ///< gaps in every stride, rows aligned to the element only, rows of no sequence
  Values values = Values::normal;
};

/// dq, dk and dv row-major, rows counted through; dsink [head].
struct Gradients {
  std::vector<double> exact{};
  std::vector<float> plain{};
};

class BoundBackward {
 public:
  explicit BoundBackward(const BackwardCase& spec);

  /// Empty when the outputs are right and nothing else has changed; puts the poison back.
  std::string judge();
  /// The bits of all outputs, the parts that stay poison too.
  std::vector<std::byte> output_bits() const;
  void reset();

  AttentionBackwardDesc desc{};
  AttentionBackwardArgs args{};

 private:
  struct Output {
    std::string name;
    HostileTensor* tensor;
    Gradients gradients;
    std::vector<char> written;  // by flat row
  };

  void describe();
  void fill();
  void run_forward();
  void compute_exact();
  void compute_plain();
  struct PlainHead;
  void plain_row(const PlainHead& at, std::int64_t row);
  std::vector<float> row_of(const HostileTensor& tensor, std::int64_t flat, std::int64_t head) const;
  std::int64_t offset(const HostileTensor& tensor, std::int64_t flat, std::int64_t head) const;
  std::int64_t lse_offset(std::int64_t flat, std::int64_t head) const;
  std::string judge_output(Output& output);

  BackwardCase spec_;
  std::int64_t total_q_ = 0, total_k_ = 0;
  HostileTensor q_, k_, v_, out_, dout_, lse_, sink_, cu_q_, cu_k_, dq_, dk_, dv_, dsink_;
  std::vector<Output> outputs_;
};

}  // namespace fovea::check
