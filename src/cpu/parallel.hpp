// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <new>
#include <system_error>

namespace fovea::cpu {

/// Threads that a plan made now may use: set_num_threads(), or the size of the default pool.
int planned_threads();

/// The work of a call, as one thread would do it.
struct Work {
  double products = 0;  ///< multiply-adds; a double, because the bounds of a plan may exceed any integer
  double elements = 0;  ///< moved, converted or added up

  /// An estimate for a core of today, between AVX2 and bf16 dot products.
  constexpr double nanoseconds() const { return products / 32 + elements / 4; }
};

/// Threads that the work is worth, the one rule for every operation. No more than `most` or than there are pieces, and each has at least
/// this much work. Waking a thread and waiting for it takes some 10 us, and many times that on busy processors.
inline constexpr std::int64_t kNanosecondsOfThread = 200'000;
int worthwhile_threads(const Work& work, std::int64_t pieces, int most);

/// For tests, whose cases are small: sets another limit, or the usual one with 0.
void set_nanoseconds_of_thread(std::int64_t nanoseconds);

/// Runs body(thread) for each thread through the pool that set_parallel_for() chose. Allocates nothing. One thread runs in place.
template <class Body>
void parallel_for(int threads, const Body& body);

void run_parallel(int threads, void (*body)(void* context, int thread), void* context);

template <class Body>
void parallel_for(int threads, const Body& body) {
  const auto call = [](void* context, int thread) { (*static_cast<const Body*>(context))(thread); };
  run_parallel(threads, call, const_cast<void*>(static_cast<const void*>(&body)));
}

/// Calls body(context, t) for t in [first, threads). Each thread starts the next one before its own work, so there is no list of threads to
/// allocate. If a thread cannot be started, the thread that wanted it does its work. `Thread` is std::thread, or a test's replacement.
template <class Thread>
void run_chain(int first, int threads, void (*body)(void* context, int thread), void* context) {
  for (int thread = first; thread < threads; ++thread) {
    Thread next;
    try {
      if (thread + 1 < threads) next = Thread(run_chain<Thread>, thread + 1, threads, body, context);
    } catch (const std::system_error&) {
    } catch (const std::bad_alloc&) {
    }
    body(context, thread);
    if (next.joinable()) return next.join();
  }
}

}  // namespace fovea::cpu
