// SPDX-License-Identifier: Apache-2.0
#include "dense.hpp"

namespace fovea::binding {
namespace {

/// Rows of a ragged tensor.
std::int64_t rows_of(const Tensor& tensor) { return tensor.dim() > 0 ? tensor.size(0) : 0; }

/// How many sequences the prefix sums of lengths are of.
std::int64_t batch_of(const Tensor& cu_seqlens, const char* name) {
  if (cu_seqlens.dim() != 1 || cu_seqlens.size(0) < 1) raise_invalid(field(name, "shape"), shape_text(cu_seqlens), "[batch + 1]");
  return cu_seqlens.size(0) - 1;
}

}  // namespace

BandMask take_mask(Arguments& arguments) {
  BandMask mask = arguments.band();
  mask.anchor = arguments.flag() ? Anchor::top_left : Anchor::bottom_right;
  return mask;
}

std::optional<RaggedDesc> describe_ragged(const Sequences& sequences, const Tensor& q, const Tensor& k) {
  const auto& [cu_seqlens_q, cu_seqlens_k, bounds] = sequences;
  if (!cu_seqlens_q && !cu_seqlens_k) {
    expect_none("max_seqlen_q", bounds.q, "cu_seqlens_q");
    expect_none("max_seqlen_k", bounds.k, "cu_seqlens_k");
    return std::nullopt;
  }
  if (!cu_seqlens_q || !cu_seqlens_k) {
    const bool q_given = cu_seqlens_q.has_value();
    raise_invalid(q_given ? "cu_seqlens_k" : "cu_seqlens_q", "none",
                  q_given ? "a tensor, as cu_seqlens_q is given" : "a tensor, as cu_seqlens_k is given");
  }
  return RaggedDesc{.batch = batch_of(*cu_seqlens_q, "cu_seqlens_q"),
                    .max_seq_q = bounds.q.value_or(rows_of(q)),
                    .max_seq_k = bounds.k.value_or(rows_of(k))};
}

std::optional<RaggedDesc> describe_ragged(const OptionalTensor& cu_seqlens_k, std::optional<std::int64_t> max_seqlen_k, const Tensor& v) {
  if (!cu_seqlens_k) {
    expect_none("max_seqlen_k", max_seqlen_k, "cu_seqlens_k");
    return std::nullopt;
  }
  return RaggedDesc{.batch = batch_of(*cu_seqlens_k, "cu_seqlens_k"), .max_seq_k = max_seqlen_k.value_or(rows_of(v))};
}

Int8Groups Groups::of_plan() const {
  if (warp_rows != 32 && warp_rows != 16) raise_invalid("groups.warp_rows", std::to_string(warp_rows), "32 or 16");
  for (const auto& [known, value] : kGranularities) {
    if (granularity == known) return {value, static_cast<int>(warp_rows)};
  }
  raise_invalid("groups.granularity", "\"" + granularity + "\"", "block, warp or thread");
}

DType v_dtype_of(std::int32_t dtype) {
  if (dtype == aoti_torch_dtype_float16()) return DType::f16;
  if (dtype == aoti_torch_dtype_float8_e4m3fn()) return DType::e4m3;
  raise_invalid("v_dtype", dtype_text(dtype), "float16 or float8_e4m3fn");
}

}  // namespace fovea::binding
