// SPDX-License-Identifier: Apache-2.0
#include "dense.hpp"

namespace fovea::binding {
namespace {

BandMask take_mask(Arguments& arguments) {
  BandMask mask = arguments.band();
  mask.anchor = arguments.flag() ? Anchor::top_left : Anchor::bottom_right;
  return mask;
}

/// Without a bound from the caller, the longest sequence is at most all rows together.
std::optional<RaggedDesc> describe_ragged(const DenseCall& call) {
  if (!call.cu_seqlens_q && !call.cu_seqlens_k) return std::nullopt;
  if (!call.cu_seqlens_q || !call.cu_seqlens_k) {
    const bool q_given = call.cu_seqlens_q.has_value();
    raise_invalid(q_given ? "cu_seqlens_k" : "cu_seqlens_q", "none",
                  q_given ? "a tensor, as cu_seqlens_q is given" : "a tensor, as cu_seqlens_k is given");
  }
  if (call.cu_seqlens_q->dim() != 1 || call.cu_seqlens_q->size(0) < 1) {
    raise_invalid("cu_seqlens_q.shape", "another rank or no element", "[batch + 1]");
  }
  const auto rows = [](const Tensor& tensor) { return tensor.dim() > 0 ? tensor.size(0) : 0; };
  return RaggedDesc{.batch = call.cu_seqlens_q->size(0) - 1,
                    .max_seq_q = call.max_seqlen_q < 0 ? rows(call.q) : call.max_seqlen_q,
                    .max_seq_k = call.max_seqlen_k < 0 ? rows(call.k) : call.max_seqlen_k};
}

}  // namespace

DenseCall take_dense(Arguments& arguments) {
  return {.q = arguments.tensor(),
          .k = arguments.tensor(),
          .v = arguments.tensor(),
          .out = arguments.tensor(),
          .lse = arguments.optional_tensor(),
          .cu_seqlens_q = arguments.optional_tensor(),
          .cu_seqlens_k = arguments.optional_tensor(),
          .max_seqlen_q = arguments.integer_or(-1),
          .max_seqlen_k = arguments.integer_or(-1),
          .mask = take_mask(arguments),
          .scale = arguments.real(),
          .softcap = arguments.real(),
          .sink = arguments.optional_tensor()};
}

AttentionDesc describe_dense(const DenseCall& call) {
  return {.q = describe(call.q, "q"),
          .k = describe(call.k, "k"),
          .v = describe(call.v, "v"),
          .out = describe(call.out, "out"),
          .lse = describe(call.lse, "lse"),
          .ragged = describe_ragged(call),
          .mask = call.mask,
          .scale = call.scale,
          .softcap = call.softcap,
          .has_sink = call.sink.has_value()};
}

AttentionArgs dense_args(const DenseCall& call) {
  AttentionArgs args{.q = data(call.q),
                     .k = data(call.k),
                     .v = data(call.v),
                     .out = data(call.out),
                     .lse = data_or_null<float>(call.lse),
                     .sink = float_vector(call.sink, "sink", call.q.size(call.q.dim() - 2))};
  if (call.cu_seqlens_q) {
    const std::int64_t entries = call.cu_seqlens_q->size(0);
    args.cu_seqlens_q = int32_vector(*call.cu_seqlens_q, "cu_seqlens_q", entries);
    args.cu_seqlens_k = int32_vector(*call.cu_seqlens_k, "cu_seqlens_k", entries);
  }
  return args;
}

}  // namespace fovea::binding
