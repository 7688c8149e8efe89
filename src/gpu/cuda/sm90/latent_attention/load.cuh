// SPDX-License-Identifier: Apache-2.0
/// The load warps. Warp w brings half w of the K tiles (buffer w / 2, columns [0, 256) or the rest) as soon as its last reader is done,
/// each CTA of the cluster a share of the keys for all; between requests the four of them gather the query rows.
#pragma once

#include "gpu/cuda/sm90/latent_attention/storage.cuh"
#include "gpu/cuda/sm90/latent_attention/work.cuh"
#include "gpu/cuda/sm90/tma.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
struct Loader {
  using Element = typename Config::Element;

  __device__ Loader(const Params& params_, Storage<Config>& storage_)
      : params(params_), storage(storage_), warp(threadIdx.x % kLoadThreads / 32), lane(threadIdx.x % 32) {
    group = (Config::kCluster > 1 ? cluster_rank() * kShare : 0) + lane;
  }

  __device__ void operator()() {
    bool first = true;
    Job job = Job{}.next(params, blockIdx.z);
    for (; !job.done(); job = job.next(params, blockIdx.z)) {
      const int early = job.begin + (first ? 0 : 1);  // later, space for keys is free sooner than space for queries
      first = false;
      load_keys(job.request, job.begin, early);
      announce(job);
      load_queries(job.request);
      load_keys(job.request, early, job.end);
    }
    announce(job);
    barrier_arrive(shared_address(&storage.q_full));
  }

 private:
  static constexpr int kOutside = 1 << 30;                   // a coordinate past every end
  static constexpr int kShare = kGroups / Config::kCluster;  // groups of eight keys that this CTA copies

  /// Once the math has used the query rows of the last job, it may be told the next.
  __device__ void announce(const Job& job) {
    barrier_wait(shared_address(&storage.q_empty), q_parity ^ 1);
    if (warp == 0 && lane == 0) storage.jobs[q_parity] = job;
    q_parity ^= 1;
  }

  /// Where eight keys lie in the cache. A block past the end makes the copy engine fill in zeros.
  struct Keys {
    int block, row;
  };

  /// This warp's half of its tile in each of the pairs [begin, end). The block table is read one pair ahead of the wait for space.
  __device__ void load_keys(const Request& request, int begin, int end) {
    const int buffer = warp / 2, half = warp % 2;
    const int slices = half == 0 ? kHalfSlices : Config::kSlices - kHalfSlices;
    const std::uint32_t full = shared_address(&storage.full[warp]), empty = shared_address(&storage.empty[warp]);
    const std::uint32_t to = shared_address(storage.k[buffer]) + group * kKeyGroup + half * kHalfSlices * kGroupBytes;
    Keys next = find_keys(request, begin * kPair + buffer * kKeyTile);
    for (int pair = begin; pair < end; ++pair) {
      const Keys keys = next;
      next = find_keys(request, (pair + 1) * kPair + buffer * kKeyTile);
      barrier_wait(empty, parity ^ 1);
      parity ^= 1;
      if (lane == 0) barrier_arrive_expect(full, kKeyTile * 128 * slices);
      __syncwarp();
      if (lane < kShare) copy_keys(to, keys, full);
    }
  }

  __device__ Keys find_keys(const Request& request, int first_key) const {
    const int key = first_key + group * kBoxRows;
    if (lane >= kShare || key >= request.keys.end || key + kBoxRows <= request.keys.begin) return {params.blocks, 0};
    const int entry = key / params.page;
    const int block = params.block_table[request.index * params.table_stride + entry];
    return {block < 0 ? params.blocks : block, key - entry * params.page};
  }

  __device__ BoxStart box_of(Keys keys) const { return {0, keys.row, warp % 2 * kHalfSlices, static_cast<int>(blockIdx.y), keys.block}; }
  __device__ const CUtensorMap* map() const { return warp % 2 == 0 ? &params.left : &params.right; }

  __device__ void copy_keys(std::uint32_t to, Keys keys, std::uint32_t full) const {
    if constexpr (Config::kCluster > 1) {
      copy_box_to_all(to, map(), box_of(keys), full, (1 << Config::kCluster) - 1, kEvictNormal);
    } else {
      copy_box(to, map(), box_of(keys), full, kEvictFirst);
    }
  }

  /// Rows of the tile: query token major, head minor. Rows past the end are zeros.
  __device__ void load_queries(const Request& request) { params.copy_queries ? copy_queries(request) : gather_queries(request); }

  /// Eight rows are eight heads of one token: one box.
  __device__ void copy_queries(const Request& request) {
    const std::uint32_t full = shared_address(&storage.q_full);
    if (threadIdx.x % kLoadThreads == 0) {
      barrier_arrive_expect(full, kRowTile / 8 * Config::kQueryGroup);
    } else {
      barrier_arrive(full);
    }
    __syncwarp();
    if (warp != 0 || lane >= kRowTile / kBoxRows) return;
    const int packed = blockIdx.x * kRowTile + lane * kBoxRows;
    const int token = packed / params.heads_per_kv, head = packed - token * params.heads_per_kv;
    const bool ragged = params.cu_seqlens_q != nullptr;
    const BoxStart at{.column = 0,
                      .row = static_cast<int>(blockIdx.y) * params.heads_per_kv + head,
                      .slice = 0,
                      .head = token < request.q_rows ? request.q_begin + token : kOutside,
                      .block = ragged ? 0 : request.index};
    copy_box(shared_address(storage.q) + lane * Config::kQueryGroup, &params.queries, at, full, kEvictFirst);
  }

  __device__ void gather_queries(const Request& request) {
    constexpr int kChunks = Config::kHeadDim / 8;  // of 16 bytes in a row
    const auto* q = static_cast<const Element*>(params.q);
    const std::uint32_t to = shared_address(storage.q);
    const int rows = request.q_rows * params.heads_per_kv;
    // Eight lanes take the eight chunks of a slice of one row: 128 contiguous bytes.
    for (int row = warp * 4 + lane / 8; row < kRowTile; row += kLoadThreads / 8) {
      const int packed = blockIdx.x * kRowTile + row;
      const bool valid = packed < rows;
      const int token = packed / params.heads_per_kv, head = packed - token * params.heads_per_kv;
      const Element* from = q;
      if (valid) {
        const std::int64_t batch = params.cu_seqlens_q != nullptr ? 0 : request.index;
        from +=
            batch * params.q_batch + (request.q_begin + token) * params.q_row + (blockIdx.y * params.heads_per_kv + head) * params.q_head;
      }
      const std::uint32_t row_at = to + row / 8 * Config::kQueryGroup + row % 8 * 128 + ((lane % 8) ^ (row % 8)) * 16;
      for (int slice = 0; slice < kChunks / 8; ++slice) {
        copy_async(row_at + slice * kGroupBytes, from + (valid ? slice * kSlice + lane % 8 * 8 : 0), valid);
      }
    }
    copy_async_wait_all();
    fence_shared_for_async();
    barrier_arrive(shared_address(&storage.q_full));
  }

  const Params& params;
  Storage<Config>& storage;
  int warp, lane;
  int group;  // of eight keys, that this lane copies
  std::uint32_t parity = 0, q_parity = 0;
};

}  // namespace fovea::gpu::sm90::latent
