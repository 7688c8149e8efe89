// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fovea/standard.hpp"

namespace fovea {

enum class Backend : std::uint8_t { cpu, cuda, hip };

constexpr std::string_view name_of(Backend backend) {
  switch (backend) {
    case Backend::cpu: return "cpu";
    case Backend::cuda: return "cuda";
    case Backend::hip: return "hip";
  }
  return "unknown";
}

struct Device {
  Backend backend = Backend::cpu;
  int ordinal = 0;
  /// GPUs: a value other than 0 describes a device by its compute capability (CUDA: 90 is 9.0; HIP: 90 is gfx90a, 94 gfx942). It need not
  /// exist: a plan for it explains and does not run.
  int capability = 0;
};

/// The caller's stream (`cudaStream_t`, `hipStream_t`); the CPU ignores it and runs in the calling thread's time.
struct Stream {
  void* handle = nullptr;
};

/// Scratch memory on the plan's device, owned by the caller. Its contents need not be initialised. Aligned to 64 bytes.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

inline constexpr std::size_t kWorkspaceAlignment = 64;

/// Runs `body(context, thread)` for thread = 0 .. threads-1, each exactly once, and returns when all are done. The calls
/// may run one after another (a pool with fewer threads is fine), but bodies never wait for one another.
using ParallelFor = void (*)(int threads, void (*body)(void* context, int thread), void* context);

/// Replaces the thread pool of the CPU backend (OpenMP by default); nullptr restores the default. Takes effect for
/// the next run(); not to be called while one is under way.
void set_parallel_for(ParallelFor parallel_for);

/// Threads that plans made from now on use on the CPU, at most; 0 (the default) means what OpenMP would use. A call takes as many as its
/// work is worth, and a plan has memory for those. A build without OpenMP continues with the threads that it can start. OpenMP's own
/// runtime ends the process where it cannot start one (GCC's says "libgomp: Thread creation failed"): set fewer, or replace the pool.
void set_num_threads(int threads);
int num_threads();

}  // namespace fovea
