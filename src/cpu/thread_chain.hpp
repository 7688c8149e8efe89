// SPDX-License-Identifier: Apache-2.0
/// The default pool of a build without OpenMP.
#pragma once

#include <new>
#include <system_error>

namespace fovea::cpu {

/// body(context, t) for t in [first, threads). Each thread starts the next one before its own work: no list of threads to allocate. One
/// that cannot be started leaves its work to the thread that wanted it. `Thread` is std::thread, or what a test puts in its place.
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
