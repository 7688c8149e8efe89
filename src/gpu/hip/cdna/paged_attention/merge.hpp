// SPDX-License-Identifier: Apache-2.0
/// How the results of waves and of splits become one.
#pragma once

#include "gpu/hip/cdna/paged_attention/math.hpp"

namespace fovea::gpu::cdna::paged_attention {

template <class Config>
class Merge {
 public:
  __device__ Merge(const Params& params_, const Work& work_, const Rows<Config>& rows_, float scale_log2_)
      : params(params_), work(work_), rows(rows_), scale_log2(scale_log2_) {}

  /// Waves that have the same rows call it together. Returns whether the wave's state is the result, to be stored.
  __device__ __forceinline__ bool operator()(State<Config>& state) const {
    if constexpr (Config::kKeyWaves > 1) {
      merge_waves(state);
      if (params.splits == 1) return work.key_wave == 0;
    }
    if (work.row >= work.rows) return false;  // of all splits
    if (params.splits == 1) return true;
    if (!is_last(state)) return false;
    acquire_from_device();
    State<Config, kParts> merged;
    merge_splits(merged);
    if (lane() == 0 && work.key_wave == 0) params.counters[counter()] = 0;  // for a run with the same schedule
    return gather(merged, state);
  }

 private:
  /// The waves that share rows divide the channels of all splits. The accumulators of kAtOnce splits are loaded together.
  static constexpr int kParts = Config::kKeyWaves;
  static constexpr int kWordsOfPart = Config::kRowBlocks * 4 * State<Config, kParts>::kOut;
  static constexpr int kAtOnce = std::max(1, std::min(13, Config::kMergeRegisters / kWordsOfPart));
  static constexpr int kLastAt = 4 * State<Config>::kWords;  // in LDS, after a state: whether the workgroup is the last one

  /// The first wave takes the states of the others, one after another.
  __device__ __forceinline__ void merge_waves(State<Config>& state) const {
#pragma unroll 1
    for (int wave = 1; wave < Config::kKeyWaves; ++wave) {
      if (work.key_wave == wave) store_shared(state, 0);
      barrier();  // all waves: this one's state is stored
      if (work.key_wave == 0) {
        State<Config> other[1];
        load_shared(other[0]);
        state.merge(other, scale_log2);
      }
      barrier();  // all waves: it has been read
    }
  }

  /// Leaves the state in the workspace. Returns whether those of all splits are there.
  __device__ __forceinline__ bool is_last(const State<Config>& state) const {
    if constexpr (Config::kKeyWaves > 1) {
      const SharedMemory<Config::kSharedBytes> memory;
      if (work.key_wave == 0) {
        const int last = arrives_last(state);
        if (lane() == 0) memory.template store<int>(kLastAt, last);
      }
      barrier();  // all waves: the first has arrived
      return uniform(memory.template load<int>(kLastAt)) != 0;
    } else {
      return arrives_last(state);
    }
  }
  __device__ __forceinline__ bool arrives_last(const State<Config>& state) const {
    float* own = partial(work.split);
    state.store([&]<class T>(int block, int word, const T& value) __device__ {
      if (rows.present[block]) store_unaligned(own + word + kWordsOf<T> * lane(), value);
    });
    release_to_device();
    int before = 0;
    if (lane() == 0) before = add_on_device(params.counters + counter(), 1);
    return of_lane(before, 0) == params.splits - 1;
  }

  /// The part of this wave, over all splits, in their order. A lane of an absent row repeats the first row of its four keys' lanes.
  __device__ __forceinline__ void merge_splits(State<Config, kParts>& merged) const {
#pragma unroll 1
    for (int split = 0; split < params.splits; split += kAtOnce) {
      State<Config, kParts> some[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float* from = partial(std::min(split + i, params.splits - 1));
        const auto load = [&]<class T>(int block, int word, T& value) __device__ {
          const int of = rows.present[block] ? lane() : lane() & ~15;
          value = load_unaligned<T>(from + word + kWordsOf<T> * of);
        };
        some[i].load(load, work.key_wave);
      }
#pragma unroll
      for (int i = 1; i < kAtOnce; ++i) {
        if (split + i < params.splits) continue;
#pragma unroll
        for (RowSoftmax& softmax : some[i].softmax) softmax = {};
      }
      merged.merge(some, scale_log2);
    }
  }

  /// The first wave gets the whole state.
  __device__ __forceinline__ bool gather(const State<Config, kParts>& merged, State<Config>& state) const {
    if constexpr (kParts == 1) {
      state = merged;
      return true;
    } else {
      store_shared(merged, work.key_wave);
      barrier();  // all waves: every part is there
      if (work.key_wave != 0) return false;
      load_shared(state);
      return true;
    }
  }

  template <class Part>
  __device__ __forceinline__ void store_shared(const Part& state, int part) const {
    const SharedMemory<Config::kSharedBytes> memory;
    state.store([&]<class T>(int, int word, const T& value)
                    __device__ { memory.template store<T>(4 * (word + kWordsOf<T> * lane()), value); },
                part);
  }
  __device__ __forceinline__ void load_shared(State<Config>& state) const {
    const SharedMemory<Config::kSharedBytes> memory;
    state.load([&]<class T>(int, int word, T& value) __device__ { value = memory.template load<T>(4 * (word + kWordsOf<T> * lane())); });
  }

  template <class T>
  static constexpr int kWordsOf = sizeof(T) / 4;

  __device__ __forceinline__ std::int64_t counter() const {
    return (std::int64_t{work.tile} * params.kv_heads + work.kv_head) * Config::kRowWaves + work.row_wave;
  }
  __device__ __forceinline__ float* partial(int split) const {
    const std::int64_t index =
        ((std::int64_t{work.tile} * params.kv_heads + work.kv_head) * params.splits + split) * Config::kRowWaves + work.row_wave;
    return params.partials + index * State<Config>::kWords;
  }

  const Params& params;
  const Work& work;
  const Rows<Config>& rows;
  const float scale_log2;
};

}  // namespace fovea::gpu::cdna::paged_attention
