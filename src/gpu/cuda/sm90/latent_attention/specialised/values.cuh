// SPDX-License-Identifier: Apache-2.0
/// The value warpgroups of the specialised kernel: each decodes half the columns of every key tile, and computes O = O * rescale + P V.
///
/// A tile is decoded two tiles ahead of the one that is multiplied, into the same stage: the left side of a warpgroup's columns as soon as
/// it has been multiplied, while MMAs of the right side are in flight. Key tiles follow each other across work tiles, so tiles decoded
/// during a work tile's last MMAs belong to the next one. The first two tiles are only decoded, the last two of all only multiplied. If the
/// last work tile has one tile, a blank one is decoded after it.
#pragma once

#include "gpu/cuda/sm90/latent_attention/decode.cuh"
#include "gpu/cuda/sm90/latent_attention/results.cuh"
#include "gpu/cuda/sm90/latent_attention/specialised/storage.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
class Values {
 public:
  __device__ Values(const Params& params_, Storage<Config>& storage_, int half_) : params(params_), storage(storage_), half(half_) {}

  __device__ __forceinline__ void operator()() {
    bool done = storage.work_at(0).done();
    if (done) return;
    std::uint32_t step = 0;
#pragma unroll 1
    for (; step < 2; ++step) decode_tile(step);
    for (std::uint32_t work_index = 0; !done; ++work_index) {
      const int slot = WorkTiles::stage_of(work_index), tiles = uniform(storage.work_tiles[slot].tiles());
      const std::uint32_t end = step + tiles;
      std::uint32_t stop = end - min(tiles, 2);  // the tiles decoded beside the last two are the next work tile's
#pragma unroll
      for (float& x : out) x = 0;
#pragma unroll 1
      for (;; ++step) {
        if (step == stop) {
          if (step == end) break;
          done = storage.work_at(work_index + 1).done();
          if (done) break;
          stop = end;
        }
        multiply_and_decode(step);
      }
#pragma unroll 1
      for (; step != end; ++step) multiply_tile(step);
      finish(storage.work_tiles[slot], slot);
      barrier_arrive(shared_address(&storage.work_empty[slot]));
    }
  }

 private:
  using Element = typename Config::Element;
  using Rows = StagedRow<Config::kRow>;
  using Chunks = std::uint32_t[2][4];
  using Scales = std::uint32_t[4];  // of half a row of one key
  using WorkTiles = typename Storage<Config>::WorkTiles;
  using Tiles = typename Storage<Config>::Tiles;
  static constexpr int kHalfBytes = kHalfSlices * kGroupBytes, kSideSlices = kHalfSlices / 2;

  static __device__ int warp() { return threadIdx.x % 128 / 32; }
  static __device__ int first_row() { return warp() * 16 + lane_row(lane_index()); }

  // ---- MMAs ---------------------------------------------------------------------------------------------------------------------

  /// P and V of a tile.
  struct Operands {
    std::uint64_t p, v;
  };

  /// Waits for P and V, and rescales where rows have grown.
  __device__ __forceinline__ Operands begin_mmas(int buffer) {
    // Before they arrive, score warps have fenced P and the decoded values for which they waited at kDecoded.
    named_sync(kFull + buffer, kMathThreads + Config::kScoreThreads);
    const int grown = storage.grown[buffer][warp()];
    if (__any_sync(~0u, grown)) rescale(buffer);
    const std::uint32_t at = shared_address(storage.k[buffer]);
    fence_operand(out);
    wgmma_fence();
    return {smem_descriptor(at + (kKeySlices - 1) * kGroupBytes, 16, kKeyGroup),
            smem_descriptor(at + half * kHalfBytes, kGroupBytes, kKeyGroup)};
  }

  /// The i-th of four MMAs of the left columns, or of the right ones.
  __device__ __forceinline__ void multiply(const Operands& of, int right, int i) {
    Wgmma<Element, 128>::template ss<Major::mn>(accumulator_slice<64>(out, 64 * right), advance_descriptor(of.p, i * 32),
                                                advance_descriptor(of.v, i * 2 * kKeyGroup + right * kSideSlices * kGroupBytes), true);
  }

  /// Multiplies tile step - 2. Its MMAs are in flight afterwards.
  __device__ __forceinline__ void multiply_tile(std::uint32_t step) {
    await_mmas();
    const Operands of = begin_mmas(Tiles::stage_of(step));
#pragma unroll
    for (int right = 0; right < 2; ++right) {
#pragma unroll
      for (int i = 0; i < 4; ++i) multiply(of, right, i);
      wgmma_commit();
    }
    // Nothing has been decoded. Score warps wait for this arrival before they exit, so that no barrier stays half complete.
    named_arrive(kDecoded + Tiles::stage_of(step), kMathThreads + Config::kScoreThreads);
  }

  __device__ __forceinline__ void await_mmas() {
    wgmma_wait<0>();
    fence_operand(out);
  }

  /// Decodes tile `step`, the first of its stage.
  __device__ __forceinline__ void decode_tile(std::uint32_t step) {
    Side side;
    const auto nothing = [](int) {};
    read_side<0>(step, side);
    decode_side<0>(step, side, nothing);
    read_side<1>(step, side);
    decode_side<1, true>(step, side, nothing);
    __syncwarp();  // lanes may have diverged where they waited for codes
    // Score warps wait for this and fence.
    named_arrive(kDecoded + Tiles::stage_of(step), kMathThreads + Config::kScoreThreads);
  }

  /// Multiplies tile step - 2, and decodes tile `step` into its stage.
  __device__ __forceinline__ void multiply_and_decode(std::uint32_t step) {
    const int buffer = Tiles::stage_of(step);
    const Operands of = begin_mmas(buffer);
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply(of, 0, i);
    wgmma_commit();
    Side side;
    read_side<0>(step, side);
    wgmma_wait<0>();
    named_sync(kWarpgroup + half, 128);  // every warp arrives once it has multiplied the left side
    // An MMA issued behind others stalls its warp. So MMAs of the right side are issued between pieces of decoding.
    decode_side<0>(step, side, [&](int i) {
      if (i == 0) wgmma_fence();
      multiply(of, 1, i);
      if (i == 3) wgmma_commit();
    });
    read_side<1>(step, side);
    await_mmas();
    if (Config::kRopeBecomesP && lane_index() == 0) barrier_arrive(shared_address(&storage.empty[buffer]));
    named_sync(kWarpgroup + half, 128);  // every warp arrives once it has multiplied the right side
    decode_side<1>(step, side, [](int) {});
    if (Config::kRopeBecomesP) __syncwarp();  // lanes may have diverged where they waited to copy the rotary part
    named_arrive(kDecoded + buffer, kMathThreads + Config::kScoreThreads);
  }

  __device__ void rescale(int buffer) {
    const float factor[2] = {storage.rescale[buffer][first_row()], storage.rescale[buffer][first_row() + 8]};
    scale_rows(out, factor);
  }

  // ---- codes become values ------------------------------------------------------------------------------------------------------

  /// A lane's codes of one side of a tile: a quarter of each of two slices, for two keys eight rows apart.
  struct Side {
    Chunks codes[kSideSlices];
    Scales scales[2];
    bool fp4;
  };

  /// Reads codes and scales into registers, while MMAs are in flight.
  template <int kSide>
  __device__ __forceinline__ void read_side(std::uint32_t tile, Side& side) const {
    barrier_wait(shared_address(&storage.staged[kSide]), tile & 1);
    side.fp4 = Config::kTwoKinds && uniform(storage.fp4[kSide]);
    with_kind(side.fp4, [&](auto kind) {
      const int row = first_row();
      read_codes<kSide, kind>(row, lane_index() % 4, side.codes);
#pragma unroll
      for (int key = 0; key < 2; ++key) read_scales<kSide, kind>(storage.scales[kSide][row + key * 8], side.scales[key]);
    });
  }

  /// Calls f with the kind of staged rows, as a compile-time constant.
  template <class F>
  static __device__ __forceinline__ void with_kind(bool fp4, F&& f) {
    if constexpr (Config::kTwoKinds) {
      if (fp4) return f(std::integral_constant<Row, Row::fp4>());
    }
    f(std::integral_constant<Row, main_row(Config::kRow)>());
  }

  /// `before(i)` is called ahead of the i-th of four pieces. kFirst: the stage is empty.
  template <int kSide, bool kFirst = false, class Before>
  __device__ __forceinline__ void decode_side(std::uint32_t tile, Side& side, const Before& before) const {
    with_kind(side.fp4, [&](auto kind) { decode_rows<kSide, kind, kFirst>(tile, side, before); });
  }

  template <int kSide, Row kRow, bool kFirst, class Before>
  __device__ __forceinline__ void decode_rows(std::uint32_t tile, Side& side, const Before& before) const {
    const int buffer = Tiles::stage_of(tile), row = first_row(), quarter = lane_index() % 4;
    const std::uint32_t to = shared_address(storage.k[buffer]) + half * kHalfBytes + row / 8 * kKeyGroup + row % 8 * 128;
    constexpr int kAt = kSide * kSideSlices;
#pragma unroll
    for (int slice = 0; slice < kSideSlices; ++slice) {
#pragma unroll
      for (int key = 0; key < 2; ++key) {
        before(2 * slice + key);
        if (kSide == 0 && slice + 1 == kSideSlices && key == 1) free_side<kSide>(side.codes[slice][key]);
        if (kHalfSlices + kAt + slice == Rows::kRopeSlice && half == 1) continue;
        Chunks chunks;
        decode<kRow, Element>(side.codes[slice][key], scale_of<kRow>(side.scales[key], kAt + slice, quarter), chunks);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          store_shared(to + (kAt + slice) * kGroupBytes + key * kKeyGroup + ((2 * quarter + i) ^ row % 8) * 16, chunks[i][0], chunks[i][1],
                       chunks[i][2], chunks[i][3]);
        }
      }
    }
    if (kSide == 1) {  // the rotary part comes last: P, which it overwrites, has mostly been multiplied by now
      copy_rope<kFirst>(buffer, tile, row, quarter);
      free_side<kSide>(side.codes[kSideSlices - 1][1]);
    }
  }

  template <int kSide, Row kRow>
  __device__ __forceinline__ void read_codes(int row, int quarter, Chunks (&codes)[kSideSlices]) const {
    constexpr int kBytes = kRow == Row::fp4 ? 8 : 16, kLanes = 16 / kBytes;  // bytes of a lane, of each slice; and lanes that share a chunk
    const std::uint32_t from =
        shared_address(storage.staging) + Staged::chunk(row, half * 2 + kSide, quarter / kLanes) + quarter % kLanes * kBytes;
#pragma unroll
    for (int slice = 0; slice < kSideSlices; ++slice) {
#pragma unroll
      for (int key = 0; key < 2; ++key) {
        const std::uint32_t own = (from ^ slice * 4 * kBytes) + key * Staged::kGroupStride;
        kBytes == 8 ? load_shared_8(own, codes[slice][key]) : load_shared(own, codes[slice][key]);
      }
    }
  }

  /// Reads the scales of this side, which are stored by halves of the columns.
  template <int kSide, Row kRow>
  __device__ __forceinline__ void read_scales(const std::uint32_t (&words)[4], Scales& scales) const {
    if constexpr (kRow == Row::fp4) {
      for (int i = 0; i < 2; ++i) scales[2 * kSide + i] = words[half * 2 + i];
    } else {
      constexpr int kWords = scale_words<kRow>(), kWord = kWords == 1 ? 0 : kSide;
      scales[kWord] = words[half * kWords + kWord];
    }
  }

  /// `last` is the lane's last read. Reads complete in order, so all are complete with it.
  template <int kSide>
  __device__ __forceinline__ void free_side(std::uint32_t (&last)[4]) const {
    asm volatile("" : "+r"(last[0])::"memory");  // of fp4 there are two words at most
    barrier_arrive(shared_address(&storage.staged_free[kSide]));
  }

  /// Copies the rotary part. If it overwrites P, each warpgroup copies one of the lane's two keys after both have multiplied P. If it
  /// belongs to the values, the right warpgroup copies both keys.
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

  // ---- a work tile --------------------------------------------------------------------------------------------------------------

  __device__ void finish(const WorkTile& work, int slot) {
    float sum[2], maximum[2], largest[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = storage.sum[slot][first_row() + 8 * r];
      maximum[r] = storage.maximum[slot][first_row() + 8 * r];
      largest[r] = storage.largest[slot][first_row() + 8 * r];
    }
    const Results<Element> results{params, out, sum, maximum, largest, scale_log2_of(params), half, half == 1};
    if (work.slot >= 0) {
      wgmma_wait<1>();  // for the left side, which is stored while MMAs of the right side run
      fence_first_operands<64>(out);
      return results.store_partial(work.sequence, work.slot, [&] { await_mmas(); });
    }
    await_mmas();
    if (uniform(work.reduces)) {
      fence_shared_for_async();  // orders decoded values before the copies
      barrier_arrive(shared_address(&storage.tiles_done));
      results.reduce(storage, uniform(work.ctas.end));
    }
    results.store(work.sequence);
  }

  const Params& params;
  Storage<Config>& storage;
  int half;        // of the columns
  float out[128];  // accumulators: 64 rows x 256 columns
};

}  // namespace fovea::gpu::sm90::latent
