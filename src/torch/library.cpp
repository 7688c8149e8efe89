// SPDX-License-Identifier: Apache-2.0
/// The schemas of torch.ops.fovea, in one place, and the kernels behind them.
#include <torch/csrc/stable/library.h>

#include <string>
#include <string_view>
#include <vector>

#include "arguments.hpp"
#include "fields.hpp"
#include "op/attention/fields.hpp"
#include "op/attention_backward/fields.hpp"
#include "op/latent_attention/fields.hpp"
#include "op/paged_attention/fields.hpp"
#include "op/paged_cache_append/fields.hpp"
#include "op/quantized_attention/fields.hpp"
#include "operators.hpp"

namespace {

using namespace fovea::binding;

/// The arguments of an operator that writes to none of them.
std::string read_only(std::string arguments) {
  for (std::size_t mark = 0; (mark = arguments.find("!)")) != std::string::npos;) arguments.erase(mark - 2, 4);
  return arguments;
}

/// An operation writes into tensors of the caller and returns nothing. explain_* takes the same arguments, only reads them and returns, as
/// bytes, which implementation they get and why. prepare_* takes them too and returns what an argument `schedule` wants, the operation's
/// last: a tensor of schedule_bytes_*, which takes the device first and tensors without memory after it.
struct Operation {
  std::string schema;
  Operator* run;
  Operator* explain;
  Operator* prepare = nullptr;
  Operator* schedule_bytes = nullptr;

  std::string name() const { return schema.substr(0, schema.find('(')); }

  /// "prepare_name(", of an operator that writes to none of its arguments, and what comes before them.
  std::string reading(const std::string& prefix, const std::string& first = "") const {
    return prefix + name() + "(" + first + read_only(schema.substr(name().size() + 1));
  }
};

/// `fill_out` and `fill_lse` are of outputs that a function makes: their rows that no sequence of a ragged batch has get 0, or -inf.
#define FOVEA_FILLS ", bool fill_out=False, bool fill_lse=False)"

constexpr auto kImplementation = ", str implementation)", kOptions = ", str implementation, bool batch_invariant" FOVEA_FILLS,
               kOptionsAndSchedule = ", str implementation, bool batch_invariant, Tensor(c!)? schedule" FOVEA_FILLS;

const std::vector<Operation>& operations() {
  using namespace fovea::detail;
  static const std::vector<Operation> kAll{
      {"attention(" + schema_of(kAttentionFields) + kOptions, attention, explain_attention},
      {"attention_backward(" + read_only(schema_of(kDenseFields)) + ", " + schema_of(kAttentionBackwardFields) + kImplementation,
       attention_backward, explain_attention_backward},
      {"paged_attention(" + schema_of(kPagedAttentionFields) + kOptions, paged_attention, explain_paged_attention},
      {"paged_cache_append(" + schema_of(kPagedCacheAppendFields) + kImplementation, paged_cache_append, explain_paged_cache_append},
      {"merge_states(Tensor[] outs, Tensor[] lses, Tensor(a!) out, Tensor(b!)? lse, str implementation)", merge_states,
       explain_merge_states},
      {"latent_attention(" + schema_of(kLatentAttentionFields) + kOptionsAndSchedule, latent_attention, explain_latent_attention,
       prepare_latent_attention, schedule_bytes_latent_attention},
      {"sparse_latent_attention(Tensor q, Tensor cache, str format, Tensor indices, Tensor? topk_length, "
       "Tensor? extra_cache, str extra_format, Tensor? extra_indices, Tensor? extra_topk_length, "
       "Tensor(a!) out, Tensor(b!)? lse, Tensor(c!)? max_logits, float scale, Tensor? sink, str implementation, bool batch_invariant, "
       "Tensor(d!)? schedule)",
       sparse_latent_attention, explain_sparse_latent_attention, prepare_sparse_latent_attention, schedule_bytes_sparse_latent_attention},
      {"quantize_latent_cache(Tensor rows, Tensor(a!) cache, Tensor slot_mapping, str format, bool exact_scale, str implementation)",
       quantize_latent_cache, explain_quantize_latent_cache},
      {"dequantize_latent_cache(Tensor(a!) rows, Tensor cache, Tensor slot_mapping, str format, str implementation)",
       dequantize_latent_cache, explain_dequantize_latent_cache},
      {"quantize_qk_int8(" + schema_of(kQuantizeQkInt8Fields) + kImplementation, quantize_qk_int8, explain_quantize_qk_int8},
      {"quantize_v(" + schema_of(kQuantizeVFields) + kImplementation, quantize_v, explain_quantize_v},
      {"quantized_attention(" + schema_of(kQuantizedAttentionFields) + kOptions, quantized_attention, explain_quantized_attention},
      {"quantize_and_attend(" + schema_of(kQuantizeAndAttendFields) + kOptions, quantize_and_attend, explain_quantize_and_attend},
  };
  return kAll;
}

/// Dense attention as autograd wants it: new tensors, out and lse. The Python package gives it its kernel, which allocates and calls
/// attention, and its formula, which calls attention_backward.
constexpr auto kDifferentiableAttention =
    "differentiable_attention(Tensor q, Tensor k, Tensor v, Tensor? sink, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, SymInt? max_seqlen_q, SymInt? max_seqlen_k, "
    "SymInt? window_left, SymInt? window_right, bool top_left, float scale, float softcap, "
    "str implementation, bool batch_invariant) -> (Tensor, Tensor)";

/// The same of merge_states, whose formula needs no kernel.
constexpr auto kDifferentiableMerge = "differentiable_merge(Tensor[] outs, Tensor[] lses, str implementation) -> (Tensor, Tensor)";

}  // namespace

STABLE_TORCH_LIBRARY(fovea, library) {
  for (const Operation& operation : operations()) {
    library.def((operation.schema + " -> ()").c_str());
    library.def((operation.reading("explain_") + " -> Tensor").c_str());
    if (operation.prepare == nullptr) continue;
    library.def((operation.reading("prepare_") + " -> Tensor").c_str());
    library.def((operation.reading("schedule_bytes_", "Device device, ") + " -> int").c_str());
  }
  library.def(kDifferentiableAttention);
  library.def(kDifferentiableMerge);
  library.def("implementations() -> str");
  library.def("devices() -> str");
  library.def("cache_formats() -> str");
  library.def("int8_groups() -> str");
  library.def("version() -> str");
  library.def("short_path() -> int");
  library.def("set_num_threads(int threads) -> ()");
  library.def("num_threads() -> int");
  use_torch_threads(0);
}

// One kernel for every device: it looks at the tensors itself, and answers for a device it does not know in the
// library's own words.
STABLE_TORCH_LIBRARY_IMPL(fovea, CompositeExplicitAutograd, library) {
  for (const Operation& operation : operations()) {
    library.impl(operation.name().c_str(), operation.run);
    library.impl(("explain_" + operation.name()).c_str(), operation.explain);
    if (operation.prepare == nullptr) continue;
    library.impl(("prepare_" + operation.name()).c_str(), operation.prepare);
    library.impl(("schedule_bytes_" + operation.name()).c_str(), operation.schedule_bytes);
  }
  library.impl("implementations", implementations);
  library.impl("devices", devices);
  library.impl("cache_formats", cache_formats);
  library.impl("int8_groups", int8_groups);
  library.impl("version", version);
  library.impl("short_path", short_path_address);
  library.impl("set_num_threads", set_num_threads);
  library.impl("num_threads", num_threads);
}
