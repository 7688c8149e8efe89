// SPDX-License-Identifier: Apache-2.0
/// Two conversations of different lengths in one block-table cache: their prompts in one ragged call, then a few tokens
/// each. Random numbers stand for what a model would compute.
#include <cstdio>
#include <fovea/fovea.hpp>
#include <numeric>

#include "support.hpp"

namespace {

constexpr std::int64_t kHeads = 8, kKvHeads = 2, kHeadDim = 64, kPage = 16, kBlocks = 32, kMaxBlocks = 4;
constexpr std::int64_t kBatch = 2;

fovea::TensorDesc f32(std::initializer_list<std::int64_t> shape) { return fovea::contiguous(fovea::DType::f32, shape); }

/// The cache, and the owner of each of its blocks.
struct Cache {
  std::vector<float> k = unwritten(kBlocks * kPage * kKvHeads * kHeadDim);  // unused slots may hold anything, NaN included
  std::vector<float> v = k;
  std::vector<std::int32_t> block_table{7, 3, 12, 30, 21, 0, 9, 14};  // [batch, max_blocks], blocks in any order
  std::vector<std::int32_t> kv_len{0, 0};

  std::int64_t slot(std::int64_t sequence, std::int64_t position) const {
    const auto block = block_table[static_cast<std::size_t>(sequence * kMaxBlocks + position / kPage)];
    return block * kPage + position % kPage;
  }
};

/// Appends the new tokens of both sequences and attends from them. Returns [new tokens, head, head_dim].
std::vector<float> step(Cache& cache, const std::vector<std::int32_t>& new_tokens, unsigned seed) {
  const std::int64_t total = std::accumulate(new_tokens.begin(), new_tokens.end(), std::int64_t{0});
  const std::vector<float> q = random_values(total * kHeads * kHeadDim, seed);
  const std::vector<float> k = random_values(total * kKvHeads * kHeadDim, seed + 1);
  const std::vector<float> v = random_values(total * kKvHeads * kHeadDim, seed + 2);
  const auto cache_desc = f32({kBlocks, kPage, kKvHeads, kHeadDim});

  std::vector<std::int32_t> cu_seqlens_q{0};
  std::vector<std::int64_t> slots;
  for (std::size_t b = 0; b < new_tokens.size(); ++b) {
    for (int t = 0; t < new_tokens[b]; ++t) slots.push_back(cache.slot(static_cast<std::int64_t>(b), cache.kv_len[b] + t));
    cache.kv_len[b] += new_tokens[b];
    cu_seqlens_q.push_back(cu_seqlens_q.back() + new_tokens[b]);
  }

  const auto new_rows = f32({total, kKvHeads, kHeadDim});
  const auto append = fovea::plan_paged_cache_append({.k = new_rows, .v = new_rows, .k_cache = cache_desc, .v_cache = cache_desc}).value();
  Scratch append_workspace(append.workspace_bytes());
  append
      .run({.k = k.data(), .v = v.data(), .k_cache = cache.k.data(), .v_cache = cache.v.data(), .slot_mapping = slots.data()},
           append_workspace)
      .value();

  const auto rows = f32({total, kHeads, kHeadDim});
  const auto plan = fovea::plan_paged_attention({.q = rows,
                                                 .k_cache = cache_desc,
                                                 .v_cache = cache_desc,
                                                 .block_table = fovea::contiguous(fovea::DType::i32, {kBatch, kMaxBlocks}),
                                                 .out = rows})
                        .value();
  std::vector<float> out = unwritten(total * kHeads * kHeadDim);
  Scratch workspace(plan.workspace_bytes());
  plan.run({.q = q.data(),
            .k_cache = cache.k.data(),
            .v_cache = cache.v.data(),
            .out = out.data(),
            .block_table = cache.block_table.data(),
            .cu_seqlens_q = cu_seqlens_q.data(),
            .kv_len = cache.kv_len.data()},
           workspace)
      .value();
  std::printf("%2ld new rows, %2d and %2d tokens in the cache: %s\n", static_cast<long>(total), cache.kv_len[0], cache.kv_len[1],
              std::string(plan.implementation()).c_str());
  return out;
}

}  // namespace

int main() {
  Cache cache;
  bool finite = all_finite(step(cache, {37, 5}, 1));  // both prompts
  for (unsigned token = 0; token < 4; ++token) finite = all_finite(step(cache, {1, 1}, 10 * token + 10)) && finite;
  finite = all_finite(step(cache, {1, 12}, 100)) && finite;  // one decodes while the other reads a longer question
  return finite ? 0 : 1;
}
