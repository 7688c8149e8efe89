// SPDX-License-Identifier: Apache-2.0
/// Shared memory of a CTA that computes dk and dv. Tiles are swizzled slices: [slice][row][64].
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpu/cuda/common/gradient/sequence.cuh"
#include "gpu/cuda/sm90/attention_backward/config.hpp"
#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/dense/alibi_terms.cuh"
#include "gpu/cuda/sm90/dense/biased_gemm.cuh"

namespace fovea::gpu::sm90::attention_backward {

/// Named barriers; 0 is __syncthreads().
enum : int {
  kWarpgroup = 1,  // to 3: the threads of one warpgroup
  kDone = 4,       // the dQ warpgroup arrives once it has read K for the last time; score warpgroups wait
};

/// A step of the main loop: a query head, and a query tile that sees the key tile.
struct Step {
  int head, query_tile;
  int cell;   // index of both in [heads][query_tiles of the batch]
  int rank;   // key tiles that add to dQ before this one
  bool last;  // whether this key tile is the last to add to dQ
};

/// A step under a block mask. Each score warpgroup has a unit of the key tile.
struct ListedTileStep : Step {
  unsigned listed;              // a bit for each unit, of which one is set
  const std::int32_t* bits[2];  // from the query tile's first row and the unit's first key on; null: of a full block
};
/// A step with ALiBi.
struct SlopedStep : Step {
  float slope, mma_slope;  // in units of products; mma_slope: 0 where no MMA can add the bias
  int apart;               // the CTA's first key less the key at distance 0 of the first query
};
template <class Config>
using StepOf = std::conditional_t<Config::kLists, ListedTileStep, std::conditional_t<dense::kAlibi<Config>, SlopedStep, Step>>;

/// ALiBi's data before all tiles (FirstDataOf in dense/storage.cuh says why). Operand b of its MMA has parts of keys and of slopes,
/// which are sums of two elements.
template <class Element>
struct AlibiStorage {
  dense::NumberTile<Element, kQueryTile, 2, 2> query_numbers;
};
struct AlibiTicket {
  int ticket;
};
struct NoAlibiStorage {};
struct NoAlibiTicket {};

/// Step::cell and Step::rank of the dQ that an emitter adds. A cell of -1 ends the emitter.
struct Emission {
  int cell, rank;
};

/// Tiles of a kernel of all gradients: dS, and dQ on its way to global memory.
template <class Config>
struct QueryGradientTiles {
  alignas(1024) std::byte ds[Config::kScoreStages][Config::kScoreBytes];  // [key][query], one slice
  alignas(1024) float sums[Config::kSumsStages][Config::kSumsOfTile];     // dQ, as dq.cuh orders it
};
template <class Config>
struct QueryGradientBarriers {
  Emission emissions[Config::kSumsStages];
  // full: a lane of each score warp arrives; warps with dQ wait. empty: a lane of each warp with dQ arrives; score warps wait.
  alignas(8) std::uint64_t ds_full[Config::kScoreStages], ds_empty[Config::kScoreStages];
  // full: a lane of each warp with dQ arrives; the emitter waits. empty: the emitter arrives; warps with dQ wait.
  std::uint64_t sums_full[Config::kSumsStages], sums_empty[Config::kSumsStages];
};

/// Tiles of a kernel of dk and dv alone: P, which one warpgroup hands to the other. A stage is empty when
/// its Q and dO are.
template <class Config>
struct RolesTiles {
  alignas(1024) uint4 weights[Config::kStages][kQueryTile / 16][128];  // [four registers][thread]
};
template <class Config>
struct RolesBarriers {
  std::uint64_t weights_full[Config::kStages];  // a lane of each warp with P arrives; warps with dP wait
};

template <class Config, template <class> class Of, template <class> class OfRoles>
using Extra = std::conditional_t<Config::kSeparateDq, OfRoles<Config>, Of<Config>>;

template <class Config>
struct Tiles : Extra<Config, QueryGradientTiles, RolesTiles> {
  alignas(1024) std::byte k[Config::kKeyBytes];    // then dK; or dV, in a kernel of dk and dv alone
  alignas(1024) std::byte v[Config::kValueBytes];  // then the other one
  alignas(1024) std::byte q[Config::kStages][Config::kQueryBytes];
  alignas(1024) std::byte dout[Config::kStages][Config::kDoutBytes];
};

template <class Config>
using FirstStorage = std::conditional_t<dense::kAlibi<Config>, AlibiStorage<typename Config::Element>, NoAlibiStorage>;

template <class Config>
struct Storage : FirstStorage<Config>, Tiles<Config>, Extra<Config, QueryGradientBarriers, RolesBarriers> {
  static constexpr int kSteps = 8;  // dQ is at most four steps behind the producer
  RowStats stats[Config::kStages];
  KeyTile tile;
  int step_count;
  StepOf<Config> steps[kSteps];  // a ring without barriers of its own: written before q_full
  // full: the producer's lane arrives, and TMA completes its bytes; score warps wait.
  // empty: a lane of each score warp arrives; the producer waits.
  alignas(8) std::uint64_t kv_full, q_full[Config::kStages], dout_full[Config::kStages], empty[Config::kStages];
  [[no_unique_address]] std::conditional_t<dense::kAlibi<Config>, AlibiTicket, NoAlibiTicket> alibi;
};

}  // namespace fovea::gpu::sm90::attention_backward
