// SPDX-License-Identifier: Apache-2.0
/// Parts that the trials of 8-bit attention and of its quantisers share.
#pragma once

#include <string_view>
#include <vector>

#include "quantized_tensors.hpp"
#include "trial.hpp"

namespace fovea::check {

class QuantizedTrial : public Trial {
 protected:
  explicit QuantizedTrial(const QuantizedCase& spec) : t_(spec) {}

  const QuantizedCase& spec() const { return t_.spec; }
  std::vector<Named> with_lengths(std::vector<Named> list, bool queries = true) const {
    if (spec().ragged && queries) list.push_back({"cu_seqlens_q", t_.cu_q});
    if (spec().ragged) list.push_back({"cu_seqlens_k", t_.cu_k});
    return list;
  }
  double query_elements() const { return elements(&Sequence::q, spec().head); }
  double key_elements() const { return elements(&Sequence::kv, spec().kv_head); }
  template <class F>
  void for_each_kv_head(F&& f) const {
    for (std::int64_t b = 0; b < t_.batch(); ++b)
      for (std::int64_t head = 0; head < spec().kv_head; ++head) f(KvHead{b, head});
  }

  QuantizedTensors t_;

 private:
  double elements(std::int64_t Sequence::*length, std::int64_t heads) const {
    std::int64_t tokens = 0;
    for (const Sequence& s : spec().sequences) tokens += s.*length;
    return static_cast<double>(tokens * heads * spec().dim);
  }
};

std::unique_ptr<Trial> bind_quantiser(const QuantizedCase& spec);

}  // namespace fovea::check
