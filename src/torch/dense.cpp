// SPDX-License-Identifier: Apache-2.0
#include "dense.hpp"

namespace fovea::binding {

// Both have as many entries as the first, which said how many sequences there are.
const std::int32_t* Sequences::q_lengths() const {
  return cu_seqlens_q ? int32_vector(*cu_seqlens_q, "cu_seqlens_q", cu_seqlens_q->size(0)) : nullptr;
}
const std::int32_t* Sequences::k_lengths() const {
  return cu_seqlens_q ? int32_vector(*cu_seqlens_k, "cu_seqlens_k", cu_seqlens_q->size(0)) : nullptr;
}

Bounds take_bounds(Arguments& arguments) { return {.q = arguments.optional_integer(), .k = arguments.optional_integer()}; }

Sequences take_sequences(Arguments& arguments) {
  return {.cu_seqlens_q = arguments.optional_tensor(),
          .cu_seqlens_k = arguments.optional_tensor(),
          .max_seqlen_q = arguments.optional_integer(),
          .max_seqlen_k = arguments.optional_integer()};
}

BandMask take_mask(Arguments& arguments) {
  BandMask mask = arguments.band();
  mask.anchor = arguments.flag() ? Anchor::top_left : Anchor::bottom_right;
  return mask;
}

std::int64_t rows_of(const Tensor& tensor) { return tensor.dim() > 0 ? tensor.size(0) : 0; }

std::int64_t batch_of(const Tensor& cu_seqlens, const char* name) {
  if (cu_seqlens.dim() != 1 || cu_seqlens.size(0) < 1) raise_invalid(field(name, "shape"), shape_text(cu_seqlens), "[batch + 1]");
  return cu_seqlens.size(0) - 1;
}

std::optional<RaggedDesc> describe_ragged(const Sequences& sequences, const Tensor& q, const Tensor& k) {
  const auto& [cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k] = sequences;
  if (!cu_seqlens_q && !cu_seqlens_k) {
    expect_none("max_seqlen_q", max_seqlen_q, "cu_seqlens_q");
    expect_none("max_seqlen_k", max_seqlen_k, "cu_seqlens_k");
    return std::nullopt;
  }
  if (!cu_seqlens_q || !cu_seqlens_k) {
    const bool q_given = cu_seqlens_q.has_value();
    raise_invalid(q_given ? "cu_seqlens_k" : "cu_seqlens_q", "none",
                  q_given ? "a tensor, as cu_seqlens_q is given" : "a tensor, as cu_seqlens_k is given");
  }
  return RaggedDesc{.batch = batch_of(*cu_seqlens_q, "cu_seqlens_q"),
                    .max_seq_q = max_seqlen_q.value_or(rows_of(q)),
                    .max_seq_k = max_seqlen_k.value_or(rows_of(k))};
}

}  // namespace fovea::binding
