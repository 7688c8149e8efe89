// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/sm100/emulation/machine.hpp"

#include <algorithm>

#include "gpu/cuda/sm100/emulation/cta.hpp"

namespace fovea::gpu::sm100::emulation {
namespace {

thread_local Cta* running = nullptr;

}  // namespace

FOVEA_HOST_CLONES
void join(std::uint32_t* to, const std::uint32_t* from, int count) {
  for (int i = 0; i < count; ++i) to[i] = to[i] < from[i] ? from[i] : to[i];
}

std::optional<std::string> run(void (*kernel)(const void*), const void* context, const Launch& launch, const Schedule& schedule) {
  if (launch.threads <= 0 || launch.threads % 32 != 0 || launch.threads > kMostThreads) {
    return "a CTA of " + std::to_string(launch.threads) + " threads, want warps of 32, up to " + std::to_string(kMostThreads);
  }
  if (launch.shared_bytes > kMostSharedBytes) return "a CTA of " + std::to_string(launch.shared_bytes) + " bytes of shared memory";
  for (int i = 0; i < launch.blocks; ++i) {
    Cta cta(kernel, context, launch, schedule.order == Order::descending ? launch.blocks - 1 - i : i, schedule);
    running = &cta;
    std::optional<std::string> fault = cta.run();
    running = nullptr;
    if (fault) return fault;
  }
  return std::nullopt;
}

void fail(const std::string& message) { running->fail(message); }

// ---- threads ------------------------------------------------------------------------------------------------------------------------

const Place& place() { return running->current().place; }
std::uint32_t rendezvous(const char* operation, std::uint64_t operand, bool vote) { return running->rendezvous(operation, operand, vote); }
int elected_lane() { return running->elected_lane(); }
void sync_warp() { running->sync_warp(); }
void named_barrier(int id, int threads, bool wait) { running->named_barrier(id, threads, wait); }
int block_threads() { return running->threads(); }
void set_registers(int registers, bool grow) { running->set_registers(registers, grow); }

// ---- shared memory ------------------------------------------------------------------------------------------------------------------

std::byte* shared_memory(std::size_t bytes) {
  SharedMemory& shared = running->shared();
  if (bytes > shared.size()) fail("storage of " + std::to_string(bytes) + " bytes, launched with " + std::to_string(shared.size()));
  return shared.data();
}
std::uint32_t shared_address(const void* shared) { return kSharedBase + static_cast<std::uint32_t>(running->shared_offset(shared, 1, 1)); }
void shared_access(const void* at, std::size_t bytes, bool write) { running->shared_access(at, bytes, write); }

void barrier_init(std::uint64_t& barrier, int arrivals) { running->barrier_init(&barrier, arrivals); }
void fence_barrier_init() { running->fence_barrier_init(); }
void barrier_arrive(std::uint64_t& barrier, int expected_bytes) { running->barrier_arrive(&barrier, expected_bytes); }
void barrier_wait(std::uint64_t& barrier, std::uint32_t parity) { running->barrier_wait(&barrier, parity); }
void fence_proxy_async() { running->fence_proxy_async(); }
void tma_load(void* shared, const void* map, const int (&start)[5], std::uint64_t& barrier) {
  running->tma_load(shared, map, start, &barrier);
}

// ---- tensor memory ------------------------------------------------------------------------------------------------------------------

void tensor_allocate(std::uint32_t& slot, int columns) { running->tensor_allocate(slot, columns); }
void tensor_relinquish() { running->tensor_relinquish(); }
void tensor_free(std::uint32_t address, int columns) { running->tensor_free(address, columns); }
void tensor_load(std::uint32_t* to, int columns, std::uint32_t address) { running->tensor_load(to, columns, address); }
void tensor_store(const std::uint32_t* from, int columns, std::uint32_t address) { running->tensor_store(from, columns, address); }
void tensor_load_wait() { running->tensor_load_wait(); }
void tensor_store_wait() { running->tensor_store_wait(); }
void tensor_fence_before_sync() { running->tensor_fence_before_sync(); }
void tensor_fence_after_sync() { running->tensor_fence_after_sync(); }
void mma_issue(const Mma& mma) { running->mma_issue(mma); }
void mma_commit(std::uint64_t& barrier) { running->mma_commit(&barrier); }

}  // namespace fovea::gpu::sm100::emulation
