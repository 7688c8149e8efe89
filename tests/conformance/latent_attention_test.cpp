// SPDX-License-Identifier: Apache-2.0
/// Dense MLA decode: every implementation against the fp64 reference, over caches in which nothing but the visible tokens can be read.
#include <algorithm>

#include "latent_support.hpp"
#include "op/latent_attention/validate.hpp"

namespace fovea::check {
namespace {

struct DenseCase {
  const char* name = "";
  DType dtype = DType::bf16;
  CacheFormat format = CacheFormat::rows;
  DType rows = DType::bf16;
  std::int64_t row = 576, heads = 16, kv_heads = 1, page = 64;
  std::vector<std::int64_t> q{1}, kv{100};  ///< lengths; q is ragged where they differ
  BandMask mask = causal();
  float scale = 0.0f;
  bool has_scale = false;
};

const std::vector<DenseCase> kCases{
    {.name = "decode_16_heads", .kv = {1, 64, 65, 200}},
    {.name = "decode_128_heads", .heads = 128, .kv = {130, 3}},
    {.name = "one_head", .heads = 1, .kv = {77, 0, 5}},
    {.name = "eight_heads_streamed", .heads = 8, .kv = {300, 63}},
    {.name = "odd_heads", .row = 512, .heads = 19, .kv = {70}},
    {.name = "split", .heads = 16, .kv = {2100, 1024, 1025}},
    {.name = "split_streamed", .heads = 5, .kv = {2100}},
    {.name = "kv_heads", .heads = 18, .kv_heads = 3, .page = 16, .kv = {40, 41}},
    {.name = "speculative", .heads = 20, .q = {3}, .kv = {90, 2}},
    {.name = "prefill", .heads = 6, .page = 3, .q = {40}, .kv = {70}},
    {.name = "ragged", .heads = 9, .page = 1, .q = {2, 0, 5, 1}, .kv = {66, 10, 5, 0}},
    {.name = "window", .heads = 12, .q = {4}, .kv = {150}, .mask = sliding_window(70)},
    {.name = "full_mask", .heads = 3, .q = {5}, .kv = {150}, .mask = {}},
    {.name = "negative_scale", .heads = 16, .kv = {100}, .scale = -0.07f},
    {.name = "f16", .dtype = DType::f16, .rows = DType::f16, .heads = 17, .kv = {129}},
    {.name = "f32", .dtype = DType::f32, .rows = DType::f32, .heads = 17, .kv = {129}},
    {.name = "e4m3_scale", .rows = DType::e4m3, .heads = 16, .kv = {129, 8}, .has_scale = true},
    {.name = "e4m3_f16_streamed", .dtype = DType::f16, .rows = DType::e4m3, .heads = 4, .kv = {129}, .has_scale = true},
    {.name = "e4m3_without_scale", .rows = DType::e4m3, .row = 512, .heads = 16, .kv = {33}},
    {.name = "v32", .format = CacheFormat::v32_fp8, .heads = 64, .kv = {200, 0, 64}},
    {.name = "v32_streamed", .format = CacheFormat::v32_fp8, .heads = 7, .page = 5, .q = {1}, .kv = {200, 63}},
    {.name = "v4", .format = CacheFormat::v4_fp8, .row = 512, .heads = 16, .page = 16, .q = {2}, .kv = {100}},
    {.name = "v41", .format = CacheFormat::v41_fp8, .row = 512, .heads = 16, .kv = {1100}},
    {.name = "v41_planar", .format = CacheFormat::v41_fp8_planar, .row = 512, .heads = 16, .page = 7, .kv = {100}},
};

/// The tensors of a case. Unused entries of the block table are garbage, and so is every token that no row sees.
struct DenseCall {
  explicit DenseCall(const DenseCase& given)
      : spec(given), cache(given.format, given.rows, block_count(), given.page, given.row, given.kv_heads) {
    const std::int64_t seq_q = spec.q.size() == 1 ? spec.q[0] : 0;
    const auto batch = static_cast<std::int64_t>(spec.kv.size());
    ragged = spec.q.size() > 1;
    cu_seqlens = {0};
    for (const std::int64_t length : spec.q) cu_seqlens.push_back(cu_seqlens.back() + static_cast<std::int32_t>(length));
    total_q = ragged ? cu_seqlens.back() + 1 : batch * seq_q;  // the last ragged row belongs to nobody
    const auto shape = [&](std::int64_t last) {
      return ragged ? with_gaps(spec.dtype, {total_q, spec.heads, last}) : with_gaps(spec.dtype, {batch, seq_q, spec.heads, last});
    };
    Random random(1234);
    q = random_tensor(shape(spec.row), random);
    out = HostileTensor(shape(kLatent));
    lse = HostileTensor(ragged ? with_gaps(DType::f32, {total_q, spec.heads}, 3) : with_gaps(DType::f32, {batch, spec.heads, seq_q}, 3));
    fill_blocks(batch, seq_q);
    cache.rows.storage().seal(false);
  }

  std::int64_t blocks_of(std::int64_t kv) const { return (kv + spec.page - 1) / spec.page; }
  std::int64_t block_count() const {
    std::int64_t count = 1;
    for (const std::int64_t kv : spec.kv) count += blocks_of(kv);
    return count;
  }

  void fill_blocks(std::int64_t batch, std::int64_t seq_q) {
    Random random(4321);
    max_blocks = blocks_of(*std::max_element(spec.kv.begin(), spec.kv.end())) + 2;
    table.assign(static_cast<std::size_t>(batch * (max_blocks + 1)), 2147480000);
    std::int64_t next = block_count() - 1;
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t kv = spec.kv[static_cast<std::size_t>(b)];
      kv_len.push_back(static_cast<std::int32_t>(kv));
      const std::int64_t length = ragged ? spec.q[static_cast<std::size_t>(b)] : seq_q;
      const std::vector<char> seen = reference::keys_seen(spec.mask, length, kv);
      for (std::int64_t block = 0; block < blocks_of(kv); ++block)
        table[static_cast<std::size_t>(b * (max_blocks + 1) + block)] = static_cast<std::int32_t>(next--);
      for (std::int64_t key = 0; key < kv; ++key) {
        if (seen[static_cast<std::size_t>(key)] != 0) cache.fill(slot(b, key), random);
      }
    }
  }

  std::int64_t slot(std::int64_t b, std::int64_t key) const {
    return table[static_cast<std::size_t>(b * (max_blocks + 1) + key / spec.page)] * spec.page + key % spec.page;
  }

  LatentAttentionDesc desc() const {
    LatentAttentionDesc d{.q = q.desc(),
                          .out = out.desc(),
                          .cache = cache.desc,
                          .lse = lse.desc(),
                          .mask = spec.mask,
                          .scale = spec.scale,
                          .has_scale = spec.has_scale};
    d.block_table = contiguous(DType::i32, {static_cast<std::int64_t>(spec.kv.size()), max_blocks});
    d.block_table.strides[0] = max_blocks + 1;
    return d;
  }

  LatentAttentionArgs args() const {
    return {.q = q.data(),
            .cache = cache.data(),
            .out = out.data(),
            .lse = lse.as<float>(),
            .block_table = table.data(),
            .cu_seqlens_q = ragged ? cu_seqlens.data() : nullptr,
            .kv_len = kv_len.data(),
            .cache_scale = spec.has_scale ? &cache_scale : nullptr};
  }

  DenseCase spec;
  TestCache cache;
  HostileTensor q{}, out{}, lse{};
  bool ragged = false;
  std::int64_t total_q = 0, max_blocks = 0;
  std::vector<std::int32_t> table{}, kv_len{}, cu_seqlens{};
  float cache_scale = 0.37f;
};

/// The plain result of every row, [total_q, head, 512].
std::vector<float> plain(const DenseCall& call) {
  std::vector<float> all;
  const DenseCase& spec = call.spec;
  const float cache_scale = spec.has_scale ? call.cache_scale : 1.0f;
  const float scale = (spec.scale != 0 ? spec.scale : 1.0f / std::sqrt(static_cast<float>(spec.row))) * cache_scale;
  for (std::size_t b = 0; b < spec.kv.size(); ++b) {
    const std::int64_t seq_q = spec.q[call.ragged ? b : 0];
    for (std::int64_t row = 0; row < seq_q; ++row) {
      for (std::int64_t head = 0; head < spec.heads; ++head) {
        std::vector<std::vector<float>> rows;
        for (const std::int64_t key : reference::visible_keys(spec.mask, row, seq_q, spec.kv[b])) {
          rows.push_back(call.cache.row(call.slot(static_cast<std::int64_t>(b), key), head / (spec.heads / spec.kv_heads)));
        }
        const std::int64_t at =
            call.ragged ? call.q.offset(call.cu_seqlens[b] + row, head) : call.q.offset(static_cast<std::int64_t>(b), row, head);
        std::vector<float> q;
        for (std::int64_t d = 0; d < spec.row; ++d) q.push_back(call.q.at(at + d));
        const std::vector<float> out = plain_row(q, rows, scale, cache_scale, -kInfinity, spec.dtype);
        all.insert(all.end(), out.begin(), out.end());
      }
    }
  }
  if (call.ragged) all.resize(all.size() + static_cast<std::size_t>(spec.heads * kLatent));
  return all;
}

class LatentAttention : public testing::TestWithParam<DenseCase> {};

TEST_P(LatentAttention, EveryImplementationGivesTheReference) {
  DenseCall call(GetParam());
  const auto problem = detail::validate(call.desc(), {});
  ASSERT_TRUE(problem) << problem.error().message;
  reference::AttentionOutput want = reference::latent_attention(*problem, call.args());
  const Tolerance tolerance = out_tolerance(plain(call), want.out, call.spec.dtype);
  const auto per_row = static_cast<std::size_t>(call.spec.heads * kLatent);
  for (std::size_t row = 0; row < want.written.size(); ++row) {  // rows of nobody keep their poison
    if (want.written[row] != 0) continue;
    std::fill_n(want.out.begin() + static_cast<std::ptrdiff_t>(row * per_row), per_row, std::nan(""));
    std::fill_n(want.lse.begin() + static_cast<std::ptrdiff_t>(row) * call.spec.heads, call.spec.heads, std::nan(""));
  }
  for (const std::string& name : available("latent_attention")) {
    SCOPED_TRACE(name);
    const auto planned = plan_latent_attention(call.desc(), {}, {.implementation = name});
    ASSERT_TRUE(planned) << planned.error().message;
    const TestWorkspace workspace(planned->workspace_bytes());
    poison(call.out);
    poison(call.lse);
    const Result<void> ran = planned->run(call.args(), workspace.get());
    ASSERT_TRUE(ran) << ran.error().message;
    expect_close(take(call.out), want.out, tolerance, "out");
    const std::vector<float> lse = take(call.lse);
    const auto batch = static_cast<std::int64_t>(call.spec.kv.size());
    expect_close(call.ragged ? lse : by_row(lse, batch, call.spec.heads, call.spec.q[0]), want.lse, kLseTolerance, "lse");
    EXPECT_TRUE(workspace.storage.red_zones_intact());
    EXPECT_TRUE(call.cache.rows.storage().sealed_contents_intact());
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LatentAttention, testing::ValuesIn(kCases), [](const auto& info) { return std::string(info.param.name); });

/// A sequence gives the same bits alone, in a batch, and with another number of threads.
TEST(LatentAttentionBits, DoNotDependOnTheBatchOrTheThreads) {
  const auto run = [](std::vector<std::int64_t> kv, const std::string& name, int threads) {
    set_num_threads(threads);
    DenseCall call({.heads = 24, .kv = std::move(kv)});
    const auto planned = plan_latent_attention(call.desc(), {}, {.implementation = name});
    set_num_threads(0);
    const TestWorkspace workspace(planned->workspace_bytes());
    EXPECT_TRUE(planned->run(call.args(), workspace.get()));
    std::vector<float> out = take(call.out);
    out.resize(static_cast<std::size_t>(24 * kLatent));
    return out;
  };
  for (const std::string& name : available("latent_attention")) {
    SCOPED_TRACE(name);
    const std::vector<float> alone = run({1500}, name, 1);
    EXPECT_EQ(std::memcmp(alone.data(), run({1500, 700, 1}, name, 2).data(), alone.size() * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(alone.data(), run({1500, 700, 1}, name, 5).data(), alone.size() * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace fovea::check
