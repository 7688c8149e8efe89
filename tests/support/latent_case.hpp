// SPDX-License-Identifier: Apache-2.0
/// Cases of latent_attention, sparse_latent_attention and of converting packed caches: plain data (tests/latent_cases.hpp has the table).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "case.hpp"
#include "fovea/latent_attention.hpp"

namespace fovea::check {

/// A value of every sequence's cache that is not finite.
struct NotFinite {
  std::int64_t from_end = 0;  ///< 0: the sequence's last key
  std::int64_t channel = 0;
  float value = 0.0f;
};

/// Dense MLA. Unused entries of the block table are garbage, and every token that no row sees is NaN.
struct LatentCase {
  std::string name{};
  Tier tier = Tier::quick;
  DType dtype = DType::bf16;  ///< q and out
  CacheFormat format = CacheFormat::rows;
  DType rows = DType::bf16;  ///< of a plain cache
  std::int64_t row = 576, head = 16, kv_head = 1, page = 64, gap = 8;
  std::vector<Sequence> sequences{};
  bool ragged = false;  ///< with a row of no sequence at the end
  BandMask mask = causal();
  float scale = 0.0f;
  bool has_scale = false, nan_scale = false;  ///< nan_scale: the scale, beside has_scale, is NaN
  Vast vast{};                                ///< q and the first channel of K
  std::vector<NotFinite> not_finite{};
};

/// Contents of the lists of a sparse case besides tokens. Entries past the length name tokens that hold NaN.
enum class Lists : std::uint8_t {
  mixed,        ///< every third index names no token
  all_invalid,  ///< none does
  full,         ///< all do
};

/// Token-sparse MLA over one cache, or two.
struct SparseCase {
  struct List {
    CacheFormat format = CacheFormat::rows;
    std::int64_t topk = 70, page = 64, blocks = 9;
    std::vector<std::int32_t> lengths{};  ///< topk_length, where there is one
  };
  std::string name{};
  Tier tier = Tier::quick;
  DType dtype = DType::bf16;
  std::int64_t row = 576, head = 16, batch = 2, seq_q = 1, gap = 8;
  List main{};
  std::optional<List> extra{};
  bool flat = false, sink = false, max_logits = true;
  Lists lists = Lists::mixed;
  bool nan_token = false;  ///< plain rows: a NaN in the last token that the second row lists
  float scale = 0.0f;
  Vast vast{};  ///< q and the first channel of K
};

/// Packs rows into a cache, or unpacks a cache of random bytes. Every third token has no slot.
struct ConversionCase {
  std::string name{};
  Tier tier = Tier::quick;
  bool quantize = true;
  CacheFormat format{};
  DType dtype{};
  ScaleRule rule = ScaleRule::power_of_two;
  std::int64_t tokens = 210, page = 7, blocks = 40;
  std::int64_t gap = 11;    ///< after each row and block; with an odd gap hardly anything is aligned, else everything
  bool wild_slots = false;  ///< slots to skip are any number outside the cache; a host that sees them would refuse them
};

std::unique_ptr<Trial> bind(const LatentCase& spec);
std::unique_ptr<Trial> bind(const SparseCase& spec);
std::unique_ptr<Trial> bind(const ConversionCase& spec);

}  // namespace fovea::check
