// SPDX-License-Identifier: Apache-2.0
/// Calls of one wave: which they are, and their launch.
#include <algorithm>
#include <array>
#include <limits>

#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/common/instances.hpp"
#include "gpu/cuda/sm90/attention/one_wave/plan.hpp"
#include "gpu/cuda/sm90/attention/one_wave/storage.cuh"
#include "gpu/device_plan.hpp"

namespace fovea::gpu::sm90::one_wave {
namespace {

using Problem = detail::AttentionProblem;
constexpr int kFewKeyTiles = 2;  // of a CTA: fewer cost less than a larger cluster does

// Scores of the next key tile are awaited before a tile is released, and its release loads the tile after the next.
static_assert(std::all_of(kTunings.begin(), kTunings.end(), [](const Tuning& row) { return row.turns == 1 || row.key_tiles > 2; }));

auto launch_of(DType dtype, bool transform, int tuning) {
  return instance_of<kTunings.size()>(dtype, transform, tuning,
                                      [](auto of) { return &launch_attend<Config<typename decltype(of)::Element, of.kRow, of.kWith>>; });
}

/// Most key tiles that a query tile sees some of.
std::int64_t most_key_tiles(const Problem& p, std::int64_t tokens, int key_tile) {
  const std::int64_t all = detail::ceil_div(p.max_seq_k, key_tile);
  return p.mask.left == kUnbounded ? all : std::min(all, detail::ceil_div(most_keys(p, tokens), key_tile) + 1);
}

/// Whether key tiles that take turns beat the persistent kernel, which spreads keys over more CTAs.
bool turns_pay(std::int64_t of_cta, std::int64_t ctas, int multiprocessors) {
  constexpr std::int64_t kFewTiles = 8;
  return of_cta <= kFewTiles || 16 * ctas >= 7 * multiprocessors;
}

/// log2 of the CTAs that share the keys of a query tile, or -1 if one wave does not do.
int cluster_shift(std::int64_t tiles, std::int64_t key_tiles, const Tuning& tuning, int multiprocessors) {
  // Clusters lie within a group of multiprocessors, and large ones leave some of each group idle.
  constexpr std::array kEighths{8, 8, 7, 6};
  const auto fits = [&](std::size_t shift) { return 8 * (tiles << shift) <= multiprocessors * kEighths[shift]; };
  const int most = tuning.key_groups > 1 ? 1 : tuning.ctas;
  std::size_t shift = 0;
  while (2 << shift <= most && key_tiles > kFewKeyTiles << shift && fits(shift + 1)) ++shift;
  const std::int64_t of_cta = detail::ceil_div(key_tiles, std::int64_t{1} << shift);
  if (!fits(shift) || of_cta > tuning.key_tiles * tuning.turns) return -1;
  // A CTA alone is slower than the persistent kernel.
  if (of_cta > tuning.key_tiles && (shift == 0 || !turns_pay(of_cta, tiles << shift, multiprocessors))) return -1;
  return static_cast<int>(shift);
}

/// The call with a row of tuning.hpp, if one wave does. Only the parameters of its shape are set.
std::optional<Call> call_with(const Problem& p, int index, int multiprocessors) {
  const Tuning& tuning = kTunings[static_cast<std::size_t>(index)];
  if (tuning.head_dim_qk < p.head_dim_qk || tuning.head_dim_v < p.head_dim_v) return {};
  if (std::max(p.head_dim_qk, p.head_dim_v) < tuning.least_head_dim) return {};
  // Each warpgroup begins with a token of its own.
  const int packed = packed_heads(p.group(), p.max_seq_q, tuning.row_tile(), tuning.row_tile() / tuning.row_groups);
  const std::int64_t tokens = tuning.row_tile() / packed, q_tiles = detail::ceil_div(p.max_seq_q, tokens);
  const std::int64_t tiles = q_tiles * (p.heads / packed) * p.batch;
  if (tiles > multiprocessors) return {};
  const int shift = cluster_shift(tiles, most_key_tiles(p, tokens, tuning.key_tile), tuning, multiprocessors);
  if (shift < 0) return {};
  Call call{.index = index,
            .grid = dim3(static_cast<unsigned>(q_tiles), static_cast<unsigned>(p.heads / packed), static_cast<unsigned>(p.batch))};
  while (1 << call.params.packed_shift < packed) ++call.params.packed_shift;
  call.params.cluster_shift = shift;
  return call;
}

}  // namespace

std::optional<Call> call_of(const Problem& p, int multiprocessors) {
  // The number of CTAs depends on the batch.
  if (p.batch_invariant || p.exact_rows || (p.q_dtype != DType::f16 && p.q_dtype != DType::bf16)) return {};
  std::optional<Call> call;
  for (std::size_t index = 0; index < kTunings.size() && !call; ++index) call = call_with(p, static_cast<int>(index), multiprocessors);
  if (!call) return {};

  Params& params = call->params;
  fill_problem(params, p);
  params.scale_log2 = in_base_2(p.scale, std::numeric_limits<float>::min());  // above 0, so that minus infinity stays so
  params.heads_of_kv = divmod_by(p.group());
  params.narrow_mask = detail::NarrowMask(p.mask);
  params.q.strides = p.q;
  params.k.strides = p.k;
  params.v.strides = p.v;
  params.out.strides = p.out;
  params.lse.strides = p.lse;
  return call;
}

std::string Call::tuning() const {
  std::string text = tiles_text(kTunings[static_cast<std::size_t>(index)], 1 << params.packed_shift, 1);
  return params.cluster_shift == 0 ? text : text + ", keys over clusters of " + std::to_string(1 << params.cluster_shift);
}

Result<void> Call::run(const Problem& problem, const AttentionArgs& args, int ordinal, Stream stream) const {
  Params full = params;
  full.q.data = args.q;
  full.k.data = args.k;
  full.v.data = args.v;
  full.out.data = args.out;
  full.lse.data = problem.has_lse ? args.lse : nullptr;
  fill_lists(full, problem, args);
  return launch_of(problem.q_dtype, transforms_scores(problem), index)(full, grid, ordinal, stream);
}

}  // namespace fovea::gpu::sm90::one_wave
