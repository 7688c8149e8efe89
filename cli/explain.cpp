// SPDX-License-Identifier: Apache-2.0
/// `fovea explain`: which implementation a problem gets, and why the others do not.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>

#include "commands.hpp"
#include "fovea/fovea.hpp"

namespace fovea::cli {
namespace {

struct Options {
  bool paged = false;
  DType dtype = DType::bf16, cache = DType::bf16;
  bool has_cache = false;
  std::int64_t batch = 1, seq_q = 1, seq_k = 4096, heads = 32, kv_heads = 8, dim_qk = 128, dim_v = 0, page = 16;
  bool causal = false, sink = false, lse = false, batch_invariant = false;
  std::int64_t window = 0;
  float softcap = 0;
  std::string implementation;
};

BandMask mask_of(const Options& options) {
  if (options.window > 0) return sliding_window(options.window);
  return options.causal ? causal() : BandMask{};
}

AttentionDesc dense(const Options& o) {
  const DType out = o.dtype == DType::e4m3 ? DType::bf16 : o.dtype;
  AttentionDesc desc{.q = contiguous(o.dtype, {o.batch, o.seq_q, o.heads, o.dim_qk}),
                     .k = contiguous(o.dtype, {o.batch, o.seq_k, o.kv_heads, o.dim_qk}),
                     .v = contiguous(o.dtype, {o.batch, o.seq_k, o.kv_heads, o.dim_v}),
                     .out = contiguous(out, {o.batch, o.seq_q, o.heads, o.dim_v}),
                     .mask = mask_of(o),
                     .softcap = o.softcap,
                     .has_sink = o.sink};
  if (o.lse) desc.lse = contiguous(DType::f32, {o.batch, o.heads, o.seq_q});
  return desc;
}

PagedAttentionDesc paged(const Options& o) {
  const std::int64_t blocks = (o.seq_k + o.page - 1) / o.page, rows = o.batch * o.seq_q;
  const DType cache = o.has_cache ? o.cache : o.dtype;
  PagedAttentionDesc desc{.q = contiguous(o.dtype, {rows, o.heads, o.dim_qk}),
                          .k_cache = contiguous(cache, {o.batch * blocks, o.page, o.kv_heads, o.dim_qk}),
                          .v_cache = contiguous(cache, {o.batch * blocks, o.page, o.kv_heads, o.dim_v}),
                          .block_table = contiguous(DType::i32, {o.batch, blocks}),
                          .out = contiguous(o.dtype, {rows, o.heads, o.dim_v}),
                          .max_seq_q = o.seq_q,
                          .max_kv_len = o.seq_k,
                          .softcap = o.softcap,
                          .has_sink = o.sink};
  if (o.window > 0) desc.mask = sliding_window(o.window);
  if (o.lse) desc.lse = contiguous(DType::f32, {rows, o.heads});
  if (cache == DType::e4m3) desc.k_scale = desc.v_scale = ScaleDesc{};
  return desc;
}

template <class Args>
int print(const Result<Plan<Args>>& plan) {
  if (!plan) {
    fmt::print(stderr, "{}\n", to_string(plan.error()));
    return kUsage;
  }
  fmt::print("{}workspace: {} bytes\n", plan->explain(), plan->workspace_bytes());
  return kOk;
}

int explain(Options options) {
  if (options.dim_v == 0) options.dim_v = options.dim_qk;
  const PlanOptions plan{.implementation = options.implementation, .batch_invariant = options.batch_invariant};
  return options.paged ? print(plan_paged_attention(paged(options), {}, plan)) : print(plan_attention(dense(options), {}, plan));
}

}  // namespace

void add_explain(CLI::App& program, int& status) {
  static const std::map<std::string, DType> kDTypes{{"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}, {"e4m3", DType::e4m3}};
  auto o = std::make_shared<Options>();
  CLI::App* command =
      program.add_subcommand("explain", "Which implementation a described problem gets, with which tuning, and who declined");
  command->add_flag("--paged", o->paged, "Paged attention over a block-table cache (otherwise dense attention)");
  command->add_option("--dtype", o->dtype, "Type of q, and of k, v and out")
      ->transform(CLI::CheckedTransformer(kDTypes))
      ->option_text("f32|f16|bf16|e4m3 [bf16]");
  auto* cache = command->add_option("--cache-dtype", o->cache, "Type of the cache, when it differs")
                    ->transform(CLI::CheckedTransformer(kDTypes))
                    ->option_text("f32|f16|bf16|e4m3");
  command->add_option("--batch", o->batch, "Sequences")->capture_default_str();
  command->add_option("--seq-q", o->seq_q, "Queries of each sequence")->capture_default_str();
  command->add_option("--seq-k", o->seq_k, "Keys of each sequence")->capture_default_str();
  command->add_option("--heads", o->heads, "Query heads")->capture_default_str();
  command->add_option("--kv-heads", o->kv_heads, "Key and value heads")->capture_default_str();
  command->add_option("--head-dim", o->dim_qk, "Head dim of q and k")->capture_default_str();
  command->add_option("--head-dim-v", o->dim_v, "Head dim of v, when it differs");
  command->add_option("--page", o->page, "Tokens of a page")->capture_default_str()->check(CLI::PositiveNumber);
  command->add_flag("--causal", o->causal, "Causal mask (paged attention always has one)");
  command->add_option("--window", o->window, "Causal, and at most this many keys back")->check(CLI::PositiveNumber);
  command->add_option("--softcap", o->softcap, "Bound of the scores");
  command->add_flag("--sink", o->sink, "A sink logit for each head");
  command->add_flag("--lse", o->lse, "Return the log-sum-exp");
  command->add_flag("--batch-invariant", o->batch_invariant, "Rows independent of the rest of the batch");
  command->add_option("--implementation", o->implementation, "Force one by name");
  command->footer("Exit status 2 when the description is wrong or nothing accepts it; the message says why.");
  command->callback([o, cache, &status] {
    o->has_cache = cache->count() > 0;
    status = explain(*o);
  });
}

}  // namespace fovea::cli
