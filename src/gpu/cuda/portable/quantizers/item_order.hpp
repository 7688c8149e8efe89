// SPDX-License-Identifier: Apache-2.0
/// The order of the quantisers' work items.
#pragma once

#include <cstdint>

namespace fovea::gpu::portable::quantizers {

enum class Step : std::uint8_t { none, look_at_k, look_at_v, quantize_q, quantize_k, quantize_v };

/// A work item: some tokens of a column, for one step. A column is a head of a sequence, or a head of all sequences of a ragged batch.
struct Item {
  Step step = Step::none;
  int piece = 0, column = 0;
};

/// Columns of k and v form units. A unit's channels are read one unit ahead of its quantisation: then their sums are ready,
/// and L2 still holds the tokens. Items come after those that they depend on.
struct ItemOrder {
  int columns = 0;                               ///< of k and v
  int unit = 1;                                  ///< columns
  int q_per_column = 1;                          ///< columns of q for each of k and v
  int k_slices = 0, v_slices = 0;                ///< pieces to look at
  int q_pieces = 0, k_pieces = 0, v_pieces = 0;  ///< pieces to quantise

  constexpr std::int64_t units() const { return (columns + std::int64_t{unit} - 1) / unit; }
  constexpr std::int64_t looks() const { return (std::int64_t{k_slices} + v_slices) * unit; }  ///< items of a unit
  constexpr std::int64_t codes() const { return (std::int64_t{q_pieces} * q_per_column + k_pieces + v_pieces) * unit; }
  constexpr std::int64_t size() const { return units() * (looks() + codes()); }

  /// Requires 0 <= index < size() < 2^31. The last unit may lack columns: then there is nothing to do. A thread of a CTA does this between
  /// items, so no division is of 64 bits.
  constexpr Item operator[](int index) const {
    const int ahead = (k_slices + v_slices) * unit;
    if (index < ahead) return look(0, index);
    const int round = ahead + (q_pieces * q_per_column + k_pieces + v_pieces) * unit;  // the looks of unit + 1, and the codes of unit
    const int unit_index = (index - ahead) / round, rest = (index - ahead) % round;
    if ((unit_index + 1) * unit >= columns) return code(unit_index, rest);
    return rest < ahead ? look(unit_index + 1, rest) : code(unit_index, rest - ahead);
  }

 private:
  constexpr Item look(int unit_index, int index) const {
    const int of_k = k_slices * unit;
    return index < of_k ? item(Step::look_at_k, unit_index, index, 1) : item(Step::look_at_v, unit_index, index - of_k, 1);
  }
  constexpr Item code(int unit_index, int index) const {
    const int of_q = q_pieces * q_per_column * unit, of_k = k_pieces * unit;
    if (index < of_q) return item(Step::quantize_q, unit_index, index, q_per_column);
    if (index < of_q + of_k) return item(Step::quantize_k, unit_index, index - of_q, 1);
    return item(Step::quantize_v, unit_index, index - of_q - of_k, 1);
  }
  /// Columns fastest: heads of the same tokens are neighbours in memory.
  constexpr Item item(Step step, int unit_index, int index, int per_column) const {
    const int wide = unit * per_column, column = unit_index * wide + index % wide;
    return column < columns * per_column ? Item{step, index / wide, column} : Item{};
  }
};

}  // namespace fovea::gpu::portable::quantizers
