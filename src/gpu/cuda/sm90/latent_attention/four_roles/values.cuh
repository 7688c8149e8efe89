// SPDX-License-Identifier: Apache-2.0
/// The value warpgroups of four roles: each decodes half the columns of every key tile for all, and does O = O * rescale + P V with them.
///
/// Tiles are decoded two ahead of the one that is multiplied, into the same buffer: the left part of a warpgroup's columns as soon as
/// these are multiplied, while the products of the right part are under way. Tiles follow each other whatever their jobs are, so what is
/// decoded during a job's last products belongs to the next. The first two are only decoded, the last job's last two only multiplied (its
/// only one, after which a blank one has been decoded).
#pragma once

#include "gpu/cuda/sm90/latent_attention/decode.cuh"
#include "gpu/cuda/sm90/latent_attention/four_roles/staging.cuh"
#include "gpu/cuda/sm90/latent_attention/results.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
class Values {
 public:
  __device__ Values(const Params& params_, Storage<Config>& storage_, int half_) : params(params_), storage(storage_), half(half_) {}

  __device__ __forceinline__ void operator()() {
    bool done = storage.job_at(0).done();
    if (done) return;
    std::uint32_t step = 0;
#pragma unroll 1
    for (; step < 2; ++step) decode_tile(step);
    for (std::uint32_t jobs = 0; !done; ++jobs) {
      const int slot = Jobs::stage_of(jobs), tiles = uniform(storage.jobs[slot].tiles());
      const std::uint32_t end = step + tiles;
      std::uint32_t stop = end - min(tiles, 2);  // the tiles decoded beside the last two are the next job's
#pragma unroll
      for (float& x : out) x = 0;
#pragma unroll 1
      for (;; ++step) {
        if (step == stop) {
          if (step == end) break;
          done = storage.job_at(jobs + 1).done();
          if (done) break;
          stop = end;
        }
        multiply_and_decode(step);
      }
#pragma unroll 1
      for (; step != end; ++step) multiply_tile(step);
      finish(storage.jobs[slot], slot);
      barrier_arrive(shared_address(&storage.job_empty[slot]));
    }
  }

 private:
  using Element = typename Config::Element;
  using Rows = StagedRow<Config::kRow>;
  using Chunks = std::uint32_t[2][4];
  using Scales = std::uint32_t[4];  // of half a row of one key
  using Jobs = typename Storage<Config>::Jobs;
  using Tiles = typename Storage<Config>::Tiles;
  static constexpr int kHalfBytes = kHalfSlices * kGroupBytes, kPartSlices = kHalfSlices / 2;

  static __device__ int warp() { return threadIdx.x % 128 / 32; }
  static __device__ int first_row() { return warp() * 16 + lane_row(lane_index()); }

  // ---- products -----------------------------------------------------------------------------------------------------------------

  /// P and V of a tile.
  struct Operands {
    std::uint64_t p, v;
  };

  /// Waits for them, and rescales if need be.
  __device__ __forceinline__ Operands begin_products(int buffer) {
    // Before they said so, the score warps have fenced: what they stored as P, and what was decoded, which kDecoded told them.
    named_sync(kFull + buffer, kMathThreads + Config::kScoreThreads);
    const int grown = storage.grown[buffer][warp()];
    if (__any_sync(~0u, grown)) rescale(buffer);
    const std::uint32_t at = shared_address(storage.k[buffer]);
    pin(out);
    products_begin();
    return {operand_at(at + (kKeySlices - 1) * kGroupBytes, 16, kKeyGroup), operand_at(at + half * kHalfBytes, kGroupBytes, kKeyGroup)};
  }

  /// The i-th of four products of the left columns, or of the right ones.
  __device__ __forceinline__ void multiply(const Operands& of, int right, int i) {
    Wgmma<Element, 128>::template ss<Major::mn>(columns_from<64>(out, 64 * right), advanced(of.p, i * 32),
                                                advanced(of.v, i * 2 * kKeyGroup + right * kPartSlices * kGroupBytes), true);
  }

  /// Tile step - 2. Its products are still under way afterwards.
  __device__ __forceinline__ void multiply_tile(std::uint32_t step) {
    await_products();
    const Operands of = begin_products(Tiles::stage_of(step));
#pragma unroll
    for (int right = 0; right < 2; ++right) {
#pragma unroll
      for (int i = 0; i < 4; ++i) multiply(of, right, i);
      products_commit();
    }
    // Nothing has been decoded. The score warps wait for this before they end, so that no barrier is left half full.
    named_arrive(kDecoded + Tiles::stage_of(step), kMathThreads + Config::kScoreThreads);
  }

  __device__ __forceinline__ void await_products() {
    products_wait<0>();
    pin(out);
  }

  /// Tile `step`, the first that its buffer has.
  __device__ __forceinline__ void decode_tile(std::uint32_t step) {
    Part part;
    const auto nothing = [](int) {};
    read_part<0>(step, part);
    decode_part<0>(step, part, nothing);
    read_part<1>(step, part);
    decode_part<1, true>(step, part, nothing);
    __syncwarp();  // lanes may have parted where they waited for codes
    // Who waits for it fences.
    named_arrive(kDecoded + Tiles::stage_of(step), kMathThreads + Config::kScoreThreads);
  }

  /// Multiplies tile step - 2, and decodes tile `step` into its place.
  __device__ __forceinline__ void multiply_and_decode(std::uint32_t step) {
    const int buffer = Tiles::stage_of(step);
    const Operands of = begin_products(buffer);
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply(of, 0, i);
    products_commit();
    Part part;
    read_part<0>(step, part);
    products_wait<0>();
    named_sync(kWarpgroup + half, 128);  // every warp has multiplied the left part
    // A product that finds others before it holds up its warp: so those of the right part stand between pieces of other work.
    decode_part<0>(step, part, [&](int i) {
      if (i == 0) products_begin();
      multiply(of, 1, i);
      if (i == 3) products_commit();
    });
    read_part<1>(step, part);
    await_products();
    if (Config::kRopeBecomesP && lane_index() == 0) barrier_arrive(shared_address(&storage.empty[buffer]));
    named_sync(kWarpgroup + half, 128);  // likewise the right one
    decode_part<1>(step, part, [](int) {});
    if (Config::kRopeBecomesP) __syncwarp();  // lanes may have parted where they waited to copy the rotary part
    named_arrive(kDecoded + buffer, kMathThreads + Config::kScoreThreads);
  }

  __device__ void rescale(int buffer) {
    const float factor[2] = {storage.rescale[buffer][first_row()], storage.rescale[buffer][first_row() + 8]};
    scale_rows(out, factor);
  }

  // ---- codes become values ------------------------------------------------------------------------------------------------------

  /// What a lane decodes of a part of a tile: a quarter of each of two slices of two keys, eight rows apart.
  struct Part {
    Chunks codes[kPartSlices];
    Scales scales[2];
    bool fp4;
  };

  /// Into registers, while products are under way.
  template <int kPart>
  __device__ __forceinline__ void read_part(std::uint32_t tile, Part& part) const {
    barrier_wait(shared_address(&storage.staged[kPart]), tile & 1);
    part.fp4 = Config::kTwoKinds && uniform(storage.fp4[kPart]);
    if (part.fp4) {
      if constexpr (Config::kTwoKinds) read_rows<kPart, Row::fp4>(part);
    } else {
      read_rows<kPart, main_row(Config::kRow)>(part);
    }
  }
  template <int kPart, Row kRow>
  __device__ __forceinline__ void read_rows(Part& part) const {
    const int row = first_row();
    read_codes<kPart, kRow>(row, lane_index() % 4, part.codes);
#pragma unroll
    for (int key = 0; key < 2; ++key) read_scales<kPart, kRow>(storage.scales[kPart][row + key * 8], part.scales[key]);
  }

  /// `before(i)`: what is to be done before the i-th of four pieces. kFirst: nothing lies in the buffer yet.
  template <int kPart, bool kFirst = false, class Before>
  __device__ __forceinline__ void decode_part(std::uint32_t tile, Part& part, const Before& before) const {
    if (part.fp4) {
      if constexpr (Config::kTwoKinds) decode_rows<kPart, Row::fp4, kFirst>(tile, part, before);
    } else {
      decode_rows<kPart, main_row(Config::kRow), kFirst>(tile, part, before);
    }
  }

  template <int kPart, Row kRow, bool kFirst, class Before>
  __device__ __forceinline__ void decode_rows(std::uint32_t tile, Part& part, const Before& before) const {
    const int buffer = Tiles::stage_of(tile), row = first_row(), quarter = lane_index() % 4;
    const std::uint32_t to = shared_address(storage.k[buffer]) + half * kHalfBytes + row / 8 * kKeyGroup + row % 8 * 128;
    constexpr int kAt = kPart * kPartSlices;
#pragma unroll
    for (int slice = 0; slice < kPartSlices; ++slice) {
#pragma unroll
      for (int key = 0; key < 2; ++key) {
        before(2 * slice + key);
        if (kPart == 0 && slice + 1 == kPartSlices && key == 1) free_part<kPart>(part.codes[slice][key]);
        if (kHalfSlices + kAt + slice == Rows::kRopeSlice && half == 1) continue;
        Chunks chunks;
        decode<kRow, Element>(part.codes[slice][key], scale_of<kRow>(part.scales[key], kAt + slice, quarter), chunks);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          store_shared(to + (kAt + slice) * kGroupBytes + key * kKeyGroup + ((2 * quarter + i) ^ row % 8) * 16, chunks[i][0], chunks[i][1],
                       chunks[i][2], chunks[i][3]);
        }
      }
    }
    if (kPart == 1) {  // the rotary part at last: by now P, in whose room it may go, has mostly been multiplied
      copy_rope<kFirst>(buffer, tile, row, quarter);
      free_part<kPart>(part.codes[kPartSlices - 1][1]);
    }
  }

  template <int kPart, Row kRow>
  __device__ __forceinline__ void read_codes(int row, int quarter, Chunks (&codes)[kPartSlices]) const {
    constexpr int kBytes = kRow == Row::fp4 ? 8 : 16, kLanes = 16 / kBytes;  // of a lane, of each slice; and lanes that share a chunk
    const std::uint32_t from =
        shared_address(storage.staging) + Staged::chunk(row, half * 2 + kPart, quarter / kLanes) + quarter % kLanes * kBytes;
#pragma unroll
    for (int slice = 0; slice < kPartSlices; ++slice) {
#pragma unroll
      for (int key = 0; key < 2; ++key) {
        const std::uint32_t own = (from ^ slice * 4 * kBytes) + key * Staged::kGroupStride;
        kBytes == 8 ? load_shared_8(own, codes[slice][key]) : load_shared(own, codes[slice][key]);
      }
    }
  }

  /// What of the scales is of this part, where the scales of the half have it.
  template <int kPart, Row kRow>
  __device__ __forceinline__ void read_scales(const std::uint32_t (&words)[4], Scales& scales) const {
    if constexpr (kRow == Row::fp4) {
      for (int i = 0; i < 2; ++i) scales[2 * kPart + i] = words[half * 2 + i];
    } else {
      constexpr int kWords = scale_words<kRow>(), kWord = kWords == 1 ? 0 : kPart;
      scales[kWord] = words[half * kWords + kWord];
    }
  }

  /// `last`: of what this lane has read, to have it by then. The rest was asked for before this arrives, and reads come in order.
  template <int kPart>
  __device__ __forceinline__ void free_part(std::uint32_t (&last)[4]) const {
    asm volatile("" : "+r"(last[0])::"memory");  // of fp4 there is no more than two words; to have one is to have all
    barrier_arrive(shared_address(&storage.staged_free[kPart]));
  }

  /// Where it is no part of the values, by both warpgroups, each of one of the lane's keys, once both have multiplied what it becomes: P.
  template <bool kFirst>
  __device__ __forceinline__ void copy_rope(int buffer, std::uint32_t tile, int row, int quarter) const {
    if (Config::kRopeBecomesP) {
      if (!kFirst) barrier_wait(shared_address(&storage.empty[buffer]), Tiles::parity_of(tile - 2));
      copy_rope(buffer, row + half * 8, quarter);
    } else if (Rows::kRopeSlice * kSlice < Config::kHeadDim && half == 1) {
      for (int key = 0; key < 2; ++key) copy_rope(buffer, row + key * 8, quarter);
    }
  }
  __device__ __forceinline__ void copy_rope(int buffer, int row, int quarter) const {
    const std::uint32_t to = shared_address(storage.k[buffer]) + row / 8 * kKeyGroup + Rows::kRopeSlice * kGroupBytes + row % 8 * 128;
    const std::uint32_t from = shared_address(storage.staging);
    Chunks rope;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      constexpr int kChunk = Rows::kRopeChunk;
      load_shared(from + Staged::chunk(row, (kChunk + 4 * i) / 8, (kChunk + 4 * i) % 8 + quarter), rope[i]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) store_shared(to + ((quarter + i * 4) ^ row % 8) * 16, rope[i][0], rope[i][1], rope[i][2], rope[i][3]);
  }

  // ---- a job --------------------------------------------------------------------------------------------------------------------

  __device__ void finish(const Job& job, int slot) {
    float sum[2], maximum[2], largest[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = storage.sum[slot][first_row() + 8 * r];
      maximum[r] = storage.maximum[slot][first_row() + 8 * r];
      largest[r] = storage.largest[slot][first_row() + 8 * r];
    }
    const Results<Element> results{params, out, sum, maximum, largest, scale_log2_of(params), half, half == 1};
    if (job.slot >= 0) {
      products_wait<1>();  // those of the left part, which goes out beside the others
      pin_first<64>(out);
      return results.store_partial(job.request, job.slot, [&] { await_products(); });
    }
    await_products();
    if (uniform(job.collects)) {
      fence_shared_for_async();  // what has been decoded comes before the copies
      barrier_arrive(shared_address(&storage.tiles_done));
      results.collect(storage, uniform(job.parts.end));
    }
    results.store(job.request);
  }

  const Params& params;
  Storage<Config>& storage;
  int half;  // of the columns
  float out[128];
};

}  // namespace fovea::gpu::sm90::latent
