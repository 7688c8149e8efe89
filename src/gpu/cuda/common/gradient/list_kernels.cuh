// SPDX-License-Identifier: Apache-2.0
/// The kernels that make the lists of a block mask by key tiles, before those of a backward pass.
#pragma once

#include "gpu/cuda/common/gradient/list_order.cuh"
#include "gpu/cuda/common/gradient/lists.hpp"
#include "gpu/cuda/common/gradient/sequence.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/launch.hpp"

namespace fovea::gpu::gradient {

/// The order of tiles, where the tiles of queries are blocks.
__device__ inline detail::GradientOrder order_of_blocks(const GradientLists& lists, const AttentionParams& params) {
  const detail::Band band = detail::make_band(params.mask, params.seq_q, params.seq_k);
  return {.seq_q = params.seq_q,
          .seq_k = params.seq_k,
          .low = static_cast<int>(band.low),
          .high = static_cast<int>(band.high),
          .query_rows = lists.of.block_q,
          .key_rows = lists.key_rows,
          .group = lists.group};
}

/// The lists of one query block, by all threads of a CTA.
class ReadLists {
 public:
  __device__ ReadLists(const GradientLists& lists_, const AttentionParams& params, int list, int q_block)
      : lists(lists_), seen(order_of_blocks(lists_, params).key_tiles_of(q_block)) {
    const int heads = lists.of_head != 0 ? params.heads : 1;
    batch = list / heads;
    head = list % heads;
    block = q_block;
    const std::int64_t row = std::int64_t{list} * lists.q_blocks + q_block;
    listed = lists.listed + row * lists.words;
    before = lists.before + row * (lists.words + 1);
    slots = lists.slots + row * lists.of.key_blocks;
  }

  __device__ void operator()() const {
    for (int word = static_cast<int>(threadIdx.x); word < lists.words; word += kListThreads) listed[word] = 0;
    for (int i = static_cast<int>(threadIdx.x); i < lists.of.key_blocks; i += kListThreads) slots[i] = kNotListed;
    __syncthreads();
    add(lists.of.partial, true);
    __syncthreads();
    add(lists.of.full, false);  // wins where both name a block
    __syncthreads();
    for (int word = static_cast<int>(threadIdx.x); word <= lists.words; word += kListThreads) {
      int sum = 0;
      for (int i = 0; i < word; ++i) sum += __popc(listed[i]);
      before[word] = sum;
    }
  }

 private:
  __device__ void add(const BlockList& of, bool partial) const {
    if (of.counts == nullptr) return;
    const auto place = [&](const BlockStrides& strides) { return batch * strides.batch + head * strides.head + block * strides.q_block; };
    const int count = min(max(of.counts[place(of.of_counts)], 0), of.slots);
    const std::int32_t* const indices = of.indices + place(of.of_indices);
    for (int slot = static_cast<int>(threadIdx.x); slot < count; slot += kListThreads) {
      const int number = indices[slot];
      if (number < 0 || number >= lists.of.key_blocks) continue;
      slots[number] = static_cast<std::uint16_t>(partial ? slot + 1 : kFullBlock);
      const int first = number * lists.of.block_k / lists.key_rows, last = ((number + 1) * lists.of.block_k - 1) / lists.key_rows;
      for (int tile = max(first, seen.first); tile <= min(last, seen.last - 1); ++tile) atomicOr(listed + tile / 32, 1u << tile % 32);
    }
  }

  const GradientLists& lists;
  const detail::GradientOrder::Range seen;  // key tiles within the band
  int batch, head, block;
  std::uint32_t* listed;
  int* before;
  std::uint16_t* slots;
};

/// A CTA for each query block and list.
template <class Params>
__global__ void __launch_bounds__(kListThreads) read_lists(const __grid_constant__ Params params) {
  ReadLists{params.lists, params, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x)}();
}

/// The places of a key tile's blocks among its steps, by a warp. A lane has a query block at a time.
__device__ inline void place_blocks(const GradientLists& lists, const detail::GradientOrder& order, int list, int key_tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32, blocks = order.query_tiles_of(key_tile).size();
  const int tiles_of_block = lists.of.block_q / lists.query_rows;
  int count = 0;
  for (int first = 0; first < blocks; first += 32) {
    const int q_block = first + lane < blocks ? order.query_tile_at(key_tile, first + lane) : 0;
    const std::int64_t row = std::int64_t{list} * lists.q_blocks + q_block;
    const bool is_listed = first + lane < blocks && lists.is_listed(row, key_tile);
    const int tiles = is_listed ? min(tiles_of_block, lists.query_tiles - q_block * tiles_of_block) : 0;
    const int end = count + Warp::inclusive_sum(tiles);
    if (is_listed) lists.places[row * lists.key_tiles + key_tile] = static_cast<std::uint16_t>(end - tiles);
    count = __shfl_sync(~0u, end, 31);
  }
  if (lane == 0) lists.step_counts[std::int64_t{list} * lists.key_tiles + key_tile] = count;
}

/// A warp for each key tile and list.
template <class Params>
__global__ void __launch_bounds__(kListThreads) invert_lists(const __grid_constant__ Params params) {
  const int key_tile = static_cast<int>(blockIdx.x * kListThreads + threadIdx.x) / 32;
  if (key_tile >= params.lists.key_tiles) return;
  place_blocks(params.lists, order_of_blocks(params.lists, params), static_cast<int>(blockIdx.y), key_tile);
}

/// Makes the lists by key tiles in the workspace, but for their steps. All that reads them comes later in the stream.
template <class Params>
CudaStatus make_lists(const Params& params, Stream stream) {
  const GradientLists& lists = params.lists;
  const auto count = static_cast<unsigned>(lists.count), kv_heads = static_cast<unsigned>(params.batch * params.kv_heads);
  const auto ctas = static_cast<unsigned>((lists.key_tiles + kListThreads / 32 - 1) / (kListThreads / 32));
  if (lists.q_blocks > 0) {
    const LaunchShape of_queries{.grid = dim3(static_cast<unsigned>(lists.q_blocks), count), .block = dim3(kListThreads)};
    if (const CudaStatus done = launch(&read_lists<Params>, of_queries, stream, params); !done) return done;
  }
  if (ctas == 0) return {};
  const LaunchShape of_keys{.grid = dim3(ctas, count), .block = dim3(kListThreads)};
  if (const CudaStatus done = launch(&invert_lists<Params>, of_keys, stream, params); !done) return done;
  return launch(&order_tiles<Params>, {.grid = dim3(kv_heads), .block = dim3(kOrderThreads)}, stream, params);
}

/// The steps of one query block and list, and its key tiles by number, where there is no order: a CTA for each.
template <class Params>
__global__ void __launch_bounds__(kListThreads) write_plain_steps(const __grid_constant__ Params params) {
  const GradientLists& lists = params.lists;
  const int list = static_cast<int>(blockIdx.y), q_block = static_cast<int>(blockIdx.x), heads = lists.of_head != 0 ? params.heads : 1;
  const std::int64_t row = std::int64_t{list} * lists.q_blocks + q_block;
  const StepWriter write(lists, list / heads, list % heads, q_block);
  for (int key_tile = static_cast<int>(threadIdx.x); key_tile < lists.key_tiles; key_tile += kListThreads) {
    if (!lists.is_listed(row, key_tile)) continue;
    write(key_tile, 0);
    lists.tiles[row * lists.most_listed + lists.listed_before(row, key_tile)] = {key_tile, write.slot_of(key_tile, 0)};
  }
}

/// Adds the steps; with an order, after a kernel that has run TileSchedule.
template <class Params>
CudaStatus make_steps(const Params& params, Stream stream) {
  const GradientLists& lists = params.lists;
  if (lists.q_blocks == 0 || lists.key_tiles == 0) return {};
  const int sets = Params::kOrderedDq ? params.batch * params.heads : lists.count;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(lists.q_blocks), static_cast<unsigned>(sets)), .block = dim3(kListThreads)};
  if constexpr (Params::kOrderedDq) {
    return launch(&write_steps<Params>, shape, stream, params);
  } else {
    return launch(&write_plain_steps<Params>, shape, stream, params);
  }
}

}  // namespace fovea::gpu::gradient
