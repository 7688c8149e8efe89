// SPDX-License-Identifier: Apache-2.0
#include "op/common/checks.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace fovea::detail {
namespace {

/// "subject: got X, want Y"
std::string words(std::string_view subject, std::string_view got, std::string_view want) {
  std::string text(subject);
  text.append(": got ").append(got).append(", want ").append(want);
  return text;
}

/// "k.shape[2] (kv_head)"
std::string axis_subject(const NamedTensor& tensor, std::string_view field, int axis) {
  std::string text(tensor.name);
  text.append(".").append(field).append("[").append(std::to_string(axis)).append("] (").append(tensor.axes[static_cast<std::size_t>(axis)]);
  return text.append(")");
}

std::string field_subject(const NamedTensor& tensor, std::string_view field) { return std::string(tensor.name).append(".").append(field); }

void expect_axis(Checker& check, bool holds, const NamedTensor& tensor, std::string_view field, int axis, std::string_view want) {
  if (!check.ok() || holds) return;
  const auto& values = field == "shape" ? tensor.desc.shape : tensor.desc.strides;
  check.fail(invalid(axis_subject(tensor, field, axis), values[static_cast<std::size_t>(axis)], want));
}

/// The largest offset must stay far from overflow, in bytes too.
bool offsets_fit(const TensorDesc& desc) {
  constexpr std::int64_t kMost = std::int64_t{1} << 56;
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(desc.rank); ++axis) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(std::max<std::int64_t>(desc.shape[axis], 1), desc.strides[axis], &reach)) return false;
    if (reach > kMost) return false;
    last += reach;
  }
  return last <= kMost;
}

/// True when each stride steps over everything that the smaller strides reach. Visits the axes from the smallest stride up.
bool elements_are_distinct(const TensorDesc& desc) {
  const auto rank = static_cast<std::size_t>(desc.rank);
  if (std::find(desc.shape.begin(), desc.shape.begin() + desc.rank, 0) != desc.shape.begin() + desc.rank) return true;
  std::array<bool, 4> visited{};
  std::int64_t reach = 0;
  for (std::size_t visit = 0; visit < rank; ++visit) {
    std::size_t axis = rank;
    for (std::size_t i = 0; i < rank; ++i) {
      if (!visited[i] && (axis == rank || desc.strides[i] < desc.strides[axis])) axis = i;
    }
    visited[axis] = true;
    if (desc.shape[axis] == 1) continue;
    if (desc.strides[axis] <= reach) return false;
    reach += (desc.shape[axis] - 1) * desc.strides[axis];
  }
  return true;
}

}  // namespace

Error invalid(std::string_view subject, std::string_view got, std::string_view want) {
  return {ErrorCode::invalid_argument, words(subject, got, want)};
}
Error invalid(std::string_view subject, std::int64_t got, std::string_view want) { return invalid(subject, std::to_string(got), want); }

Error declined(std::string_view subject, std::string_view got, std::string_view want) {
  return {ErrorCode::unsupported, words(subject, got, want)};
}
Error declined(std::string_view subject, std::int64_t got, std::string_view want) { return declined(subject, std::to_string(got), want); }

void check_tensor(Checker& check, const NamedTensor& tensor) {
  const TensorDesc& desc = tensor.desc;
  if (check.ok() && desc.rank != static_cast<int>(tensor.axes.size())) {
    std::string want = std::to_string(tensor.axes.size()) + " [";
    for (const std::string_view axis : tensor.axes) want.append(axis == tensor.axes.front() ? "" : ", ").append(axis);
    check.fail(invalid(field_subject(tensor, "rank"), desc.rank, want + "]"));
  }
  if (!check.ok()) return;  // the loops below trust the rank
  constexpr std::int64_t kLargest = std::int64_t{1} << 48;
  for (int axis = 0; axis < desc.rank; ++axis) {
    const auto at = static_cast<std::size_t>(axis);
    expect_axis(check, desc.shape[at] >= 0 && desc.shape[at] <= kLargest, tensor, "shape", axis, "0 to 2^48");
    expect_axis(check, desc.strides[at] >= 0 && desc.strides[at] <= kLargest, tensor, "strides", axis, "0 to 2^48");
  }
  if (!check.ok()) return;
  const int last = desc.rank - 1;
  const auto last_at = static_cast<std::size_t>(last);
  const bool contiguous_row = !tensor.is_row_contiguous || desc.strides[last_at] == 1 || desc.shape[last_at] <= 1;
  expect_axis(check, contiguous_row, tensor, "strides", last, "1 (a contiguous last dimension)");
  if (check.ok() && !offsets_fit(desc)) {
    check.fail(invalid(field_subject(tensor, "strides"), "offsets past 2^56 elements", "a smaller tensor"));
  }
  if (check.ok() && tensor.is_output && !elements_are_distinct(desc)) {
    check.fail(invalid(field_subject(tensor, "strides"), "elements that share memory", "distinct elements in an output"));
  }
  const bool alignment_ok = desc.alignment == 0 || (desc.alignment > 0 && std::has_single_bit(static_cast<std::uint32_t>(desc.alignment)));
  if (check.ok() && !alignment_ok) check.fail(invalid(field_subject(tensor, "alignment"), desc.alignment, "0 or a power of two"));
}

void check_extent(Checker& check, const NamedTensor& tensor, int axis, std::int64_t want, std::string_view source) {
  if (!check.ok() || tensor.desc.shape[static_cast<std::size_t>(axis)] == want) return;
  std::string words_for_want = std::to_string(want);
  if (!source.empty()) words_for_want.append(" (").append(source).append(")");
  expect_axis(check, false, tensor, "shape", axis, words_for_want);
}

void check_dtype(Checker& check, const NamedTensor& tensor, std::span<const DType> allowed) {
  if (!check.ok() || std::find(allowed.begin(), allowed.end(), tensor.desc.dtype) != allowed.end()) return;
  std::string want;
  for (const DType dtype : allowed) want.append(want.empty() ? "" : " or ").append(name_of(dtype));
  check.fail(invalid(field_subject(tensor, "dtype"), name_of(tensor.desc.dtype), want));
}

void check_values(Checker& check, const NamedTensor& tensor, std::span<const DType> allowed) {
  const bool sound = check.ok();
  check_dtype(check, tensor, allowed);
  if (!sound || check.ok()) return;
  const auto is_wide = [](DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; };
  const bool mixed = tensor.desc.dtype == DType::e4m3 ? std::any_of(allowed.begin(), allowed.end(), is_wide)
                                                      : is_wide(tensor.desc.dtype) && allowed.size() == 1 && allowed[0] == DType::e4m3;
  if (mixed) check.decline();
}

void check_scale(Checker& check, std::string_view name, const std::optional<ScaleDesc>& scale, DType dtype) {
  if (!check.ok() || !scale) return;
  if (dtype != DType::e4m3) {
    check.fail(invalid(name, std::string("a scale for a tensor of ").append(name_of(dtype)), "none (only e4m3 tensors have scales)"));
    return;
  }
  constexpr std::int64_t kLargest = std::int64_t{1} << 40;
  const auto fits = [](std::int64_t stride) { return stride >= 0 && stride <= kLargest; };
  check.expect(fits(scale->batch_stride), std::string(name).append(".batch_stride"), scale->batch_stride, "0 to 2^40");
  check.expect(fits(scale->head_stride), std::string(name).append(".head_stride"), scale->head_stride, "0 to 2^40");
}

std::int32_t base_alignment(const TensorDesc& desc) { return std::max(desc.alignment, static_cast<std::int32_t>(size_of(desc.dtype))); }

std::int32_t row_alignment(const TensorDesc& desc) {
  const auto size = static_cast<std::uint64_t>(size_of(desc.dtype));
  auto bits = static_cast<std::uint64_t>(base_alignment(desc));
  for (int axis = 0; axis + 1 < desc.rank; ++axis) {
    const auto at = static_cast<std::size_t>(axis);
    if (desc.shape[at] > 1) bits |= static_cast<std::uint64_t>(desc.strides[at]) * size;
  }
  return static_cast<std::int32_t>(bits & (~bits + 1));  // the lowest bit set: what divides the base and every stride
}

void check_pointer(Checker& check, std::string_view name, const void* pointer, bool needed, std::int32_t alignment) {
  if (!check.ok() || !needed) return;
  const std::uintptr_t remainder = reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(alignment);
  if (pointer == nullptr) {
    check.fail(invalid(std::string("args.").append(name).append(" (pointer)"), "null", "an address"));
  } else if (remainder != 0) {
    const std::string subject = std::string("args.").append(name).append(" (address modulo ").append(std::to_string(alignment)).append(")");
    check.fail(invalid(subject, static_cast<std::int64_t>(remainder), "0, the alignment that the description promised"));
  }
}

void check_apart(Checker& check, std::string_view output, const Memory& written, std::string_view other, const Memory& memory) {
  if (!check.ok() || !overlap(written, memory)) return;
  const bool same = written.address == memory.address;
  check.fail(invalid(std::string("args.").append(output).append(same ? " (address)" : " (memory)"),
                     std::string(same ? "that of " : "a part of ").append(other), "memory of its own"));
}

void Pointers::add(Access access, std::string_view name, const Memory& memory, bool needed, std::int32_t alignment) {
  if (!needed) return;
  check_pointer(check_, name, memory.address, true, alignment);
  if (count_ == pointers_.size() && check_.ok()) {
    check_.fail(invalid("args (pointers)", "one more", std::to_string(pointers_.size()) + " or fewer"));
  }
  if (check_.ok()) pointers_[count_++] = {access, name, memory};
}

Result<void> Pointers::result() {
  const std::span all = std::span(pointers_).first(count_);
  for (const Pointer& output : all) {
    if (output.access == Access::read) continue;
    for (const Pointer& other : all) {
      if (&other == &output) continue;
      const bool by_slots = output.access == Access::placed && other.access == Access::placed;
      const auto whole = [&](const Pointer& pointer) { return by_slots ? Memory(pointer.memory.address) : pointer.memory; };
      check_apart(check_, output.name, whole(output), other.name, whole(other));
    }
  }
  if (!check_.ok()) return check_.error();
  return {};
}

Result<void> check_slot_mapping(std::span<const std::int64_t> slot_mapping, std::int64_t slots) {
  for (std::size_t t = 0; t < slot_mapping.size(); ++t) {
    if (slot_mapping[t] >= -1 && slot_mapping[t] < slots) continue;
    return invalid("slot_mapping[" + std::to_string(t) + "]", slot_mapping[t], "-1 (skip) or 0 to " + std::to_string(slots - 1));
  }
  return {};
}

Result<void> check_workspace(Workspace workspace, std::size_t needed) {
  if (needed == 0) return {};
  if (workspace.data == nullptr || workspace.bytes < needed) {
    const std::string got = workspace.data == nullptr ? "null" : std::to_string(workspace.bytes);
    return Error{ErrorCode::out_of_workspace, words("workspace.bytes", got, std::to_string(needed) + " or more (plan.workspace_bytes())")};
  }
  const std::uintptr_t remainder = reinterpret_cast<std::uintptr_t>(workspace.data) % kWorkspaceAlignment;
  if (remainder != 0) return invalid("workspace.data (address modulo 64)", static_cast<std::int64_t>(remainder), "0");
  return {};
}

}  // namespace fovea::detail

namespace fovea {

std::string to_string(const Error& error) {
  std::string text = error.message;
  for (const Decline& decline : error.declines) text.append("\n  ").append(decline.implementation).append(": ").append(decline.reason);
  return text;
}

Exception::Exception(Error error) : std::runtime_error(to_string(error)), error_(std::move(error)) {}

}  // namespace fovea
