// SPDX-License-Identifier: Apache-2.0
/// The tensors of a case of 8-bit attention: sources, quantised tensors and outputs, with the calls of every step.
#pragma once

#include <optional>
#include <vector>

#include "hostile_tensor.hpp"
#include "plain_quantized.hpp"
#include "quantized_case.hpp"

namespace fovea::check {

/// One kv head of one sequence, with its query heads.
struct KvHead {
  std::int64_t sequence = 0, head = 0;
};

/// Such a head quantised.
struct QuantizedHead {
  std::vector<PlainCodes> q{};
  PlainCodes k{}, v{};
  std::vector<float> k_mean{}, v_mean{};        ///< empty without smoothing
  std::vector<std::vector<float>> lse_shift{};  ///< of each query head, with k_mean
};

class QuantizedTensors {
 public:
  /// Sources are filled. Everything else is poisoned, and so is every row of no sequence.
  explicit QuantizedTensors(const QuantizedCase& spec);

  QuantizeQkInt8Desc qk_desc() const;
  QuantizeQkInt8Args qk_args() const;
  QuantizeVDesc v_desc() const;
  QuantizeVArgs v_args() const;
  QuantizedAttentionDesc attention_desc() const;
  QuantizedAttentionArgs attention_args() const;
  QuantizeAndAttendDesc whole_desc() const;
  QuantizeAndAttendArgs whole_args() const;

  std::int64_t batch() const { return static_cast<std::int64_t>(spec.sequences.size()); }
  std::int64_t group() const { return spec.head / spec.kv_head; }
  Sequence sequence(std::int64_t b) const { return spec.sequences[static_cast<std::size_t>(b)]; }

  /// Offsets: of a token in q, k, v and their twins; of a row in lse and lse_shift; of a channel; of a group's scale.
  std::int64_t query_at(const HostileTensor& t, std::int64_t b, std::int64_t row, std::int64_t head) const;
  std::int64_t key_at(const HostileTensor& t, std::int64_t b, std::int64_t key, std::int64_t head) const;
  std::int64_t number_at(const HostileTensor& t, std::int64_t b, std::int64_t row, std::int64_t head) const;
  std::int64_t q_scale_at(std::int64_t b, std::int64_t head, std::int64_t group) const;
  std::int64_t k_scale_at(std::int64_t b, std::int64_t head, std::int64_t group) const;

  PlainTokens queries(std::int64_t b, std::int64_t head) const;
  /// The rows of k or v.
  PlainTokens keys(const HostileTensor& t, std::int64_t b, std::int64_t head) const;
  /// Quantised as the public header says, by plain code.
  QuantizedHead quantized(KvHead at) const;
  /// Writes the quantised values and scales that may be read into the tensors between the steps.
  void store_quantized();

  QuantizedCase spec;
  std::optional<RaggedDesc> ragged{};
  HostileTensor q{}, k{}, v{}, out{}, lse{}, cu_q{}, cu_k{};
  HostileTensor q_int8{}, k_int8{}, v_out{}, q_scale{}, k_scale{}, k_mean{}, lse_shift{}, v_scale{}, v_mean{};

 private:
  void allocate();
  void fill();
  void spoil();
  bool seen_only() const { return spec.step == QuantizedCase::Step::whole || spec.values == QuantizedCase::Values::unseen_nan; }
  std::vector<char> seen(std::int64_t b) const;
  void store(KvHead at);

  std::vector<std::int64_t> q_begin_{0}, k_begin_{0};
};

}  // namespace fovea::check
