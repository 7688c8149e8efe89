// SPDX-License-Identifier: Apache-2.0
/// Key tiles of a batch dealt out to equal parts (split-KV): each request costs its tiles and a fixed overhead, the costs lie end to end on
/// a line, and part p takes the p-th of equal lengths of the line. Everything follows from the prefix sums of the costs: there is no table
/// of splits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "op/common/divider.hpp"

namespace fovea::detail {

/// Half-open range of a request's key tiles, counted from its first one.
struct TileRange {
  int begin = 0, end = 0;
  constexpr bool empty() const { return begin >= end; }
};

/// How requests are laid on the line: the length of a part, and what each request costs beside its tiles.
struct SplitLine {
  int length = 1, overhead = 0;
};

/// The line for `batch` requests of `tiles` in all, each of `size` of them where all have as many, else 0; `overhead` is what a request
/// costs, in tiles. Requests of one size are not cut where a part can have whole ones, nor, where it can't, but evenly: the others on the
/// line would come to lie across two parts, each of which has to do with one more of them. It may cost less all the same.
constexpr SplitLine split_line(int parts, int batch, int tiles, int size, int overhead) {
  const auto parted = [](int count, int by) { return (count + by - 1) / by; };
  const int least = parted(tiles, parts);
  if (least <= 1) return {1, 0};  // with the overhead some parts would do two
  const SplitLine cut{parted(tiles + batch * overhead, parts), overhead};
  if (size == 0) return cut;
  const int cost_of_cut = cut.length + overhead + 1;  // some part begins inside of a request, and has a part of another
  if (least >= size) {
    const int whole = parted(least, size);
    return whole * (size + overhead) <= cost_of_cut ? SplitLine{whole * size, 0} : cut;
  }
  const int length = parted(size, size / least), shares = parted(size, length);
  return length + overhead + (shares > 1 ? 1 : 0) <= cost_of_cut ? SplitLine{length, shares * length - size} : cut;
}

struct SplitSchedule {
  const int* prefix = nullptr;  ///< [batch + 1] costs before each request
  int batch = 0;
  int length = 1;      ///< of a part
  int overhead = 0;    ///< of a request, in tiles
  bool whole = false;  ///< never split a request: it belongs to the part where it begins

  /// At least 1: a request that sees nothing still has outputs to write.
  constexpr int tiles(int request) const { return prefix[request + 1] - prefix[request] - overhead; }

  /// What `part` computes of `request`.
  constexpr TileRange share(int part, int request) const {
    const int begin = part * length, end = begin + length, count = tiles(request);
    if (whole) return begin <= prefix[request] && prefix[request] < end ? TileRange{0, count} : TileRange{};
    const int first = prefix[request] + overhead;
    return {std::clamp(begin - first, 0, count), std::clamp(end - first, 0, count)};
  }

  /// The first request of which `part` may have a share; the last follows by walking on while prefix < (part + 1) * length.
  constexpr int first_request(int part) const {
    int low = 0, high = batch;  // prefix[low] <= part * length < prefix[high], or there is nothing
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (prefix[middle] <= part * length ? low : high) = middle;
    }
    return low;
  }
  constexpr bool past(int part, int request) const { return request >= batch || prefix[request] >= (part + 1) * length; }

  /// Parts [begin, end) that have a share of `request`.
  constexpr TileRange parts_of(int request) const {
    if (whole) return {prefix[request] / length, prefix[request] / length + 1};
    const int first = prefix[request] + overhead;
    return {first / length, (first + tiles(request) - 1) / length + 1};
  }

  /// Where a part of a split request leaves its partial result: a part has at most one share that begins inside a request and one that
  /// does not.
  static constexpr int slot(int part, bool begins_inside) { return 2 * part + (begins_inside ? 0 : 1); }

  /// A request of up to so many parts can be collected by the first of them, the last that it does: of the others it is the first, so
  /// their results are mostly there long before. A request of more parts is merged after all of them.
  static constexpr int kCollected = 3;
  static constexpr bool collected(TileRange parts) { return parts.end - parts.begin > 1 && !merged_after(parts); }
  static constexpr bool merged_after(TileRange parts) { return parts.end - parts.begin > kCollected; }
  /// Of a request merged after its parts, the one that stands for it: no other's, begun inside of it, and a multiple of kCollected.
  static constexpr int stand_in(TileRange parts) { return (parts.begin / kCollected + 1) * kCollected; }
};

/// The same for requests of one size, each cut into the same number of parts, or each part the same number of whole requests, where nothing
/// is collected: a part looks nothing up.
struct EvenSchedule {
  int size = 0;  ///< tiles of a request; 0: there is no such schedule
  int length = 1, overhead = 0;
  int shares = 1;  ///< parts of a request
  Divider cost{};  ///< of a request: shares * length, or a part is a multiple of it

  constexpr EvenSchedule() = default;
  constexpr EvenSchedule(int parts, int batch, int size_, int overhead_, bool whole) {
    const SplitLine line = split_line(parts, batch, batch * size_, size_, overhead_);
    const int each = size_ + line.overhead, cut = each / line.length;
    // With an overhead as long as a part, the first part of a request would have nothing of it.
    const bool cuts = each % line.length == 0 && cut > SplitSchedule::kCollected && line.overhead < line.length && !whole;
    if (!cuts && line.length % each != 0) return;
    size = size_, length = line.length, overhead = line.overhead;
    shares = cuts ? cut : 1;
    cost = Divider(each);
  }

  constexpr int first_request(int part) const { return cost.quotient(part * length); }
  /// Empty where `part` has nothing of `request`, which is its first one or comes after it.
  constexpr TileRange share(int part, int request) const {
    const int begin = part * length - request * cost.divisor - overhead;
    return {std::max(begin, 0), std::min(begin + length, size)};
  }
  /// Of which `part` is one.
  constexpr TileRange parts_of(int part, int request) const {
    return shares > 1 ? TileRange{request * shares, (request + 1) * shares} : TileRange{part, part + 1};
  }
};

}  // namespace fovea::detail
