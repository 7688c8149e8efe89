// SPDX-License-Identifier: Apache-2.0
/// Widens rows of K and V and lays them out as the panels that the micro-kernel streams. Runs once for a key tile and kv head; every query
/// row of the group then uses the panels.
#pragma once

#include "cpu/attention/gemm.hpp"

namespace fovea::cpu::FOVEA_ISA {

/// Loads `count` elements of a row as operands, padded with zeros to a full register.
template <class Math, class S>
FOVEA_INLINE auto load_row_some(S storage, const void* p, int count) {
  typename S::Code codes[Math::kRegWidth] = {};
  __builtin_memcpy(codes, p, static_cast<unsigned long>(count) * sizeof(typename S::Code));
  return Math::load_row(storage, codes);
}

template <class Math, class S>
static void load_q(Row source, int count, int padded, bool negate, void* operands) {
  constexpr int kWidth = Math::kRegWidth;
  const auto* codes = static_cast<const typename S::Code*>(source);
  auto* to = static_cast<typename Math::Operand*>(operands);
  for (int i = 0; i < padded; i += kWidth) {  // padded is a multiple of every width
    const int here = count - i;
    const auto row =
        here >= kWidth ? Math::load_row(S{}, codes + i) : load_row_some<Math>(S{}, codes + (here > 0 ? i : 0), here > 0 ? here : 0);
    Math::store_operands(to + i, negate ? Math::negated(row) : row);
  }
}

/// Prefetches the next eight rows. They may lie pages apart, where no hardware prefetcher follows.
FOVEA_INLINE void fetch_rows(const Row* rows, int bytes) {
  for (int row = 0; row < 8; ++row) fetch(static_cast<const char*>(rows[row]), 0, bytes);
}

template <class Math, class S>
static void pack_keys(const Row* rows, int count, int head_dim, int padded, void* panels) {
  constexpr int kElements = 8 * Math::kPair;  // of a row in one 8 x 8 transposition
  using Operand = typename Math::Operand;
  for (int key = 0; key < count; key += 8) {
    if (key + 16 <= count) fetch_rows(rows + key + 8, head_dim * static_cast<int>(sizeof(typename S::Code)));
    // (padded / kPair, kPanel, kPair) of this panel, from this key on
    Operand* to = static_cast<Operand*>(panels) + static_cast<std::int64_t>(key / kPanel) * kPanel * padded + key % kPanel * Math::kPair;
    for (int d = 0; d < padded; d += kElements, to += 8 * kPanel * Math::kPair) {
      const int here = head_dim - d;
      if (here >= kElements) {
        Math::template transpose<S>(rows + key, d, to);
      } else {
        alignas(64) typename S::Code codes[8][kElements] = {};
        Row tails[8];
        for (int i = 0; i < 8; ++i) {
          if (here > 0) {
            __builtin_memcpy(codes[i], static_cast<const typename S::Code*>(rows[key + i]) + d,
                             static_cast<unsigned long>(here) * sizeof(typename S::Code));
          }
          tails[i] = codes[i];
        }
        Math::template transpose<S>(tails, 0, to);
      }
    }
  }
}

/// Checks for infinities and NaNs as every element passes. They decide whether a zero weight may multiply.
template <class Math, class S>
static bool pack_values(const Row* rows, int count, int head_dim, int kv_tile, void* panels) {
  using Operand = typename Math::Operand;
  const int padded = (head_dim + kPanel - 1) / kPanel * kPanel;
  typename Math::Finite finite{};
  for (int first = 0; first < count; first += kPackedRows) {  // eight at a time: rows and panels evict neither
    if (first + 2 * kPackedRows <= count) fetch_rows(rows + first + kPackedRows, head_dim * static_cast<int>(sizeof(typename S::Code)));
    for (int column = 0; column < padded; column += kLanes) {
      const int here = head_dim - column < kLanes ? head_dim - column : kLanes;
      // (kv_tile / kPair, kPanel, kPair) of this column's panel, from this column on
      Operand* panel =
          static_cast<Operand*>(panels) + static_cast<std::int64_t>(column / kPanel) * kPanel * kv_tile + column % kPanel * Math::kPair;
      for (int key = first; key < first + kPackedRows; key += Math::kPair) {
        Operand* to = panel + static_cast<std::int64_t>(key) * kPanel;
        if (here == kLanes) {
          Math::template interleave<S>(rows + key, column, to, finite);
        } else {
          Row some[Math::kPair];
          typename S::Code codes[Math::kPair][kLanes] = {};
          for (int i = 0; i < Math::kPair; ++i) {
            if (here > 0) {
              __builtin_memcpy(codes[i], static_cast<const typename S::Code*>(rows[key + i]) + column,
                               static_cast<unsigned long>(here) * sizeof(typename S::Code));
            }
            some[i] = codes[i];
          }
          Math::template interleave<S>(some, 0, to, finite);
        }
      }
    }
  }
  return finite.all();
}

}  // namespace fovea::cpu::FOVEA_ISA
