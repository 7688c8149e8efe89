// SPDX-License-Identifier: Apache-2.0
/// Who computes what: the list of work of one run, and the map of the workspace.
#pragma once

#include "cpu/attention/setup.hpp"
#include "cpu/parallel.hpp"

namespace fovea::cpu {

/// One q tile of one sequence, or one part of the keys of a short one; for every kv head. Rows count (query, head of the group),
/// query-major.
struct WorkEntry {
  std::int64_t sequence = 0;
  std::int64_t row_begin = 0, row_end = 0;
  std::int64_t key_begin = 0, key_end = 0;  // of the sequence's visible keys; a multiple of split_keys or the end of the range
  std::int64_t partial = -1;                // first slot of the sequence's partial results, -1 when not split
  std::int64_t counter = -1;                // of the sequence's first kv head: parts still to come
  std::int32_t part = 0, parts = 1;
  std::int64_t cost = 0;
};

/// What a schedule of this cost has to do.
Work work_of(const detail::AttentionCore& core, double cost);

/// Threads that the largest call within the bounds is worth: a plan has memory for these.
int threads_of(const detail::AttentionCore& core);

/// Bounds of the lists, from the bounds of the plan alone.
struct ScheduleBounds {
  std::int64_t entries = 0, counters = 0, partials = 0;
};

/// Memory that one thread works in.
struct Scratch {
  void* q = nullptr;                               // [item_rows][q_stride] operands
  float* acc = nullptr;                            // [item_rows][acc_stride]
  float* maximum = nullptr;                        // [item_rows]
  float* sum = nullptr;                            // [item_rows]
  float *q_scales = nullptr, *k_scales = nullptr;  // int8: [q_rows], [kv_tile]
  KeySpan* visible = nullptr;                      // [q_rows]
  float* scores = nullptr;                         // [step_rows][score_stride]
  void* weights = nullptr;                         // [chunk_rows][score_stride] operands; scores itself where they are f32
  float* rescale = nullptr;                        // [step_rows]
  RowBlock* blocks = nullptr;                      // [chunk_rows]
  void* keys = nullptr;                            // packed panels
  void* values = nullptr;                          // keys itself where the tile is shared
  Row* k_rows[2] = {};                             // [row_pointers], this tile's and the next one's
  Row* v_rows[2] = {};
  std::uint16_t* decoded[2] = {};  // [row_pointers][head_dim_qk] bf16 rows of packed caches
};

/// Sizes that the engine and the map of the workspace share.
struct Extents {
  explicit Extents(const Setup& setup);
  std::int64_t item_rows = 0, step_rows = 0;  // of an item, and with scores at once: one head's, or the streamed ones of several
  std::int64_t q_stride = 0, qk_padded = 0, acc_stride = 0, score_stride = 0, row_pointers = 0;
  std::int64_t partial_floats = 0;  // one row's accumulator, maximum and sum
};

struct WorkspaceMap {
  std::int32_t* next = nullptr;  // the next item to hand out
  WorkEntry* entries = nullptr;
  std::int32_t* counters = nullptr;
  float* partials = nullptr;
  std::byte* scratch = nullptr;
  std::size_t scratch_bytes = 0, bytes = 0;
};

ScheduleBounds schedule_bounds(const Setup& setup);

/// Lays the workspace out at `base`; with a null base only `bytes` means something.
WorkspaceMap map_workspace(const Setup& setup, std::byte* base);
Scratch map_scratch(const Setup& setup, std::byte* base, std::size_t* bytes = nullptr);

struct Schedule {
  std::int64_t entries = 0, cost = 0;
  std::int64_t stream_heads = 1;  // kv heads that a streamed item takes at most
};

/// Fills map.entries (longest first) and map.counters from the lengths of the call.
Schedule build_schedule(const Setup& setup, const Call& call, const WorkspaceMap& map);

}  // namespace fovea::cpu
