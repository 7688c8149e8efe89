// SPDX-License-Identifier: Apache-2.0
#include "hostile_tensor.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace fovea::check {
namespace {

constexpr std::size_t kRedZone = 512;
constexpr std::size_t kFar = std::size_t{1} << 30;  ///< Above this size memory is reserved, not touched.

/// Order-dependent and fast. Not for adversaries.
std::uint64_t hash_of(const std::byte* data, std::size_t bytes) {
  std::uint64_t hash = 0x9e3779b97f4a7c15u;
  std::size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + at, 8);
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  for (; at < bytes; ++at) hash = (hash ^ static_cast<std::uint64_t>(data[at])) * 0xff51afd7ed558ccdu;
  return hash;
}

bool all_poison(const std::byte* data, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i)
    if (data[i] != std::byte{0xff}) return false;
  return true;
}

}  // namespace

Storage::Storage(std::size_t bytes, std::size_t misalignment) : bytes_(bytes), far_(bytes >= kFar) {
  total_ = (kRedZone + misalignment + bytes + kRedZone + 63) / 64 * 64;
  if (far_) {
    void* mapped = mmap(nullptr, total_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<std::byte*>(mapped);
  } else {
    base_ = static_cast<std::byte*>(std::aligned_alloc(64, total_));
    if (base_ == nullptr) throw std::bad_alloc();
    std::memset(base_, 0xff, total_);
  }
  data_ = base_ + kRedZone + misalignment;
  guard(true);
}

Storage::~Storage() {
  guard(false);
  if (far_) {
    munmap(base_, total_);
  } else {
    std::free(base_);
  }
}

void Storage::guard([[maybe_unused]] bool on) const {
#if defined(__SANITIZE_ADDRESS__)
  if (far_) return;
  const auto front = static_cast<std::size_t>(data_ - base_);
  if (on) {
    ASAN_POISON_MEMORY_REGION(base_, front);
    ASAN_POISON_MEMORY_REGION(data_ + bytes_, total_ - front - bytes_);
  } else {
    ASAN_UNPOISON_MEMORY_REGION(base_, total_);
  }
#endif
}

void Storage::seal(bool keep_copy) {
  if (far_) return;
  guard(false);
  if (keep_copy) {
    copy_.assign(base_, base_ + total_);
  } else {
    seal_ = hash_of(base_, total_);
  }
  guard(true);
}

bool Storage::sealed_contents_intact() const {
  if (far_) return true;
  guard(false);
  const bool intact = copy_.empty() ? hash_of(base_, total_) == seal_ : std::memcmp(base_, copy_.data(), total_) == 0;
  guard(true);
  return intact;
}

bool Storage::red_zones_intact() const {
  if (far_) return true;
  guard(false);
  const auto front = static_cast<std::size_t>(data_ - base_);
  const bool intact = all_poison(base_, front) && all_poison(data_ + bytes_, total_ - front - bytes_);
  guard(true);
  return intact;
}

void Storage::restore(std::size_t offset, std::size_t count) {
  if (far_) return;
  std::memcpy(data_ + offset, copy_.data() + (data_ - base_) + offset, count);
}

void Storage::restore() {
  guard(false);
  if (!far_) std::memcpy(base_, copy_.data(), total_);
  guard(true);
}

HostileTensor::HostileTensor(const TensorDesc& desc, std::size_t misalignment)
    : desc_(desc), storage_(std::make_shared<Storage>(static_cast<std::size_t>(span_of(desc)) * size_of(desc.dtype), misalignment)) {}

HostileTensor::HostileTensor(const TensorDesc& desc, std::shared_ptr<Storage> storage, std::int64_t first_element)
    : desc_(desc), storage_(std::move(storage)), first_(first_element) {}

TensorDesc with_gaps(TensorDesc desc, std::int64_t gap) {
  for (auto axis = static_cast<std::size_t>(desc.rank) - 1; axis > 0; --axis)
    desc.strides[axis - 1] = desc.shape[axis] * desc.strides[axis] + gap;
  return desc;
}

std::int64_t span_of(const TensorDesc& desc) {
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(desc.rank); ++axis) {
    if (desc.shape[axis] == 0) return 0;
    last += (desc.shape[axis] - 1) * desc.strides[axis];
  }
  return last + 1;
}

}  // namespace fovea::check
