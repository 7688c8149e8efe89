// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/portable/quantizers/finish_channels.cuh"
#include "gpu/cuda/portable/quantizers/steps.hpp"
#include "op/quantized_attention/validate.hpp"

namespace fovea::gpu::portable::quantizers {
namespace {

using detail::declined;
using detail::QuantizedTensor;
using detail::TokenBatch;

constexpr std::int64_t kLimit = 1 << 30;  // tokens, and work items: they are counted in ints

const Kernels& kernels_of(DType dtype) { return dtype == DType::f16 ? kHalfKernels : kBfloatKernels; }

/// Pieces of the sequences of a batch, at most; every sequence of a ragged batch may end inside of one.
std::int64_t pieces(const TokenBatch& batch, std::int64_t total, std::int64_t longest, std::int64_t tokens) {
  return batch.ragged ? total / tokens + batch.batch : batch.batch * tiles_of(longest, tokens);
}
std::int64_t q_items(const detail::QuantizeQkInt8Problem& p) { return pieces(p, p.total_q, p.max_seq_q, kBlockTokens) * p.q.heads; }
std::int64_t k_items(const TokenBatch& batch, const QuantizedTensor& tensor, std::int64_t tokens) {
  return pieces(batch, batch.total_k, batch.max_seq_k, tokens) * tensor.heads;
}

std::optional<Error> why_not(const TokenBatch& batch, std::string_view name, const QuantizedTensor& tensor, std::int64_t rows) {
  if (tensor.dtype == DType::f32) return declined(std::string(name) + ".dtype", name_of(tensor.dtype), "bf16 or f16");
  for (const auto& [what, count] : {std::pair{".shape (rows)", rows}, {".shape (head)", tensor.heads}, {" (batch)", batch.batch}}) {
    if (count >= kLimit) return declined(std::string(name) + what, count, "below 2^30");
  }
  return std::nullopt;
}

Batch batch_of(const TokenBatch& problem, const std::int32_t* cu_seqlens_q, const std::int32_t* cu_seqlens_k) {
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

Side side_of(const QuantizedTensor& tensor, const void* from, void* to) {
  const auto size = [](DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); };
  Side side{.heads = static_cast<int>(tensor.heads), .head_dim = static_cast<int>(tensor.head_dim)};
  side.from = {from, tensor.from, chunks_aligned(tensor.from, size(tensor.dtype), from)};
  side.to = {to, tensor.to, chunks_aligned(tensor.to, size(tensor.to_dtype), to)};
  side.scale.strides = tensor.scale;
  side.mean.strides = tensor.mean;
  return side;
}

std::size_t part_bytes(const TokenBatch& batch, const QuantizedTensor& tensor) {
  return static_cast<std::size_t>(k_items(batch, tensor, kSliceTokens) * tensor.head_dim) * sizeof(ChannelPart);
}

LaunchShape ctas(std::int64_t count, std::size_t shared_bytes = 0) {
  return {.grid = dim3(static_cast<unsigned>(count)), .block = dim3(kThreads), .shared_bytes = shared_bytes};
}

/// Means, and scales where there are some.
Result<void> launch_channels(const TokenBatch& batch, const QuantizedTensor& tensor, const ChannelParams& params, Stream stream) {
  const auto groups = static_cast<std::size_t>(kThreads / (tensor.head_dim / kChunk));
  const std::size_t shared_bytes = groups * static_cast<std::size_t>(tensor.head_dim) * sizeof(ChannelPart);
  const std::int64_t slices = k_items(batch, tensor, kSliceTokens);
  if (slices > 0) {
    const Result<void> done = launch(kernels_of(tensor.dtype).look_at_channels, ctas(slices, shared_bytes), stream, params);
    if (!done) return done;
  }
  return launch(&finish_channels, ctas(batch.batch * tensor.heads), stream, params);
}

int index_of(std::int64_t head_dim) { return head_dim == 64 ? 0 : head_dim == 96 ? 1 : head_dim == 128 ? 2 : 3; }

}  // namespace

std::optional<Error> why_not(const detail::QuantizeQkInt8Problem& problem) {
  if (auto reason = decline_int8_head_dims(problem)) return reason;
  if (auto reason = why_not(problem, "q", problem.q, problem.total_q)) return reason;
  if (auto reason = why_not(problem, "k", problem.k, problem.total_k)) return reason;
  const std::int64_t items = q_items(problem) + k_items(problem, problem.k, kBlockTokens);
  if (items >= kLimit) return declined("q.shape (work items)", items, "below 2^30");
  return std::nullopt;
}

std::optional<Error> why_not(const detail::QuantizeVProblem& problem) {
  if (auto reason = decline_int8_head_dims(problem)) return reason;
  if (auto reason = why_not(problem, "v", problem.v, problem.total_k)) return reason;
  const std::int64_t items = k_items(problem, problem.v, kBlockTokens);
  if (items >= kLimit) return declined("v.shape (work items)", items, "below 2^30");
  return std::nullopt;
}

std::size_t workspace_bytes(const detail::QuantizeQkInt8Problem& problem) {
  return problem.k.has_mean ? part_bytes(problem, problem.k) : 0;
}

std::size_t workspace_bytes(const detail::QuantizeVProblem& problem) {
  const auto factors = static_cast<std::size_t>(problem.batch * problem.v.heads * problem.v.head_dim) * sizeof(float);
  if (problem.v.has_scale) return part_bytes(problem, problem.v) + factors;
  return problem.v.has_mean ? part_bytes(problem, problem.v) : 0;
}

Result<void> launch_quantize(const detail::QuantizeQkInt8Problem& problem, const QuantizeQkInt8Args& args, void* workspace, Stream stream) {
  Int8Params params{.batch = batch_of(problem, args.cu_seqlens_q, args.cu_seqlens_k), .groups = problem.groups};
  params.q = side_of(problem.q, args.q, args.q_int8);
  params.k = side_of(problem.k, args.k, args.k_int8);
  params.q.scale.data = args.q_scale;
  params.k.scale.data = args.k_scale;
  params.lse_shift = {problem.has_lse_shift ? args.lse_shift : nullptr, problem.lse_shift};
  params.q_items = static_cast<int>(q_items(problem));
  if (problem.k.has_mean) {
    params.k.mean.data = args.k_mean;
    ChannelParams channels{params.batch, params.k};
    channels.side.scale.data = nullptr;  // those of groups
    channels.side.parts = static_cast<ChannelPart*>(workspace);
    if (const Result<void> done = launch_channels(problem, problem.k, channels, stream); !done) return done;
  }
  const std::int64_t items = params.q_items + k_items(problem, problem.k, kBlockTokens);
  if (items == 0) return {};
  return launch(kernels_of(problem.q.dtype).int8[index_of(problem.q.head_dim)], ctas(items), stream, params);
}

Result<void> launch_quantize(const detail::QuantizeVProblem& problem, const QuantizeVArgs& args, const std::int32_t* cu_seqlens_q,
                             void* workspace, Stream stream) {
  ChannelParams params{batch_of(problem, cu_seqlens_q, args.cu_seqlens_k), side_of(problem.v, args.v, args.v_out)};
  params.side.mean.data = problem.v.has_mean ? args.v_mean : nullptr;
  if (problem.v.has_scale || problem.v.has_mean) {
    params.side.parts = static_cast<ChannelPart*>(workspace);
    if (problem.v.has_scale) {
      params.side.scale.data = args.v_scale;
      params.side.factors = reinterpret_cast<float*>(static_cast<std::byte*>(workspace) + part_bytes(problem, problem.v));
    }
    if (const Result<void> done = launch_channels(problem, problem.v, params, stream); !done) return done;
  }
  const std::int64_t items = k_items(problem, problem.v, kBlockTokens);
  if (items == 0) return {};
  const Kernels& kernels = kernels_of(problem.v.dtype);
  return launch(problem.v.has_scale ? kernels.values_as_e4m3 : kernels.values_as_f16, ctas(items), stream, params);
}

}  // namespace fovea::gpu::portable::quantizers
