// SPDX-License-Identifier: Apache-2.0
/// Token-sparse MLA: every implementation against the fp64 reference, with lists full of indices that name nothing.
#include <algorithm>

#include "latent_support.hpp"
#include "op/sparse_latent_attention/validate.hpp"

namespace fovea::check {
namespace {

enum class Lists { mixed, all_invalid, full };

struct SparseCase {
  const char* name = "";
  DType dtype = DType::bf16;
  CacheFormat format = CacheFormat::rows;
  std::optional<CacheFormat> extra{};
  std::int64_t row = 576, heads = 16, batch = 2, seq_q = 1, topk = 70, extra_topk = 0, page = 64;
  bool flat = false, sink = false;
  std::vector<std::int32_t> lengths{}, extra_lengths{};  ///< topk_length, where there is one
  Lists lists = Lists::mixed;
  float scale = 0.0f;
};

constexpr auto kMin = std::numeric_limits<std::int32_t>::min(), kMax = std::numeric_limits<std::int32_t>::max();

const std::vector<SparseCase> kCases{
    {.name = "bf16_rows", .topk = 130},
    {.name = "bf16_512", .row = 512, .heads = 64, .topk = 64, .lists = Lists::full},
    {.name = "f16_rows", .dtype = DType::f16, .heads = 20},
    {.name = "f32_rows", .dtype = DType::f32, .heads = 20},
    {.name = "one_head", .heads = 1, .topk = 200},
    {.name = "three_heads_v32", .format = CacheFormat::v32_fp8, .heads = 3, .topk = 200},
    {.name = "v32", .format = CacheFormat::v32_fp8, .heads = 128, .topk = 150},
    {.name = "v32_split", .format = CacheFormat::v32_fp8, .heads = 16, .topk = 2500},
    {.name = "v32_many_queries", .format = CacheFormat::v32_fp8, .heads = 16, .batch = 1, .seq_q = 6, .topk = 1100},
    {.name = "v4", .format = CacheFormat::v4_fp8, .row = 512, .heads = 17, .page = 5},
    {.name = "v41", .format = CacheFormat::v41_fp8, .row = 512, .heads = 16, .seq_q = 3},
    {.name = "v41_planar", .format = CacheFormat::v41_fp8_planar, .row = 512, .heads = 16, .page = 1},
    {.name = "extra_v4", .format = CacheFormat::v4_fp8, .extra = CacheFormat::v4_fp8, .row = 512, .extra_topk = 90, .sink = true},
    {.name = "extra_fp4", .format = CacheFormat::v41_fp8, .extra = CacheFormat::v41_fp4, .row = 512, .heads = 64, .extra_topk = 33},
    {.name = "extra_fp4_streamed", .format = CacheFormat::v41_fp8, .extra = CacheFormat::v41_fp4, .row = 512, .heads = 4, .extra_topk = 33},
    {.name = "packed_and_rows", .extra = CacheFormat::v32_fp8, .heads = 16, .extra_topk = 10},
    {.name = "extra_split",
     .format = CacheFormat::v32_fp8,
     .extra = CacheFormat::v32_fp8,
     .heads = 16,
     .topk = 1000,
     .extra_topk = 900,
     .extra_lengths = {900, 31}},
    {.name = "flat", .heads = 24, .batch = 1, .seq_q = 7, .flat = true, .sink = true},
    {.name = "flat_lengths", .heads = 16, .batch = 1, .seq_q = 7, .flat = true, .lengths = {0, 1, 69, 70, 71, kMin, kMax}},
    {.name = "flat_packed", .format = CacheFormat::v32_fp8, .heads = 16, .batch = 1, .seq_q = 5, .topk = 1, .flat = true},
    {.name = "lengths", .heads = 16, .batch = 5, .seq_q = 2, .lengths = {-1, 0, 1, 65, kMax}},
    {.name = "extra_lengths",
     .extra = CacheFormat::rows,
     .heads = 6,
     .batch = 3,
     .extra_topk = 70,
     .lengths = {0, 64, 70},
     .extra_lengths = {70, 0, kMin}},
    {.name = "nothing_valid", .extra = CacheFormat::rows, .extra_topk = 5, .sink = true, .lists = Lists::all_invalid},
    {.name = "nothing_valid_streamed", .format = CacheFormat::v32_fp8, .heads = 2, .sink = true, .lists = Lists::all_invalid},
    {.name = "negative_scale", .scale = -0.05f},
    {.name = "sinks", .heads = 16, .sink = true},
};

/// One cache with the lists of every row. Entries past the length are valid tokens that hold NaN, which nobody may read.
struct List {
  List(const SparseCase& spec, CacheFormat format, std::int64_t page, std::int64_t topk, const std::vector<std::int32_t>& given,
       Random& random)
      : cache(format, spec.dtype, 9, page, spec.row), lengths(given) {
    const TensorDesc shape =
        spec.flat ? with_gaps(DType::i32, {spec.seq_q, topk}, 3) : with_gaps(DType::i32, {spec.batch, spec.seq_q, topk}, 3);
    desc = {.cache = cache.desc, .indices = shape, .has_topk_length = !lengths.empty()};
    indices.assign(static_cast<std::size_t>(span_of(shape)), 0);
    const std::int64_t slots = 9 * page;
    for_each_element(shape, [&](std::int64_t a, std::int64_t b, std::int64_t c, auto, std::int64_t at) {
      const std::int64_t position = spec.flat ? b : c;
      const bool read = lengths.empty() || position < lengths[static_cast<std::size_t>(a)];
      std::int64_t index = 1 + random.below(slots - 1);  // slot 0 is never filled
      if (!read) index = 0;
      const std::int64_t hostile[] = {kMin, -1, slots, kMax, slots + 1};
      if (spec.lists == Lists::all_invalid || (spec.lists == Lists::mixed && position % 3 == 1)) index = hostile[(position + a) % 5];
      if (read && index >= 0 && index < slots) cache.fill(index, random);
      indices[static_cast<std::size_t>(at)] = static_cast<std::int32_t>(index);
    });
    cache.rows.storage().seal(false);
  }

  SparseLatentAttentionArgs::Selection args() const { return {cache.data(), indices.data(), lengths.empty() ? nullptr : lengths.data()}; }

  /// Tokens of query row (b, row), in order.
  void append(const SparseCase& spec, std::int64_t b, std::int64_t row, std::vector<std::vector<float>>& rows) const {
    const std::int64_t topk = desc.indices.shape[spec.flat ? 1 : 2],
                       slots = 9 * (packed_format(cache.desc.format) ? cache.desc.page : cache.desc.rows.shape[1]);
    const auto& strides = desc.indices.strides;
    const std::int64_t first = spec.flat ? row * strides[0] : b * strides[0] + row * strides[1];
    const std::int64_t length =
        lengths.empty() ? topk : std::min<std::int64_t>(topk, lengths[static_cast<std::size_t>(spec.flat ? row : b)]);
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int64_t slot = indices[static_cast<std::size_t>(first + i)];
      if (slot >= 0 && slot < slots) rows.push_back(cache.row(slot, 0));
    }
  }

  TestCache cache;
  std::vector<std::int32_t> indices{}, lengths{};
  SparseLatentAttentionDesc::Selection desc{};
};

struct SparseCall {
  explicit SparseCall(const SparseCase& given) : spec(given), main(given, given.format, given.page, given.topk, given.lengths, random) {
    if (spec.extra) extra.emplace(spec, *spec.extra, 3, spec.extra_topk, spec.extra_lengths, random);
    const auto shape = [&](std::int64_t last) {
      return spec.flat ? with_gaps(spec.dtype, {spec.seq_q, spec.heads, last})
                       : with_gaps(spec.dtype, {spec.batch, spec.seq_q, spec.heads, last});
    };
    const TensorDesc numbers =
        spec.flat ? with_gaps(DType::f32, {spec.seq_q, spec.heads}, 3) : with_gaps(DType::f32, {spec.batch, spec.heads, spec.seq_q}, 3);
    q = random_tensor(shape(spec.row), random);
    out = HostileTensor(shape(kLatent));
    lse = HostileTensor(numbers);
    max_logits = HostileTensor(numbers);
    for (std::int64_t head = 0; spec.sink && head < spec.heads; ++head)
      sink.push_back(head == 0 ? kInfinity : head == 1 ? -kInfinity : 3 * random.normal());
  }

  SparseLatentAttentionDesc desc() const {
    SparseLatentAttentionDesc d{.q = q.desc(),
                                .out = out.desc(),
                                .main = main.desc,
                                .lse = lse.desc(),
                                .max_logits = max_logits.desc(),
                                .scale = spec.scale,
                                .has_sink = spec.sink};
    if (extra) d.extra = extra->desc;
    return d;
  }

  SparseLatentAttentionArgs args() const {
    SparseLatentAttentionArgs a{.q = q.data(),
                                .out = out.data(),
                                .main = main.args(),
                                .lse = lse.as<float>(),
                                .max_logits = max_logits.as<float>(),
                                .sink = sink.data()};
    if (extra) a.extra = extra->args();
    return a;
  }

  SparseCase spec;
  Random random{99};
  List main;
  std::optional<List> extra{};
  HostileTensor q{}, out{}, lse{}, max_logits{};
  std::vector<float> sink{};
};

std::vector<float> plain(const SparseCall& call) {
  const SparseCase& spec = call.spec;
  const float scale = spec.scale != 0 ? spec.scale : 1.0f / std::sqrt(static_cast<float>(spec.row));
  std::vector<float> all;
  for (std::int64_t b = 0; b < spec.batch; ++b) {
    for (std::int64_t row = 0; row < spec.seq_q; ++row) {
      std::vector<std::vector<float>> rows;
      call.main.append(spec, b, row, rows);
      if (call.extra) call.extra->append(spec, b, row, rows);
      for (std::int64_t head = 0; head < spec.heads; ++head) {
        const std::int64_t at = spec.flat ? call.q.offset(row, head) : call.q.offset(b, row, head);
        std::vector<float> q;
        for (std::int64_t d = 0; d < spec.row; ++d) q.push_back(call.q.at(at + d));
        const float sink = spec.sink ? call.sink[static_cast<std::size_t>(head)] : -kInfinity;
        const std::vector<float> out = plain_row(q, rows, scale, 1.0f, sink, spec.dtype);
        all.insert(all.end(), out.begin(), out.end());
      }
    }
  }
  return all;
}

class SparseLatentAttention : public testing::TestWithParam<SparseCase> {};

TEST_P(SparseLatentAttention, EveryImplementationGivesTheReference) {
  const SparseCall call(GetParam());
  const SparseCase& spec = call.spec;
  const auto problem = detail::validate(call.desc(), {});
  ASSERT_TRUE(problem) << problem.error().message;
  const reference::AttentionOutput want = reference::sparse_latent_attention(*problem, call.args());
  const Tolerance tolerance = out_tolerance(plain(call), want.out, spec.dtype);
  const auto in_rows = [&](const HostileTensor& numbers) {
    return spec.flat ? take(numbers) : by_row(take(numbers), spec.batch, spec.heads, spec.seq_q);
  };
  for (const std::string& name : available("sparse_latent_attention")) {
    SCOPED_TRACE(name);
    const auto planned = plan_sparse_latent_attention(call.desc(), {}, {.implementation = name});
    ASSERT_TRUE(planned) << planned.error().message;
    const TestWorkspace workspace(planned->workspace_bytes());
    for (const HostileTensor* tensor : {&call.out, &call.lse, &call.max_logits}) poison(*tensor);
    const Result<void> ran = planned->run(call.args(), workspace.get());
    ASSERT_TRUE(ran) << ran.error().message;
    expect_close(take(call.out), want.out, tolerance, "out");
    expect_close(in_rows(call.lse), want.lse, kLseTolerance, "lse");
    expect_close(in_rows(call.max_logits), want.max_logits, kLseTolerance, "max_logits");
    EXPECT_TRUE(workspace.storage.red_zones_intact());
    EXPECT_TRUE(call.main.cache.rows.storage().sealed_contents_intact());
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, SparseLatentAttention, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

/// NaN and infinity in tokens that are read must show, and only in the rows that list them.
TEST(SparseLatentAttentionSpecials, ReachTheRowsThatListThem) {
  SparseCall call({.heads = 16, .batch = 3, .topk = 40, .lists = Lists::full});
  const auto& indices = call.main.indices;
  const std::int64_t poisoned = indices[static_cast<std::size_t>(call.main.desc.indices.strides[0])];  // first token of the second row
  const std::int64_t at = call.main.cache.rows.offset(poisoned / 64, poisoned % 64);
  call.main.cache.rows.set(at + 17, std::nanf(""));
  const auto problem = detail::validate(call.desc(), {});
  const reference::AttentionOutput want = reference::sparse_latent_attention(*problem, call.args());
  ASSERT_TRUE(std::any_of(want.out.begin(), want.out.end(), [](double x) { return std::isnan(x); }));
  ASSERT_TRUE(std::any_of(want.out.begin(), want.out.end(), [](double x) { return !std::isnan(x); }));
  for (const std::string& name : available("sparse_latent_attention")) {
    SCOPED_TRACE(name);
    const auto planned = plan_sparse_latent_attention(call.desc(), {}, {.implementation = name});
    const TestWorkspace workspace(planned->workspace_bytes());
    poison(call.out);
    ASSERT_TRUE(planned->run(call.args(), workspace.get()));
    const std::vector<float> got = take(call.out);
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(std::isnan(got[i]), std::isnan(want.out[i])) << i;
  }
}

TEST(SparseLatentAttentionBits, DoNotDependOnTheThreads) {
  const SparseCall call({.format = CacheFormat::v32_fp8, .heads = 16, .batch = 3, .topk = 1500});
  for (const std::string& name : available("sparse_latent_attention")) {
    SCOPED_TRACE(name);
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2, 5}) {
      set_num_threads(threads);
      const auto planned = plan_sparse_latent_attention(call.desc(), {}, {.implementation = name});
      set_num_threads(0);
      const TestWorkspace workspace(planned->workspace_bytes());
      poison(call.out);
      ASSERT_TRUE(planned->run(call.args(), workspace.get()));
      results.push_back(take(call.out));
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

}  // namespace
}  // namespace fovea::check
