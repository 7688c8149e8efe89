// SPDX-License-Identifier: Apache-2.0
/// CTAs of SM100 on the host: each thread is a fiber, TMA and the tensor core are queues of work that
/// completes at the moment that hurts most. A mistake that makes hardware give wrong numbers or hang
/// is a fault here, with a text that names who did what.
///
/// An access is checked when it is issued, against vector clocks, so most faults do not depend on the
/// schedule. Two accesses of one place, one of them a write, need an order:
///   a thread's after another thread's: an mbarrier, a named barrier, sync_warp or sync_block;
///   TMA or an MMA after a thread's write: also fence.proxy.async, somewhere on that path;
///   a thread, TMA or an MMA after TMA: the issuer has itself waited at the mbarrier of the copy;
///   a thread or TMA after an MMA: a wait at an mbarrier that a commit arrives at;
///   tensor memory, thread and MMA: wait::ld or wait::st, then fence::before_thread_sync, a barrier,
///   fence::after_thread_sync. A commit has the fence before it; its waiter needs the one after.
///   Within a thread, ld and st of one cell need the wait of the first.
///
/// Choices where PTX leaves room:
///   MMAs of a CTA run in the order of their issue, whatever their accumulators. PTX says so of one
///   accumulator and shape; public attention kernels rely on the rest.
///   A commit hands on what its MMAs have seen: copies, accesses behind a proxy fence, tensor memory.
///   It does not hand on other accesses of the issuing thread. An arrival of TMA hands on its copy alone.
///   A vote orders no memory; elect.sync may elect any lane.
///   mbarriers that TMA or commits use need fence.mbarrier_init by the thread that initialises them.
///   Columns are freed after fence::before_thread_sync of all that accessed them.
///   One thread issues all MMAs of a CTA. A CTA has the tensor memory of its SM alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace fovea::gpu::sm100::emulation {

/// Which runnable thread is next. starved: some warps run only when no other can.
enum class Order : std::uint8_t { ascending, descending, random, starved };
/// When asynchronous work completes: at once, when no thread can run, or anywhere between.
enum class Timing : std::uint8_t { eager, lazy, random };

struct Schedule {
  Order order = Order::ascending;
  Timing timing = Timing::lazy;
  std::uint64_t seed = 1;
};

struct Launch {
  int blocks = 1, threads = 32;
  std::size_t shared_bytes = 0;
};

/// Calls `kernel(context)` in every thread of every block, one block after another. Returns the first
/// fault, or nothing.
std::optional<std::string> run(void (*kernel)(const void* context), const void* context, const Launch& launch,
                               const Schedule& schedule = {});

// ---- for the running thread: the bodies of the wrappers ---------------------------------------------

[[noreturn]] void fail(const std::string& message);

struct Place {
  int thread = 0, block = 0, blocks = 1;
};
const Place& place();

/// Waits until all lanes of the warp are at this operation with this operand. Returns the lanes with
/// `vote`.
std::uint32_t rendezvous(const char* operation, std::uint64_t operand = 0, bool vote = false);
int elected_lane();
void sync_warp();
void named_barrier(int id, int threads, bool wait);
int block_threads();
void set_registers(int registers, bool grow);

std::byte* shared_memory(std::size_t bytes);
std::uint32_t shared_address(const void* shared);
void shared_access(const void* at, std::size_t bytes, bool write);

void barrier_init(std::uint64_t& barrier, int arrivals);
void fence_barrier_init();
void barrier_arrive(std::uint64_t& barrier, int expected_bytes);
void barrier_wait(std::uint64_t& barrier, std::uint32_t parity);
void fence_proxy_async();

/// `map` is one that encode_tensor_map of tensor_map.hpp has made.
void tma_load(void* shared, const void* map, const int (&start)[5], std::uint64_t& barrier);

void tensor_allocate(std::uint32_t& slot, int columns);
void tensor_relinquish();
void tensor_free(std::uint32_t address, int columns);
void tensor_load(std::uint32_t* to, int columns, std::uint32_t address);
void tensor_store(const std::uint32_t* from, int columns, std::uint32_t address);
void tensor_load_wait();
void tensor_store_wait();
void tensor_fence_before_sync();
void tensor_fence_after_sync();

/// An operand in shared memory has a descriptor; `a` may also be an address of tensor memory.
struct Mma {
  std::uint32_t d = 0, instruction = 0;
  std::uint64_t a = 0, b = 0;
  bool a_in_tensor_memory = false, accumulate = false;
  bool bf16 = false;  ///< the kernel's element, which the descriptor must agree with
};
void mma_issue(const Mma& mma);
void mma_commit(std::uint64_t& barrier);

}  // namespace fovea::gpu::sm100::emulation
