// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/portable/quantizers/int8.cuh"
#include "gpu/cuda/portable/quantizers/steps.hpp"
#include "gpu/cuda/portable/quantizers/values.cuh"
#include "op/common/workspace_arena.hpp"
#include "op/quantized_attention/problem.hpp"

namespace fovea::gpu::portable::quantizers {

__global__ void clear_counters(unsigned* counters, int count) {
  launch_dependents();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) counters[i] = 0;
}

namespace {

using detail::declined;
using detail::QuantizedTensor;
using detail::TokenBatch;
using detail::WorkspaceArena;

constexpr std::int64_t kLimit = 1 << 30;      // tokens
constexpr std::int64_t kItemLimit = 1 << 28;  // work items of q and k, or of v: those of all, in whole units, are counted in ints
constexpr int kUnitsInCache = 6;              // units of K and V between the reads of their channels and their quantisation

/// Upper bound of the pieces of a column's tokens; every sequence of a ragged batch may end inside a piece.
std::int64_t pieces(const TokenBatch& batch, std::int64_t total, std::int64_t longest, std::int64_t tokens) {
  return batch.ragged ? total / tokens + batch.batch : detail::ceil_div(longest, tokens);
}
/// A sequence without tokens has a slice too: its means are 0.
std::int64_t slices(const TokenBatch& batch) {
  return std::max<std::int64_t>(pieces(batch, batch.total_k, batch.max_seq_k, kSliceTokens), 1);
}
bool looks_at(const QuantizedTensor& tensor) { return tensor.has_mean || tensor.has_scale; }

const TokenBatch& batch_of(const Tensors& tensors) {
  return tensors.qk != nullptr ? static_cast<const TokenBatch&>(*tensors.qk) : *tensors.v;
}
const QuantizedTensor& keys_of(const Tensors& tensors) { return tensors.qk != nullptr ? tensors.qk->k : tensors.v->v; }

/// `cache_bytes`: of L2.
ItemOrder order_of(const Tensors& tensors, std::int64_t cache_bytes) {
  const TokenBatch& batch = batch_of(tensors);
  const QuantizedTensor& keys = keys_of(tensors);
  const auto of_k = [&](std::int64_t tokens) { return static_cast<int>(pieces(batch, batch.total_k, batch.max_seq_k, tokens)); };
  ItemOrder order{.columns = static_cast<int>(keys.heads * (batch.ragged ? 1 : batch.batch))};
  if (tensors.qk != nullptr) {
    order.q_per_column = static_cast<int>(tensors.qk->q.heads / keys.heads);
    order.q_pieces = static_cast<int>(pieces(batch, batch.total_q, batch.max_seq_q, kBlockTokens));
    order.k_pieces = of_k(kBlockTokens);
    if (tensors.qk->k.has_mean) order.k_slices = static_cast<int>(slices(batch));
  }
  if (tensors.v != nullptr) {
    order.v_pieces = std::max(of_k(kBlockTokens), tensors.v_in_tiles ? 1 : 0);  // a sequence without tokens has a tile too
    if (looks_at(tensors.v->v)) order.v_slices = static_cast<int>(slices(batch));
  }
  const std::int64_t looked_at = (order.k_slices > 0 ? 1 : 0) + (order.v_slices > 0 ? 1 : 0);
  const std::int64_t column_bytes = looked_at * batch.max_seq_k * keys.head_dim * static_cast<std::int64_t>(size_of(keys.dtype));
  order.unit = std::max(order.columns, 1);
  if (!batch.ragged && column_bytes > 0) {  // a column is a head of one sequence
    order.unit = static_cast<int>(std::clamp<std::int64_t>(cache_bytes / kUnitsInCache / column_bytes, 1, order.unit));
  }
  return order;
}

std::optional<Error> why_not(const TokenBatch& batch, std::string_view name, const QuantizedTensor& tensor, std::int64_t rows) {
  if (tensor.dtype == DType::f32) return declined(std::string(name) + ".dtype", name_of(tensor.dtype), "bf16 or f16");
  for (const auto& [what, count] : {std::pair{".shape (rows)", rows}, {".shape (head)", tensor.heads}, {" (batch)", batch.batch}}) {
    if (count >= kLimit) return declined(std::string(name) + what, count, "below 2^30");
  }
  return std::nullopt;
}

Batch lengths_of(const TokenBatch& problem, const std::int32_t* cu_seqlens_q, const std::int32_t* cu_seqlens_k) {
  Batch batch{.sequences = static_cast<int>(problem.batch),
              .seq_q = static_cast<int>(problem.max_seq_q),
              .seq_k = static_cast<int>(problem.max_seq_k),
              .masked = problem.mask.has_value(),
              .mask = problem.mask.value_or(BandMask{})};
  if (problem.ragged) {
    batch.cu_seqlens_q = cu_seqlens_q;
    batch.cu_seqlens_k = cu_seqlens_k;
  }
  return batch;
}

/// Whether every chunk of every row is aligned to its bytes.
bool chunks_aligned(const detail::RowStrides& strides, std::int64_t size, const void* data) {
  const auto bytes = kChunk * size;
  const auto fits = [&](std::int64_t stride) { return stride * size % bytes == 0; };
  return fits(strides.batch) && fits(strides.row) && fits(strides.head) && reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

Side side_of(const QuantizedTensor& tensor, const void* from, void* to, float* scale, float* mean) {
  const auto size = [](DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); };
  Side side{.heads = static_cast<int>(tensor.heads)};
  side.from = {from, tensor.from, chunks_aligned(tensor.from, size(tensor.dtype), from)};
  side.to = {to, tensor.to, chunks_aligned(tensor.to, size(tensor.to_dtype), to)};
  side.scale = {scale, tensor.scale};
  side.mean = {tensor.has_mean ? mean : nullptr, tensor.mean};
  return side;
}

/// The ticket, and arrivals of each head of each sequence.
std::int64_t counters_of(const Tensors& tensors, const ItemOrder& order) {
  return 1 + batch_of(tensors).batch * keys_of(tensors).heads * ((order.k_slices > 0 ? 1 : 0) + (order.v_slices > 0 ? 1 : 0));
}

bool is_nothing(const Tensors& tensors) { return tensors.qk == nullptr && tensors.v == nullptr; }

/// The workspace, or without one its size.
std::size_t map_workspace(const Tensors& tensors, const ItemOrder& order, Params& params, std::byte* base) {
  WorkspaceArena arena(base);
  const std::int64_t heads = batch_of(tensors).batch * keys_of(tensors).heads, dim = keys_of(tensors).head_dim;
  if (order.k_slices + order.v_slices == 0) return 0;
  params.ticket = arena.take<unsigned>(counters_of(tensors, order));
  if (params.ticket != nullptr) {
    if (order.k_slices > 0) params.k.arrivals = params.ticket + 1;
    if (order.v_slices > 0) params.v.arrivals = params.ticket + 1 + (order.k_slices > 0 ? heads : 0);
  }
  if (order.k_slices > 0) params.k.parts = arena.take<ChannelPart>(std::int64_t{order.k_slices} * order.columns * dim);
  if (order.v_slices > 0) params.v.parts = arena.take<ChannelPart>(std::int64_t{order.v_slices} * order.columns * dim);
  if (order.k_slices > 0) params.k.means = arena.take<float>(heads * dim);
  if (tensors.v != nullptr && tensors.v->v.has_mean) params.v.means = arena.take<float>(heads * dim);
  if (tensors.v != nullptr && tensors.v->v.has_scale) params.v.factors = arena.take<float>(heads * dim);
  return arena.bytes();
}

GroupTable table_of(const Int8Groups& groups, bool is_query) {
  GroupTable table{.per_block = static_cast<int>(is_query ? groups.q_per_block() : groups.k_per_block())};
  for (int token = 0; token < kBlockTokens; ++token) {
    table.of[token] = static_cast<std::uint8_t>(is_query ? groups.q_group(token) : groups.k_group(token));
  }
  table.block_tokens = static_cast<int>(is_query ? Int8Groups::kQBlock : Int8Groups::kKBlock);
  table.blocks = kBlockTokens / table.block_tokens;
  return table;
}

Params params_of(const Tensors& tensors, const ItemOrder& order) {
  const auto* cu_seqlens_k = tensors.qk != nullptr ? tensors.qk_args.cu_seqlens_k : tensors.v_args.cu_seqlens_k;
  Params params{
      .batch = lengths_of(batch_of(tensors), tensors.cu_seqlens_q, cu_seqlens_k), .order = order, .items = static_cast<int>(order.size())};
  params.kv_heads = static_cast<int>(keys_of(tensors).heads);
  if (tensors.qk != nullptr) {
    const detail::QuantizeQkInt8Problem& problem = *tensors.qk;
    const QuantizeQkInt8Args& args = tensors.qk_args;
    params.q = side_of(problem.q, args.q, args.q_int8, args.q_scale, nullptr);
    params.k = side_of(problem.k, args.k, args.k_int8, args.k_scale, args.k_mean);
    params.q_groups = table_of(problem.groups, true);
    params.k_groups = table_of(problem.groups, false);
    params.lse_shift = {problem.has_lse_shift ? args.lse_shift : nullptr, problem.lse_shift};
  }
  if (tensors.v != nullptr) {
    const QuantizeVArgs& args = tensors.v_args;
    params.v = side_of(tensors.v->v, args.v, args.v_out, tensors.v->v.has_scale ? args.v_scale : nullptr, args.v_mean);
    params.values_as_f16 = !tensors.v->v.has_scale;
    params.values_in_tiles = tensors.v_in_tiles;
  }
  return params;
}

std::optional<Error> too_many(std::string_view name, const Tensors& tensors) {
  const std::int64_t items = order_of(tensors, 0).size();
  if (items < kItemLimit) return std::nullopt;
  return declined(std::string(name) + ".shape (work items)", items, "below 2^28");
}

Kernels::Kernel kernel_of(const QuantizedTensor& keys, bool aligned) {
  const Kernels& kernels = keys.dtype == DType::f16 ? kHalfKernels : kBfloatKernels;
  const int index = keys.head_dim == 64 ? 0 : keys.head_dim == 96 ? 1 : keys.head_dim == 128 ? 2 : 3;
  return aligned ? kernels.aligned[index] : kernels.any[index];
}

}  // namespace

std::optional<Error> why_not(const detail::QuantizeQkInt8Problem& problem) {
  if (auto reason = decline_int8_head_dims(problem)) return reason;
  if (auto reason = why_not(problem, "q", problem.q, problem.total_q)) return reason;
  if (auto reason = why_not(problem, "k", problem.k, problem.total_k)) return reason;
  return too_many("q", {.qk = &problem});
}

std::optional<Error> why_not(const detail::QuantizeVProblem& problem) {
  if (auto reason = decline_int8_head_dims(problem)) return reason;
  if (auto reason = why_not(problem, "v", problem.v, problem.total_k)) return reason;
  return too_many("v", {.v = &problem});
}

std::size_t workspace_bytes(const Tensors& tensors) {
  if (is_nothing(tensors)) return 0;
  Params unused{};
  return map_workspace(tensors, order_of(tensors, 0), unused, nullptr);
}

Result<void> launch_quantize(const Tensors& tensors, const DeviceProperties& device, void* workspace, Stream stream) {
  if (is_nothing(tensors)) return {};
  const ItemOrder order = order_of(tensors, device.l2_bytes);
  if (order.size() == 0) return {};
  Params params = params_of(tensors, order);
  map_workspace(tensors, order, params, static_cast<std::byte*>(workspace));
  const QuantizedTensor& keys = keys_of(tensors);
  LaunchShape shape{.grid = dim3(static_cast<unsigned>(order.size())), .block = dim3(static_cast<unsigned>(threads_for(keys.head_dim)))};
  if (params.ticket != nullptr) {
    const std::int64_t counters = counters_of(tensors, order);
    const LaunchShape all{.grid = dim3(static_cast<unsigned>(detail::ceil_div(counters, 256))), .block = dim3(256)};
    if (Result<void> done = launch(&clear_counters, all, stream, params.ticket, static_cast<int>(counters)); !done) return done;
    shape.grid.x = std::min(shape.grid.x, static_cast<unsigned>(device.multiprocessors * ctas_for(keys.head_dim)));
    shape.programmatic = device.capability >= 90;
  }
  const auto aligned = [](const Side& side) { return side.heads == 0 || (side.from.aligned && side.to.aligned); };
  return launch(kernel_of(keys, aligned(params.q) && aligned(params.k) && aligned(params.v)), shape, stream, params);
}

}  // namespace fovea::gpu::portable::quantizers
