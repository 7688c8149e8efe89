// SPDX-License-Identifier: Apache-2.0
#include "problems.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <utility>

#include "values.hpp"

namespace fovea::cli {

/// 0 or an empty value stands for the usual value of the operation.
struct ProblemSize {
  DType dtype = DType::bf16;
  std::optional<DType> cache{};
  std::optional<CacheFormat> format{};
  std::optional<CacheFormat> extra{};
  std::int64_t batch = 1, seq_q = 1, seq_k = 4096, heads = 32, kv_heads = 0, dim_qk = 0, dim_v = 0, page = 0;
  std::int64_t topk = 2048, extra_topk = 128, parts = 2;
  bool causal = false, sink = false, lse = false, flat = false;
  std::int64_t window = 0;
  float softcap = 0;
};

namespace {

/// Alignment that allocators of torch and CUDA guarantee. Fast GPU kernels need such a promise.
constexpr std::int32_t kAlignment = 64;

TensorDesc allocated(DType dtype, std::initializer_list<std::int64_t> shape) {
  TensorDesc desc = contiguous(dtype, shape);
  desc.alignment = kAlignment;
  return desc;
}

std::int64_t or_else(std::int64_t value, std::int64_t usual) { return value != 0 ? value : usual; }

BandMask mask_of(const ProblemSize& s, BandMask usual) {
  if (s.window > 0) return sliding_window(s.window);
  return s.causal ? causal() : usual;
}

AttentionDesc dense(const ProblemSize& s) {
  const DType out = s.dtype == DType::e4m3 ? DType::bf16 : s.dtype;
  const std::int64_t kv_heads = or_else(s.kv_heads, 8), dim_qk = or_else(s.dim_qk, 128), dim_v = or_else(s.dim_v, dim_qk);
  AttentionDesc desc{.q = allocated(s.dtype, {s.batch, s.seq_q, s.heads, dim_qk}),
                     .k = allocated(s.dtype, {s.batch, s.seq_k, kv_heads, dim_qk}),
                     .v = allocated(s.dtype, {s.batch, s.seq_k, kv_heads, dim_v}),
                     .out = allocated(out, {s.batch, s.seq_q, s.heads, dim_v}),
                     .mask = mask_of(s, {}),
                     .softcap = s.softcap,
                     .has_sink = s.sink};
  if (s.lse) desc.lse = allocated(DType::f32, {s.batch, s.heads, s.seq_q});
  return desc;
}

AttentionBackwardDesc backward(ProblemSize s) {
  const bool dlse = std::exchange(s.lse, true);
  const AttentionDesc forward = dense(s);
  AttentionBackwardDesc desc{.forward = forward, .dout = forward.out, .dq = forward.q, .dk = forward.k, .dv = forward.v};
  if (dlse) desc.dlse = forward.lse;
  return desc;
}

/// K and V caches with a block for each page of each sequence.
struct Caches {
  std::int64_t page, blocks, kv_heads, dim_qk, dim_v;
  DType dtype;
  TensorDesc k, v;

  explicit Caches(const ProblemSize& s)
      : page(or_else(s.page, 16)),
        blocks((s.seq_k + page - 1) / page),
        kv_heads(or_else(s.kv_heads, 8)),
        dim_qk(or_else(s.dim_qk, 128)),
        dim_v(or_else(s.dim_v, dim_qk)),
        dtype(s.cache.value_or(s.dtype)),
        k(allocated(dtype, {s.batch * blocks, page, kv_heads, dim_qk})),
        v(allocated(dtype, {s.batch * blocks, page, kv_heads, dim_v})) {}
};

PagedAttentionDesc paged(const ProblemSize& s) {
  const Caches caches(s);
  const std::int64_t rows = s.batch * s.seq_q;
  PagedAttentionDesc desc{.q = allocated(s.dtype, {rows, s.heads, caches.dim_qk}),
                          .k_cache = caches.k,
                          .v_cache = caches.v,
                          .block_table = allocated(DType::i32, {s.batch, caches.blocks}),
                          .out = allocated(s.dtype, {rows, s.heads, caches.dim_v}),
                          .max_seq_q = s.seq_q,
                          .max_kv_len = s.seq_k,
                          .mask = mask_of(s, causal()),
                          .softcap = s.softcap,
                          .has_sink = s.sink};
  if (s.lse) desc.lse = allocated(DType::f32, {rows, s.heads});
  if (caches.dtype == DType::e4m3) desc.k_scale = desc.v_scale = ScaleDesc{};
  return desc;
}

PagedCacheAppendDesc append(const ProblemSize& s) {
  const Caches caches(s);
  const std::int64_t rows = s.batch * s.seq_q;
  PagedCacheAppendDesc desc{.k = allocated(s.dtype, {rows, caches.kv_heads, caches.dim_qk}),
                            .v = allocated(s.dtype, {rows, caches.kv_heads, caches.dim_v}),
                            .k_cache = caches.k,
                            .v_cache = caches.v};
  if (caches.dtype == DType::e4m3) desc.k_scale = desc.v_scale = ScaleDesc{};
  return desc;
}

MergeStatesDesc merge(const ProblemSize& s) {
  const std::int64_t rows = s.batch * s.seq_q;
  MergeStatesDesc desc{};
  desc.out = allocated(s.dtype, {rows, s.heads, or_else(s.dim_qk, 128)});
  const TensorDesc lse = allocated(DType::f32, {rows, s.heads});
  desc.parts.assign(static_cast<std::size_t>(s.parts), {.out = desc.out, .lse = lse});
  if (s.lse) desc.lse = lse;
  return desc;
}

/// The codes are e4m3 whatever the dtype of other operations. With a page, the cache is planar: codes of a block, then its scales.
IndexLogitsDesc indices(const ProblemSize& s) {
  const std::int64_t rows = s.batch * s.seq_q, dim = or_else(s.dim_qk, 128);
  IndexLogitsDesc desc{.q = allocated(DType::e4m3, {rows, s.heads, dim}),
                       .k = allocated(DType::e4m3, {s.seq_k, dim}),
                       .k_scale = allocated(DType::f32, {s.seq_k}),
                       .weights = allocated(DType::f32, {rows, s.heads}),
                       .out = allocated(DType::f32, {rows, s.seq_k})};
  if (s.page == 0) return desc;
  const std::int64_t width = (s.seq_k + s.page - 1) / s.page, bytes = s.page * (dim + 4);
  desc.k = allocated(DType::e4m3, {s.batch * width, s.page, dim});
  desc.k_scale = allocated(DType::f32, {s.batch * width, s.page});
  desc.k.strides[0] = bytes;
  desc.k_scale.strides[0] = bytes / 4;
  desc.block_table = allocated(DType::i32, {s.batch, width});
  desc.has_kv_len = true;
  return desc;
}

TopkRowsDesc lists(const ProblemSize& s) {
  const std::int64_t rows = s.batch * s.seq_q;
  TopkRowsDesc desc{.logits = allocated(s.dtype, {rows, s.seq_k}), .out = allocated(DType::i32, {rows, s.topk})};
  if (s.page == 0) return desc;
  desc.block_table = allocated(DType::i32, {s.batch, (s.seq_k + s.page - 1) / s.page});
  desc.page = s.page;
  return desc;
}

constexpr std::int64_t kLatent = 512;

CacheFormat format_of(const ProblemSize& s) { return s.format.value_or(CacheFormat::rows); }

std::int64_t latent_row(const ProblemSize& s) {
  const PackedFormat* packed = packed_format(format_of(s));
  return or_else(s.dim_qk, packed != nullptr ? packed->row() : 576);
}

/// Room for every token of the batch.
LatentCacheDesc latent_cache(const ProblemSize& s, CacheFormat format) {
  const std::int64_t page = or_else(s.page, 64), blocks = s.batch * ((s.seq_k + page - 1) / page);
  if (format != CacheFormat::rows) return {.format = format, .blocks = blocks, .page = page, .alignment = kAlignment};
  return {.rows = allocated(s.cache.value_or(s.dtype), {blocks, page, or_else(s.kv_heads, 1), latent_row(s)})};
}

LatentAttentionDesc latent(const ProblemSize& s) {
  const std::int64_t page = or_else(s.page, 64);
  LatentAttentionDesc desc{.q = allocated(s.dtype, {s.batch, s.seq_q, s.heads, latent_row(s)}),
                           .out = allocated(s.dtype, {s.batch, s.seq_q, s.heads, kLatent}),
                           .block_table = allocated(DType::i32, {s.batch, (s.seq_k + page - 1) / page}),
                           .cache = latent_cache(s, format_of(s)),
                           .max_kv_len = s.seq_k,
                           .mask = mask_of(s, causal())};
  if (s.lse) desc.lse = allocated(DType::f32, {s.batch, s.heads, s.seq_q});
  desc.has_scale = format_of(s) == CacheFormat::rows && desc.cache.rows.dtype == DType::e4m3;
  return desc;
}

SparseLatentAttentionDesc sparse(const ProblemSize& s) {
  const auto selection = [&](CacheFormat format, std::int64_t topk) {
    return SparseLatentAttentionDesc::Selection{
        .cache = latent_cache(s, format),
        .indices = s.flat ? allocated(DType::i32, {s.seq_q, topk}) : allocated(DType::i32, {s.batch, s.seq_q, topk})};
  };
  const auto rows = [&](std::int64_t last) {
    return s.flat ? allocated(s.dtype, {s.seq_q, s.heads, last}) : allocated(s.dtype, {s.batch, s.seq_q, s.heads, last});
  };
  SparseLatentAttentionDesc desc{
      .q = rows(latent_row(s)), .out = rows(kLatent), .main = selection(format_of(s), s.topk), .has_sink = s.sink};
  if (s.extra) desc.extra = selection(*s.extra, s.extra_topk);
  if (s.lse) desc.lse = s.flat ? allocated(DType::f32, {s.seq_q, s.heads}) : allocated(DType::f32, {s.batch, s.heads, s.seq_q});
  return desc;
}

LatentCacheConversionDesc conversion(ProblemSize s) {
  s.format = s.format.value_or(CacheFormat::v32_fp8);
  return {.rows = allocated(s.dtype, {s.batch * s.seq_q, latent_row(s)}), .cache = latent_cache(s, *s.format)};
}

bool e4m3_values(const ProblemSize& s) { return s.cache == DType::e4m3; }

QuantizeAndAttendDesc quantized_whole(const ProblemSize& s) {
  const AttentionDesc d = dense(s);
  return {.q = d.q, .k = d.k, .v = d.v, .out = d.out, .lse = d.lse, .mask = d.mask, .v_dtype = e4m3_values(s) ? DType::e4m3 : DType::f16};
}

TensorDesc twin(TensorDesc like, DType dtype) {
  like.dtype = dtype;
  return like;
}

QuantizeQkInt8Desc quantized_qk(const ProblemSize& s) {
  const AttentionDesc d = dense(s);
  const Int8Groups groups{};
  return {.q = d.q,
          .k = d.k,
          .q_int8 = twin(d.q, DType::i8),
          .k_int8 = twin(d.k, DType::i8),
          .q_scale = groups.q_scale(d.q),
          .k_scale = groups.k_scale(d.k),
          .k_mean = Int8Groups::channels(d.k),
          .lse_shift = d.lse};
}

QuantizeVDesc quantized_v(const ProblemSize& s) {
  const AttentionDesc d = dense(s);
  QuantizeVDesc desc{.v = d.v, .v_out = twin(d.v, e4m3_values(s) ? DType::e4m3 : DType::f16)};
  if (e4m3_values(s)) desc.v_scale = Int8Groups::channels(d.v);
  return desc;
}

QuantizedAttentionDesc quantized(const ProblemSize& s) {
  const AttentionDesc d = dense(s);
  const QuantizeQkInt8Desc qk = quantized_qk(s);
  const QuantizeVDesc v = quantized_v(s);
  return {.q = qk.q_int8,
          .k = qk.k_int8,
          .v = v.v_out,
          .out = d.out,
          .q_scale = qk.q_scale,
          .k_scale = qk.k_scale,
          .v_scale = v.v_scale,
          .lse = d.lse,
          .lse_shift = qk.lse_shift,
          .mask = d.mask};
}

/// Builds the text from a describing and a planning function.
template <auto describe, auto plan>
Explanation explain(const ProblemSize& size, Device device, const PlanOptions& options) {
  const auto planned = plan(describe(size), device, options);
  if (!planned) return planned.error();
  return planned->explain() + "workspace: " + std::to_string(planned->workspace_bytes()) + " bytes\n";
}

std::map<std::string, CacheFormat> formats() {
  std::map<std::string, CacheFormat> all{{"rows", CacheFormat::rows}};
  for (const PackedFormat& format : kPackedFormats) all.emplace(format.name, format.format);
  return all;
}

std::string names_of(const std::map<std::string, CacheFormat>& formats) {
  std::string text;
  for (const auto& [name, format] : formats) text += (text.empty() ? "" : "|") + name;
  return text;
}

void add_sizes(CLI::App& command, ProblemSize& s) {
  command.add_option("--batch", s.batch, "Sequences")->check(count(0))->capture_default_str();
  command.add_option("--seq-q", s.seq_q, "Queries of each sequence; of caches: new rows")->check(count(0))->capture_default_str();
  command.add_option("--seq-k", s.seq_k, "Keys of each sequence, or tokens that a cache has room for")
      ->check(count(0))
      ->capture_default_str();
  command.add_option("--heads", s.heads, "Query heads")->check(count(0))->capture_default_str();
  command.add_option("--kv-heads", s.kv_heads, "Key and value heads")->option_text("INT [8; latent 1]")->check(count(1));
  command.add_option("--head-dim", s.dim_qk, "Head dim of q and k")
      ->option_text("INT [128; latent 576, or what the format holds]")
      ->check(count(1));
  command.add_option("--head-dim-v", s.dim_v, "Head dim of v, when it differs")->check(count(1));
  command.add_option("--page", s.page, "Tokens of a page")->option_text("INT [16; latent 64]")->check(count(1));
  command.add_option("--topk", s.topk, "Sparse: tokens that a query lists")->check(count(0))->capture_default_str();
  command.add_option("--extra-topk", s.extra_topk, "Sparse: tokens of the extra cache")
      ->check(count(0))
      ->capture_default_str()
      ->needs("--extra-format");
  constexpr std::int64_t kMostParts = 1 << 16;
  command.add_option("--parts", s.parts, "merge_states: partial results")->capture_default_str()->check(count(0, kMostParts));
}

void add_types(CLI::App& command, ProblemSize& s) {
  const auto all = formats();
  command.add_option("--dtype", s.dtype, "Type of q, and of k, v and out")
      ->transform(dtype_name())
      ->option_text("f32|f16|bf16|e4m3|f64 [bf16]");
  command.add_option("--cache-dtype", s.cache, "Type of the cache, when it differs; 8-bit attention: of V")
      ->transform(dtype_name())
      ->option_text("f32|f16|bf16|e4m3");
  command.add_option("--format", s.format, "Latent caches: plain rows, or packed ones")
      ->transform(CLI::CheckedTransformer(all))
      ->option_text(names_of(all) + " [rows; conversions v32_fp8]");
  command.add_option("--extra-format", s.extra, "Sparse: a second cache of this format")
      ->transform(CLI::CheckedTransformer(all))
      ->option_text("as --format");
}

void add_rules(CLI::App& command, ProblemSize& s) {
  command.add_flag("--causal", s.causal, "Causal mask (operations on caches always have one; sparse: none)");
  command.add_option("--window", s.window, "Causal, and at most this many keys back")->check(count(1));
  command.add_option("--softcap", s.softcap, "Bound of the scores")->check(number());
  command.add_flag("--sink", s.sink, "A sink logit for each head");
  command.add_flag("--lse", s.lse, "Return the log-sum-exp; attention_backward: take its gradient");
  command.add_flag("--flat", s.flat, "Sparse: rows without a batch dimension (prefill)");
}

}  // namespace

std::shared_ptr<const ProblemSize> usual_problem(DType dtype) {
  ProblemSize size;
  size.dtype = dtype;
  return std::make_shared<const ProblemSize>(size);
}

std::shared_ptr<ProblemSize> add_problem_options(CLI::App& command) {
  auto size = std::make_shared<ProblemSize>();
  add_types(command, *size);
  add_sizes(command, *size);
  add_rules(command, *size);
  return size;
}

const std::vector<ExplainedOperation>& explained_operations() {
  using Options = std::vector<std::string_view>;
  const auto with = [](Options options, const Options& more) {
    options.insert(options.end(), more.begin(), more.end());
    return options;
  };
  const Options rows{"--dtype", "--batch", "--seq-q", "--head-dim"};
  const Options quantised = with(rows, {"--seq-k", "--heads", "--kv-heads"});
  const Options scored = with(quantised, {"--head-dim-v", "--causal", "--window", "--lse"}), dense = with(scored, {"--softcap", "--sink"});
  const Options latent_rows = with(rows, {"--format", "--seq-k", "--page"});
  const Options latent_all = with(latent_rows, {"--cache-dtype", "--heads", "--kv-heads", "--lse"});
  static const std::vector<ExplainedOperation> kAll{
      {"attention", explain<cli::dense, plan_attention>, dense},
      {"attention_backward", explain<backward, plan_attention_backward>, dense},
      {"paged_attention", explain<paged, plan_paged_attention>, with(dense, {"--cache-dtype", "--page"})},
      {"paged_cache_append", explain<append, plan_paged_cache_append>,
       with(rows, {"--seq-k", "--kv-heads", "--head-dim-v", "--cache-dtype", "--page"})},
      {"merge_states", explain<merge, plan_merge_states>, with(rows, {"--heads", "--parts", "--lse"})},
      {"latent_attention", explain<latent, plan_latent_attention>, with(latent_all, {"--causal", "--window"})},
      {"sparse_latent_attention", explain<sparse, plan_sparse_latent_attention>,
       with(latent_all, {"--topk", "--extra-format", "--extra-topk", "--sink", "--flat"})},
      {"quantize_latent_cache", explain<conversion, plan_quantize_latent_cache>, latent_rows},
      {"dequantize_latent_cache", explain<conversion, plan_dequantize_latent_cache>, latent_rows},
      {"index_logits", explain<indices, plan_index_logits>, {"--batch", "--seq-q", "--seq-k", "--heads", "--head-dim", "--page"}},
      {"topk_rows", explain<lists, plan_topk_rows>, {"--dtype", "--batch", "--seq-q", "--seq-k", "--page", "--topk"}},
      {"quantize_qk_int8", explain<quantized_qk, plan_quantize_qk_int8>, with(quantised, {"--lse"})},
      {"quantize_v", explain<quantized_v, plan_quantize_v>, {"--dtype", "--cache-dtype", "--batch", "--seq-k", "--kv-heads", "--head-dim"}},
      {"quantized_attention", explain<quantized, plan_quantized_attention>, with(scored, {"--cache-dtype"})},
      {"quantize_and_attend", explain<quantized_whole, plan_quantize_and_attend>, with(scored, {"--cache-dtype"})}};
  return kAll;
}

bool ExplainedOperation::takes(std::string_view option) const { return std::find(options.begin(), options.end(), option) != options.end(); }

std::string misplaced_options(const CLI::App& command, const ExplainedOperation& operation, const ProblemSize& size) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || operation.takes(name)) continue;
    std::string takers;
    for (const ExplainedOperation& other : explained_operations()) {
      if (other.takes(name)) takers += (takers.empty() ? "" : ", ") + std::string(other.name);
    }
    if (!takers.empty()) return fmt::format("{}: got with {}, want it with {}", name, operation.name, takers);
  }
  const bool of_v = operation.name.starts_with("quantize"), packed = packed_format(format_of(size)) != nullptr;
  if (of_v && size.cache && *size.cache != DType::e4m3 && *size.cache != DType::f16)
    return fmt::format("--cache-dtype: got {}, want f16 or e4m3 with {}", name_of(*size.cache), operation.name);
  if (packed && size.extra.value_or(CacheFormat::v32_fp8) != CacheFormat::rows) {
    for (const char* of_rows : {"--cache-dtype", "--kv-heads"}) {
      if (command.count(of_rows) != 0) return fmt::format("{}: got with a packed --format, want it with rows", of_rows);
    }
  }
  return {};
}

}  // namespace fovea::cli
