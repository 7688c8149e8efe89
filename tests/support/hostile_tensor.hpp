// SPDX-License-Identifier: Apache-2.0
/// Tensors in memory that punishes mistakes. Whatever is not an element holds NaN (0xff bytes are NaN in every format), red zones lie on
/// both sides, and every unexpected change of a byte is noticed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fovea/tensor.hpp"
#include "numeric.hpp"

namespace fovea::check {

/// One allocation. `data()` is aligned to 64 bytes plus `misalignment`.
class Storage {
 public:
  Storage(std::size_t bytes, std::size_t misalignment);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  /// All of it, red zones included. Read it only between guard(false) and guard(true).
  std::span<std::byte> allocation() const { return {base_, total_}; }
  void guard(bool on) const;  ///< Marks the red zones for AddressSanitizer, or clears the marks.

  /// Notes the present contents, red zones included, as those that must stay. `keep_copy` makes restore() possible.
  void seal(bool keep_copy);
  bool sealed_contents_intact() const;
  bool red_zones_intact() const;
  /// Puts back `count` bytes from `offset` on, or everything.
  void restore(std::size_t offset, std::size_t count);
  void restore();

 private:
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0, total_ = 0;
  bool far_ = false;  ///< Mostly untouched address space, accessed through elements only.
  std::uint64_t seal_ = 0;
  std::vector<std::byte> copy_{};
};

/// A described view of a storage.
class HostileTensor {
 public:
  HostileTensor() = default;
  explicit HostileTensor(const TensorDesc& desc, std::size_t misalignment = 0);
  HostileTensor(const TensorDesc& desc, std::shared_ptr<Storage> storage, std::int64_t first_element);

  explicit operator bool() const { return storage_ != nullptr; }
  const TensorDesc& desc() const { return desc_; }
  Storage& storage() const { return *storage_; }
  const std::shared_ptr<Storage>& shared_storage() const { return storage_; }

  /// Null if there is no tensor.
  void* data() const { return storage_ ? storage_->data() + first_ * size() : nullptr; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data());
  }

  std::int64_t offset(std::int64_t a, std::int64_t b = 0, std::int64_t c = 0, std::int64_t d = 0) const {
    const auto& s = desc_.strides;
    return a * s[0] + b * s[1] + c * s[2] + d * s[3];
  }
  float at(std::int64_t offset) const { return load(desc_.dtype, data(), offset); }
  void set(std::int64_t offset, float value) { store(desc_.dtype, data(), offset, value); }
  /// Restores elements to their contents when the storage was sealed.
  void restore(std::int64_t offset, std::int64_t count) const {
    storage_->restore(static_cast<std::size_t>((first_ + offset) * size()), static_cast<std::size_t>(count * size()));
  }

 private:
  std::int64_t size() const { return static_cast<std::int64_t>(size_of(desc_.dtype)); }

  TensorDesc desc_{};
  std::shared_ptr<Storage> storage_{};
  std::int64_t first_ = 0;
};

/// The tensor with `gap` unused elements after each row, and as many after each plane of rows.
TensorDesc with_gaps(TensorDesc desc, std::int64_t gap);

/// The alignment that a description may promise of rows with such gaps. Kernels that need 16 bytes then take the call.
constexpr std::int32_t promised_alignment(std::int64_t gap) { return gap % 8 == 0 ? 16 : 0; }

/// Elements from the first to the last, gaps included; 0 for an empty tensor.
std::int64_t span_of(const TensorDesc& desc);

/// Calls f(a, b, c, d, offset) for each element, row-major; missing dimensions count as 1.
template <class F>
void for_each_element(const TensorDesc& desc, F&& f) {
  std::array<std::int64_t, 4> n{1, 1, 1, 1};
  for (int axis = 0; axis < desc.rank; ++axis) n[static_cast<std::size_t>(axis)] = desc.shape[static_cast<std::size_t>(axis)];
  const auto& s = desc.strides;
  for (std::int64_t a = 0; a < n[0]; ++a)
    for (std::int64_t b = 0; b < n[1]; ++b)
      for (std::int64_t c = 0; c < n[2]; ++c)
        for (std::int64_t d = 0; d < n[3]; ++d) f(a, b, c, d, a * s[0] + b * s[1] + c * s[2] + d * s[3]);
}

}  // namespace fovea::check
