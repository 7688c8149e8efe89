// SPDX-License-Identifier: Apache-2.0
#include "op/common/extent.hpp"

#include <algorithm>
#include <functional>
#include <span>

#include "fovea/cache_format.hpp"

namespace fovea::detail {
namespace {

constexpr Extent kFirstByte{};

/// Where there is no second element, the stride may be any number.
Extent::Axis axis_of(std::int64_t count, std::int64_t stride, std::int64_t element) { return {count, count > 1 ? stride * element : 0}; }

/// From axes in any order, of any counts and steps.
Extent extent_of_axes(std::span<Extent::Axis> axes, std::int64_t bytes) {
  Extent extent{.run = bytes};
  std::ranges::sort(axes, {}, &Extent::Axis::step);
  for (const auto& [count, step] : axes) {
    if (count == 0) return {.run = 0};
    if (count == 1 || step == 0) continue;
    Extent::Axis* const before = extent.rank == 0 ? nullptr : &extent.axes[static_cast<std::size_t>(extent.rank - 1)];
    if (before == nullptr && step <= extent.run) {
      extent.run += (count - 1) * step;
    } else if (before != nullptr && step == before->count * before->step) {
      before->count *= count;
    } else {
      extent.axes[static_cast<std::size_t>(extent.rank++)] = {count, step};
    }
  }
  return extent;
}

/// Whether steps, each taken a number of times between two bounds, lead from one run to another.
class Search {
 public:
  /// The run of a begins `distance` bytes behind that of b, as far as no axis is looked at.
  Search(const Extent& a, const Extent& b, std::int64_t distance) : lowest_(1 - a.run), highest_(b.run - 1), distance_(distance) {
    add(a, 1);
    add(b, -1);
    std::ranges::sort(std::span(steps_).first(count_), std::greater{}, &Step::bytes);
    for (std::size_t i = count_; i-- > 0;) {
      steps_[i].below_lowest = i + 1 == count_ ? 0 : steps_[i + 1].down_to();
      steps_[i].below_highest = i + 1 == count_ ? 0 : steps_[i + 1].up_to();
    }
  }

  bool succeeds() { return reaches(0, distance_); }

 private:
  struct Step {
    std::int64_t bytes = 0, least = 0, most = 0;       ///< and how often it is taken
    std::int64_t below_lowest = 0, below_highest = 0;  ///< where the smaller steps lead
    std::int64_t down_to() const { return below_lowest + least * bytes; }
    std::int64_t up_to() const { return below_highest + most * bytes; }
  };

  /// Forward on the axes of a, backward on those of b. Where both have a step, it is one step.
  void add(const Extent& extent, int direction) {
    for (const auto& [count, bytes] : std::span(extent.axes).first(static_cast<std::size_t>(extent.rank))) {
      std::size_t at = 0;
      while (at < count_ && steps_[at].bytes != bytes) ++at;
      if (at == count_) steps_[count_++].bytes = bytes;
      (direction > 0 ? steps_[at].most : steps_[at].least) += direction * (count - 1);
    }
  }

  static std::int64_t floor_of(std::int64_t x, std::int64_t by) { return x / by - (x % by < 0 ? 1 : 0); }

  bool reaches(std::size_t index, std::int64_t at) {
    if (index == count_) return lowest_ <= at && at <= highest_;
    const Step& step = steps_[index];
    const std::int64_t first = std::max(step.least, -floor_of(at + step.below_highest - lowest_, step.bytes));
    const std::int64_t last = std::min(step.most, floor_of(highest_ - at - step.below_lowest, step.bytes));
    for (std::int64_t times = first; times <= last; ++times) {
      if (++tried_ > kMostTries) return false;
      if (reaches(index + 1, at + times * step.bytes)) return true;
    }
    return false;
  }

  static constexpr int kMostTries = 1000;  // some microseconds
  std::int64_t lowest_, highest_, distance_;
  std::array<Step, 8> steps_{};
  std::size_t count_ = 0;
  int tried_ = 0;
};

}  // namespace

std::int64_t Extent::reach() const {
  std::int64_t bytes = run;
  for (int axis = 0; axis < rank; ++axis) {
    const auto& [count, step] = axes[static_cast<std::size_t>(axis)];
    bytes += (count - 1) * step;
  }
  return bytes;
}

Extent extent_of(const TensorDesc& desc) {
  std::array<Extent::Axis, 4> axes{};
  const auto size = static_cast<std::int64_t>(size_of(desc.dtype));
  const auto rank = static_cast<std::size_t>(desc.rank);
  for (std::size_t axis = 0; axis < rank; ++axis) axes[axis] = axis_of(desc.shape[axis], desc.strides[axis], size);
  return extent_of_axes(std::span(axes).first(rank), size);
}

Extent extent_of(const LatentCacheDesc& desc) {
  const PackedFormat* packed = packed_format(desc.format);
  if (packed == nullptr) return extent_of(desc.rows);
  const std::int64_t block = desc.page * packed->bytes();
  std::array axes{Extent::Axis{desc.blocks, desc.block_stride == 0 ? block : desc.block_stride}};
  return block == 0 ? Extent{.run = 0} : extent_of_axes(axes, block);
}

Extent extent_of(const ScaleDesc& desc, std::int64_t batch, std::int64_t head) {
  constexpr std::int64_t kSize = sizeof(float);
  std::array axes{axis_of(batch, desc.batch_stride, kSize), axis_of(head, desc.head_stride, kSize)};
  return extent_of_axes(axes, kSize);
}

Extent extent_of_bytes(std::int64_t bytes) { return {.run = bytes}; }

bool overlap(const Memory& a, const Memory& b) {
  const Extent &of_a = a.extent == nullptr ? kFirstByte : *a.extent, &of_b = b.extent == nullptr ? kFirstByte : *b.extent;
  if (a.address == nullptr || b.address == nullptr || of_a.run == 0 || of_b.run == 0) return false;
  const auto distance =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(a.address) - reinterpret_cast<std::uintptr_t>(b.address));
  if (distance >= of_b.reach() || -distance >= of_a.reach()) return false;
  return Search(of_a, of_b, distance).succeeds();
}

}  // namespace fovea::detail
