// SPDX-License-Identifier: Apache-2.0
/// Key tiles of a batch dealt out to equal parts (split-KV): each sequence costs its tiles and a fixed overhead, the costs lie end to end
/// on a line, and part p takes the p-th of equal lengths of the line. Everything follows from the prefix sums of the costs: there is no
/// table of splits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "op/common/division.hpp"

namespace fovea::detail {

/// Half-open range of a sequence's key tiles, counted from its first one.
struct TileRange {
  int begin = 0, end = 0;
  constexpr bool empty() const { return begin >= end; }
};

/// How sequences are laid on the line: the length of a part, and what each sequence costs beside its tiles.
struct SplitLine {
  int length = 1, overhead = 0;
};

/// The line for `batch` sequences of `tiles` in all, each of `size` of them where all have as many, else 0; `overhead` is what a sequence
/// costs, in tiles. Sequences of one size are not cut where a part can have whole ones, nor, where it can't, but evenly: the others on the
/// line would come to lie across two parts, each of which has to do with one more of them. It may cost less all the same.
constexpr SplitLine split_line(int parts, int batch, int tiles, int size, int overhead) {
  const int least = ceil_div(tiles, parts);
  if (least <= 1) return {1, 0};  // with the overhead some parts would do two
  const SplitLine cut{ceil_div(tiles + batch * overhead, parts), overhead};
  if (size == 0) return cut;
  const int cost_of_cut = cut.length + overhead + 1;  // some part begins inside of a sequence, and has a part of another
  if (least >= size) {
    const int whole = ceil_div(least, size);
    return whole * (size + overhead) <= cost_of_cut ? SplitLine{whole * size, 0} : cut;
  }
  const int length = ceil_div(size, size / least), shares = ceil_div(size, length);
  return length + overhead + (shares > 1 ? 1 : 0) <= cost_of_cut ? SplitLine{length, shares * length - size} : cut;
}

struct SplitSchedule {
  const int* prefix = nullptr;  ///< [batch + 1] costs before each sequence
  int batch = 0;
  int length = 1;      ///< of a part
  int overhead = 0;    ///< of a sequence, in tiles
  bool whole = false;  ///< never split a sequence: it belongs to the part where it begins

  /// At least 1: a sequence that sees nothing still has outputs to write.
  constexpr int tiles(int sequence) const { return prefix[sequence + 1] - prefix[sequence] - overhead; }

  /// The share of `sequence` that `part` computes.
  constexpr TileRange share(int part, int sequence) const {
    const int begin = part * length, end = begin + length, count = tiles(sequence);
    if (whole) return begin <= prefix[sequence] && prefix[sequence] < end ? TileRange{0, count} : TileRange{};
    const int first = prefix[sequence] + overhead;
    return {std::clamp(begin - first, 0, count), std::clamp(end - first, 0, count)};
  }

  /// The first sequence of which `part` may have a share. The others follow while prefix < (part + 1) * length.
  constexpr int first_sequence(int part) const {
    int low = 0, high = batch;  // prefix[low] <= part * length < prefix[high], or there is nothing
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (prefix[middle] <= part * length ? low : high) = middle;
    }
    return low;
  }
  constexpr bool past(int part, int sequence) const { return sequence >= batch || prefix[sequence] >= (part + 1) * length; }

  /// Parts [begin, end) that have a share of `sequence`.
  constexpr TileRange parts_of(int sequence) const {
    if (whole) return {prefix[sequence] / length, prefix[sequence] / length + 1};
    const int first = prefix[sequence] + overhead;
    return {first / length, (first + tiles(sequence) - 1) / length + 1};
  }

  /// Where a part of a split sequence leaves its partial result: a part has at most one share that begins inside a sequence and one that
  /// does not.
  static constexpr int slot(int part, bool begins_inside) { return 2 * part + (begins_inside ? 0 : 1); }

  /// Most splits of a sequence that the part of the first one reduces. It processes this sequence last, the others process it first, so
  /// their partial results are mostly stored long before. The splits of other sequences are combined after the attention kernel.
  static constexpr int kMostReduced = 3;
  static constexpr bool reduced(TileRange parts) { return parts.end - parts.begin > 1 && !combined(parts); }
  static constexpr bool combined(TileRange parts) { return parts.end - parts.begin > kMostReduced; }
  /// The part that stands in for a combined sequence: no other's, begun inside of it, and a multiple of kMostReduced.
  static constexpr int stand_in(TileRange parts) { return (parts.begin / kMostReduced + 1) * kMostReduced; }
};

/// The same for sequences of one size, each cut into the same number of parts, or each part the same number of whole sequences, where
/// nothing is reduced: a part looks nothing up.
struct EvenSchedule {
  int size = 0;  ///< tiles of a sequence; 0: there is no such schedule
  int length = 1, overhead = 0;
  int shares = 1;     ///< parts of a sequence
  FastDivmod cost{};  ///< of a sequence: shares * length, or a part is a multiple of it

  constexpr EvenSchedule() = default;
  constexpr EvenSchedule(int parts, int batch, int size_, int overhead_, bool whole) {
    const SplitLine line = split_line(parts, batch, batch * size_, size_, overhead_);
    const int each = size_ + line.overhead, cut = each / line.length;
    // With an overhead as long as a part, the first part of a sequence would have nothing of it.
    const bool cuts = each % line.length == 0 && cut > SplitSchedule::kMostReduced && line.overhead < line.length && !whole;
    if (!cuts && line.length % each != 0) return;
    size = size_, length = line.length, overhead = line.overhead;
    shares = cuts ? cut : 1;
    cost = FastDivmod(each);
  }

  constexpr int first_sequence(int part) const { return cost.quotient(part * length); }
  /// Empty where `part` has nothing of `sequence`, which is its first one or comes after it.
  constexpr TileRange share(int part, int sequence) const {
    const int begin = part * length - sequence * cost.divisor - overhead;
    return {std::max(begin, 0), std::min(begin + length, size)};
  }
  /// The parts of the sequence that `part` belongs to.
  constexpr TileRange parts_of(int part, int sequence) const {
    return shares > 1 ? TileRange{sequence * shares, (sequence + 1) * shares} : TileRange{part, part + 1};
  }
};

}  // namespace fovea::detail
