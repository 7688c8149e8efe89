// SPDX-License-Identifier: Apache-2.0
/// The consumer: a warpgroup with 64 query rows. Scores, probabilities and accumulators stay in registers.
#pragma once

#include "gpu/cuda/sm90/cluster.cuh"
#include "gpu/cuda/sm90/dense/epilogue.cuh"
#include "gpu/cuda/sm90/dense/mask_row.cuh"
#include "gpu/cuda/sm90/dense/storage.cuh"
#include "gpu/cuda/sm90/fragment.cuh"
#include "gpu/cuda/sm90/gemm.cuh"

namespace fovea::gpu::sm90::dense {

/// IntScores of kernels whose Q K^T is f32.
struct NoIntScores {
  template <class Params>
  explicit __device__ NoIntScores(const Params&) {}
};

/// `IntScores`: accumulators of Q K^T and their softmax, where they are integers (Config::kCodes).
template <class Config, class Epilogue = Epilogue<Config>, class IntScores = NoIntScores>
class Math {
 public:
  using Params = typename Config::Params;

  __device__ Math(const Params& params_, Storage<Config>& storage_, int warpgroup_)
      : params(params_), storage(storage_), warpgroup(warpgroup_), int_scores(params_) {}

  __device__ __forceinline__ void operator()() {
    Epilogue epilogue(params, storage, warpgroup);
    if (kPingpong && warpgroup == Config::kTuning.warpgroups - 1) named_arrive(kSchedulerBarrier, 256);
    if constexpr (!Config::kOverlap) {
      while (begin_work()) compute_work(epilogue);
      return_staged(epilogue);
    } else if (begin_work()) {
      begin_rows();
      issue_scores();
      wgmma_wait<0>();
      scores_to_probabilities();
      round_to<ValueElement>(probabilities, scores);
      do {
        while (tile > first) step();
      } while (change_work(epilogue));
    }
    if (kPingpong && warpgroup == 0) named_sync(kSchedulerBarrier, 256);
  }

 private:
  using Element = typename Config::Element;
  using ValueElement = typename Config::ValueElement;
  static constexpr int kScores = Config::kKeyTile / 2, kOut = Config::kHeadDimV / 2;  // accumulators of a lane
  static constexpr bool kPingpong = Config::kTuning.pingpong;
  static constexpr int kOperands = kScores * static_cast<int>(sizeof(ValueElement)) / 4;  // registers of P

  /// Computes the next key tile, from the last to the first. Its Q K^T overlaps P V of the tile before, its
  /// softmax the MMAs of the other warpgroups.
  __device__ __forceinline__ void step() {
    --tile;
    scheduler_barrier_sync();
    issue_scores();
    issue_values();
    scheduler_barrier_arrive();
    wgmma_wait<1>();
    const bool grown = scores_to_probabilities();
    compute_before_wait(softmax.sum[0] + softmax.sum[1]);
    wgmma_wait<0>();
    finish_values();
    if (grown) scale_rows(out, softmax.rescale);
    round_to<ValueElement>(probabilities, scores);
  }

  /// Ends a work tile and begins the next one, whose first Q K^T overlaps the last P V and the stores.
  /// Returns false when there is none.
  __device__ __forceinline__ bool change_work(Epilogue& epilogue) {
    const WorkSlots ended = slots();
    scheduler_barrier_sync();
    issue_values();
    advance_work();
    const bool more = begin_work();
    issue_scores();
    scheduler_barrier_arrive();
    wgmma_wait<1>();
    finish_values();
    const auto rows = epilogue.store(ended, softmax, out, scale());
    begin_rows();
    wgmma_wait<0>();
    epilogue.finish(ended, rows, scale());
    scores_to_probabilities();
    round_to<ValueElement>(probabilities, scores);
    if constexpr (Config::kStagedResults) epilogue.return_staged(ended.queries);
    return more;
  }

  __device__ __forceinline__ void begin_rows() {
    softmax.begin();
    clear(out);
  }

  /// Computes a work tile without overlap. Other warpgroups compute while this one waits for its MMAs.
  __device__ __forceinline__ void compute_work(Epilogue& epilogue) {
    begin_scale();
    begin_rows();
    const Range seen = seen_tiles(*current);
    if constexpr (Config::kOwnEdges) find_own_edges(*current);
    const int first_of_work = first;
    first = seen.begin;
    for (; tile >= seen.end; --tile) skip_tile();
    if (tile < first) release_queries();
    const int begun_at = tile;
    for (; tile >= first; --tile) {
      issue_scores();
      if constexpr (Config::kCodes) int_scores.begin_tile(tile);
      wgmma_wait<0>();
      if (tile == begun_at) return_staged(epilogue);
      const bool grown = scores_to_probabilities();
      // ptxas joins e4m3 pairs as it rounds them, unless a branch stands between.
      if constexpr (Config::k8BitValues) round_to<ValueElement>(probabilities, scores);
      // Results are 0 at first.
      if (grown && !(Config::kRawStages > 0 && tile == begun_at)) scale_rows(out, softmax.rescale);
      if constexpr (Config::k8BitValues) {
        add_values();
      } else {
        round_to<ValueElement>(probabilities, scores);
        issue_values();
        wgmma_wait<0>();
        finish_values();
      }
    }
    return_staged(epilogue);
    epilogue(slots(), softmax, out, scale());
    staged = query_slot();
    for (; tile >= first_of_work; --tile) skip_tile();
    advance_work();
  }

  /// Returns the slot through which the results of the last work tile left. The end of that tile would wait for TMA to read it.
  __device__ __forceinline__ void return_staged(const Epilogue& epilogue) {
    if constexpr (Config::kStagedResults) {
      if (staged >= 0) epilogue.return_staged(staged);
      staged = -1;
    }
  }

  struct Range {
    int begin, end;
  };
  /// Key tiles of the work tile that some row of this warpgroup sees.
  __device__ __forceinline__ Range seen_tiles(const WorkTile& work) const {
    const int rows = kWarpgroupRows >> params.packed_shift, token = work.token + part() * rows,
              last_token = min(token + rows, work.seq_q) - 1;
    const int begin = max(token + work.low, 0), end = min(last_token + work.high + 1, work.seq_k);
    const bool any = token < work.seq_q && begin < end;
    // All of them may precede the key tiles of a split, which begin with `first`.
    const int last = any ? min(uniform((end - 1) / Config::kKeyTile) + 1, tile + 1) : first;
    return {max(uniform(begin / Config::kKeyTile), first), max(last, first)};
  }
  /// Finds the key tiles without a mask for this warpgroup's rows; they are more than the work tile's.
  __device__ __forceinline__ void find_own_edges(const WorkTile& work) {
    const int rows = kWarpgroupRows >> params.packed_shift, token = work.token + part() * rows,
              last_token = min(token + rows, work.seq_q) - 1;
    full_first = uniform((max(last_token + work.low, 0) + Config::kKeyTile - 1) / Config::kKeyTile);
    full_last = uniform(min(token + work.high + 1, work.seq_k) / Config::kKeyTile);
  }
  __device__ __forceinline__ void skip_tile() {
    barrier_wait(shared_address(&storage.k_full[keys.stage]), keys.parity);
    release_keys(&storage.k_empty[keys.stage]);
    keys.advance();
    barrier_wait(shared_address(&storage.v_full[values.stage]), values.parity);
    release_keys(&storage.v_empty[values.stage]);
    values.advance();
  }

  /// With pingpong: waits until the warpgroup before has issued its MMAs.
  __device__ __forceinline__ void scheduler_barrier_sync() const {
    if constexpr (kPingpong) named_sync(kSchedulerBarrier + warpgroup, 256);
  }
  __device__ __forceinline__ void scheduler_barrier_arrive() const {
    if constexpr (kPingpong) named_arrive(kSchedulerBarrier + (warpgroup + 1) % Config::kTuning.warpgroups, 256);
  }

  __device__ __forceinline__ void advance_work() {
    position.advance();
    work_at.advance();
  }
  __device__ __forceinline__ int query_slot() const { return position.stage * Config::kTuning.warpgroups + warpgroup; }
  __device__ __forceinline__ WorkSlots slots() const { return {work_at.stage, query_slot()}; }
  /// Number of this warpgroup's 64 rows in the query tile.
  __device__ __forceinline__ int part() const { return rows_of_warpgroup<Config>(warpgroup, work_at.stage); }
  /// Returns the slot of the queries to the producer, once the last scores of the work tile are complete, unless the epilogue needs it.
  __device__ __forceinline__ void release_queries() {
    if constexpr (!Config::kStagedResults) release(&storage.q_empty[query_slot()]);
  }
  /// Waits for the next work tile and its queries. Returns false when there is none.
  __device__ __forceinline__ bool begin_work() {
    barrier_wait(shared_address(&storage.q_full[query_slot()]), position.parity);
    if constexpr (requires { storage.work_tile_data.wait(0, 0); }) storage.work_tile_data.wait(work_at.stage, work_at.parity);
    current = &storage.work_tiles[work_at.stage];
    queries = shared_address(storage.q[query_slot()]);
    first = uniform(current->first);
    tile = uniform(current->last) - 1;
    full_first = uniform(current->full_first);
    full_last = uniform(current->full_last);
    if constexpr (kAlibi<Config>) alibi.begin(params, *current, part() * kWarpgroupRows + thread_index() % 128 / 32 * 16);
    return uniform(current->done) == 0;
  }

  // ---- MMAs -----------------------------------------------------------------------------------------------------------------

  /// Accumulators of Q K^T.
  __device__ __forceinline__ auto& score_accumulators() {
    if constexpr (Config::kCodes) {
      return int_scores.accumulators;
    } else {
      return scores;
    }
  }
  /// scores (64 x key tile) = Q (64 x head dim) K^T
  __device__ __forceinline__ void issue_scores() {
    barrier_wait(shared_address(&storage.k_full[keys.stage]), keys.parity);
    if constexpr (kListed<Config>) find_listed_tile();
    const SlicedTile k{shared_address(storage.k[keys.stage]), Config::kKeySliceStep, Config::kKeyGroupBytes};
    if constexpr (kAlibi<Config>) {
      const auto& slope = alibi.operand_of(tile);
      issue_product<Element, Config::kHeadDimQk, Config::kKeyTile>(scores, {queries, Config::kQuerySliceBytes}, k);
      issue_numbers<Element, Config::kKeyTile>(scores, slope, storage.key_numbers.descriptor());
    } else {
      gemm_ss<Element, Config::kHeadDimQk, Config::kKeyTile>(score_accumulators(), {queries, Config::kQuerySliceBytes}, k);
    }
  }

  /// Reads which tile the lists name here, and its bits, which arrive beside the MMAs.
  __device__ __forceinline__ void find_listed_tile() {
    listed.tile = storage.work_tile_data.tiles[keys.stage];
    if (listed.tile.bits == nullptr) return;
    const int row = tile_row(part(), 0) >> params.packed_shift, other = tile_row(part(), 1) >> params.packed_shift;
    listed.bits.load(params.lists, listed.tile.bits, row, other);
  }

  /// out (64 x head dim) += P (64 x key tile) V
  __device__ __forceinline__ void issue_values() {
    barrier_wait(shared_address(&storage.v_full[values.stage]), values.parity);
    const SlicedTile v{shared_address(storage.v[values.stage]), Config::kKeySliceStep, Config::kValueGroupBytes};
    gemm_rs<ValueElement, Config::kKeyTile, Config::kHeadDimV>(out, probabilities, v);
  }
  /// The same for e4m3, with the wait.
  __device__ __forceinline__ void add_values() {
    // Columns whose accumulators have registers beside `out`: all, or parts of which two are in flight. Beside
    // integer scores, which are as many registers again, one part is.
    constexpr bool kFits = 2 * kOut + kOperands + 32 <= Config::kMathRegisters;
    constexpr bool kWhole = Config::kCodes ? Config::kHeadDimV * Config::kTuning.warpgroups <= 256 : kFits;
    constexpr bool kBeside = !Config::kCodes && !kWhole;
    constexpr int kColumns = Config::kHeadDimV / (kWhole ? 1 : Config::kHeadDimV > 128 ? 4 : 2);
    barrier_wait(shared_address(&storage.v_full[values.stage]), values.parity);
    gemm_rs_promoted<ValueElement, Config::kKeyTile, Config::kHeadDimV, kColumns, kBeside>(
        out, probabilities, shared_address(storage.v[values.stage]), [&] { release_keys(&storage.v_empty[values.stage]); });
    values.advance();
  }
  /// Frees the values after the wait.
  __device__ __forceinline__ void finish_values() {
    fence_operand(out);
    release_keys(&storage.v_empty[values.stage]);
    values.advance();
  }

  __device__ __forceinline__ void release(std::uint64_t* empty) {
    if (lane_index() == 0) barrier_arrive(shared_address(empty));
  }

  /// Returns a tile of keys or values to the producers of all CTAs that load parts of it.
  __device__ __forceinline__ void release_keys(std::uint64_t* empty) {
    if constexpr (Config::kCluster == 1) return release(empty);
    if (lane_index() < Config::kCluster) barrier_arrive_at(shared_address(empty), lane_index());
  }

  // ---- softmax ------------------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ ScoreScale scale() const {
    if constexpr (Config::kOwnScale) {
      return own_scale;
    } else {
      return ScoreScale::of<Config>(params, *current);
    }
  }
  /// Finds the scale of a work tile, where it has its own.
  __device__ __forceinline__ void begin_scale() {
    if constexpr (Config::kCodes) {
      own_scale = int_scores.begin(*current, storage.work_tile_data[work_at.stage], tile_row(part(), 0));
    } else if constexpr (Config::k8Bit) {
      own_scale = ScoreScale::of<Config>(params, *current);
    }
  }

  /// Turns scores into probabilities. Returns whether `out` is to be rescaled.
  __device__ __forceinline__ bool scores_to_probabilities() {
    fence_operand(score_accumulators());
    release_keys(&storage.k_empty[keys.stage]);
    keys.advance();
    if (tile == first) release_queries();
    const bool edge = key_tile() < full_first || key_tile() >= full_last;
    if constexpr (Config::kCodes) {
      return int_scores.to_probabilities(scores, softmax, edge,
                                         [&](int(&hidden)[kScores]) { mask(hidden, *current, key_tile() * Config::kKeyTile); });
    } else if constexpr (kAlibi<Config>) {
      return add_alibi(edge);
    } else {
      return transform_scores(edge);
    }
  }
  __device__ __forceinline__ bool add_alibi(bool edge) {
    float shift[2];
    alibi.release_operand();
    alibi.find_shift(tile, shift);
    if (alibi.is_mixed(tile)) alibi.complete(params, scores, tile, shift);
    if (edge) mask(scores, *current, tile * Config::kKeyTile);
    return softmax(scores, shift, alibi.is_right(tile), params.scale_log2, params.zero);
  }
  __device__ __forceinline__ bool transform_scores(bool edge) {
    if constexpr (Config::kTransform) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] = transformed(params, Config::k8Bit ? scores[i] * own_scale.factor : scores[i]);
    } else if (Config::k8Bit && Warp::any(!(own_scale.factor > 0))) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] *= own_scale.factor;
    }
    if (edge) mask(scores, *current, key_tile() * Config::kKeyTile);
    if constexpr (kListed<Config>) {
      if (listed.tile.bits != nullptr) listed.bits.hide(scores, lane_index());
    }
    if constexpr (kMasked<Config>) hide(*current, tile * Config::kKeyTile);
    return softmax(scores, scale().log2, params.zero);
  }

  /// Number of the current key tile among those of the sequence.
  __device__ __forceinline__ int key_tile() const {
    if constexpr (kListed<Config>) {
      return uniform(listed.tile.tile);
    } else {
      return tile;
    }
  }

  template <class Score>
  __device__ __forceinline__ void mask(Score (&hidden)[kScores], const WorkTile& work, int key) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = work.token + (tile_row(part(), r) >> params.packed_shift);
      const int column = key + lane_column(lane_index());
      const WorkTile::Keys seen = work.keys_of(token);
      mask_row_by_bits(hidden, r, seen.begin - column, seen.end - column);
    }
  }

  /// Hides keys whose bit of the packed mask is 0.
  __device__ __forceinline__ void hide(const WorkTile& work, int key) {
    if (params.bits.tail != 0 && key + Config::kKeyTile <= work.seq_k - params.bits.tail) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowBits bits = row_bits(params, work, work.token + (tile_row(part(), r) >> params.packed_shift));
#pragma unroll
      for (int at = 0; at < Config::kKeyTile; at += 64) hide_unshown(scores, r, bits.of_keys(key + at), at, lane_index());
    }
  }

  const Params& params;
  Storage<Config>& storage;
  const int warpgroup;
  PipelineState<Config::kQueryBuffers> position;
  PipelineState<kWorkTiles> work_at;
  const WorkTile* current = nullptr;
  int staged = -1;                    // slot of results that TMA may still read, unless negative
  int tile = 0;                       // the current key tile
  int first = 0;                      // the last one to compute
  int full_first = 0, full_last = 0;  // those without a mask
  std::uint32_t queries = 0;          // address of this warpgroup's slot
  float scores[kScores], out[kOut];
  std::uint32_t probabilities[kOperands];  // operand a of P V
  typename Epilogue::Softmax softmax;
  ScoreScale own_scale;  // with Config::kOwnScale
  IntScores int_scores;
  PipelineState<Config::kKeyStages> keys;
  PipelineState<Config::kValueStages> values;
  [[no_unique_address]] std::conditional_t<kAlibi<Config>, Alibi<Config>, NoAlibi> alibi;
  [[no_unique_address]] std::conditional_t<kListed<Config>, ListedBits<Config::kKeyTile>, NoLists> listed;
};

}  // namespace fovea::gpu::sm90::dense
