// SPDX-License-Identifier: Apache-2.0
/// Kernels on the host: each work-item is a fiber, 64 of them make a wave, and a wave advances when all of its lanes have come to the same
/// collective operation. Errors that hardware would hide are faults with a text:
///   a collective that some lanes of a wave reach and others do not, or lanes at different ones;
///   a barrier that some work-items of a workgroup do not reach;
///   LDS: access outside the array or across its alignment, a read before any write, a race (two accesses of one byte, one of them a write,
///   by different waves without a barrier or by different lanes without wave_barrier between them);
///   a value that is said to be uniform and is not.
/// Global memory is the host's: tests surround tensors with red zones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fovea::gpu::emulation {

struct Kernel {
  std::string_view name{};
  void (*body)(const void* params) = nullptr;
  int threads = 0;  ///< of a workgroup
};

struct Registration {
  Registration(std::string_view name, void (*body)(const void* params), int threads);
};

/// Null if there is none.
const Kernel* find_kernel(std::string_view name);

inline constexpr int kWaveLanes = 64;

/// In which order runnable lanes run, and workgroups: what depends on it has a race.
enum class Order : std::uint8_t { ascending, descending };

/// The order of kernels that the emulated runtime launches: descending where FOVEA_EMULATED_ORDER in the environment says so.
Order order_of_launches();

struct Shape {
  unsigned grid[3]{1, 1, 1};
  int threads = kWaveLanes;
};

/// Runs every workgroup, one after another. Returns the first fault, or nothing.
std::optional<std::string> run(void (*kernel)(const void* params), const void* params, const Shape& shape, Order order = Order::ascending);

// ---- for the running work-item ----------------------------------------------------------------------------------------------

struct WorkItem {
  int thread = 0;
  int workgroup[3]{};
};
const WorkItem& work_item();

/// Computes a collective operation from what its 64 lanes passed, in order.
using Resolve = void (*)(void* const (&operands)[kWaveLanes]);

/// Waits until all lanes of the wave are at the same operation, and `resolve` has written the results into their operands.
void wait_for_wave(const char* operation, Resolve resolve, void* operand);
void wait_for_workgroup();
[[noreturn]] void fail(std::string message);

/// A wave's accesses to LDS before it come before those after it. Part of a collective.
void order_shared_accesses();
/// The bytes at `offset` of a shared array of `size` bytes, checked as the header says.
std::byte* shared_access(std::size_t size, std::int64_t offset, std::size_t bytes, std::size_t alignment, bool write);

}  // namespace fovea::gpu::emulation
