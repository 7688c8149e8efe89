// SPDX-License-Identifier: Apache-2.0
/// Wrong pointers, lengths, block numbers and workspaces in run(): every implementation says what is wrong and touches nothing.
#include <gtest/gtest.h>

#include <functional>

#include "bound_case.hpp"
#include "fovea/info.hpp"
#include "run_case.hpp"

namespace fovea::check {
namespace {

template <class Args>
struct Spoilt {
  const char* name;
  std::function<void(Args&)> spoil;
  const char* message;  ///< the beginning
};

template <class T>
const T* shifted(const T* pointer, std::ptrdiff_t bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(pointer) + bytes);
}

template <class F>
void for_each_implementation(Operation operation, F&& f) {
  for (const ImplementationInfo& info : implementations()) {
    if (info.operation != name_of(operation) || !info.available) continue;
    SCOPED_TRACE(info.name);
    f(info.name);
  }
}

void expect_refusal(const Result<void>& ran, ErrorCode code, std::string_view message, const BoundCase& bound) {
  if (ran) {
    ADD_FAILURE() << "was accepted";
    return;
  }
  EXPECT_EQ(ran.error().code, code);
  EXPECT_EQ(ran.error().message.substr(0, message.size()), message);
  EXPECT_EQ(bound.what_changed(), "");
}

template <class Desc, class Args>
void expect_refusals(const char* name, const std::vector<Spoilt<Args>>& table) {
  const auto bound = bind(*find_case(name));
  auto& request = std::get<Request<Desc, Args>>(bound->request);
  const Args good = request.args;
  for_each_implementation(bound->spec.operation, [&](std::string_view implementation) {
    const auto planned = plan(bound->request, {.implementation = implementation});
    if (!planned) return;  // the table test checks declines
    const HostileWorkspace workspace(planned->workspace_bytes);
    for (const Spoilt<Args>& row : table) {
      SCOPED_TRACE(row.name);
      request.args = good;
      row.spoil(request.args);
      expect_refusal(planned->run(workspace.view()), ErrorCode::invalid_argument, row.message, *bound);
    }
    request.args = good;
    EXPECT_TRUE(planned->run(workspace.view()));
    bound->reset_outputs();
  });
}

TEST(BadArguments, Attention) {
  static const std::int32_t falling[] = {0, 5, 3, 69, 70, 103, 120, 121}, negative[] = {-1, 5, 5, 69, 70, 103, 120, 121},
                            too_many[] = {0, 5, 5, 69, 70, 103, 120, 200}, too_long[] = {0, 5, 5, 5, 80, 103, 120, 121};
  expect_refusals<AttentionDesc, AttentionArgs>(
      "attention/ragged/bf16-mixed",
      {
          {"null q", [](auto& a) { a.q = nullptr; }, "args.q (pointer): got null, want an address"},
          {"null k", [](auto& a) { a.k = nullptr; }, "args.k (pointer): got null, want an address"},
          {"null v", [](auto& a) { a.v = nullptr; }, "args.v (pointer): got null, want an address"},
          {"null out", [](auto& a) { a.out = nullptr; }, "args.out (pointer): got null, want an address"},
          {"null lse", [](auto& a) { a.lse = nullptr; }, "args.lse (pointer): got null, want an address"},
          {"null cu_seqlens_q", [](auto& a) { a.cu_seqlens_q = nullptr; }, "args.cu_seqlens_q (pointer): got null, want an address"},
          {"null cu_seqlens_k", [](auto& a) { a.cu_seqlens_k = nullptr; }, "args.cu_seqlens_k (pointer): got null, want an address"},
          {"misaligned q", [](auto& a) { a.q = shifted(static_cast<const char*>(a.q), 1); }, "args.q (address modulo 16): got 1, want 0"},
          {"misaligned lse", [](auto& a) { a.lse = const_cast<float*>(shifted(a.lse, 2)); }, "args.lse (address modulo 4): got 2, want 0"},
          {"falling", [](auto& a) { a.cu_seqlens_q = falling; }, "cu_seqlens_q[2]: got 3, want 5 or more"},
          {"negative", [](auto& a) { a.cu_seqlens_q = negative; }, "cu_seqlens_q[0]: got -1, want 0 or more"},
          {"past the end", [](auto& a) { a.cu_seqlens_q = too_many; }, "cu_seqlens_q[7]"},
          {"longer than planned", [](auto& a) { a.cu_seqlens_q = too_long; },
           "cu_seqlens_q[4] (length of the sequence): got 75, want at most 64"},
          {"falling keys", [](auto& a) { a.cu_seqlens_k = falling; }, "cu_seqlens_k[2]: got 3, want 5 or more"},
      });
}

TEST(BadArguments, AttentionScalesAndSink) {
  expect_refusals<AttentionDesc, AttentionArgs>(
      "attention/sink/e4m3-finite",
      {
          {"null sink", [](auto& a) { a.sink = nullptr; }, "args.sink (pointer): got null, want an address"},
          {"null q_scale", [](auto& a) { a.q_scale = nullptr; }, "args.q_scale (pointer): got null, want an address"},
          {"null k_scale", [](auto& a) { a.k_scale = nullptr; }, "args.k_scale (pointer): got null, want an address"},
          {"null v_scale", [](auto& a) { a.v_scale = nullptr; }, "args.v_scale (pointer): got null, want an address"},
      });
}

TEST(BadArguments, PagedAttention) {
  static std::int32_t lengths[7], tables[3][7 * 64];
  const auto bound = bind(*find_case("paged_attention/mixed/bf16-page16"));
  const auto& good = std::get<Request<PagedAttentionDesc, PagedAttentionArgs>>(bound->request);
  const std::int64_t stride = good.desc.block_table.strides[0];
  ASSERT_LE(stride, 64);
  std::copy_n(good.args.kv_len, 7, lengths);
  for (auto& table : tables) std::copy_n(good.args.block_table, 7 * stride, table);
  tables[0][stride + 2] = -7;                                                     // sequence 1, block 2
  tables[1][stride + 2] = static_cast<std::int32_t>(good.desc.k_cache.shape[0]);  // one past the last
  tables[2][stride + 9] = 2147480000;                                             // past its 134 tokens: never read
  static const auto with_length = [](int sequence, std::int32_t length) {
    static std::int32_t spoilt[7];
    std::copy_n(lengths, 7, spoilt);
    spoilt[sequence] = length;
    return spoilt;
  };
  expect_refusals<PagedAttentionDesc, PagedAttentionArgs>(
      "paged_attention/mixed/bf16-page16",
      {
          {"null q", [](auto& a) { a.q = nullptr; }, "args.q (pointer): got null, want an address"},
          {"null cache", [](auto& a) { a.k_cache = nullptr; }, "args.k_cache (pointer): got null, want an address"},
          {"null v cache", [](auto& a) { a.v_cache = nullptr; }, "args.v_cache (pointer): got null, want an address"},
          {"null out", [](auto& a) { a.out = nullptr; }, "args.out (pointer): got null, want an address"},
          {"null table", [](auto& a) { a.block_table = nullptr; }, "args.block_table (pointer): got null, want an address"},
          {"null lengths", [](auto& a) { a.kv_len = nullptr; }, "args.kv_len (pointer): got null, want an address"},
          {"null cu_seqlens", [](auto& a) { a.cu_seqlens_q = nullptr; }, "args.cu_seqlens_q (pointer): got null, want an address"},
          {"misaligned cache", [](auto& a) { a.v_cache = shifted(static_cast<const char*>(a.v_cache), 1); },
           "args.v_cache (address modulo 16): got 1, want 0"},
          {"negative length", [](auto& a) { a.kv_len = with_length(4, -1); }, "kv_len[4]: got -1, want 0 to 134"},
          {"length past the bound", [](auto& a) { a.kv_len = with_length(0, 135); }, "kv_len[0]: got 135, want 0 to 134"},
          {"negative block", [](auto& a) { a.block_table = tables[0]; }, "block_table[1][2] (block number): got -7, want 0 to "},
          {"block past the cache", [](auto& a) { a.block_table = tables[1]; }, "block_table[1][2] (block number): got "},
      });
}

TEST(BadArguments, PagedCacheAppend) {
  static std::int64_t low[41], high[41];
  const auto bound = bind(*find_case("paged_cache_append/page/bf16-on-e4m3-page16"));
  const auto& good = std::get<Request<PagedCacheAppendDesc, PagedCacheAppendArgs>>(bound->request);
  std::copy_n(good.args.slot_mapping, 41, low);
  std::copy_n(good.args.slot_mapping, 41, high);
  low[40] = -2;
  high[17] = good.desc.k_cache.shape[0] * 16;
  expect_refusals<PagedCacheAppendDesc, PagedCacheAppendArgs>(
      "paged_cache_append/page/bf16-on-e4m3-page16",
      {
          {"null k", [](auto& a) { a.k = nullptr; }, "args.k (pointer): got null, want an address"},
          {"null cache", [](auto& a) { a.v_cache = nullptr; }, "args.v_cache (pointer): got null, want an address"},
          {"null slots", [](auto& a) { a.slot_mapping = nullptr; }, "args.slot_mapping (pointer): got null, want an address"},
          {"null scale", [](auto& a) { a.k_scale = nullptr; }, "args.k_scale (pointer): got null, want an address"},
          {"slot below -1", [](auto& a) { a.slot_mapping = low; }, "slot_mapping[40]: got -2, want -1 (skip) or 0 to "},
          {"slot past the cache", [](auto& a) { a.slot_mapping = high; }, "slot_mapping[17]: got "},
      });
}

TEST(BadArguments, MergeStates) {
  static std::vector<MergeStatesArgs::Part> parts;
  const auto with_part = [](auto& args, auto spoil) {
    parts.assign(args.parts.begin(), args.parts.end());
    spoil(parts[1]);
    args.parts = parts;
  };
  expect_refusals<MergeStatesDesc, MergeStatesArgs>(
      "merge_states/parts/bf16-3",
      {
          {"too few parts", [](auto& a) { a.parts = a.parts.first(2); }, "args.parts (count): got 2, want 3, as planned"},
          {"no parts", [](auto& a) { a.parts = {}; }, "args.parts (count): got 0, want 3, as planned"},
          {"null part", [&](auto& a) { with_part(a, [](auto& part) { part.out = nullptr; }); },
           "args.parts[1].out (pointer): got null, want an address"},
          {"null part lse", [&](auto& a) { with_part(a, [](auto& part) { part.lse = nullptr; }); },
           "args.parts[1].lse (pointer): got null, want an address"},
          {"null out", [](auto& a) { a.out = nullptr; }, "args.out (pointer): got null, want an address"},
          {"null lse", [](auto& a) { a.lse = nullptr; }, "args.lse (pointer): got null, want an address"},
      });
}

TEST(BadArguments, BrokenAlignmentPromise) {
  for_each_implementation(Operation::attention, [](std::string_view implementation) {
    const auto bound = bind(*find_case("attention/layout/bf16-unaligned"));
    std::get<Request<AttentionDesc, AttentionArgs>>(bound->request).desc.q.alignment = 16;
    const auto planned = plan(bound->request, {.implementation = implementation});
    ASSERT_TRUE(planned);
    const HostileWorkspace workspace(planned->workspace_bytes);
    expect_refusal(planned->run(workspace.view()), ErrorCode::invalid_argument, "args.q (address modulo 16): got 2, want 0", *bound);
  });
}

TEST(BadArguments, WorkspaceTooSmallMissingOrMisaligned) {
  for (const char* name : {"attention/ragged/bf16-mixed", "paged_attention/split/bf16-one-sequence", "merge_states/parts/bf16-33"}) {
    const auto bound = bind(*find_case(name));
    for_each_implementation(bound->spec.operation, [&](std::string_view implementation) {
      const auto planned = plan(bound->request, {.implementation = implementation});
      if (!planned || planned->workspace_bytes == 0) return;
      const HostileWorkspace workspace(planned->workspace_bytes + 64);
      Workspace small = workspace.view(), crooked = workspace.view();
      small.bytes = planned->workspace_bytes - 1;
      crooked.data = static_cast<char*>(crooked.data) + 4;
      crooked.bytes -= 4;
      for (const auto& run : {planned->run, planned->prepare}) {
        expect_refusal(run(small), ErrorCode::out_of_workspace, "workspace.bytes: got " + std::to_string(small.bytes), *bound);
        expect_refusal(run({}), ErrorCode::out_of_workspace, "workspace.bytes: got null, want ", *bound);
        expect_refusal(run(crooked), ErrorCode::invalid_argument, "workspace.data (address modulo 64): got 4, want 0", *bound);
      }
    });
  }
}

}  // namespace
}  // namespace fovea::check
