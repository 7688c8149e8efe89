// SPDX-License-Identifier: Apache-2.0
/// Tensor memory with a shadow: for each cell, who wrote it last, and who has read it since.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/cuda/sm100/emulation/clock.hpp"

namespace fovea::gpu::sm100::emulation {

inline constexpr int kTensorLanes = 128, kTensorColumns = 512;

class TensorCells {
 public:
  TensorCells();

  // ---- allocation: each says what is wrong, if anything
  std::string allocate(int columns, std::uint32_t& address);
  std::string free(std::uint32_t address, int columns, const TensorClock& known);
  void relinquish() { relinquished_ = true; }
  int allocated() const;
  /// The columns from the address's on belong to one allocation.
  std::string outside(std::uint32_t address, int columns) const;

  // ---- accesses: each notes one and says what is wrong with it, if anything
  std::string load(int thread, int lane, int column, std::uint32_t time, const TensorClock& known);
  std::string store(int thread, int lane, int column, std::uint32_t time, const TensorClock& known);
  std::string mma_read(int column, std::uint32_t time, const TensorClock& known, bool accumulator);
  std::string mma_write(int column, std::uint32_t time, const TensorClock& known);

  // ---- values: a column has a word for each lane
  std::uint32_t* column(int column) { return values_.data() + column * kTensorLanes; }

 private:
  static constexpr int kGroups = kMostThreads / kTensorLanes;  ///< threads that reach a lane

  struct Cell {
    std::uint32_t store_time = 0;
    std::array<std::uint32_t, kGroups> load_times{};
    std::uint8_t writer = 0;  ///< group
  };
  struct Column {
    std::uint32_t mma_write = 0, mma_read = 0;
    int allocation = 0;    ///< 0: none
    bool touched = false;  ///< by threads, since the last MMA that wrote it
  };

  Cell& cell(int lane, int column) { return cells_[static_cast<std::size_t>(column * kTensorLanes + lane)]; }
  Column& info(int column) { return columns_[static_cast<std::size_t>(column)]; }
  std::string unordered_store(int lane, int column, const TensorClock& known);
  std::string unordered_loads(int lane, int column, const TensorClock& known);

  std::vector<std::uint32_t> values_;
  std::vector<Cell> cells_;
  std::vector<Column> columns_;
  int allocations_ = 0;
  bool relinquished_ = false;
};

}  // namespace fovea::gpu::sm100::emulation
