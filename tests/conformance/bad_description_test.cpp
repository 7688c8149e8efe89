// SPDX-License-Identifier: Apache-2.0
/// Descriptions that contradict themselves. One error names tensor, field, value and expectation.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "bound_case.hpp"

namespace fovea::check {
namespace {

/// One way to spoil a good description, and the message that must follow.
template <class Desc>
struct Spoilt {
  const char* name;
  std::function<void(Desc&)> spoil;
  const char* message;  ///< the whole message, or its beginning if this ends in "..."
  ErrorCode code = ErrorCode::invalid_argument;
};

void expect_message(const std::string& got, std::string_view want) {
  if (want.ends_with("...")) {
    EXPECT_EQ(got.substr(0, want.size() - 3) + "...", want) << got;
  } else {
    EXPECT_EQ(got, want);
  }
}

/// Why the implementation that takes most declines.
std::string reason_of_reference(const Error& error) {
  for (const Decline& decline : error.declines) {
    if (decline.implementation.starts_with("reference.")) return decline.reason;
  }
  return "nobody says why: " + error.message;
}

template <class Desc, class Args>
void expect_refusals(const Case& spec, const std::vector<Spoilt<Desc>>& table) {
  const auto good = std::get<Request<Desc, Args>>(describe(spec));
  ASSERT_TRUE(plan(good, {}));
  for (const Spoilt<Desc>& row : table) {
    SCOPED_TRACE(row.name);
    auto request = good;
    row.spoil(request.desc);
    const auto planned = plan(request, {});
    if (planned) {
      ADD_FAILURE() << "was accepted";
      continue;
    }
    EXPECT_EQ(planned.error().code, row.code);
    if (row.code == ErrorCode::unsupported) {
      const std::string reason = reason_of_reference(planned.error());
      expect_message(reason, row.message);
      EXPECT_NE(planned.error().message.find(reason), std::string::npos) << planned.error().message;
    } else {
      expect_message(planned.error().message, row.message);
    }
  }
}

Case small_attention() {
  return {.operation = Operation::attention, .head = 4, .kv_head = 2, .dqk = 64, .dv = 32, .sequences = {{5, 9}, {5, 9}}};
}

TEST(BadDescription, Attention) {
  using Desc = AttentionDesc;
  expect_refusals<Desc, AttentionArgs>(
      small_attention(),
      {
          {"rank", [](Desc& d) { d.q.rank = 3; }, "q.rank: got 3, want 4 [batch, seq_q, head, head_dim_qk]"},
          {"rank 0", [](Desc& d) { d.v.rank = 0; }, "v.rank: got 0, want 4 [..."},
          {"rank 7", [](Desc& d) { d.out.rank = 7; }, "out.rank: got 7, want 4 [..."},
          {"negative extent", [](Desc& d) { d.k.shape[1] = -1; }, "k.shape[1] (seq_k): got -1, want 0 to 2^48"},
          {"negative stride", [](Desc& d) { d.q.strides[1] = -256; }, "q.strides[1] (seq_q): got -256, want 0 to 2^48"},
          {"strided last dimension", [](Desc& d) { d.k.strides[3] = 2; },
           "k.strides[3] (head_dim_qk): got 2, want 1 (a contiguous last dimension)"},
          {"offsets overflow", [](Desc& d) { d.q.shape[0] = d.out.shape[0] = d.q.strides[0] = std::int64_t{1} << 48; },
           "q.strides: got ..."},
          {"integer q", [](Desc& d) { d.q.dtype = DType::i32; }, "q.dtype: got i32, want f32 or f16 or bf16 or e4m3 or f64"},
          {"fp8 keys", [](Desc& d) { d.k.dtype = d.v.dtype = DType::e4m3; }, "k.dtype: got e4m3, want bf16", ErrorCode::unsupported},
          {"fp8 results", [](Desc& d) { d.out.dtype = DType::e4m3; }, "out.dtype: got e4m3, want bf16", ErrorCode::unsupported},
          {"dtype out of the enum", [](Desc& d) { d.q.dtype = static_cast<DType>(99); }, "q.dtype: got unknown dtype, want ..."},
          {"k of another dtype", [](Desc& d) { d.k.dtype = DType::f16; }, "k.dtype: got f16, want bf16"},
          {"v of another dtype", [](Desc& d) { d.v.dtype = DType::f32; }, "v.dtype: got f32, want bf16"},
          {"out of another dtype", [](Desc& d) { d.out.dtype = DType::f32; }, "out.dtype: got f32, want bf16"},
          {"k batch", [](Desc& d) { d.k.shape[0] = 3; }, "k.shape[0] (batch): got 3, want 2 (q.shape[0])"},
          {"k width", [](Desc& d) { d.k.shape[3] = 56; }, "k.shape[3] (head_dim_qk): got 56, want 64 ..."},
          {"v rows", [](Desc& d) { d.v.shape[1] = 8; }, "v.shape[1] (seq_k): got 8, want 9 ..."},
          {"v heads", [](Desc& d) { d.v.shape[2] = 1; }, "v.shape[2] (kv_head): got 1, want 2 ..."},
          {"out width",
           [](Desc& d) {
             d.out = contiguous(DType::bf16, {2, 5, 4, 64});
           },
           "out.shape[3] (head_dim_v): got 64, want 32 ..."},
          {"out heads", [](Desc& d) { d.out.shape[2] = 2; }, "out.shape[2] (head): got 2, want 4 ..."},
          {"heads do not divide", [](Desc& d) { d.k.shape[2] = d.v.shape[2] = 3; }, "k.shape (kv_head): got 3, want a divisor of 4 (head)"},
          {"no kv heads", [](Desc& d) { d.k.shape[2] = d.v.shape[2] = 0; }, "k.shape (kv_head): got 0, want 1 or more"},
          {"broadcast output", [](Desc& d) { d.out.strides[2] = 0; }, "out.strides: got elements that share memory, want ..."},
          {"overlapping output rows", [](Desc& d) { d.out.strides[1] = 100; }, "out.strides: got elements that share memory, want ..."},
          {"lse dtype", [](Desc& d) { d.lse->dtype = DType::bf16; }, "lse.dtype: got bf16, want f32"},
          {"lse shape",
           [](Desc& d) {
             d.lse = contiguous(DType::f32, {2, 4, 6});
           },
           "lse.shape[2] (seq_q): got 6, want 5 ..."},
          {"lse broadcast", [](Desc& d) { d.lse->strides[1] = 0; }, "lse.strides: got elements that share memory, want ..."},
          {"negative softcap", [](Desc& d) { d.softcap = -1.0f; }, "softcap: got -1..."},
          {"NaN softcap", [](Desc& d) { d.softcap = std::numeric_limits<float>::quiet_NaN(); }, "softcap: got ..."},
          {"infinite scale", [](Desc& d) { d.scale = std::numeric_limits<float>::infinity(); },
           "scale: got inf, want 1.2e-38 to 3.4e38 ..."},
          {"scale below a normal float", [](Desc& d) { d.scale = 1e-40f; }, "scale: got 9.9999461e-41, want 1.2e-38 to 3.4e38 ..."},
          {"softcap below a normal float", [](Desc& d) { d.softcap = 1e-40f; }, "softcap: got 9.9999461e-41, want 1.2e-38 ..."},
          {"scale of a bf16 tensor", [](Desc& d) { d.k_scale = ScaleDesc{}; }, "k_scale: got a scale for a tensor of bf16, want none ..."},
          {"alignment", [](Desc& d) { d.q.alignment = 24; }, "q.alignment: got 24, want 0 or a power of two"},
          {"head dim", [](Desc& d) { d.q.shape[3] = d.k.shape[3] = 12; }, "q.shape (head_dim_qk): got 12, want a multiple of 8 up to 512",
           ErrorCode::unsupported},
          {"large head dim",
           [](Desc& d) {
             d.v.shape[3] = d.out.shape[3] = 520;
             d.out.strides = {520 * 20, 520 * 4, 520, 1};
           },
           "v.shape (head_dim_v): got 520, want a multiple of 8 up to 512", ErrorCode::unsupported},
      });
}

TEST(BadDescription, RaggedAttention) {
  using Desc = AttentionDesc;
  Case spec = small_attention();
  spec.ragged = true;
  expect_refusals<Desc, AttentionArgs>(
      spec, {
                {"rank", [](Desc& d) { d.k.rank = 4; }, "k.rank: got 4, want 3 [total_k, kv_head, head_dim_qk]"},
                {"negative batch", [](Desc& d) { d.ragged->batch = -1; }, "ragged.batch: got -1, want 0 to 2^31 - 1"},
                {"negative bound", [](Desc& d) { d.ragged->max_seq_k = -5; }, "ragged.max_seq_k: got -5, want 0 to 2^31 - 1"},
                {"huge bound", [](Desc& d) { d.ragged->max_seq_q = std::int64_t{1} << 31; }, "ragged.max_seq_q: got 2147483648, want ..."},
                {"lse rows", [](Desc& d) { d.lse->shape[0] = 9; }, "lse.shape[0] (total_q): got 9, want 10 ..."},
            });
}

TEST(BadDescription, PagedAttention) {
  using Desc = PagedAttentionDesc;
  const Case spec{.operation = Operation::paged_attention, .sequences = {{1, 40}, {3, 20}}, .mask = causal()};
  expect_refusals<Desc, PagedAttentionArgs>(
      spec,
      {
          {"fp8 queries", [](Desc& d) { d.q.dtype = DType::e4m3; }, "q.dtype: got e4m3, want f32 or f16 or bf16", ErrorCode::unsupported},
          {"cache of another dtype", [](Desc& d) { d.k_cache.dtype = DType::f16; }, "k_cache.dtype: got f16, want bf16 or e4m3"},
          {"caches differ", [](Desc& d) { d.v_cache.dtype = DType::e4m3; }, "v_cache.dtype: got e4m3, want bf16", ErrorCode::unsupported},
          {"table dtype", [](Desc& d) { d.block_table.dtype = DType::i64; }, "block_table.dtype: got i64, want i32"},
          {"table rank", [](Desc& d) { d.block_table.rank = 1; }, "block_table.rank: got 1, want 2 [batch, max_blocks]"},
          {"strided table rows", [](Desc& d) { d.block_table.strides[1] = 2; }, "block_table.strides[1] (max_blocks): got 2, want 1 ..."},
          {"pages differ", [](Desc& d) { d.v_cache.shape[1] = 8; }, "v_cache.shape[1] (page): got 8, want 16 ..."},
          {"blocks differ", [](Desc& d) { d.v_cache.shape[0] = 1; }, "v_cache.shape[0] (block): got 1, want ..."},
          {"page 0", [](Desc& d) { d.k_cache.shape[1] = d.v_cache.shape[1] = 0; }, "k_cache.shape[1] (page): got 0, want 1 or more"},
          {"k width", [](Desc& d) { d.k_cache.shape[3] = 32; }, "k_cache.shape[3] (head_dim_qk): got 32, want 64 ..."},
          {"out rows", [](Desc& d) { d.out.shape[0] = 5; }, "out.shape[0] (total_q): got 5, want 4 ..."},
          {"top-left", [](Desc& d) { d.mask.anchor = Anchor::top_left; }, "mask.anchor: got top_left, want bottom_right ..."},
          {"negative length", [](Desc& d) { d.max_kv_len = -1; }, "max_kv_len: got -1, want 0 to 2^31 - 1"},
          {"huge length", [](Desc& d) { d.max_kv_len = std::int64_t{1} << 31; }, "max_kv_len: got 2147483648, want 0 to 2^31 - 1"},
          {"negative bound", [](Desc& d) { d.max_seq_q = -1; }, "max_seq_q: got -1, want ..."},
          {"heads do not divide", [](Desc& d) { d.k_cache.shape[2] = d.v_cache.shape[2] = 3; },
           "k.shape (kv_head): got 3, want a divisor of 4 (head)"},
          {"scale of a bf16 cache", [](Desc& d) { d.v_scale = ScaleDesc{}; }, "v_scale: got a scale for a tensor of bf16, want none ..."},
          {"head dim", [](Desc& d) { d.q.shape[2] = d.k_cache.shape[3] = 33; },
           "q.shape (head_dim_qk): got 33, want a multiple of 8 up to 512", ErrorCode::unsupported},
      });
}

TEST(BadDescription, PagedCacheAppend) {
  using Desc = PagedCacheAppendDesc;
  const Case spec{.operation = Operation::paged_cache_append, .sequences = {{7, 0}}};
  expect_refusals<Desc, PagedCacheAppendArgs>(
      spec,
      {
          {"fp8 rows", [](Desc& d) { d.k.dtype = DType::e4m3; }, "k.dtype: got e4m3, want f32 or f16 or bf16", ErrorCode::unsupported},
          {"cache dtype", [](Desc& d) { d.k_cache.dtype = DType::f32; }, "k_cache.dtype: got f32, want bf16 or e4m3"},
          {"v rows", [](Desc& d) { d.v.shape[0] = 6; }, "v.shape[0] (token): got 6, want 7 ..."},
          {"kv heads", [](Desc& d) { d.k_cache.shape[2] = 1; }, "k_cache.shape[2] (kv_head): got 1, want 2 ..."},
          {"width", [](Desc& d) { d.v_cache.shape[3] = 8; }, "v_cache.shape[3] (head_dim): got 8, want 64 ..."},
          {"page 0", [](Desc& d) { d.k_cache.shape[1] = 0; }, "k_cache.shape[1] (page): got 0, want 1 or more"},
          {"broadcast cache", [](Desc& d) { d.v_cache.strides[2] = 0; }, "v_cache.strides: got elements that share memory, want ..."},
          {"scale of a bf16 cache", [](Desc& d) { d.k_scale = ScaleDesc{}; }, "k_scale: got a scale for a tensor of bf16, want none ..."},
      });
}

TEST(BadDescription, MergeStates) {
  using Desc = MergeStatesDesc;
  const Case spec{.operation = Operation::merge_states, .sequences = {{7, 0}}, .parts = 3};
  expect_refusals<Desc, MergeStatesArgs>(
      spec, {
                {"no parts", [](Desc& d) { d.parts.clear(); }, "parts (count): got 0, want 1 to 2^20"},
                {"too many parts", [](Desc& d) { d.parts.resize(Desc::kMostParts + 1); }, "parts (count): got 1048577, want 1 to 2^20"},
                {"fp8", [](Desc& d) { d.out.dtype = DType::e4m3; }, "out.dtype: got e4m3, want f32 or f16 or bf16", ErrorCode::unsupported},
                {"part dtype", [](Desc& d) { d.parts[2].out.dtype = DType::f32; }, "parts[2].out.dtype: got f32, want bf16"},
                {"part rows", [](Desc& d) { d.parts[1].out.shape[0] = 8; }, "parts[1].out.shape[0] (total_q): got 8, want 7 ..."},
                {"part lse", [](Desc& d) { d.parts[0].lse.shape[1] = 2; }, "parts[0].lse.shape[1] (head): got 2, want 4 ..."},
                {"lse dtype", [](Desc& d) { d.lse->dtype = DType::f16; }, "lse.dtype: got f16, want f32"},
                {"broadcast out", [](Desc& d) { d.out.strides[0] = 0; }, "out.strides: got elements that share memory, want ..."},
            });
}

TEST(BadOptions, UnknownImplementation) {
  const auto planned = plan(describe(small_attention()), {.implementation = "cpu.abacus.attention"});
  ASSERT_FALSE(planned);
  EXPECT_EQ(planned.error().code, ErrorCode::invalid_argument);
  expect_message(planned.error().message, "options.implementation: got cpu.abacus.attention, want one of: ...");
  EXPECT_NE(planned.error().message.find("reference.attention"), std::string::npos);
}

TEST(BadOptions, AnotherOperationsImplementation) {
  const auto planned = plan(describe(small_attention()), {.implementation = "reference.merge_states"});
  ASSERT_FALSE(planned);
  EXPECT_EQ(planned.error().code, ErrorCode::invalid_argument);
}

TEST(BadOptions, DeviceWithoutBackend) {
  const auto request = std::get<Request<AttentionDesc, AttentionArgs>>(describe(small_attention()));
  const auto planned = plan_attention(request.desc, {.backend = Backend::hip, .ordinal = 3});
  ASSERT_FALSE(planned);
  EXPECT_EQ(planned.error().code, ErrorCode::unsupported);
  EXPECT_FALSE(planned.error().declines.empty());
  EXPECT_THROW(plan_attention(request.desc, {.backend = Backend::hip}).value(), Exception);
}

}  // namespace
}  // namespace fovea::check
