// SPDX-License-Identifier: Apache-2.0
/// Kernels of 128 threads, each with one mistake, and their correct form. tests/hip/emulation_test.cpp says which fault names which.
#include "broken_kernels.hpp"
#include "gpu/hip/cdna/wave.hpp"

namespace fovea::check {
namespace {

using namespace gpu::cdna;
constexpr int kThreads = 128;

/// Every thread stores its number; after a barrier each reads that of its counterpart in the other wave.
template <bool kBarrier>
void exchange_waves(const Output& to) {
  const SharedMemory<4 * kThreads> memory;
  memory.store<int>(4 * thread(), thread());
  if (kBarrier) barrier();
  wave_barrier();
  to.out[thread()] = memory.load<int>(4 * (thread() ^ 64));
}

/// The same within a wave.
template <bool kWaveBarrier>
void exchange_lanes(const Output& to) {
  const SharedMemory<4 * kThreads> memory;
  memory.store<int>(4 * thread(), thread());
  if (kWaveBarrier) wave_barrier();
  to.out[thread()] = memory.load<int>(4 * (thread() ^ 1));
}

void multiply(const LaneProduct& product, bool transposed) {
  Short4 a{}, b{};
  for (int e = 0; e < 4; ++e) {
    const int i = lane() % 16, k = 4 * (lane() / 16) + e;
    a[e] = transposed ? product.a[4 * (i / 4 * 16 + k) + i % 4] : product.a[4 * lane() + e];
    b[e] = product.b[4 * lane() + e];
  }
  const Float4 d = product.bf16 ? multiply_add_bf16(a, b, Float4{}) : multiply_add_f16(a, b, Float4{});
  for (int e = 0; e < 4; ++e) product.d[4 * lane() + e] = d[e];
}

}  // namespace

FOVEA_CDNA_KERNEL(correct_waves, Output, 128, 1) { exchange_waves<true>(params); }
FOVEA_CDNA_KERNEL(correct_lanes, Output, 128, 1) { exchange_lanes<true>(params); }

FOVEA_CDNA_KERNEL(no_barrier, Output, 128, 1) { exchange_waves<false>(params); }
FOVEA_CDNA_KERNEL(no_wave_barrier, Output, 128, 1) { exchange_lanes<false>(params); }

/// Both waves write one word.
FOVEA_CDNA_KERNEL(both_write, Output, 128, 1) {
  const SharedMemory<256> memory;
  memory.store<int>(4 * lane(), thread());
  barrier();
  params.out[thread()] = memory.load<int>(4 * lane());
}

/// A wave overwrites what the other reads.
FOVEA_CDNA_KERNEL(overwrites, Output, 128, 1) {
  const SharedMemory<4 * kThreads> memory;
  memory.store<int>(4 * thread(), thread());
  barrier();
  params.out[thread()] = memory.load<int>(4 * (thread() ^ 64));
  wave_barrier();
  memory.store<int>(4 * thread(), 0);
}

FOVEA_CDNA_KERNEL(out_of_bounds, Output, 128, 1) {
  const SharedMemory<4 * kThreads> memory;
  memory.store<int>(4 * (thread() + 1), thread());
  params.out[thread()] = 0;
}

FOVEA_CDNA_KERNEL(misaligned, Output, 128, 1) {
  const SharedMemory<8 * kThreads> memory;
  memory.store<int>(8 * thread() + 2, thread());
  params.out[thread()] = 0;
}

FOVEA_CDNA_KERNEL(unwritten, Output, 128, 1) {
  const SharedMemory<4 * kThreads> memory;
  params.out[thread()] = memory.load<int>(4 * thread());
}

/// Wave 1 leaves before the barrier.
FOVEA_CDNA_KERNEL(leaves_before_barrier, Output, 128, 1) {
  if (thread() >= 64) return;
  barrier();
  params.out[thread()] = 0;
}

/// Half of the lanes vote.
FOVEA_CDNA_KERNEL(half_votes, Output, 128, 1) {
  if (lane() < 32) params.out[thread()] = any(true) ? 1 : 0;
}

/// Even and odd lanes wait at different places.
FOVEA_CDNA_KERNEL(different_places, Output, 128, 1) {
  const float x = static_cast<float>(lane());
  params.out[thread()] = static_cast<int>(lane() % 2 == 0 ? of_lane_xor_16(x) : static_cast<float>(ballot(true) & 1));
}

/// Lanes make different numbers of turns in a loop with a collective.
FOVEA_CDNA_KERNEL(different_turns, Output, 128, 1) {
  int sum = 0;
  for (int i = 0; i <= lane() % 2; ++i) sum += any(lane() == i) ? 1 : 0;
  params.out[thread()] = sum;
}

FOVEA_CDNA_KERNEL(not_uniform, Output, 128, 1) { params.out[thread()] = uniform(thread()); }

/// One MMA, whose first operand lanes hold by rows, or wrongly by columns.
FOVEA_CDNA_KERNEL(correct_layout, LaneProduct, 64, 1) { multiply(params, false); }
FOVEA_CDNA_KERNEL(wrong_layout, LaneProduct, 64, 1) { multiply(params, true); }

}  // namespace fovea::check
