// SPDX-License-Identifier: Apache-2.0
/// The schemas of torch.ops.fovea, in one place, and the kernels behind them.
#include <torch/csrc/stable/library.h>

#include <string>

#include "arguments.hpp"
#include "operators.hpp"

namespace {

// explain_* takes the arguments of its operation and returns which implementation they get and why.
const std::string kAttention =
    "attention(Tensor q, Tensor k, Tensor v, Tensor(a!) out, Tensor(b!)? lse, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, SymInt? max_seqlen_q, SymInt? max_seqlen_k, "
    "SymInt? window_left, SymInt? window_right, bool top_left, float scale, float softcap, "
    "Tensor? sink, Tensor? q_scale, Tensor? k_scale, Tensor? v_scale, str implementation, bool batch_invariant)";

const std::string kPagedAttention =
    "paged_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor? cu_seqlens_q, Tensor kv_len, "
    "Tensor(a!) out, Tensor(b!)? lse, SymInt max_seqlen_q, SymInt max_kv_len, "
    "SymInt? window_left, SymInt? window_right, float scale, float softcap, "
    "Tensor? sink, Tensor? k_scale, Tensor? v_scale, str implementation, bool batch_invariant)";

const std::string kPagedCacheAppend =
    "paged_cache_append(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slot_mapping, "
    "Tensor? k_scale, Tensor? v_scale, str implementation)";

const std::string kMergeStates = "merge_states(Tensor[] outs, Tensor[] lses, Tensor(a!) out, Tensor(b!)? lse, str implementation)";

}  // namespace

STABLE_TORCH_LIBRARY(fovea, library) {
  for (const std::string& operation : {kAttention, kPagedAttention, kPagedCacheAppend, kMergeStates}) {
    library.def((operation + " -> ()").c_str());
    library.def(("explain_" + operation + " -> str").c_str());
  }
  library.def("implementations() -> str");
  library.def("devices() -> str");
  library.def("version() -> str");
  library.def("set_num_threads(int threads) -> ()");
  library.def("num_threads() -> int");
  fovea::binding::use_torch_threads(0);
}

// One kernel for every device: it looks at the tensors itself, and answers for a device it does not know in the
// library's own words.
STABLE_TORCH_LIBRARY_IMPL(fovea, CompositeExplicitAutograd, library) {
  library.impl("attention", fovea::binding::attention);
  library.impl("explain_attention", fovea::binding::explain_attention);
  library.impl("paged_attention", fovea::binding::paged_attention);
  library.impl("explain_paged_attention", fovea::binding::explain_paged_attention);
  library.impl("paged_cache_append", fovea::binding::paged_cache_append);
  library.impl("explain_paged_cache_append", fovea::binding::explain_paged_cache_append);
  library.impl("merge_states", fovea::binding::merge_states);
  library.impl("explain_merge_states", fovea::binding::explain_merge_states);
  library.impl("implementations", fovea::binding::implementations);
  library.impl("devices", fovea::binding::devices);
  library.impl("version", fovea::binding::version);
  library.impl("set_num_threads", fovea::binding::set_num_threads);
  library.impl("num_threads", fovea::binding::num_threads);
}
