// SPDX-License-Identifier: Apache-2.0
/// Options of every operation. A problem uses exactly those that its description requests. An entry that handles none declines each by
/// name.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "plan/select.hpp"

namespace fovea::detail {
namespace {

using Names = std::vector<std::string_view>;

template <class Desc>
struct Call {
  Desc desc{};
  PlanOptions options{};
};

/// How to request an option and, before it, what the option needs.
template <class Desc>
struct Request {
  Names names;
  std::function<void(Call<Desc>&)> ask;
};

template <class Problem>
Names names_used(const auto& options, const Problem& problem) {
  Names names;
  for (const Option<Problem>& option : options)
    if (option.used(problem)) names.push_back(option.name);
  std::sort(names.begin(), names.end());
  return names;
}

template <class Operation>
PlanResult<typename Operation::Args> plan_nothing(const typename Operation::Problem&, Device) {
  return Error{ErrorCode::unsupported, "was asked"};
}

/// A kernel that is older than all options.
template <class Operation>
const Implementation<Operation> kOldRow{
    "old", "", handles<Operation>(), Backend::cpu, [] { return std::string_view(); }, plan_nothing<Operation>};

template <class Operation, class Desc>
void expect_options(const Call<Desc>& plain, const std::vector<Request<Desc>>& requests, auto&& validate_call) {
  SCOPED_TRACE(Operation::kName);
  const auto outcome = [](const auto& problem) { return plan_with(kOldRow<Operation>, problem, {}, true).error().message; };
  EXPECT_EQ(outcome(validate_call(plain).value()), "was asked");
  EXPECT_EQ(requests.size(), Operation::kOptions.size());
  for (const auto& option : Operation::kOptions) {
    SCOPED_TRACE(option.name);
    const auto found = std::find_if(requests.begin(), requests.end(), [&](const auto& r) { return r.names.back() == option.name; });
    ASSERT_NE(found, requests.end()) << "an option that nobody asks for here";
    Call<Desc> call = plain;
    found->ask(call);
    const auto problem = validate_call(call).value();
    Names want = found->names;
    std::sort(want.begin(), want.end());
    EXPECT_EQ(names_used<typename Operation::Problem>(Operation::kOptions, problem), want);
    const auto first = std::find_if(Operation::kOptions.begin(), Operation::kOptions.end(), [&](const auto& o) { return o.used(problem); });
    EXPECT_EQ(outcome(problem), std::string(first->name) + ": got a value, want none (the implementation does not handle it)");
    EXPECT_EQ(implementations_of<Operation>().back().handled.missing(problem), nullptr) << "the reference handles everything";
  }
}

constexpr auto kValidate = [](const auto& call) { return validate(call.desc, call.options); };

AttentionDesc dense(DType dtype, bool ragged = false) {
  const DType out = dtype == DType::e4m3 ? DType::bf16 : dtype;
  if (ragged) {
    const TensorDesc rows = contiguous(dtype, {10, 4, 64});
    return {.q = rows, .k = rows, .v = rows, .out = contiguous(out, {10, 4, 64}), .ragged = RaggedDesc{2, 5, 5}};
  }
  const TensorDesc rows = contiguous(dtype, {2, 5, 4, 64});
  return {.q = rows, .k = rows, .v = rows, .out = contiguous(out, {2, 5, 4, 64})};
}

const TensorDesc kLseTensor = contiguous(DType::f32, {2, 4, 5});
const TensorDesc kSlopes = contiguous(DType::f32, {4}), kBias = contiguous(DType::bf16, {2, 1, 5, 5});

template <class Desc>
const Request<Desc> kInvariance{{"options.batch_invariant"}, [](auto& c) { c.options.batch_invariant = true; }};
template <class Desc>
const Request<Desc> kRowsExact{{"options.exact_rows"}, [](auto& c) { c.options.exact_rows = true; }};
template <class Desc>
const Request<Desc> kLeft{{"mask.left"}, [](auto& c) { c.desc.mask.left = 3; }};
template <class Desc>
const Request<Desc> kRight{{"mask.right"}, [](auto& c) { c.desc.mask.right = 0; }};
template <class Desc>
const Request<Desc> kTopLeft{{"mask.anchor (top_left)"}, [](auto& c) { c.desc.mask.anchor = Anchor::top_left; }};
template <class Desc>
const Request<Desc> kSinks{{"sink"}, [](auto& c) { c.desc.has_sink = true; }};

/// Adds the requests that follow from the table of fields: masks, numbers, flags and scales. `others` need a tensor or another shape.
template <const auto& table, class Desc>
std::vector<Request<Desc>> with_rows(std::vector<Request<Desc>> others) {
  others.push_back(kInvariance<Desc>);
  for_each_field(table, [&](const auto& field) {
    using Row = std::remove_cvref_t<decltype(field)>;
    using T = typename Row::InDesc;
    if constexpr (std::is_void_v<typename Row::InProblem>) {
      return;
    } else if constexpr (std::is_same_v<T, BandMask>) {
      others.push_back(kLeft<Desc>);
      others.push_back(kRight<Desc>);
      if (field.has_anchor) others.push_back(kTopLeft<Desc>);
    } else if constexpr (std::is_arithmetic_v<T>) {
      others.push_back({{field.name}, [](auto& c) { c.desc.*Row::kDesc = static_cast<T>(std::is_integral_v<T> ? 30 : 0.5); }});
    } else if constexpr (std::is_same_v<T, std::optional<ScaleDesc>>) {
      others.push_back({{field.name}, [](auto& c) { c.desc.*Row::kDesc = ScaleDesc{}; }});
    } else if constexpr (std::is_same_v<T, std::optional<PackedMaskDesc>>) {
      others.push_back({{field.name}, [](auto& c) { c.desc.*Row::kDesc = PackedMaskDesc{.bytes = 64}; }});
    }
  });
  return others;
}

/// The lists of a block mask.
void add_full_blocks(AttentionDesc& desc) {
  desc.full_block_counts = contiguous(DType::i32, {1, 1, 1});
  desc.full_block_indices = contiguous(DType::i32, {1, 1, 1, 2});
  desc.block_q = desc.block_k = 64;
}
void add_partial_blocks(AttentionDesc& desc) {
  desc.partial_block_counts = contiguous(DType::i32, {2, 4, 1});
  desc.partial_block_indices = contiguous(DType::i32, {2, 4, 1, 1});
  desc.partial_block_bits = contiguous(DType::i32, {2, 4, 1, 128});
  desc.block_q = desc.block_k = 64;
}

TEST(Options, OfAttention) {
  using Desc = AttentionDesc;
  expect_options<Attention, Desc>(
      {dense(DType::e4m3)},
      with_rows<kAttentionFields, Desc>({kRowsExact<Desc>,
                                         {{"ragged"}, [](auto& c) { c.desc = dense(DType::e4m3, true); }},
                                         {{"lse"}, [](auto& c) { c.desc.lse = kLseTensor; }},
                                         {{"full_block_indices"}, [](auto& c) { add_full_blocks(c.desc); }},
                                         {{"partial_block_indices"}, [](auto& c) { add_partial_blocks(c.desc); }},
                                         {{"alibi_slopes"}, [](auto& c) { c.desc.alibi_slopes = kSlopes; }},
                                         {{"bias"}, [](auto& c) { c.desc.bias = kBias; }}}),
      kValidate);
}

TEST(Options, OfItsGradient) {
  using Desc = AttentionBackwardDesc;
  const auto backward = [](bool ragged) {
    const AttentionDesc forward = dense(DType::bf16, ragged);
    Desc desc{.forward = forward, .dout = forward.out, .dq = forward.q, .dk = forward.k, .dv = forward.v};
    desc.forward.lse = ragged ? contiguous(DType::f32, {10, 4}) : kLseTensor;
    return desc;
  };
  expect_options<AttentionBackward, Desc>({backward(false)},
                                          {kInvariance<Desc>,
                                           {{"options.deterministic"}, [](auto& c) { c.options.deterministic = true; }},
                                           {{"ragged"}, [&](auto& c) { c.desc = backward(true); }},
                                           {{"mask.left"}, [](auto& c) { c.desc.forward.mask.left = 3; }},
                                           {{"mask.right"}, [](auto& c) { c.desc.forward.mask.right = 0; }},
                                           {{"mask.anchor (top_left)"}, [](auto& c) { c.desc.forward.mask.anchor = Anchor::top_left; }},
                                           {{"softcap"}, [](auto& c) { c.desc.forward.softcap = 30.0f; }},
                                           {{"sink"}, [](auto& c) { c.desc.forward.has_sink = true; }},
                                           {{"full_block_indices"}, [](auto& c) { add_full_blocks(c.desc.forward); }},
                                           {{"partial_block_indices"}, [](auto& c) { add_partial_blocks(c.desc.forward); }},
                                           {{"alibi_slopes"}, [](auto& c) { c.desc.forward.alibi_slopes = kSlopes; }},
                                           {{"bias"}, [](auto& c) { c.desc.forward.bias = kBias; }},
                                           {{"dropout_p"}, [](auto& c) { c.desc.forward.dropout_p = 0.5; }},
                                           {{"packed_mask"}, [](auto& c) { c.desc.forward.packed_mask = PackedMaskDesc{.bytes = 64}; }},
                                           {{"bias", "dbias"}, [](auto& c) { c.desc.forward.bias = c.desc.dbias = kBias; }},
                                           {{"dlse"}, [](auto& c) { c.desc.dlse = kLseTensor; }}},
                                          kValidate);
}

TEST(Options, OfPagesAndMerging) {
  using Paged = PagedAttentionDesc;
  const TensorDesc rows = contiguous(DType::bf16, {9, 4, 64}), cache = contiguous(DType::e4m3, {50, 16, 4, 64});
  const Paged paged{
      .q = rows, .k_cache = cache, .v_cache = cache, .block_table = contiguous(DType::i32, {3, 5}), .out = rows, .mask = BandMask{}};
  const auto with_lse = [](auto& c) { c.desc.lse = contiguous(DType::f32, {9, 4}); };
  const TensorDesc row_scales = contiguous(DType::f32, {50, 16, 4});
  const auto k_codes = [&](auto& c) { c.desc.k_format = KvFormat::e4m3_token, c.desc.k_scale_cache = row_scales; };
  const auto v_codes = [&](auto& c) { c.desc.v_format = KvFormat::e4m3_token, c.desc.v_scale_cache = row_scales; };
  expect_options<PagedAttention, Paged>({paged},
                                        with_rows<kPagedAttentionFields, Paged>({kRowsExact<Paged>,
                                                                                 {{"lse"}, with_lse},
                                                                                 {{"k_scale_cache", "k_format"}, k_codes},
                                                                                 {{"k_format", "k_scale_cache"}, k_codes},
                                                                                 {{"v_scale_cache", "v_format"}, v_codes},
                                                                                 {{"v_format", "v_scale_cache"}, v_codes}}),
                                        kValidate);
  expect_options<PagedCacheAppend, PagedCacheAppendDesc>({{.k = rows, .v = rows, .k_cache = cache, .v_cache = cache}},
                                                         {{{"k_scale"}, [](auto& c) { c.desc.k_scale = ScaleDesc{}; }},
                                                          {{"v_scale"}, [](auto& c) { c.desc.v_scale = ScaleDesc{}; }},
                                                          {{"k_format"}, k_codes},
                                                          {{"v_format"}, v_codes}},
                                                         kValidate);
  const TensorDesc lse = contiguous(DType::f32, {9, 4});
  expect_options<MergeStates, MergeStatesDesc>({{.parts = {{rows, lse}, {rows, lse}}, .out = rows}},
                                               {{{"lse"}, [&](auto& c) { c.desc.lse = lse; }}}, kValidate);
}

TEST(Options, OfLatentAttention) {
  using Dense = LatentAttentionDesc;
  using Sparse = SparseLatentAttentionDesc;
  const LatentCacheDesc codes{.rows = contiguous(DType::e4m3, {50, 64, 1, 576})}, rows{.rows = contiguous(DType::bf16, {50, 64, 1, 576})};
  Dense latent{.q = contiguous(DType::bf16, {2, 3, 16, 576}), .out = contiguous(DType::bf16, {2, 3, 16, 512})};
  latent.block_table = contiguous(DType::i32, {2, 4}), latent.cache = codes, latent.mask = BandMask{};
  const auto ragged = [](auto& c) { c.desc.q = contiguous(DType::bf16, {6, 16, 576}), c.desc.out = contiguous(DType::bf16, {6, 16, 512}); };
  const auto with_lse = [](auto& c) { c.desc.lse = contiguous(DType::f32, {2, 16, 3}); };
  expect_options<LatentAttention, Dense>(
      {latent}, with_rows<kLatentAttentionFields, Dense>({kRowsExact<Dense>, {{"ragged"}, ragged}, {{"lse"}, with_lse}}), kValidate);

  const Sparse::Selection list{.cache = rows, .indices = contiguous(DType::i32, {2, 3, 7})};
  const auto flat = [&](auto& c) { ragged(c), c.desc.main.indices = contiguous(DType::i32, {6, 7}); };
  expect_options<SparseLatentAttention, Sparse>({{.q = latent.q, .out = latent.out, .main = list}},
                                                {kInvariance<Sparse>,
                                                 kRowsExact<Sparse>,
                                                 kSinks<Sparse>,
                                                 {{"flat"}, flat},
                                                 {{"main.topk_length"}, [](auto& c) { c.desc.main.has_topk_length = true; }},
                                                 {{"extra"}, [&](auto& c) { c.desc.extra = list; }},
                                                 {{"extra", "extra.topk_length"},
                                                  [&](auto& c) {
                                                    c.desc.extra = list;
                                                    c.desc.extra->has_topk_length = true;
                                                  }},
                                                 {{"lse"}, with_lse},
                                                 {{"max_logits"},
                                                  [](auto& c) {
                                                    c.desc.max_logits = contiguous(DType::f32, {2, 16, 3});
                                                  }}},
                                                kValidate);

  const Call<LatentCacheConversionDesc> conversion{
      {.rows = contiguous(DType::bf16, {7, 576}), .cache = {.format = CacheFormat::v32_fp8, .blocks = 4, .page = 64}}};
  expect_options<QuantizeLatentCache, LatentCacheConversionDesc>(conversion,
                                                                 {{{"rule (exact)"}, [](auto& c) { c.desc.rule = ScaleRule::exact; }}},
                                                                 [](const auto& call) { return validate_quantize(call.desc); });
  expect_options<DequantizeLatentCache, LatentCacheConversionDesc>(conversion, {},
                                                                   [](const auto& call) { return validate_dequantize(call.desc); });
}

TEST(Options, OfTheIndexer) {
  using Index = IndexLogitsDesc;
  Index flat{.q = contiguous(DType::e4m3, {6, 32, 128}), .k = contiguous(DType::e4m3, {50, 128})};
  flat.k_scale = contiguous(DType::f32, {50}), flat.weights = contiguous(DType::f32, {6, 32}), flat.out = contiguous(DType::f32, {6, 50});
  const auto paged = [](auto& c) {
    c.desc.k = contiguous(DType::e4m3, {9, 64, 128}), c.desc.k_scale = contiguous(DType::f32, {9, 64});
    c.desc.block_table = contiguous(DType::i32, {3, 4}), c.desc.has_kv_len = true;
  };
  expect_options<IndexLogits, Index>({flat},
                                     {{{"block_table"}, paged},
                                      {{"first"}, [](auto& c) { c.desc.has_first = true; }},
                                      {{"last"}, [](auto& c) { c.desc.has_last = true; }},
                                      {{"keep_outside"}, [](auto& c) { c.desc.keep_outside = true; }}},
                                     kValidate);
  const auto table = [](auto& c) { c.desc.block_table = contiguous(DType::i32, {3, 4}), c.desc.page = 64; };
  expect_options<TopkRows, TopkRowsDesc>({{.logits = contiguous(DType::f32, {6, 50}), .out = contiguous(DType::i32, {6, 7})}},
                                         {{{"first"}, [](auto& c) { c.desc.has_first = true; }},
                                          {{"last"}, [](auto& c) { c.desc.has_last = true; }},
                                          {{"offset"}, [](auto& c) { c.desc.has_offset = true; }},
                                          {{"block_table"}, table},
                                          {{"sorted"}, [](auto& c) { c.desc.sorted = true; }}},
                                         kValidate);
}

TensorDesc twin(TensorDesc like, DType dtype) {
  like.dtype = dtype;
  return like;
}

QuantizeQkInt8Desc int8_qk(bool ragged, const Int8Groups& groups) {
  const AttentionDesc d = dense(DType::bf16, ragged);
  return {.q = d.q,
          .k = d.k,
          .q_int8 = twin(d.q, DType::i8),
          .k_int8 = twin(d.k, DType::i8),
          .q_scale = groups.q_scale(d.q, d.ragged),
          .k_scale = groups.k_scale(d.k, d.ragged),
          .ragged = d.ragged,
          .groups = groups};
}

QuantizedAttentionDesc int8_attention(bool ragged, const Int8Groups& groups) {
  const AttentionDesc d = dense(DType::bf16, ragged);
  const QuantizeQkInt8Desc qk = int8_qk(ragged, groups);
  return {.q = qk.q_int8,
          .k = qk.k_int8,
          .v = twin(d.v, DType::f16),
          .out = d.out,
          .q_scale = qk.q_scale,
          .k_scale = qk.k_scale,
          .ragged = d.ragged,
          .groups = groups};
}

constexpr Int8Groups kBlocks{.granularity = Int8Granularity::block}, kNarrowWarps{.warp_rows = 16};
const TensorDesc kChannels = contiguous(DType::f32, {2, 4, 64});

TEST(Options, OfQuantisers) {
  using Qk = QuantizeQkInt8Desc;
  expect_options<QuantizeQkInt8, Qk>({int8_qk(false, {})},
                                     {{{"ragged"}, [](auto& c) { c.desc = int8_qk(true, {}); }},
                                      {{"k_mean"}, [](auto& c) { c.desc.k_mean = kChannels; }},
                                      {{"k_mean", "lse_shift"}, [](auto& c) { c.desc.k_mean = kChannels, c.desc.lse_shift = kLseTensor; }},
                                      {{"groups.granularity"}, [](auto& c) { c.desc = int8_qk(false, kBlocks); }},
                                      {{"groups.warp_rows"}, [](auto& c) { c.desc = int8_qk(false, kNarrowWarps); }}},
                                     kValidate);
  const auto v_desc = [](bool ragged) {
    const AttentionDesc d = dense(DType::bf16, ragged);
    return QuantizeVDesc{.v = d.v, .v_out = twin(d.v, DType::f16), .ragged = d.ragged};
  };
  expect_options<QuantizeV, QuantizeVDesc>({v_desc(false)},
                                           {{{"ragged"}, [&](auto& c) { c.desc = v_desc(true); }},
                                            {{"v_scale"}, [](auto& c) { c.desc.v_scale = kChannels, c.desc.v_out.dtype = DType::e4m3; }},
                                            {{"v_mean"}, [](auto& c) { c.desc.v_mean = kChannels; }}},
                                           kValidate);
}

TEST(Options, OfQuantizedAttention) {
  using Codes = QuantizedAttentionDesc;
  expect_options<QuantizedAttention, Codes>({int8_attention(false, {})},
                                            {kInvariance<Codes>,
                                             kLeft<Codes>,
                                             kRight<Codes>,
                                             kTopLeft<Codes>,
                                             {{"ragged"}, [](auto& c) { c.desc = int8_attention(true, {}); }},
                                             {{"lse"}, [](auto& c) { c.desc.lse = kLseTensor; }},
                                             {{"lse", "lse_shift"}, [](auto& c) { c.desc.lse = c.desc.lse_shift = kLseTensor; }},
                                             {{"v_scale"}, [](auto& c) { c.desc.v_scale = kChannels, c.desc.v.dtype = DType::e4m3; }},
                                             {{"v_mean"}, [](auto& c) { c.desc.v_mean = kChannels; }},
                                             {{"groups.granularity"}, [](auto& c) { c.desc = int8_attention(false, kBlocks); }},
                                             {{"groups.warp_rows"}, [](auto& c) { c.desc = int8_attention(false, kNarrowWarps); }}},
                                            kValidate);
  using Whole = QuantizeAndAttendDesc;
  const auto whole = [](bool ragged) {
    const AttentionDesc d = dense(DType::bf16, ragged);
    return Whole{.q = d.q, .k = d.k, .v = d.v, .out = d.out, .ragged = d.ragged, .smooth_k = false};
  };
  expect_options<QuantizeAndAttend, Whole>({whole(false)},
                                           {kInvariance<Whole>,
                                            kLeft<Whole>,
                                            kRight<Whole>,
                                            kTopLeft<Whole>,
                                            {{"ragged"}, [&](auto& c) { c.desc = whole(true); }},
                                            {{"lse"}, [](auto& c) { c.desc.lse = kLseTensor; }},
                                            {{"v_dtype (e4m3)"}, [](auto& c) { c.desc.v_dtype = DType::e4m3; }},
                                            {{"smooth_k"}, [](auto& c) { c.desc.smooth_k = true; }},
                                            {{"smooth_v"}, [](auto& c) { c.desc.smooth_v = true; }},
                                            {{"groups.granularity"}, [](auto& c) { c.desc.groups = kBlocks; }},
                                            {{"groups.warp_rows"}, [](auto& c) { c.desc.groups = kNarrowWarps; }}},
                                           kValidate);
}

/// Every entry of a list says what it handles.
static_assert(!std::is_default_constructible_v<Handled<Attention>>);
static_assert(!std::is_default_constructible_v<Implementation<Attention>>);

}  // namespace
}  // namespace fovea::detail
