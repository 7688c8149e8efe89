// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention_backward/setup.hpp"

#include "op/common/workspace_arena.hpp"

namespace fovea::cpu {

namespace {

/// The longest tile up to `most` of which each lies in one block, so that few tiles are seen in part: a multiple of a word's keys.
int tile_in_block(std::int64_t block_k, int most) {
  int tile = most;
  while (tile > kKeysOfWord && block_k % tile != 0) tile -= kKeysOfWord;
  return tile;
}

}  // namespace

BackwardTuning choose_backward_tuning(const detail::AttentionCore& core, const AttentionKernels& kernels, std::int64_t block_k) {
  const bool wide = std::max(core.head_dim_qk, core.head_dim_v) > 128;
  BackwardTuning t{};
  if (kernels.enter != nullptr) {  // tiles multiply faster than accumulators pass through the caches: longer sums
    t.chunk_keys = kernels.block_rows;
    t.kv_tile = wide ? 128 : 256;
    t.q_tile = 128;
    if (block_k != 0) t.kv_tile = tile_in_block(block_k, t.kv_tile);
    return t;
  }
  t.chunk_keys = 24;
  t.kv_tile = wide ? 48 : 96;
  if (block_k != 0) t.kv_tile = tile_in_block(block_k, wide ? 64 : 96);
  t.q_tile = static_cast<int>(round_up(64, kernels.panel));
  return t;
}

Work backward_work(const detail::AttentionCore& core, double pairs) {
  return {.products = pairs * static_cast<double>(3 * core.head_dim_qk + 2 * core.head_dim_v)};
}

int backward_threads(const detail::AttentionCore& core) {
  const double pairs = static_cast<double>(core.total_q) * static_cast<double>(core.max_seq_k) * static_cast<double>(core.heads);
  return worthwhile_threads(backward_work(core, pairs), core.batch * core.heads, planned_threads());
}

BackwardExtents::BackwardExtents(const BackwardSetup& setup) {
  const detail::AttentionCore& core = setup.forward.core;
  const AttentionKernels& kernels = *setup.forward.attention;
  constexpr std::int64_t kWidestRegister = 32;  // operands
  qk_row = round_up(core.head_dim_qk, kWidestRegister);
  v_row = round_up(core.head_dim_v, kWidestRegister);
  const std::int64_t step =
      std::max<std::int64_t>(kernels.depth, kPackedRows);  // multiple that pack_keys transposes at a time; no longer than a row
  qk_keys = round_up(core.head_dim_qk, step);
  v_keys = round_up(core.head_dim_v, step);
  qk_values = round_up(core.head_dim_qk, kernels.panel);
  v_values = round_up(core.head_dim_v, kernels.panel);
  queries = round_up(core.max_seq_q, setup.tuning.q_tile);
  score_stride = setup.tuning.q_tile + 16;  // no power of two, or rows share cache sets
  ds_stride = setup.tuning.kv_tile + 16;
}

BackwardWorkspace map_backward_workspace(const BackwardSetup& setup, std::byte* base) {
  const detail::AttentionCore& core = setup.forward.core;
  detail::WorkspaceArena arena(base);
  BackwardWorkspace map{};
  map.next = arena.take<std::int32_t>(2);
  map.order = arena.take<std::int32_t>(core.batch);
  if (core.has_sink) map.dsink = arena.take<float>(core.batch * core.heads);
  if (setup.shares_keys()) {
    map.dk = arena.take<float>(core.heads * setup.total_k * core.head_dim_qk);
    map.dv = arena.take<float>(core.heads * setup.total_k * core.head_dim_v);
  }
  map.dbias = setup.dbias_elements > 0 ? arena.take<float>(setup.dbias_elements) : nullptr;
  map_backward_scratch(setup, nullptr, &map.scratch_bytes);
  map.scratch = arena.take<std::byte>(static_cast<std::int64_t>(map.scratch_bytes) * setup.forward.threads);
  map.bytes = arena.bytes();
  return map;
}

BackwardScratch map_backward_scratch(const BackwardSetup& setup, std::byte* base, std::size_t* bytes) {
  const BackwardExtents e(setup);
  const BackwardTuning& t = setup.tuning;
  const std::int64_t operand = setup.forward.attention->operand_bytes, tile = std::max(t.q_tile, t.kv_tile);
  const bool f32 = operand == sizeof(float);
  detail::WorkspaceArena arena(base);
  const auto operands = [&](std::int64_t count) { return arena.take<std::byte>(count * operand); };
  BackwardScratch s{};
  s.q_rows = arena.take<Row>(e.queries);
  s.dout_rows = arena.take<Row>(e.queries);
  s.shift = arena.take<float>(e.queries);
  s.delta = arena.take<float>(e.queries);
  s.q_keys = operands(e.queries * e.qk_keys);
  s.dout_keys = operands(e.queries * e.v_keys);
  s.q_values = operands(e.queries * e.qk_values);
  s.dout_values = operands(e.queries * e.v_values);
  s.finite = arena.take<Finite>(e.queries / t.q_tile);
  s.dq = arena.take<float>(e.queries * e.qk_values);

  s.k_rows = arena.take<Row>(t.kv_tile);
  s.v_rows = arena.take<Row>(t.kv_tile);
  s.k = operands(t.kv_tile * e.qk_row);
  s.v = operands(t.kv_tile * e.v_row);
  s.k_values = operands(t.kv_tile * e.qk_values);
  s.dk = arena.take<float>(t.kv_tile * e.qk_values);
  s.dv = arena.take<float>(t.kv_tile * e.v_values);

  s.scores = arena.take<float>(t.chunk_keys * e.score_stride);
  s.gradients = arena.take<float>(t.chunk_keys * e.score_stride);
  s.p = f32 ? reinterpret_cast<std::byte*>(s.scores) : operands(t.chunk_keys * e.score_stride);
  s.ds = f32 ? reinterpret_cast<std::byte*>(s.gradients) : operands(t.chunk_keys * e.score_stride);
  s.ds_rows = operands(t.q_tile * e.ds_stride);
  if (setup.forward.core.has_score_bias()) {
    s.bias = arena.take<float>(t.chunk_keys * e.score_stride);
    s.bias_row = arena.take<float>(t.chunk_keys);
    if (setup.dbias_elements > 0) s.dbias = arena.take<float>(t.chunk_keys * e.score_stride);
  }
  if (setup.forward.core.dropout_p > 0) s.kept = arena.take<char>(t.chunk_keys * e.score_stride);
  s.ones = arena.take<float>(tile);
  s.exact = arena.take<float>(tile);
  s.visible = arena.take<KeySpan>(t.kv_tile);
  s.blocks = arena.take<RowBlock>(tile);
  if (setup.forward.blocks || setup.forward.core.packed_mask) s.shown = arena.take<std::uint32_t>(t.q_tile * listed_words(setup));
  if (bytes != nullptr) *bytes = arena.bytes();
  return s;
}

}  // namespace fovea::cpu
