// SPDX-License-Identifier: Apache-2.0
#include "cpu/parallel.hpp"

#include <atomic>

#include "fovea/device.hpp"

#ifdef _OPENMP
#include <omp.h>
#else
#include <thread>
#endif

namespace fovea {
namespace {

std::atomic<ParallelFor> chosen_pool{nullptr};
std::atomic<int> chosen_threads{0};

#ifdef _OPENMP

int default_threads() { return omp_get_max_threads(); }

void default_pool(int threads, void (*body)(void* context, int thread), void* context) {
  // The runtime may give fewer threads than asked for; the loop still visits every index.
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int thread = 0; thread < threads; ++thread) body(context, thread);
}

#else

int default_threads() { return static_cast<int>(std::thread::hardware_concurrency()); }

/// Thread t starts thread t + 1 before its own work: no list of threads to allocate.
void run_from(int thread, int threads, void (*body)(void* context, int thread), void* context) {
  if (thread + 1 == threads) return body(context, thread);
  std::thread next(run_from, thread + 1, threads, body, context);
  body(context, thread);
  next.join();
}

void default_pool(int threads, void (*body)(void* context, int thread), void* context) { run_from(0, threads, body, context); }

#endif

}  // namespace

void set_parallel_for(ParallelFor parallel_for) { chosen_pool.store(parallel_for); }

void set_num_threads(int threads) { chosen_threads.store(threads > 0 ? threads : 0); }

int num_threads() {
  const int threads = chosen_threads.load() > 0 ? chosen_threads.load() : default_threads();
  return threads > 0 ? threads : 1;
}

namespace cpu {

int planned_threads() { return num_threads(); }

void run_parallel(int threads, void (*body)(void* context, int thread), void* context) {
  if (threads <= 1) return body(context, 0);
  const ParallelFor pool = chosen_pool.load();
  (pool != nullptr ? pool : default_pool)(threads, body, context);
}

}  // namespace cpu
}  // namespace fovea
