// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/sm100/emulation/tensor_cells.hpp"

#include <algorithm>

#include "gpu/cuda/sm100/emulation/shared_memory.hpp"

namespace fovea::gpu::sm100::emulation {

namespace {

constexpr std::uint32_t kPoison = 0xffffffff;  ///< NaN, in each format

std::string at(int lane, int column) { return "lane " + std::to_string(lane) + " column " + std::to_string(column) + " of tensor memory"; }

int column_of(std::uint32_t address) { return static_cast<int>(address & 0xffff); }

}  // namespace

TensorCells::TensorCells()
    : values_(kTensorLanes * kTensorColumns, kPoison), cells_(kTensorLanes * kTensorColumns), columns_(kTensorColumns) {}

// ---- allocation ---------------------------------------------------------------------------------------------------------------------

std::string TensorCells::allocate(int columns, std::uint32_t& address) {
  if (columns < 32 || columns > kTensorColumns || (columns & (columns - 1)) != 0) {
    return "tcgen05.alloc of " + std::to_string(columns) + " columns, want a power of two from 32 to 512";
  }
  if (relinquished_) return "tcgen05.alloc after relinquish_alloc_permit";
  // From the end: a kernel that takes the address for 0 is found.
  for (int first = kTensorColumns - columns; first >= 0; first -= columns) {
    const auto begin = columns_.begin() + first;
    if (std::any_of(begin, begin + columns, [](const Column& it) { return it.allocation != 0; })) continue;
    ++allocations_;
    for (int c = first; c < first + columns; ++c) {
      info(c) = {0, 0, allocations_, false};
      std::fill_n(column(c), kTensorLanes, kPoison);
      for (int lane = 0; lane < kTensorLanes; ++lane) cell(lane, c) = {};
    }
    address = static_cast<std::uint32_t>(first);
    return {};
  }
  return "tcgen05.alloc of " + std::to_string(columns) + " columns waits for ever: " + std::to_string(allocated()) + " are allocated";
}

std::string TensorCells::free(std::uint32_t address, int columns, const TensorClock& known) {
  const int first = column_of(address);
  if (std::string wrong = outside(address, columns); !wrong.empty()) return "tcgen05.dealloc: " + wrong;
  const int allocation = info(first).allocation;
  const auto of_it = std::count_if(columns_.begin(), columns_.end(), [&](const Column& it) { return it.allocation == allocation; });
  if (of_it != columns || address >> 16 != 0) {
    return "tcgen05.dealloc of " + std::to_string(columns) + " columns at " + std::to_string(address) + " of an allocation of " +
           std::to_string(of_it);
  }
  for (int c = first; c < first + columns; ++c) {
    Column& it = info(c);
    const bool core = known[kTensorCoreInTensor] < std::max(it.mma_write, it.mma_read);
    if (core) return "tcgen05.dealloc: column " + std::to_string(c) + " is not ordered after its access by an MMA";
    for (int lane = 0; it.touched && lane < kTensorLanes; ++lane) {
      std::string wrong = unordered_store(lane, c, known);
      if (wrong.empty()) wrong = unordered_loads(lane, c, known);
      if (!wrong.empty()) return "tcgen05.dealloc: " + at(lane, c) + wrong;
    }
    it.allocation = 0;
  }
  return {};
}

int TensorCells::allocated() const {
  return static_cast<int>(std::count_if(columns_.begin(), columns_.end(), [](const Column& it) { return it.allocation != 0; }));
}

std::string TensorCells::outside(std::uint32_t address, int columns) const {
  const int first = column_of(address);
  if (first + columns <= kTensorColumns) {
    const auto begin = columns_.begin() + first;
    const int allocation = begin->allocation;
    if (allocation != 0 && std::all_of(begin, begin + columns, [&](const Column& it) { return it.allocation == allocation; })) return {};
  }
  return "columns " + std::to_string(first) + " to " + std::to_string(first + columns - 1) + " of tensor memory are not allocated";
}

// ---- order --------------------------------------------------------------------------------------------------------------------------

std::string TensorCells::unordered_store(int lane, int column, const TensorClock& known) {
  const Cell& it = cell(lane, column);
  const int writer = it.writer * kTensorLanes + lane;
  if (known[static_cast<std::size_t>(kStores + writer)] >= it.store_time) return {};
  return " is not ordered after tcgen05.st by " + thread_name(writer);
}

std::string TensorCells::unordered_loads(int lane, int column, const TensorClock& known) {
  const Cell& it = cell(lane, column);
  for (int group = 0; group < kGroups; ++group) {
    const int reader = group * kTensorLanes + lane;
    if (known[static_cast<std::size_t>(kLoads + reader)] >= it.load_times[static_cast<std::size_t>(group)]) continue;
    return " is not ordered after tcgen05.ld by " + thread_name(reader);
  }
  return {};
}

std::string TensorCells::load(int thread, int lane, int column, std::uint32_t time, const TensorClock& known) {
  Column& it = info(column);
  std::string wrong = unordered_store(lane, column, known);
  if (known[kTensorCoreInTensor] < it.mma_write) wrong = " is not ordered after its write by an MMA";
  if (!wrong.empty()) return "tcgen05.ld of " + at(lane, column) + wrong;
  it.touched = true;
  cell(lane, column).load_times[static_cast<std::size_t>(thread / kTensorLanes)] = time;
  return {};
}

std::string TensorCells::store(int thread, int lane, int column, std::uint32_t time, const TensorClock& known) {
  Column& it = info(column);
  std::string wrong = unordered_store(lane, column, known);
  if (wrong.empty()) wrong = unordered_loads(lane, column, known);
  if (known[kTensorCoreInTensor] < it.mma_write) wrong = " is not ordered after its write by an MMA";
  if (known[kTensorCoreInTensor] < it.mma_read) wrong = " is not ordered after its read by an MMA";
  if (!wrong.empty()) return "tcgen05.st of " + at(lane, column) + wrong;
  it.touched = true;
  cell(lane, column) = {time, {}, static_cast<std::uint8_t>(thread / kTensorLanes)};
  return {};
}

std::string TensorCells::mma_read(int column, std::uint32_t time, const TensorClock& known, bool accumulator) {
  Column& it = info(column);
  const char* what = accumulator ? "accumulator: " : "operand a: ";
  for (int lane = 0; lane < kTensorLanes; ++lane) {
    if (it.mma_write == 0 && cell(lane, column).store_time == 0) return what + at(lane, column) + " is read before any write";
    const std::string wrong = it.touched ? unordered_store(lane, column, known) : std::string();
    if (!wrong.empty()) return what + at(lane, column) + wrong;
    if (!it.touched) break;
  }
  it.mma_read = std::max(it.mma_read, time);
  return {};
}

std::string TensorCells::mma_write(int column, std::uint32_t time, const TensorClock& known) {
  Column& it = info(column);
  for (int lane = 0; it.touched && lane < kTensorLanes; ++lane) {
    std::string wrong = unordered_store(lane, column, known);
    if (wrong.empty()) wrong = unordered_loads(lane, column, known);
    if (!wrong.empty()) return "accumulator: " + at(lane, column) + wrong;
  }
  for (int lane = 0; it.touched && lane < kTensorLanes; ++lane) cell(lane, column) = {};
  it.touched = false;
  it.mma_write = time;
  return {};
}

}  // namespace fovea::gpu::sm100::emulation
