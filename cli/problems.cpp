// SPDX-License-Identifier: Apache-2.0
#include "problems.hpp"

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "problem_size.hpp"

namespace fovea::cli {

namespace {

/// Alignment that allocators of torch and CUDA guarantee. Fast GPU kernels need such a promise.
constexpr std::int32_t kAlignment = 64;

TensorDesc allocated(DType dtype, std::initializer_list<std::int64_t> shape) {
  TensorDesc desc = contiguous(dtype, shape);
  desc.alignment = kAlignment;
  return desc;
}

BandMask mask_of(const ProblemSize& s, BandMask usual) {
  if (s.window > 0) return sliding_window(s.window);
  return s.causal ? causal() : usual;
}

std::optional<PackedMaskDesc> packed_mask_of(const ProblemSize& s) {
  if (s.mask_tail == 0) return std::nullopt;
  const std::int64_t row_bytes = (s.mask_tail + 7) / 8;
  return PackedMaskDesc{.bytes = s.batch * s.seq_q * row_bytes, .tail = s.mask_tail, .row_bytes = row_bytes};
}

/// Lists of full and of partial blocks, one for all heads, with room for every block.
void add_block_mask(const ProblemSize& s, AttentionDesc& desc) {
  if (s.block_size == 0) return;
  const auto blocks = [&](std::int64_t rows) { return (rows + s.block_size - 1) / s.block_size; };
  const std::int64_t q_blocks = blocks(s.seq_q), slots = blocks(s.seq_k);
  desc.full_block_counts = desc.partial_block_counts = allocated(DType::i32, {s.batch, 1, q_blocks});
  desc.full_block_indices = desc.partial_block_indices = allocated(DType::i32, {s.batch, 1, q_blocks, slots});
  desc.partial_block_bits = allocated(DType::i32, {s.batch, 1, q_blocks, slots * (s.block_size * s.block_size / 32)});
  desc.block_q = desc.block_k = s.block_size;
}

AttentionDesc dense(const ProblemSize& s) {
  const DType out = s.dtype == DType::e4m3 ? DType::bf16 : s.dtype;
  AttentionDesc desc{.q = allocated(s.dtype, {s.batch, s.seq_q, s.heads, s.dim_qk}),
                     .k = allocated(s.dtype, {s.batch, s.seq_k, s.kv_heads, s.dim_qk}),
                     .v = allocated(s.dtype, {s.batch, s.seq_k, s.kv_heads, s.dim_v}),
                     .out = allocated(out, {s.batch, s.seq_q, s.heads, s.dim_v}),
                     .mask = mask_of(s, {}),
                     .softcap = s.softcap,
                     .has_sink = s.sink,
                     .packed_mask = packed_mask_of(s)};
  if (s.lse) desc.lse = allocated(DType::f32, {s.batch, s.heads, s.seq_q});
  if (s.alibi) desc.alibi_slopes = allocated(DType::f32, {s.heads});
  if (s.bias) desc.bias = allocated(out, {s.batch, s.heads, s.seq_q, s.seq_k});
  desc.dropout_p = s.dropout;
  add_block_mask(s, desc);
  return desc;
}

AttentionBackwardDesc backward(ProblemSize s) {
  const bool dlse = std::exchange(s.lse, true);
  const AttentionDesc forward = dense(s);
  AttentionBackwardDesc desc{.forward = forward, .dout = forward.out, .dq = forward.q, .dk = forward.k, .dv = forward.v};
  if (dlse) desc.dlse = forward.lse;
  if (s.bias) desc.dbias = forward.bias;
  return desc;
}

/// K and V caches with a block for each page of each sequence.
struct Caches {
  std::int64_t blocks;
  DType dtype;
  TensorDesc k, v;

  explicit Caches(const ProblemSize& s)
      : blocks((s.seq_k + s.page - 1) / s.page),
        dtype(s.cache.value_or(s.dtype)),
        k(allocated(dtype, {s.batch * blocks, s.page, s.kv_heads, s.dim_qk})),
        v(allocated(dtype, {s.batch * blocks, s.page, s.kv_heads, s.dim_v})) {}
};

/// Codes in place of the rows of a cache, with scales in a tensor of their own.
void describe_codes(const KvRowFormat& format, std::int64_t dim, TensorDesc& cache, std::optional<TensorDesc>& scales) {
  const auto [blocks, page, heads, values] = cache.shape;
  cache = allocated(DType::i8, {blocks, page, heads, format.code_bytes(dim)});
  if (!format.has_scales()) return;
  const DType dtype = format.group == 0 ? DType::f32 : format.accepts_scales(DType::e4m3) ? DType::e4m3 : DType::i8;
  scales = format.group == 0 ? allocated(dtype, {blocks, page, heads}) : allocated(dtype, {blocks, page, heads, format.scales(dim)});
}

void describe_formats(const ProblemSize& s, auto& desc) {
  const KvRowFormat* format = kv_row_format(s.kv.value_or(KvFormat::rows));
  if (format == nullptr) return;
  desc.k_scale = desc.v_scale = std::nullopt;
  desc.k_format = desc.v_format = format->format;
  describe_codes(*format, s.dim_qk, desc.k_cache, desc.k_scale_cache);
  describe_codes(*format, s.dim_v, desc.v_cache, desc.v_scale_cache);
}

PagedAttentionDesc paged(const ProblemSize& s) {
  const Caches caches(s);
  const std::int64_t rows = s.batch * s.seq_q;
  PagedAttentionDesc desc{.q = allocated(s.dtype, {rows, s.heads, s.dim_qk}),
                          .k_cache = caches.k,
                          .v_cache = caches.v,
                          .block_table = allocated(DType::i32, {s.batch, caches.blocks}),
                          .out = allocated(s.dtype, {rows, s.heads, s.dim_v}),
                          .max_seq_q = s.seq_q,
                          .max_kv_len = s.seq_k,
                          .mask = mask_of(s, causal()),
                          .softcap = s.softcap,
                          .has_sink = s.sink,
                          .packed_mask = packed_mask_of(s)};
  if (s.lse) desc.lse = allocated(DType::f32, {rows, s.heads});
  if (caches.dtype == DType::e4m3) desc.k_scale = desc.v_scale = ScaleDesc{};
  describe_formats(s, desc);
  return desc;
}

PagedCacheAppendDesc append(const ProblemSize& s) {
  const Caches caches(s);
  const std::int64_t rows = s.batch * s.seq_q;
  PagedCacheAppendDesc desc{.k = allocated(s.dtype, {rows, s.kv_heads, s.dim_qk}),
                            .v = allocated(s.dtype, {rows, s.kv_heads, s.dim_v}),
                            .k_cache = caches.k,
                            .v_cache = caches.v};
  if (caches.dtype == DType::e4m3) desc.k_scale = desc.v_scale = ScaleDesc{};
  describe_formats(s, desc);
  return desc;
}

MergeStatesDesc merge(const ProblemSize& s) {
  const std::int64_t rows = s.batch * s.seq_q;
  MergeStatesDesc desc{};
  desc.out = allocated(s.dtype, {rows, s.heads, s.dim_qk});
  const TensorDesc lse = allocated(DType::f32, {rows, s.heads});
  desc.parts.assign(static_cast<std::size_t>(s.parts), {.out = desc.out, .lse = lse});
  if (s.lse) desc.lse = lse;
  return desc;
}

/// The codes are e4m3 whatever the dtype of other operations. With a page, the cache is planar: codes of a block, then its scales.
IndexLogitsDesc indices(const ProblemSize& s) {
  const std::int64_t rows = s.batch * s.seq_q, dim = s.dim_qk;
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

/// Room for every token of the batch.
LatentCacheDesc latent_cache(const ProblemSize& s, CacheFormat format) {
  const std::int64_t blocks = s.batch * ((s.seq_k + s.page - 1) / s.page);
  if (format != CacheFormat::rows) return {.format = format, .blocks = blocks, .page = s.page, .alignment = kAlignment};
  return {.rows = allocated(s.cache.value_or(s.dtype), {blocks, s.page, s.kv_heads, s.dim_qk})};
}

LatentAttentionDesc latent(const ProblemSize& s) {
  LatentAttentionDesc desc{.q = allocated(s.dtype, {s.batch, s.seq_q, s.heads, s.dim_qk}),
                           .out = allocated(s.dtype, {s.batch, s.seq_q, s.heads, kLatent}),
                           .block_table = allocated(DType::i32, {s.batch, (s.seq_k + s.page - 1) / s.page}),
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
  SparseLatentAttentionDesc desc{.q = rows(s.dim_qk), .out = rows(kLatent), .main = selection(format_of(s), s.topk), .has_sink = s.sink};
  if (s.extra) desc.extra = selection(*s.extra, s.extra_topk);
  if (s.lse) desc.lse = s.flat ? allocated(DType::f32, {s.seq_q, s.heads}) : allocated(DType::f32, {s.batch, s.heads, s.seq_q});
  return desc;
}

LatentCacheConversionDesc conversion(const ProblemSize& s) {
  return {.rows = allocated(s.dtype, {s.batch * s.seq_q, s.dim_qk}), .cache = latent_cache(s, format_of(s))};
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
Explanation planned(const ProblemSize& size, Device device, const PlanOptions& options) {
  const auto made = plan(describe(size), device, options);
  if (!made) return made.error();
  return made->explain() + "workspace: " + std::to_string(made->workspace_bytes()) + " bytes\n";
}

constexpr UsualValues kDense{.kv_heads = 8, .dim = 128}, kPaged{.kv_heads = 8, .dim = 128, .page = 16, .is_causal = true};
constexpr UsualValues kRows{.kv_heads = 1, .dim = 576, .page = 64, .is_causal = true};
constexpr UsualValues kPacked{.kv_heads = 1, .dim = 576, .page = 64, .format = CacheFormat::v32_fp8};

}  // namespace

ProblemSize with_usual_values(ProblemSize s, const UsualValues& usual) {
  const auto complete = [](std::int64_t& value, std::int64_t otherwise) { value = value != 0 ? value : otherwise; };
  if (!s.format) s.format = usual.format;
  const PackedFormat* packed = packed_format(format_of(s));
  complete(s.kv_heads, usual.kv_heads);
  complete(s.dim_qk, packed != nullptr ? packed->row() : usual.dim);
  complete(s.dim_v, s.dim_qk);
  complete(s.page, usual.page);
  return s;
}

Explanation ExplainedOperation::explain(const ProblemSize& size, Device device, const PlanOptions& options) const {
  return planned(with_usual_values(size, usual), device, options);
}

const std::vector<ExplainedOperation>& explained_operations() {
  using Options = std::vector<std::string_view>;
  const auto with = [](Options options, const Options& more) {
    options.insert(options.end(), more.begin(), more.end());
    return options;
  };
  const Options rows{"--dtype", "--batch", "--seq-q", "--head-dim"};
  const Options quantised = with(rows, {"--seq-k", "--heads", "--kv-heads"});
  const Options scored = with(quantised, {"--head-dim-v", "--causal", "--window", "--lse"}), capped = with(scored, {"--softcap", "--sink"});
  const Options dense = with(capped, {"--block-size", "--alibi-slopes", "--bias", "--dropout-p", "--mask-tail"});
  const Options latent_rows = with(rows, {"--format", "--seq-k", "--page"});
  const Options latent_all = with(latent_rows, {"--cache-dtype", "--heads", "--kv-heads", "--lse"});
  static const std::vector<ExplainedOperation> kAll{
      {"attention", planned<cli::dense, plan_attention>, kDense, dense},
      {"attention_backward", planned<backward, plan_attention_backward>, kDense, dense},
      {"paged_attention", planned<paged, plan_paged_attention>, kPaged,
       with(capped, {"--cache-dtype", "--kv-format", "--page", "--mask-tail"})},
      {"paged_cache_append", planned<append, plan_paged_cache_append>, kPaged,
       with(rows, {"--seq-k", "--kv-heads", "--head-dim-v", "--cache-dtype", "--kv-format", "--page"})},
      {"merge_states", planned<merge, plan_merge_states>, kDense, with(rows, {"--heads", "--parts", "--lse"})},
      {"latent_attention", planned<latent, plan_latent_attention>, kRows, with(latent_all, {"--causal", "--window"})},
      {"sparse_latent_attention", planned<sparse, plan_sparse_latent_attention>, kRows,
       with(latent_all, {"--topk", "--extra-format", "--extra-topk", "--sink", "--flat"})},
      {"quantize_latent_cache", planned<conversion, plan_quantize_latent_cache>, kPacked, latent_rows},
      {"dequantize_latent_cache", planned<conversion, plan_dequantize_latent_cache>, kPacked, latent_rows},
      {"index_logits", planned<indices, plan_index_logits>, kDense, {"--batch", "--seq-q", "--seq-k", "--heads", "--head-dim", "--page"}},
      {"topk_rows", planned<lists, plan_topk_rows>, kDense, {"--dtype", "--batch", "--seq-q", "--seq-k", "--page", "--topk"}},
      {"quantize_qk_int8", planned<quantized_qk, plan_quantize_qk_int8>, kDense, with(quantised, {"--lse"})},
      {"quantize_v",
       planned<quantized_v, plan_quantize_v>,
       kDense,
       {"--dtype", "--cache-dtype", "--batch", "--seq-k", "--kv-heads", "--head-dim"}},
      {"quantized_attention", planned<quantized, plan_quantized_attention>, kDense, with(scored, {"--cache-dtype"})},
      {"quantize_and_attend", planned<quantized_whole, plan_quantize_and_attend>, kDense, with(scored, {"--cache-dtype"})}};
  return kAll;
}

}  // namespace fovea::cli
