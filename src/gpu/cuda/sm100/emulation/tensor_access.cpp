// SPDX-License-Identifier: Apache-2.0
/// How warps use tensor memory: allocation, loads and stores, waits and fences.
#include <algorithm>
#include <cstring>

#include "gpu/cuda/sm100/emulation/cta.hpp"

namespace fovea::gpu::sm100::emulation {
namespace {

constexpr std::uint32_t kUnloaded = 0xffffffff;  ///< NaN: a register before its wait

}  // namespace

// ---- allocation ---------------------------------------------------------------------------------------------------------------------

void Cta::tensor_allocate(std::uint32_t& slot, int columns) {
  rendezvous("tcgen05.alloc", static_cast<std::uint64_t>(columns), false);
  if (current_->lane != 0) return;
  shared_access(&slot, sizeof slot, true);
  std::uint32_t address = 0;
  fail_if(tensor_.allocate(columns, address));
  slot = address;
}

void Cta::tensor_relinquish() {
  rendezvous("tcgen05.relinquish_alloc_permit", 0, false);
  tensor_.relinquish();
}

void Cta::tensor_free(std::uint32_t address, int columns) {
  rendezvous("tcgen05.dealloc", address, false);
  if (current_->lane == 0) fail_if(tensor_.free(address, columns, current_->known.tensor));
}

// ---- loads and stores ---------------------------------------------------------------------------------------------------------------

int Cta::tensor_column(const char* operation, std::uint32_t address, int columns) {
  const int lane = static_cast<int>(address >> 16), want = current_->warp % 4 * 32;
  if (lane != want) {
    fail(std::string(operation) + ": lane of the address is " + std::to_string(lane) + ", which warp " + std::to_string(current_->warp) +
         " does not reach: want " + std::to_string(want));
  }
  const std::string wrong = tensor_.outside(address, columns);
  if (!wrong.empty()) fail(std::string(operation) + ": " + wrong);
  return static_cast<int>(address & 0xffff);
}

void Cta::tensor_load(std::uint32_t* to, int columns, std::uint32_t address) {
  rendezvous("tcgen05.ld", std::uint64_t{address} << 32 | static_cast<std::uint64_t>(columns), false);
  const int first = tensor_column("tcgen05.ld", address, columns), lane = current_->warp % 4 * 32 + current_->lane;
  ++current_->loads;
  for (int c = first; c < first + columns; ++c) {
    fail_if(tensor_.load(current_->place.thread, lane, c, current_->loads, current_->tensor));
  }
  std::fill_n(to, columns, kUnloaded);
  current_->pending_loads.push_back({to, columns, first});
}

void Cta::tensor_load_wait() {
  rendezvous("tcgen05.wait::ld", 0, false);
  Thread& thread = *current_;
  const int lane = thread.warp % 4 * 32 + thread.lane;
  for (const auto& [to, columns, first] : thread.pending_loads) {
    // Stacks grow down: the frame of an array below this one is gone.
    if (static_cast<const void*>(to) < __builtin_frame_address(0)) fail("tcgen05.wait::ld: registers of a load are gone");
    for (int c = 0; c < columns; ++c) to[c] = tensor_.column(first + c)[lane];
  }
  thread.pending_loads.clear();
  thread.tensor[static_cast<std::size_t>(kLoads + thread.place.thread)] = thread.loads;
}

void Cta::tensor_store(const std::uint32_t* from, int columns, std::uint32_t address) {
  rendezvous("tcgen05.st", std::uint64_t{address} << 32 | static_cast<std::uint64_t>(columns), false);
  const int first = tensor_column("tcgen05.st", address, columns), lane = current_->warp % 4 * 32 + current_->lane;
  ++current_->stores;
  for (int c = first; c < first + columns; ++c) {
    fail_if(tensor_.store(current_->place.thread, lane, c, current_->stores, current_->tensor));
    tensor_.column(c)[lane] = kUnloaded;
  }
  current_->pending_stores.push_back({first, {from, from + columns}});
  if (schedule_.timing == Timing::eager) land_stores(*current_);
}

void Cta::land_stores(Thread& thread) {
  const int lane = thread.warp % 4 * 32 + thread.lane;
  for (const auto& [first, values] : thread.pending_stores) {
    for (std::size_t c = 0; c < values.size(); ++c) tensor_.column(first + static_cast<int>(c))[lane] = values[c];
  }
  thread.pending_stores.clear();
}

void Cta::tensor_store_wait() {
  rendezvous("tcgen05.wait::st", 0, false);
  land_stores(*current_);
  current_->tensor[static_cast<std::size_t>(kStores + current_->place.thread)] = current_->stores;
}

// ---- fences -------------------------------------------------------------------------------------------------------------------------

void Cta::tensor_fence_before_sync() { join(current_->known.tensor, current_->tensor); }
void Cta::tensor_fence_after_sync() { join(current_->tensor, current_->known.tensor); }

}  // namespace fovea::gpu::sm100::emulation
