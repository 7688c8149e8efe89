// SPDX-License-Identifier: Apache-2.0
/// Scales of blocks of 32 that are powers of two, as MMAs need them. Keys have f32 ones: they multiply the products of a block. Values have
/// halves: they multiply probabilities. Halves do not span ue8m0, so they are relative to the largest one of a token that has codes, which
/// is the token's scale.
#pragma once

#include "gpu/cuda/portable/paged_attention/operands.cuh"

namespace fovea::gpu::portable::paged_attention {

template <class Config>
class BlockPowers {
  using Rows = CacheRows<Config>;
  static constexpr int kSteps = Operands<Config>::kSteps, kBlocks = kSteps / 2;  // of a load
  static constexpr int kPowers = Config::kPowers, kBlockChunks = 2 * Config::Format::kBits / 8, kTogether = 4 / kBlockChunks;

 public:
  /// Called by all warps. NarrowMath prepares values itself, beside the MMAs of keys.
  static __device__ __forceinline__ void prepare(const Storage<Config>& storage, int stage) {
    prepare_keys(storage, stage);
    if constexpr (!Config::kNarrow) prepare_values(storage, stage);
    if constexpr (Config::kOwnKeys)
      __syncwarp();
    else
      __syncthreads();
  }
  /// Turns ue8m0 codes of the warp's keys in a stage into powers.
  static __device__ __forceinline__ void prepare_keys(const Storage<Config>& storage, int stage) {
    const int lane = hidden_lane();
    if (Config::kWarpKeys == 32 || lane < kGroupKeys) prepare_key(storage.scales(stage), key_of(lane));
  }
  /// Likewise of values. A word of the codes of each becomes its token's scale (TokenScale).
  static __device__ __forceinline__ void prepare_values(const Storage<Config>& storage, int stage) {
    const int lane = hidden_lane();
    if (Config::kWarpKeys == 32 || lane >= kGroupKeys) prepare_value(storage.scales(stage), storage.values(stage), key_of(lane));
  }

  /// sums += keys x rows of the loaded columns. `key`: the lane's first.
  template <class Fragments>
  static __device__ __forceinline__ void add_products_of_keys(float (&sums)[2][4], const Fragments& k, const std::uint32_t (&q)[kSteps][2],
                                                              std::uint32_t scales, int key, int load) {
    std::uint32_t powers[2][kBlocks];
#pragma unroll
    for (int i = 0; i < 2; ++i) load_shared_words(powers[i], key_place(scales, key + 8 * i) + 4 * kBlocks * load);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      float products[4] = {};
#pragma unroll
      for (int i = 2 * block; i < 2 * block + 2; ++i) mma<__half>(products, k[i], q[i][0], q[i][1]);
      float(&to)[4] = sums[(load * kBlocks + block) % 2];
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = fmaf(products[i], __uint_as_float(powers[i / 2][block]), to[i]);
    }
  }
  /// scores += rows x keys.
  template <class Fragments>
  static __device__ __forceinline__ void add_products_of_queries(float* scores, const Fragments& q, const Fragments& k,
                                                                 std::uint32_t scales, int key, int load) {
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {  // keys
      std::uint32_t powers[2][kBlocks];
#pragma unroll
      for (int i = 0; i < 2; ++i) load_shared_words(powers[i], key_place(scales, key + 8 * eight + i) + 4 * kBlocks * load);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        float products[4] = {};
#pragma unroll
        for (int i = 2 * block; i < 2 * block + 2; ++i) mma<__half>(products, q[i], k[i][eight], k[i][2 + eight]);
        float* to = scores + 4 * eight;
#pragma unroll
        for (int i = 0; i < 4; ++i) to[i] = fmaf(products[i], __uint_as_float(powers[i % 2][block]), to[i]);
      }
    }
  }

  /// columns x rows += V^T P^T. `key`: the lane's first of two neighbours.
  template <class Fragments>
  static __device__ __forceinline__ void add_values(float (*out)[4], const Fragments& v, const std::uint32_t (&p)[2], std::uint32_t scales,
                                                    int key, int load) {
    std::uint32_t powers[2][kBlocks];
    load_value_powers(powers, scales, key, load);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const std::uint32_t first = product(p[0], powers[0][block]), second = product(p[1], powers[1][block]);
#pragma unroll
      for (int i = 2 * block; i < 2 * block + 2; ++i) mma<__half>(out[i], v[i], first, second);
    }
  }
  /// rows x columns += P V.
  template <class Fragments>
  static __device__ __forceinline__ void add_values(float* out, const Fragments& v, const std::uint32_t (&p)[4], std::uint32_t scales,
                                                    int key, int load) {
    std::uint32_t powers[2][kBlocks];
    load_value_powers(powers, scales, key, load);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      std::uint32_t weights[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[i] = product(p[i], powers[i / 2][block]);
#pragma unroll
      for (int i = 2 * block; i < 2 * block + 2; ++i) {
        mma<__half>(out + 8 * i, weights, v[i][0], v[i][2]);
        mma<__half>(out + 8 * i + 4, weights, v[i][1], v[i][3]);
      }
    }
  }

 private:
  static constexpr std::uint32_t kCodeBits = Config::Format::kBits == 4 ? 0x77777777 : 0x7f7f7f7f;  // without signs
  /// Factor that lifts the powers of values. Weights end at 2^12 (ValueWeights), halves at 2^16: what is lifted is subnormal later.
  static constexpr float kLift = 8;
  static constexpr float kLeast = 0x1p-120f;  // its inverse is a float, lifted

  static __device__ __forceinline__ int hidden_lane() {
    int lane = static_cast<int>(threadIdx.x) % 32;
    asm volatile("" : "+r"(lane));  // as in NarrowMath
    __builtin_assume(lane >= 0 && lane < 32);
    return lane;
  }
  /// The lane's key of a stage.
  static __device__ __forceinline__ int key_of(int lane) {
    const int key = static_cast<int>(threadIdx.x) / 32 * Config::kWarpKeys + lane % Config::kWarpKeys;
    __builtin_assume(key >= 0);
    return key;
  }

  /// Powers of a key, f32, by blocks.
  static __device__ __forceinline__ std::uint32_t key_place(std::uint32_t scales, int key) {
    return scales + 2 * Config::kStageKeys * Config::kKeyScales + 4 * kPowers * key;
  }
  /// Powers of two neighbouring values, pairs of halves, by blocks.
  static __device__ __forceinline__ std::uint32_t value_place(std::uint32_t scales, int key) {
    return key_place(scales, Config::kStageKeys) + 4 * kPowers * (key / 2) + key % 2 * 2;
  }
  /// `v_scales`: where scales of values begin.
  static __device__ __forceinline__ void load_value_powers(std::uint32_t (&powers)[2][kBlocks], std::uint32_t v_scales, int key, int load) {
    const std::uint32_t scales = v_scales - Config::kStageKeys * Config::kKeyScales;
#pragma unroll
    for (int i = 0; i < 2; ++i) load_shared_words(powers[i], value_place(scales, key + 8 * i) + 4 * kBlocks * load);
  }

  /// A ue8m0 code, bits `shift` to `shift` + 7, to a float, but infinity in place of NaN.
  static __device__ __forceinline__ float power(std::uint32_t codes, int shift) {
    const std::uint32_t exponent = (shift <= 23 ? codes << (23 - shift) : codes >> (shift - 23)) & 0x7f800000;
    return __uint_as_float(max(exponent, 0x00400000u));  // 2^-127 is subnormal
  }
  static __device__ __forceinline__ void load_powers(float (&powers)[kPowers], std::uint32_t codes) {
#pragma unroll
    for (int word = 0; word < kPowers / 4; ++word) {
      const std::uint32_t four = load_shared_32(codes + 4 * word);
#pragma unroll
      for (int i = 0; i < 4; ++i) powers[4 * word + i] = power(four, 8 * i);
    }
  }
  static __device__ __forceinline__ void prepare_key(std::uint32_t scales, int key) {
    float powers[kPowers];
    load_powers(powers, scales + key * Config::kKeyScales);
#pragma unroll
    for (float& x : powers) x = fmaf(x, 0, x);  // NaN of infinity
    const std::uint32_t to = key_place(scales, key);
#pragma unroll
    for (int i = 0; i < kPowers; i += 4) {
      store_shared_128(to + 4 * i, {__float_as_uint(powers[i]), __float_as_uint(powers[i + 1]), __float_as_uint(powers[i + 2]),
                                    __float_as_uint(powers[i + 3])});
    }
  }
  /// A block of zeros may have any scale, so it does not count.
  static __device__ __forceinline__ void prepare_value(std::uint32_t scales, std::uint32_t values, int key) {
    const std::uint32_t codes = scales + (Config::kStageKeys + key) * Config::kKeyScales;
    float powers[kPowers];
    load_powers(powers, codes);
    float most = kLeast;
#pragma unroll
    for (int first = 0; first < kPowers; first += kTogether) {
      std::uint32_t ones[kTogether];
      load_ones(ones, values, key, first);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        float& x = powers[first + i];
        x = fmaf(x, 0, ones[i] != 0 ? x : 0);  // NaN of infinity
        most = fmaxf(most, x);
      }
    }
    store_shared_32(codes, __float_as_uint(most / kLift));
    const float inverse = kLift * __uint_as_float(0x7f000000 - __float_as_uint(most));
    const std::uint32_t to = value_place(scales, key);
#pragma unroll
    for (int i = 0; i < kPowers; ++i) store_shared_16(to + 4 * i, pack<__half>(powers[i] * inverse, 0));
  }
  /// Bits of the codes in the blocks from `block` on, without signs. All loads are issued together.
  static __device__ __forceinline__ void load_ones(std::uint32_t (&ones)[kTogether], std::uint32_t values, int key, int block) {
    uint4 chunks[kTogether * kBlockChunks];
#pragma unroll
    for (int i = 0; i < kTogether * kBlockChunks; ++i) {
      chunks[i] = load_shared_128(values + static_cast<std::uint32_t>(Rows::offset(key, kBlockChunks * block + i)));
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      ones[i] = 0;
#pragma unroll
      for (int j = 0; j < kBlockChunks; ++j) {
        const uint4& x = chunks[i * kBlockChunks + j];
        ones[i] |= x.x | x.y | x.z | x.w;
      }
      ones[i] &= kCodeBits;
    }
  }
};

}  // namespace fovea::gpu::portable::paged_attention
