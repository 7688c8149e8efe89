// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea::cpu {

/// Threads that a plan made now will use: set_num_threads(), or what the default pool has.
int planned_threads();

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
