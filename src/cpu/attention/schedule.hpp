// SPDX-License-Identifier: Apache-2.0
/// The list of work of one run, and the map of the workspace.
#pragma once

#include "cpu/attention/setup.hpp"
#include "cpu/parallel.hpp"

namespace fovea::cpu {

/// One query tile of one sequence, or one split of a short sequence, for every kv head. Rows count (query, head of the group), query-major.
struct WorkEntry {
  std::int64_t sequence = 0;
  std::int64_t row_begin = 0, row_end = 0;
  std::int64_t key_begin = 0, key_end = 0;  // visible keys of the sequence; a multiple of split_keys, or the end of the range
  std::int64_t partial = -1;                // first slot of the sequence's partial results, -1 when not split
  std::int64_t counter = -1;                // counter of the sequence's first kv head: splits that are not finished
  std::int32_t part = 0, parts = 1;
  std::int64_t cost = 0;
};

/// The work of a schedule of this cost.
Work work_of(const detail::AttentionCore& core, double cost);

/// Threads that the largest call within the bounds is worth. The plan has memory for these.
int threads_of(const detail::AttentionCore& core);

/// Bounds of the lists. They follow from the bounds of the plan alone.
struct ScheduleBounds {
  std::int64_t entries = 0, counters = 0, partials = 0;
};

/// The memory of one thread.
struct Scratch {
  void* q = nullptr;                               // [item_rows][q_stride] operands
  float* acc = nullptr;                            // [item_rows][acc_stride]
  float* maximum = nullptr;                        // [item_rows]
  float* sum = nullptr;                            // [item_rows]
  float* total_acc = nullptr;                      // the same of earlier parts, where rows are exact
  float* total_maximum = nullptr;                  // likewise
  float* total_sum = nullptr;                      // likewise
  float *q_scales = nullptr, *k_scales = nullptr;  // int8: [q_rows], [kv_tile]
  KeySpan* visible = nullptr;                      // [q_rows]
  KeyBits* shown = nullptr;                        // [q_rows], of a call with a packed mask or a block mask
  std::uint32_t* listed = nullptr;                 // [q_rows][listed_words()] bits, of a call with a block mask
  float* scores = nullptr;                         // [step_rows][score_stride]
  float* bias = nullptr;                           // [chunk_rows][score_stride] added to scores; null where nothing is
  void* weights = nullptr;                         // [chunk_rows][score_stride] operands; `scores` itself if these are f32
  float* rescale = nullptr;                        // [step_rows]
  RowBlock* blocks = nullptr;                      // [chunk_rows]
  void* keys = nullptr;                            // packed panels
  void* values = nullptr;                          // `keys` itself if K and V share the tile
  Row* k_rows[2] = {};                             // [row_pointers], this tile's rows and the next tile's; then those of their scales
  Row* v_rows[2] = {};
  std::uint16_t* decoded[2] = {};  // [row_pointers][head_dim_qk] bf16 rows of packed caches
  float* decoded_kv = nullptr;     // rows of K, then of V, of a cache in a format of codes
};

/// Rows of scratch memory for the rows of one of several heads. Packed ones are whole blocks, as some kernels store these.
std::int64_t rows_of_head(const Setup& setup, std::int64_t rows);

/// Sizes that the engine and the map of the workspace share.
struct Extents {
  explicit Extents(const Setup& setup);
  std::int64_t item_rows = 0, step_rows = 0;  // rows of an item, and rows whose scores exist at once
  std::int64_t q_stride = 0, qk_padded = 0, acc_stride = 0, score_stride = 0, row_pointers = 0;
  std::int64_t partial_floats = 0;  // one row's accumulator, maximum and sum
};

struct WorkspaceMap {
  std::int32_t* next = nullptr;  // index of the next item to take
  WorkEntry* entries = nullptr;
  std::int32_t* counters = nullptr;
  float* partials = nullptr;
  std::byte* scratch = nullptr;
  std::size_t scratch_bytes = 0, bytes = 0;
};

ScheduleBounds schedule_bounds(const Setup& setup);

/// Lays out the workspace at `base`. With a null base only `bytes` is meaningful.
WorkspaceMap map_workspace(const Setup& setup, std::byte* base);
Scratch map_scratch(const Setup& setup, std::byte* base, std::size_t* bytes = nullptr);

struct Schedule {
  std::int64_t entries = 0, cost = 0;
  std::int64_t few_heads = 1;  // most kv heads of one item of few rows
};

/// Fills map.entries (longest first) and map.counters from the lengths of the call.
Schedule build_schedule(const Setup& setup, const Call& call, const WorkspaceMap& map);

/// Computes a call whose arguments have been checked. Allocates nothing.
void attend(const Setup& setup, const Call& call, std::byte* workspace);

}  // namespace fovea::cpu
