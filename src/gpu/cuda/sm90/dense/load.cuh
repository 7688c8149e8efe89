// SPDX-License-Identifier: Apache-2.0
/// The producer: one lane loads queries, keys and values of the work tiles into shared memory by TMA. In a
/// cluster, each CTA's loads a part of every tile of keys and values into all.
#pragma once

#include <type_traits>

#include "gpu/cuda/common/block_lists.cuh"
#include "gpu/cuda/sm90/clipped_rows.cuh"
#include "gpu/cuda/sm90/cluster.cuh"
#include "gpu/cuda/sm90/dense/storage.cuh"
#include "gpu/cuda/sm90/dense/value_tiles.cuh"

namespace fovea::gpu::sm90::dense {

/// Waits until the slot of each warpgroup is empty. Then the elected thread loads its queries of a work
/// tile.
template <class Config>
__device__ void load_queries(const typename Config::Params& params, Storage<Config>& storage, const WorkTile& work,
                             PipelineState<Config::kQueryBuffers> buffer, int work_slot, bool elected = true) {
  constexpr int kColumns = kSliceBytes / static_cast<int>(sizeof(typename Config::Element));
  constexpr int kWarpgroups = Storage<Config>::kWarpgroups;
  const int tokens = kWarpgroupRows >> params.packed_shift;
#pragma unroll 1
  for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
    const int slot = buffer.stage * kWarpgroups + warpgroup;
    const int token = work.token + rows_of_warpgroup<Config>(warpgroup, work_slot) * tokens;
    const int valid = max(min(tokens, work.seq_q - token), 0);
    const std::uint32_t full = shared_address(&storage.q_full[slot]);
    barrier_wait(shared_address(&storage.q_empty[slot]), buffer.parity ^ 1);
    if (!elected) continue;
    barrier_arrive_expect_tx(full, Config::kQueryBytes);
    const BoxStart at{0, work.head, tokens - valid, work.q_begin + token + valid, work.batch};
    load_clipped<Config::kSlicesQk, kColumns>(shared_address(storage.q[slot]), Config::kQuerySliceBytes, params.q, at, full);
  }
}

template <class Config>
class Loader {
 public:
  using Params = typename Config::Params;

  __device__ Loader(const Params& params_, Storage<Config>& storage_) : params(params_), storage(storage_) {}

  __device__ void operator()() {
    PipelineState<kWorkTiles> at;
    PipelineState<Config::kQueryBuffers> buffer;
    for (bool done = false; !done; at.advance(), buffer.advance()) {
      barrier_wait(shared_address(&storage.work_full[at.stage]), at.parity);
      const WorkTile& work = storage.work_tiles[at.stage];
      done = work.done;
      load(work, buffer, at.stage);
    }
  }

 private:
  template <class T>
  static constexpr int kColumns = kSliceBytes / static_cast<int>(sizeof(T));  // columns of a slice
  using Element = typename Config::Element;

  /// Loads key tiles from the last to the first. The keys of a tile precede the values of the tile before
  /// it, also across work tiles, because consumers read them in this order. The work tile with `done`
  /// adds the last values, and a key tile out of bounds where consumers wait for one.
  __device__ void load(const WorkTile& work, PipelineState<Config::kQueryBuffers> buffer, int work_slot) {
    const int last = work.done ? 1 : work.last, first = work.done ? 0 : work.first;
    if constexpr (kListed<Config>) listed.begin(params.lists, work);
    for (int tile = last - 1; tile >= first; --tile) {
      int key_tile = tile;
      if constexpr (kListed<Config>) {
        // Consumers have read the number that was here before.
        barrier_wait(shared_address(&storage.k_empty[keys.stage]), keys.parity ^ 1);
        const ListedTile next = listed.next(tile);
        storage.work_tile_data.tiles[keys.stage] = next;
        key_tile = next.tile;
      }
      const int key = key_tile * Config::kKeyTile + rank * Config::kKeyBox, valid = max(min(Config::kKeyBox, work.seq_k - key), 0);
      const BoxStart at{0, work.head / params.heads_per_kv, Config::kKeyBox - valid, work.k_begin + key + valid, work.batch};
      // No copy may be in flight when the CTA ends.
      if (!work.done || (started && Config::kOverlap))
        load_tile<Config::kSlicesQk, Element>(params.k, at, keys, shared_address(storage.k[keys.stage]), storage.k_full, storage.k_empty);
      if (started) load_values();
      // The next keys take the stage that the last scores of the work tile before leave, as queries do that have one slot.
      if (tile == last - 1) load_queries<Config>(params, storage, work, buffer, work_slot);
      started = true;
      values_at = at;
      if constexpr (Config::k8BitValues && Config::kRawStages == 0) values_from = value_tile_at<Config>(params, work, tile);
    }
  }

  __device__ void load_values() {
    using ValueElement = typename Config::ValueElement;
    if constexpr (Config::kRawStages > 0) {
      BoxStart at = values_at;
#pragma unroll
      for (int slice = 0; slice < Config::kRawSlices; ++slice, at.column += kColumns<ValueElement>)
        load_tile<1, ValueElement>(params.v, at, raws, shared_address(storage.raw.slices[raws.stage]), storage.raw.full, storage.raw.empty);
    } else if constexpr (Config::k8BitValues) {
      const std::uint32_t full = producer_acquire(values, storage.v_full, storage.v_empty, Config::kValueBytes);
      bulk_load(shared_address(storage.v[values.stage]), values_from, Config::kValueBytes, full);
      values.advance();
    } else {
      load_tile<Config::kSlicesV, ValueElement>(params.v, values_at, values, shared_address(storage.v[values.stage]), storage.v_full,
                                                storage.v_empty);
    }
  }

  template <int kSlices, class T, int kStages>
  __device__ void load_tile(const ClippedRows& rows, BoxStart at, PipelineState<kStages>& position, std::uint32_t to,
                            std::uint64_t* full_barriers, std::uint64_t* empty_barriers) {
    const std::uint32_t full = producer_acquire(position, full_barriers, empty_barriers, kSlices * Config::kKeySliceBytes);
    at.row *= rows.head_step;
    at.block *= rows.batch_step;
    load_slices<kSlices, kColumns<T>, Config::kCluster>(to + rank * Config::kKeyBox * kSliceBytes, Config::kKeySliceBytes, rows, at, full);
    position.advance();
  }

  const Params& params;
  Storage<Config>& storage;
  PipelineState<Config::kKeyStages> keys;
  PipelineState<Config::kValueStages> values;
  PipelineState<Config::kRawStages> raws;  // in place of `values`, where they are transposed
  BoxStart values_at{};                    // the key tile whose keys were loaded last
  const std::byte* values_from = nullptr;
  [[no_unique_address]] std::conditional_t<kListed<Config>, ListCursor, NoLists> listed;
  const int rank = Config::kCluster > 1 ? cluster_rank() : 0;
  bool started = false;
};

}  // namespace fovea::gpu::sm90::dense
