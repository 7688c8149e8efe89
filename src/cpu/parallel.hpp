// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fovea::cpu {

/// Threads that a plan made now may use: set_num_threads(), or what the default pool has.
int planned_threads();

/// What a call has to do, as one thread would.
struct Work {
  double products = 0;  ///< multiply-adds; bounds of a plan may pass any integer
  double elements = 0;  ///< moved, converted or added up

  /// An estimate for a core of today, between AVX2 and bf16 dot products.
  constexpr double nanoseconds() const { return products / 32 + elements / 4; }
};

/// Threads that the work is worth, the one rule for every operation: no more than `most` or than there are pieces, and each with at least
/// this much to do. Waking a thread and waiting for it takes some 10 us, and many times that where processors are busy.
inline constexpr std::int64_t kNanosecondsOfThread = 200'000;
int worthwhile_threads(const Work& work, std::int64_t pieces, int most);

/// For tests, whose cases are small: another limit, or 0 for the usual one.
void set_nanoseconds_of_thread(std::int64_t nanoseconds);

/// Runs body(thread) for each thread through the pool that set_parallel_for() chose. Nothing is allocated; one thread runs in place.
template <class Body>
void parallel_for(int threads, const Body& body);

void run_parallel(int threads, void (*body)(void* context, int thread), void* context);

template <class Body>
void parallel_for(int threads, const Body& body) {
  const auto call = [](void* context, int thread) { (*static_cast<const Body*>(context))(thread); };
  run_parallel(threads, call, const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace fovea::cpu
