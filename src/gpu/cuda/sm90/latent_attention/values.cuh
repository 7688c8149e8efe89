// SPDX-License-Identifier: Apache-2.0
/// The value warpgroups of four roles: each decodes half the columns of a key tile for all, and does O = O * rescale + P V with them.
#pragma once

#include "gpu/cuda/sm90/latent_attention/load_staged.cuh"
#include "gpu/cuda/sm90/latent_attention/results.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config, int kHalf>
class Values {
 public:
  __device__ Values(const Params& params_, Storage<Config>& storage_) : params(params_), storage(storage_) {}

  __device__ __forceinline__ void operator()() {
    for (;;) {
      barrier_wait(shared_address(&storage.job_full), job_parity);
      const Job& job = storage.jobs[job_parity];
      job_parity ^= 1;
      tell();
      if (job.done()) return;
      barrier_arrive(shared_address(&storage.job_empty));
#pragma unroll
      for (float& x : out) x = 0;
      // A tile is decoded while the scores of the one before it are computed. Counted so that registers suffice: what is spilled here is
      // waited for in every tile.
      const std::uint32_t end = multiplied + uniform(StagedLoader<Config>::tiles_of(job.request, job.begin, job.end));
#pragma unroll 1
      do {
        if (decoded != end) decode_tile();
        if (decoded != multiplied + 1 || decoded == end) multiply_tile();
      } while (multiplied != end);
      finish(job);
    }
  }

 private:
  using Element = typename Config::Element;
  using Mma = Product<Element>;
  using Chunks = std::uint32_t[2][4];
  static constexpr int kBegin = kHalf * kHalfSlices, kEnd = kBegin + kHalfSlices;  // slices

  static __device__ int warp() { return threadIdx.x % 128 / 32; }
  static __device__ int first_row() { return warp() * 16 + lane_index() / 4; }

  // ---- codes become values ------------------------------------------------------------------------------------------------------

  /// A lane has a quarter of each slice of two keys, eight rows apart.
  __device__ __forceinline__ void decode_tile() {
    const int buffer = decoded & 1, row = first_row(), quarter = lane_index() % 4;
    barrier_wait(shared_address(&storage.staged[0]), decoded & 1);
    // Every warp of both warpgroups is done with what this buffer had, P too.
    barrier_wait(shared_address(&storage.empty[buffer]), (decoded >> 1 & 1) ^ 1);
    const std::uint32_t from = shared_address(storage.staging) + Staged::chunk(row, 0, quarter);
    const std::uint32_t to = shared_address(storage.k[buffer]) + row / 8 * kKeyGroup + row % 8 * 128;
    if (kHalf == 0 && lane_index() == 0) storage.key_present[buffer][warp()] = storage.staged_present[warp()];
    Chunks codes[2];  // of two slices by turns, both keys
    std::uint32_t scales[2][2];
    read_slice(from, kBegin, codes[0]);
#pragma unroll
    for (int key = 0; key < 2; ++key) load_shared_pair(shared_address(&storage.scales[row + key * 8][kHalf * 2]), scales[key]);
#pragma unroll
    for (int slice = kBegin; slice < kEnd; ++slice) {
      const bool ends_part = slice % 2 == 1;
      if (slice == kBegin + 2) {
        barrier_wait(shared_address(&storage.staged[1]), decoded & 1);
        read_slice(from, slice, codes[0]);
      }
      if (!ends_part) read_slice(from, slice + 1, codes[1]);
#pragma unroll
      for (int key = 0; key < 2; ++key) {
        std::uint32_t(&own)[4] = codes[slice % 2][key];
        Chunks chunks;
        if (ends_part && key == 1) free_part(slice / 2 % 2, own);
        decode<Config::kRow, Element>(own, __uint_as_float(scales[key][(slice - kBegin) / 2]), chunks);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          store_shared(to + slice * kGroupBytes + key * kKeyGroup + ((2 * quarter + i) ^ row % 8) * 16, chunks[i][0], chunks[i][1],
                       chunks[i][2], chunks[i][3]);
        }
      }
      if (slice == kBegin) copy_rope(from, to, quarter, row % 8);
    }
    barrier_arrive(shared_address(&storage.decoded[buffer]));  // who waits for it fences
    ++decoded;
  }

  static __device__ __forceinline__ void read_slice(std::uint32_t from, int slice, Chunks& codes) {
#pragma unroll
    for (int key = 0; key < 2; ++key)
      load_shared((from ^ slice % 2 * 64) + slice / 2 * kGroupBytes + key * Staged::kGroupStride, codes[key]);
  }

  /// `last`: what this lane has read last of it.
  __device__ __forceinline__ void free_part(int part, std::uint32_t (&last)[4]) const {
    pin(last);
    barrier_arrive(shared_address(&storage.staged_free[part]));
  }

  /// Of one of the lane's keys.
  __device__ __forceinline__ void copy_rope(std::uint32_t from, std::uint32_t to, int quarter, int row) const {
    Chunks rope;
#pragma unroll
    for (int i = 0; i < 2; ++i) load_shared((from ^ i * 64) + kHalf * Staged::kGroupStride + Staged::kPieces * kGroupBytes, rope[i]);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      store_shared(to + (kKeySlices - 1) * kGroupBytes + kHalf * kKeyGroup + ((quarter + i * 4) ^ row) * 16, rope[i][0], rope[i][1],
                   rope[i][2], rope[i][3]);
  }

  // ---- products -----------------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void multiply_tile() {
    const int buffer = multiplied & 1;
    barrier_wait(shared_address(&storage.full[buffer]), multiplied >> 1 & 1);
    fence_shared_for_async();
    if (uniform(storage.grown[buffer][warp()])) rescale(buffer);
    const std::uint32_t tile = shared_address(storage.k[buffer]);
    const std::uint64_t p = operand_at(tile + (kKeySlices - 1) * kGroupBytes, 16, kKeyGroup);
    const std::uint64_t v = operand_at(tile + kBegin * kGroupBytes, kGroupBytes, kKeyGroup);
    pin(out);
    products_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const std::uint64_t a = advanced(p, step * 32), b = advanced(v, step * 2 * kKeyGroup);
      Mma::half_values(&out[0], a, b, true);
      Mma::half_values(&out[64], a, advanced(b, kHalfSlices / 2 * kGroupBytes), true);
    }
    products_commit();
    products_wait<0>();
    pin(out);
    if (lane_index() == 0) barrier_arrive(shared_address(&storage.empty[buffer]));
    ++multiplied;
  }

  __device__ void rescale(int buffer) {
    const float factor[2] = {storage.rescale[buffer][first_row()], storage.rescale[buffer][first_row() + 8]};
#pragma unroll
    for (int i = 0; i < 128; ++i) out[i] *= factor[i / 2 % 2];
  }

  // ---- a job --------------------------------------------------------------------------------------------------------------------

  __device__ void finish(const Job& job) {
    const int slot = job_parity ^ 1;
    float sum[2], maximum[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = storage.job_sum[slot][first_row() + 8 * r];
      maximum[r] = storage.job_maximum[slot][first_row() + 8 * r];
    }
    const Results<Element, kHalf> results{params, out, sum, maximum};
    if (job.slot >= 0) return results.store_partial(job.request, job.slot);
    results.collect(storage, uniform(job.collect_end));
    results.store(job.request, kHalf == 1 ? storage.job_largest[slot] : nullptr);
  }

  /// The last job's partial result is there, for a part that waits for it. Said while the first tile of the next is loaded.
  __device__ void tell() {
    const Job& last = storage.jobs[job_parity];
    float unused[2];
    if (uniform(last.collected)) Results<Element, kHalf>{params, out, unused, unused}.tell(last.request, own_part(params));
  }

  const Params& params;
  Storage<Config>& storage;
  float out[128];
  std::uint32_t decoded = 0, multiplied = 0, job_parity = 0;  // tiles
};

}  // namespace fovea::gpu::sm90::latent
