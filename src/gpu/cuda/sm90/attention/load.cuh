// SPDX-License-Identifier: Apache-2.0
/// The producer: one warp plans the work tiles, a lane of another copies their queries, keys and values into shared memory.
#pragma once

#include "gpu/cuda/sm90/attention/work.cuh"
#include "gpu/cuda/sm90/clipped_rows.cuh"

namespace fovea::gpu::sm90::attention {

/// Ahead of the loader: to find a work tile takes as long as to compute a key tile.
template <class Config>
__device__ void plan_work(const Params& params, Storage<Config>& storage) {
  WorkList<Config> list(params);
  RingPosition<Storage<Config>::kWorkTiles> at;
  for (bool done = false; !done; at.advance()) {
    const WorkTile work = list.next();
    done = work.done;
    if (threadIdx.x % 32 == 0) {
      barrier_wait(shared_address(&storage.work_empty[at.stage]), at.parity ^ 1);
      storage.work_tiles[at.stage] = work;
      barrier_arrive(shared_address(&storage.work_full[at.stage]));
    }
    __syncwarp();
  }
}

/// By one lane.
template <class Config>
class Loader {
 public:
  __device__ Loader(const Params& params_, Storage<Config>& storage_) : params(params_), storage(storage_) {}

  __device__ void operator()() {
    RingPosition<Storage<Config>::kWorkTiles> at;
    RingPosition<Config::kQueryBuffers> buffer;
    for (bool done = false; !done; at.advance(), buffer.advance()) {
      barrier_wait(shared_address(&storage.work_full[at.stage]), at.parity);
      const WorkTile& work = storage.work_tiles[at.stage];
      done = work.done;
      load(work, buffer);
    }
  }

 private:
  /// From the last key tile to the first, each one's keys before the values of the tile before it, as the consumers take them: also from
  /// one work tile to the next. What says that all are done ends the values. It has a key tile out of bounds where consumers wait for one.
  __device__ void load(const WorkTile& work, RingPosition<Config::kQueryBuffers> buffer) {
    const int last = work.done ? 1 : work.last, first = work.done ? 0 : work.first;
    for (int tile = last - 1; tile >= first; --tile) {
      const int key = tile * Config::kKeyTile, valid = max(min(Config::kKeyTile, work.seq_k - key), 0);
      const BoxStart at{0, work.head / params.heads_per_kv, Config::kKeyTile - valid, work.k_begin + key + valid, work.batch};
      // Nothing may be on its way when the CTA ends.
      if (!work.done || (started && Config::kOverlapWork))
        load_tile<Config::kSlicesQk>(params.k, at, keys, shared_address(storage.k[keys.stage]), storage.k_full, storage.k_empty);
      // With one query buffer, the values of the tile before are what it waits for.
      if (tile == last - 1 && Config::kQueryBuffers > 1) load_queries(work, buffer);
      if (started) load_values();
      if (tile == last - 1 && Config::kQueryBuffers == 1) load_queries(work, buffer);
      started = true;
      values_at = at;
      if constexpr (Config::k8Bit) {
        const std::int64_t value_tile = params.first_value_tile(work.batch, work.k_begin, Config::kKeyTile) + tile;
        values_from = params.value_tiles + (value_tile * (params.heads / params.heads_per_kv) + at.row) * Config::kValueBytes;
      }
    }
  }

  __device__ void load_queries(const WorkTile& work, RingPosition<Config::kQueryBuffers> buffer) {
    const std::uint32_t full = shared_address(&storage.q_full[buffer.stage]);
    barrier_wait(shared_address(&storage.q_empty[buffer.stage]), buffer.parity ^ 1);
    barrier_arrive_expect(full, Config::kSlicesQk * Config::kQuerySliceBytes);
    const int tokens = Config::kRowTile >> params.packed_shift, valid = min(tokens, work.seq_q - work.token);
    const BoxStart at{0, work.head, tokens - valid, work.q_begin + work.token + valid, work.batch};
    load_box<Config::kSlicesQk>(shared_address(storage.q[buffer.stage]), Config::kQuerySliceBytes, params.q, at, full);
  }

  __device__ void load_values() {
    if constexpr (Config::k8Bit) {
      const std::uint32_t full = begin_stage(values, storage.v_full, storage.v_empty, Config::kValueBytes);
      copy_bulk(shared_address(storage.v[values.stage]), values_from, Config::kValueBytes, full);
      values.advance();
    } else {
      load_tile<Config::kSlicesV>(params.v, values_at, values, shared_address(storage.v[values.stage]), storage.v_full, storage.v_empty);
    }
  }

  /// Waits until a stage is empty. Returns its full barrier, which expects so many bytes then.
  template <int kStages>
  static __device__ std::uint32_t begin_stage(const RingPosition<kStages>& position, std::uint64_t* full_barriers,
                                              std::uint64_t* empty_barriers, int bytes) {
    const std::uint32_t full = shared_address(full_barriers + position.stage);
    barrier_wait(shared_address(empty_barriers + position.stage), position.parity ^ 1);
    barrier_arrive_expect(full, bytes);
    return full;
  }

  template <int kSlices, int kStages>
  __device__ void load_tile(const ClippedRows& rows, BoxStart at, RingPosition<kStages>& position, std::uint32_t to,
                            std::uint64_t* full_barriers, std::uint64_t* empty_barriers) {
    const std::uint32_t full = begin_stage(position, full_barriers, empty_barriers, kSlices * Config::kKeySliceBytes);
    load_box<kSlices>(to, Config::kKeySliceBytes, rows, at, full);
    position.advance();
  }

  template <int kSlices>
  __device__ void load_box(std::uint32_t to, int slice_bytes, const ClippedRows& rows, BoxStart at, std::uint32_t full) {
    at.row *= rows.head_step;
    at.block *= rows.batch_step;
    constexpr int kColumns = kSliceBytes / static_cast<int>(sizeof(typename Config::Element));
    load_slices<kSlices, kColumns>(to, slice_bytes, rows, at, full);
  }

  const Params& params;
  Storage<Config>& storage;
  RingPosition<Config::kKeyStages> keys;
  RingPosition<Config::kValueStages> values;
  BoxStart values_at{};  // of the tile whose keys were the last
  const std::byte* values_from = nullptr;
  bool started = false;
};

}  // namespace fovea::gpu::sm90::attention
