// SPDX-License-Identifier: Apache-2.0
/// Latent attention, dense and token-sparse.
#include "op/latent_attention/fields.hpp"
#include "operation.hpp"

namespace fovea::binding {
namespace {

struct LatentAttention : OverFields<detail::kLatentAttentionFields, plan_latent_attention, Asks::schedule> {
  static LatentAttentionDesc describe(const Call& call) {
    LatentAttentionDesc desc = call.describe();
    const OptionalTensor& cu_seqlens_q = call.value<"cu_seqlens_q">();
    if (desc.q.rank == 3) {
      desc.max_seq_q = query_bound(cu_seqlens_q, desc.max_seq_q, desc.q.shape[0], desc.block_table.shape[0]);
    } else if (cu_seqlens_q) {
      raise_invalid("q.rank", std::to_string(desc.q.rank), "3 ([total_q, head, d]), as cu_seqlens_q is given");
    } else if (desc.max_seq_q != 0) {
      raise_invalid("max_seqlen_q", std::to_string(desc.max_seq_q), "0 (none), as q has a batch");
    }
    return desc;
  }

  /// One row a sequence of a ragged batch, if the call has no cu_seqlens_q.
  static LatentAttentionArgs args(const LatentAttentionDesc& desc, void* const* addresses) {
    LatentAttentionArgs args = Call::args(desc, addresses);
    if (desc.q.rank == 3 && args.cu_seqlens_q == nullptr) args.cu_seqlens_q = one_row_each(desc.block_table.shape[0]);
    return args;
  }
};

/// A cache and the tokens of it that each query row reads. `extra_*` may be absent as a whole.
struct Selection {
  OptionalTensor cache;
  std::string format;
  OptionalTensor indices, topk_length;

  SparseLatentAttentionDesc::Selection describe(const char* cache_name, const char* indices_name) const {
    return {.cache = describe_cache(*cache, format, cache_name),
            .indices = binding::describe(*indices, indices_name),
            .has_topk_length = topk_length.has_value()};
  }
};

constexpr auto kSparseSchema =
    "sparse_latent_attention(Tensor q, Tensor cache, str format, Tensor indices, Tensor? topk_length, "
    "Tensor? extra_cache, str extra_format, Tensor? extra_indices, Tensor? extra_topk_length, "
    "Tensor(a!) out, Tensor(b!)? lse, Tensor(c!)? max_logits, float scale, Tensor? sink, str implementation, bool batch_invariant, "
    "Tensor(d!)? schedule)";

/// By hand: two selections of one kind have no table of fields.
struct SparseLatentAttention {
  struct Call {
    explicit Call(Arguments& arguments)
        : q(arguments.tensor()),
          main{arguments.tensor(), arguments.text(), arguments.tensor(), arguments.optional_tensor()},
          extra{arguments.optional_tensor(), arguments.text(), arguments.optional_tensor(), arguments.optional_tensor()},
          out(arguments.tensor()),
          lse(arguments.optional_tensor()),
          max_logits(arguments.optional_tensor()),
          scale(arguments.real()),
          sink(arguments.optional_tensor()),
          implementation(arguments.text()),
          batch_invariant(arguments.flag()),
          schedule(arguments.optional_tensor()) {}

    PlanOptions options() const {
      return {.implementation = implementation, .batch_invariant = batch_invariant, .exact_rows = exact_rows()};
    }

    Tensor q;
    Selection main, extra;
    Tensor out;
    OptionalTensor lse, max_logits;
    double scale;
    OptionalTensor sink;
    std::string implementation;
    bool batch_invariant;
    OptionalTensor schedule;
  };

  static bool has_extra(const Selection& extra) {
    if (extra.cache && extra.indices) return true;
    if (extra.cache) raise_invalid("extra_indices", "none", "a tensor, as extra_cache is given");
    if (extra.indices || extra.topk_length) {
      raise_invalid("extra_cache", "none", "a tensor, as extra_indices or extra_topk_length is given");
    }
    if (extra.format != "rows") raise_invalid("extra_cache", "none", "a tensor, as extra_format is given");
    return false;
  }

  static SparseLatentAttentionDesc describe(const Call& call) {
    SparseLatentAttentionDesc desc{.q = binding::describe(call.q, "q"),
                                   .out = binding::describe(call.out, "out"),
                                   .main = call.main.describe("main.cache", "main.indices"),
                                   .lse = binding::describe(call.lse, "lse"),
                                   .max_logits = binding::describe(call.max_logits, "max_logits"),
                                   .scale = narrow(call.scale, "scale"),
                                   .has_sink = call.sink.has_value()};
    if (has_extra(call.extra)) desc.extra = call.extra.describe("extra.cache", "extra.indices");
    return desc;
  }

  static constexpr auto kPlan = plan_sparse_latent_attention;

  /// topk_length has one number for each row (flat) or sequence (paged): the first dimension of q.
  static void check(const Call& call, const SparseLatentAttentionDesc& desc) {
    const std::int64_t lists = desc.q.shape[0];
    if (call.main.topk_length) check_vector(*call.main.topk_length, "main.topk_length", DType::i32, lists);
    if (call.extra.topk_length) check_vector(*call.extra.topk_length, "extra.topk_length", DType::i32, lists);
    if (call.sink) check_vector(*call.sink, "sink", DType::f32, detail::extent_from_last(desc.q, 2));
  }

  static SparseLatentAttentionArgs args(const SparseLatentAttentionDesc& desc, void* const* addresses) {
    const auto selection = [](void* const* three) -> SparseLatentAttentionArgs::Selection {
      return {.cache = three[0],
              .indices = static_cast<const std::int32_t*>(three[1]),
              .topk_length = static_cast<const std::int32_t*>(three[2])};
    };
    SparseLatentAttentionArgs args{.q = addresses[0],
                                   .out = addresses[7],
                                   .main = selection(addresses + 1),
                                   .lse = static_cast<float*>(addresses[8]),
                                   .max_logits = static_cast<float*>(addresses[9]),
                                   .sink = static_cast<const float*>(addresses[10])};
    if (desc.extra) args.extra = selection(addresses + 4);
    return args;
  }
};

}  // namespace

std::vector<Operation> latent_operations() {
  return {scheduled_operation<LatentAttention>("latent_attention(" + schema_of(detail::kLatentAttentionFields) + kOptionsAndSchedule),
          scheduled_operation<SparseLatentAttention>(kSparseSchema)};
}

}  // namespace fovea::binding
