// SPDX-License-Identifier: Apache-2.0
/// Keys and values from a paged cache into registers, where they are operands: nothing goes through LDS.
///
/// K: lane l loads, of token l % 16 of a block, the chunks of 8 dims 4 s + l / 16. Both halves of a chunk are operands; which dims an MMA
/// takes together does not matter, as long as the queries are loaded the same way.
/// V: lane l loads, of tokens 4 (l / 16) + e of a block, the channels of group l % 16. It transposes its own 4 tokens: channel x of all
/// groups is the operand of MMA x.
///
/// A key that no row sees is replaced by the nearest one that some row sees. Its probability is 0.
#pragma once

#include <algorithm>
#include <type_traits>

#include "gpu/hip/cdna/paged_attention/work.hpp"

namespace fovea::gpu::cdna::paged_attention {

/// `kGeneral`: any head dims, pages and strides. Otherwise Params::general is false, and addresses take few instructions: a block and a
/// slot are products of 32 bits each, and the four tokens of a lane are in one block.
template <class Config, bool kGeneral>
class Loader {
 public:
  using Cache = typename Config::Cache;
  static constexpr int kLookups = kGeneral ? 4 : 1;

  /// Where the tokens that the lane loads are: their block, and the bytes before them in it.
  struct Token {
    int block;
    std::uint32_t slot_bytes;  // where not kGeneral
  };
  struct Tokens {
    Token k[Config::kKeyBlocks], v[Config::kKeyBlocks][kLookups];
  };
  /// Packed rows have a scale for each panel of channels, and rotary chunks behind the codes.
  struct PackedKeys {
    Chunk rotary[Config::kKeyBlocks][std::max(Config::kRotarySteps, 1)];
    Float4 scales[Config::kKeyBlocks];
  };
  struct PackedValues {
    Float4 scales[Config::kKeyBlocks][4];
  };
  struct Nothing {};
  struct Keys : std::conditional_t<Config::kPacked, PackedKeys, Nothing> {
    typename Config::KeyChunk chunk[Config::kKeyBlocks][Config::kKeySteps];
  };
  struct Values : std::conditional_t<Config::kPacked, PackedValues, Nothing> {
    typename Config::ValueChunk chunk[Config::kKeyBlocks][Config::kPanels][4];  // (block, panel, token)
  };

  __device__ Loader(const Params& params_, const Work& work)
      : params(params_),
        table(params.block_table == nullptr ? nullptr : params.block_table + work.batch * params.table_stride),
        begin(work.begin),
        end(work.end),
        row(lane() % 16),
        group(lane() / 16),
        keys_of_head(static_cast<const std::uint8_t*>(params.k_cache) +
                     (before_keys(params, work, params.k) + work.kv_head * params.k.head) * Cache::kBytes),
        values_of_head(static_cast<const std::uint8_t*>(params.v_cache) +
                       (before_keys(params, work, params.v) + work.kv_head * params.v.head) * Cache::kBytes) {}

  __device__ __forceinline__ void look_up(int tile, Tokens& tokens) const {
#pragma unroll
    for (int b = 0; b < Config::kKeyBlocks; ++b) {
      tokens.k[b] = find(key_token(tile, b), params.k);
#pragma unroll
      for (int e = 0; e < kLookups; ++e) tokens.v[b][e] = find(value_token(tile, b, e), params.v);
    }
  }

  __device__ __forceinline__ void load(int tile, const Tokens& tokens, Keys& keys) const {
#pragma unroll
    for (int b = 0; b < Config::kKeyBlocks; ++b) {
      const std::uint8_t* from = keys_of_head + place(key_token(tile, b), tokens.k[b], params.k);
#pragma unroll
      for (int s = 0; s < Config::kKeySteps; ++s) load_chunk(from, 8 * (4 * s + group), params.head_dim_qk, keys.chunk[b][s]);
      if constexpr (Config::kPacked) {
        keys.scales[b] = load_unaligned<Float4>(from + Cache::kScales);
#pragma unroll
        for (int s = 0; s < Config::kRotarySteps; ++s) {
          keys.rotary[b][s] = load_unaligned<Chunk>(from + Cache::kRotary + 16 * (4 * s + group));
        }
      }
    }
  }

  __device__ __forceinline__ void load(int tile, const Tokens& tokens, Values& values) const {
#pragma unroll
    for (int b = 0; b < Config::kKeyBlocks; ++b) {
      const std::int64_t first = place(value_token(tile, b, 0), tokens.v[b][0], params.v);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const std::uint8_t* from = values_of_head;
        if constexpr (kGeneral) {
          from += place(value_token(tile, b, e), tokens.v[b][e], params.v);
        } else {
          from += first + product(value_token(tile, b, e) - value_token(tile, b, 0), params.v.token);
        }
#pragma unroll
        for (int p = 0; p < Config::kPanels; ++p) {
          load_chunk(from, p * Config::kPanel + Config::kChannels * row, params.head_dim_v, values.chunk[b][p][e]);
        }
        if constexpr (Config::kPacked) values.scales[b][e] = load_unaligned<Float4>(from + Cache::kScales);
      }
    }
  }

  /// Whether widening meets NaN codes, or scales that are not powers of two.
  static __device__ __forceinline__ bool needs_care(const Keys& keys) {
    bool found = Cache::has_nans(keys.chunk);
    if constexpr (Config::kPacked) {
#pragma unroll
      for (const Float4& scales : keys.scales) found |= !are_powers_of_two(scales);
    }
    return found;
  }
  static __device__ __forceinline__ bool needs_care(const Values& values) {
    bool found = Cache::has_nans(values.chunk);
    if constexpr (Config::kPacked) {
#pragma unroll
      for (int i = 0; i < 4 * Config::kKeyBlocks; ++i) found |= !are_powers_of_two(values.scales[i / 4][i % 4]);
    }
    return found;
  }

  /// `kCareful`: what needs_care.
  template <bool kCareful>
  static __device__ __forceinline__ Chunk widened(const Keys& keys, int block, int step) {
    float scale = 1;
    if constexpr (Config::kPacked) {
      if (step >= Config::kKeySteps) return keys.rotary[block][step - Config::kKeySteps];
      scale = keys.scales[block][32 * step / Config::kPanel];
    }
    return Cache::template widened<kCareful>(keys.chunk[block][step], scale);
  }
  template <bool kCareful>
  static __device__ __forceinline__ Words<Config::kChannels / 2> widened(const Values& values, int block, int panel, int token) {
    float scale = 1;
    if constexpr (Config::kPacked) scale = values.scales[block][token][panel];
    return Cache::template widened<kCareful>(values.chunk[block][panel][token], scale);
  }

  /// Channel `x` of each group of a panel, as the first operand of an MMA over the 16 tokens of a block.
  static __device__ __forceinline__ Short4 operand_of(const Words<Config::kChannels / 2> (&tokens)[4], int x) {
    const Place place = Cache::place_of(x);
    const auto pair = [&](int e) __device__ {
      const std::uint32_t first = tokens[e].word[place.word], second = tokens[e + 1].word[place.word];
      return place.high ? high_halves(first, second) : low_halves(first, second);
    };
    return std::bit_cast<Short4>(Words<2>{pair(0), pair(2)});
  }

 private:
  static __device__ __forceinline__ bool are_powers_of_two(const Float4& scales) {
    bool all = true;
#pragma unroll
    for (int panel = 0; panel < 4; ++panel) all &= Cache::is_power_of_two(scales[panel]);
    return all;
  }

  __device__ __forceinline__ Token find(int token, const detail::CacheStrides& strides) const {
    const int page = params.page.quotient(token), slot = token - page * params.page.divisor;
    return {table == nullptr ? 0 : load_unaligned<std::int32_t>(table + page),
            kGeneral ? 0 : static_cast<std::uint32_t>(slot) * bytes_of(strides.token)};
  }
  /// Where a token is in a cache, in bytes.
  __device__ __forceinline__ std::int64_t place(int token, const Token& found, const detail::CacheStrides& strides) const {
    if constexpr (kGeneral) {
      const int slot = token - params.page.quotient(token) * params.page.divisor;
      return (found.block * strides.block + slot * strides.token) * Cache::kBytes;
    } else {
      return product(found.block, strides.block) + found.slot_bytes;
    }
  }
  static __device__ __forceinline__ std::uint32_t bytes_of(std::int64_t stride) {
    return static_cast<std::uint32_t>(stride) * Cache::kBytes;
  }
  /// One instruction.
  static __device__ __forceinline__ std::int64_t product(int count, std::int64_t stride) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(static_cast<std::uint32_t>(count)) * bytes_of(stride));
  }

  __device__ __forceinline__ int seen(int token) const { return std::min(std::max(token, begin), end - 1); }
  __device__ __forceinline__ int key_token(int tile, int block) const { return seen(tile * Config::kKeyTile + 16 * block + row); }
  __device__ __forceinline__ int value_token(int tile, int block, int e) const {
    return seen(tile * Config::kKeyTile + 16 * block + 4 * group + e);
  }

  template <class Chunk>
  static __device__ __forceinline__ void load_chunk(const std::uint8_t* row, int element, int elements, Chunk& chunk) {
    if (!kGeneral || Config::within(element, elements)) {
      chunk = load_unaligned<Chunk>(row + element * Cache::kBytes);
    } else {
      chunk = {};
    }
  }

  const Params& params;
  const std::int32_t* table;  // of the sequence, or null
  const int begin, end;       // tokens that some row sees
  const int row, group;       // of the lane: l % 16 and l / 16
  const std::uint8_t *keys_of_head, *values_of_head;
};

}  // namespace fovea::gpu::cdna::paged_attention
