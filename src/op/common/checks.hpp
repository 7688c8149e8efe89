// SPDX-License-Identifier: Apache-2.0
/// The one way in which the library words its errors: `tensor.field (meaning): got X, want Y`.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fovea/device.hpp"
#include "fovea/result.hpp"
#include "fovea/tensor.hpp"
#include "op/common/extent.hpp"

namespace fovea::detail {

Error invalid(std::string_view subject, std::string_view got, std::string_view want);
Error invalid(std::string_view subject, std::int64_t got, std::string_view want);

/// An implementation declines by returning the reason, in the same words.
Error declined(std::string_view subject, std::string_view got, std::string_view want);
Error declined(std::string_view subject, std::int64_t got, std::string_view want);

/// Keeps the first contradiction; later checks are skipped. The arguments are views and numbers, so that a good call builds no string.
class Checker {
 public:
  bool ok() const { return !error_.has_value(); }
  Error error() const { return *error_; }

  template <class Got>
  void expect(bool holds, std::string_view subject, const Got& got, std::string_view want) {
    if (ok() && !holds) error_ = invalid(subject, got, want);
  }
  void fail(Error error) {
    if (ok()) error_ = std::move(error);
  }
  /// A kept reason contradicts nothing: it is a reason to decline.
  void decline() { error_->code = ErrorCode::unsupported; }

 private:
  std::optional<Error> error_;
};

/// A tensor of the call together with the words for it.
struct NamedTensor {
  std::string_view name;  ///< "k_cache"
  const TensorDesc& desc;
  std::span<const std::string_view> axes;  ///< "block", "page", "kv_head", "head_dim"
  bool is_output = false;                  ///< no two elements may share memory
  bool is_row_contiguous = true;           ///< the last stride must be 1
};

/// Rank, extents, strides and alignment make sense by themselves, and no offset overflows.
void check_tensor(Checker& check, const NamedTensor& tensor);

/// shape[axis] is `want`, which comes from `source` ("q.shape[3]").
void check_extent(Checker& check, const NamedTensor& tensor, int axis, std::int64_t want, std::string_view source);

/// The dtype is one of `allowed`.
void check_dtype(Checker& check, const NamedTensor& tensor, std::span<const DType> allowed);

/// The same of a tensor of values. 8-bit floats beside wider ones, or where only wider ones are computed, contradict nothing: such a call
/// is declined, whoever would compute it.
void check_values(Checker& check, const NamedTensor& tensor, std::span<const DType> allowed);

/// Scale strides may be 0 or positive, and only e4m3 tensors have scales.
void check_scale(Checker& check, std::string_view name, const std::optional<ScaleDesc>& scale, DType dtype);

/// Bytes to which run()'s pointer must be aligned: what the description promises, at least the element's size.
std::int32_t base_alignment(const TensorDesc& desc);

/// Bytes to which every row of the tensor is aligned: that of the base, as far as the strides keep it.
std::int32_t row_alignment(const TensorDesc& desc);

/// A pointer of run(): present when `needed`, and aligned as the description promised.
void check_pointer(Checker& check, std::string_view name, const void* pointer, bool needed, std::int32_t alignment);

/// An output of run() shares no byte with something else.
void check_apart(Checker& check, std::string_view output, const Memory& written, std::string_view other, const Memory& memory);

/// The pointers of a run(), each as above: what is written is apart from all else, what is read may be read twice.
class Pointers {
 public:
  /// placed: written in slots that the call names. The caches of one pool reach into each other, and only slots keep them apart.
  enum class Access { read, written, placed };

  /// Names are literals.
  void add(Access access, std::string_view name, const Memory& memory, bool needed, std::int32_t alignment);
  void read(std::string_view name, const Memory& memory, bool needed, std::int32_t alignment) {
    add(Access::read, name, memory, needed, alignment);
  }
  void written(std::string_view name, const Memory& memory, bool needed, std::int32_t alignment) {
    add(Access::written, name, memory, needed, alignment);
  }
  Result<void> result();

 private:
  struct Pointer {
    Access access{};
    std::string_view name{};
    Memory memory{};
  };

  Checker check_;
  std::array<Pointer, 40> pointers_;  // a run allocates nothing
  std::size_t count_ = 0;
};

/// Every slot is -1 (skip) or below `slots`.
Result<void> check_slot_mapping(std::span<const std::int64_t> slot_mapping, std::int64_t slots);

/// The workspace of run() is there, large enough and aligned.
Result<void> check_workspace(Workspace workspace, std::size_t needed);

}  // namespace fovea::detail
