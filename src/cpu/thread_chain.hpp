// SPDX-License-Identifier: Apache-2.0
/// The default pool of a build without OpenMP.
#pragma once

#include <new>
#include <system_error>

namespace fovea::cpu {

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
