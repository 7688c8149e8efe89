// SPDX-License-Identifier: Apache-2.0
#include "cpu/parallel.hpp"

#include <algorithm>
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
std::atomic<std::int64_t> nanoseconds_of_thread{cpu::kNanosecondsOfThread};

#ifdef _OPENMP

int default_threads() { return omp_get_max_threads(); }

void default_pool(int threads, void (*body)(void* context, int thread), void* context) {
  // The runtime may give fewer threads than requested; the loop still visits every index.
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int thread = 0; thread < threads; ++thread) body(context, thread);
}

#else

int default_threads() { return static_cast<int>(std::thread::hardware_concurrency()); }

void default_pool(int threads, void (*body)(void* context, int thread), void* context) {
  cpu::run_chain<std::thread>(0, threads, body, context);
}

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

int worthwhile_threads(const Work& work, std::int64_t pieces, int most) {
  const double worth = work.nanoseconds() / static_cast<double>(nanoseconds_of_thread.load(std::memory_order_relaxed));
  return static_cast<int>(std::clamp(std::min(worth, static_cast<double>(pieces)), 1.0, static_cast<double>(most)));
}

void set_nanoseconds_of_thread(std::int64_t nanoseconds) {
  nanoseconds_of_thread.store(nanoseconds > 0 ? nanoseconds : kNanosecondsOfThread);
}

void run_parallel(int threads, void (*body)(void* context, int thread), void* context) {
  if (threads <= 1) return body(context, 0);
  const ParallelFor pool = chosen_pool.load();
  (pool != nullptr ? pool : default_pool)(threads, body, context);
}

}  // namespace cpu
}  // namespace fovea
