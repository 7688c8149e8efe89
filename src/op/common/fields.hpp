// SPDX-License-Identifier: Apache-2.0
/// The fields of an operation, one row each: where it lies in the description, in the arguments, in their twins in C and in the problem.
/// Conversion from C, torch's schema and its unpacking, checks of pointers, options and fuzzing follow from these rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "fovea/c.h"
#include "fovea/kv_format.hpp"
#include "fovea/mask.hpp"
#include "fovea/packed_mask.hpp"
#include "op/common/checks.hpp"
#include "op/common/option.hpp"

namespace fovea::detail {

/// The structures of an operation, whose members its rows name.
template <class Problem_, class Desc_, class Args_, class CDesc_, class CArgs_>
struct FieldTypes {
  using Problem = Problem_;
  using Desc = Desc_;
  using Args = Args_;
  using CDesc = CDesc_;
  using CArgs = CArgs_;
};

template <class Member>
struct MemberOf {
  using Class = void;
  using Type = void;
};
template <class T, class C>
struct MemberOf<T C::*> {
  using Class = C;
  using Type = T;
};
/// void of a nullptr.
template <class Member>
using TypeOf = typename MemberOf<std::remove_cv_t<Member>>::Type;

/// The first of `members` that lies in S or a base of it; nullptr if there is none.
template <class S>
consteval auto member_in() {
  return nullptr;
}
template <class S, auto member, auto... others>
consteval auto member_in() {
  if constexpr (std::is_base_of_v<typename MemberOf<std::remove_cv_t<decltype(member)>>::Class, S>) {
    return member;
  } else {
    return member_in<S, others...>();
  }
}

/// A row. The kind of a field follows from the types of its members: a TensorDesc with a pointer is a tensor, a pointer alone or with a
/// flag is a vector, a ScaleDesc with a pointer is a scale, a number alone is a number, and a
/// PackedMaskDesc stands for bytes. A pointer that run() may write through is an
/// output.
template <class Types_, auto... members>
struct Field {
  using Types = Types_;
  static constexpr auto kDesc = member_in<typename Types::Desc, members...>();
  static constexpr auto kArgs = member_in<typename Types::Args, members...>();
  static constexpr auto kCDesc = member_in<typename Types::CDesc, members...>();
  static constexpr auto kCArgs = member_in<typename Types::CArgs, members...>();
  /// The value of an option for planning; a field that has this is one, and its pointer is needed only where it is in use.
  static constexpr auto kProblem = member_in<typename Types::Problem, members...>();

  using InDesc = TypeOf<decltype(kDesc)>;
  using Pointer = TypeOf<decltype(kArgs)>;
  using Pointee = std::remove_pointer_t<Pointer>;
  using InProblem = TypeOf<decltype(kProblem)>;
  static constexpr bool kHasPointer = !std::is_void_v<Pointer>;
  static constexpr bool kIsOutput = kHasPointer && !std::is_const_v<Pointee>;
  static_assert(std::is_void_v<InDesc> == std::is_void_v<TypeOf<decltype(kCDesc)>>, "a field of Desc has a twin in C");
  static_assert(std::is_same_v<Pointer, TypeOf<decltype(kCArgs)>>, "a pointer of Args has a twin in C");

  std::string_view name{};                                           ///< a literal, as errors, torch and Python say it
  bool (*needed)(const typename Types::Problem& problem) = nullptr;  ///< whether run() reads or writes there at all; always without
  std::int32_t (*alignment)(const typename Types::Problem& problem) = nullptr;  ///< in bytes; that of the element without
  std::int64_t (*count)(const typename Types::Desc& desc) = nullptr;            ///< elements of a vector; kv heads of a scale
  std::int64_t (*batch)(const typename Types::Desc& desc) = nullptr;            ///< sequences that may each have a scale; none without
  KvFormat (*format)(const typename Types::Desc& desc) = nullptr;               ///< of a tensor that may hold codes or their scales
  bool may_be_absent = false;                                                   ///< a vector without a flag, which not every call has
  bool has_anchor = false;                                                      ///< a mask whose corner is the caller's choice
};

/// A member as a function of the problem that has it.
template <auto member>
inline constexpr auto kIts = [](const auto& problem) { return problem.*member; };

/// The extent of an axis counted from the last, which is 1; 0 where there is none, as planning refuses that rank.
constexpr std::int64_t extent_from_last(const TensorDesc& desc, int axis) {
  return desc.rank >= axis && desc.rank <= 4 ? desc.shape[static_cast<std::size_t>(desc.rank - axis)] : 0;
}

template <class Table, class F>
constexpr void for_each_field(const Table& table, F&& f) {
  std::apply([&](const auto&... field) { (f(field), ...); }, table);
}

template <const auto& table>
using TypesOf = typename std::tuple_element_t<0, std::remove_cvref_t<decltype(table)>>::Types;

constexpr bool in_use(bool flag) { return flag; }
constexpr bool in_use(double number) { return number != 0; }
constexpr bool in_use(KvFormat format) { return format != KvFormat::rows; }
template <class T>
constexpr bool in_use(const std::optional<T>& value) {
  return value.has_value();
}

/// Every pointer of Args has a row, but for `others` bytes that another table describes.
template <class Args, class Table>
consteval bool names_every_pointer(const Table& table, std::size_t others = 0) {
  std::size_t pointers = 0;
  for_each_field(table, [&](const auto& field) { pointers += field.kHasPointer ? 1 : 0; });
  return pointers * sizeof(void*) + others == sizeof(Args);
}

/// f(pointer) for every pointer of `args`.
template <class Table, class Args, class F>
void for_each_pointer(const Table& table, Args& args, F&& f) {
  for_each_field(table, [&](const auto& field) {
    if constexpr (std::remove_cvref_t<decltype(field)>::kHasPointer) f(args.*field.kArgs);
  });
}

template <class Row, class Desc>
Extent extent_of_field(const Row& row, const Desc& desc) {
  using T = typename Row::InDesc;
  if constexpr (std::is_same_v<T, TensorDesc> || std::is_same_v<T, LatentCacheDesc>) {
    return extent_of(desc.*Row::kDesc);
  } else if constexpr (std::is_same_v<T, std::optional<TensorDesc>>) {
    return desc.*Row::kDesc ? extent_of(*(desc.*Row::kDesc)) : Extent{};
  } else if constexpr (std::is_same_v<T, std::optional<ScaleDesc>>) {
    return desc.*Row::kDesc ? extent_of(*(desc.*Row::kDesc), row.batch == nullptr ? 1 : row.batch(desc), row.count(desc)) : Extent{};
  } else if constexpr (std::is_same_v<T, std::optional<PackedMaskDesc>>) {
    return extent_of_bytes(desc.*Row::kDesc ? (desc.*Row::kDesc)->bytes : 0);
  } else {
    return extent_of_bytes((row.count == nullptr ? 1 : row.count(desc)) * static_cast<std::int64_t>(sizeof(typename Row::Pointee)));
  }
}

/// Extents of every pointer, in the order of the rows.
template <class Table, class Desc>
Extents extents_of(const Table& table, const Desc& desc) {
  auto all = std::make_shared<std::vector<Extent>>();
  for_each_field(table, [&](const auto& field) {
    if constexpr (std::remove_cvref_t<decltype(field)>::kHasPointer) all->push_back(extent_of_field(field, desc));
  });
  return all;
}

/// How a call uses pointers: the gradient reads the outputs of the forward pass.
struct Uses {
  const Extents& extents;
  Pointers::Access outputs = Pointers::Access::written;
};

template <class Table, class Problem, class Args>
void add_pointers(Pointers& pointers, const Table& table, const Problem& problem, const Args& args, const Uses& uses) {
  const Extent* extent = uses.extents == nullptr ? nullptr : uses.extents->data();
  for_each_field(table, [&](const auto& field) {
    using Row = std::remove_cvref_t<decltype(field)>;
    if constexpr (Row::kHasPointer) {
      bool needed = field.needed == nullptr || field.needed(problem);
      std::int32_t alignment = 0;
      if constexpr (!std::is_void_v<typename Row::InProblem>) needed = needed && in_use(problem.*Row::kProblem);
      if constexpr (!std::is_void_v<typename Row::Pointee>) alignment = sizeof(typename Row::Pointee);
      if (field.alignment != nullptr) alignment = field.alignment(problem);
      const auto access = Row::kIsOutput ? uses.outputs : Pointers::Access::read;
      pointers.add(access, field.name, {args.*Row::kArgs, extent}, needed, alignment);
      if (extent != nullptr) ++extent;
    }
  });
}

/// Pointers of run(): present where the description asks for them, aligned, and outputs apart from all else. Looks at no data.
template <class Table, class Problem, class Args>
Result<void> check_pointers(const Table& table, const Problem& problem, const Args& args) {
  Pointers pointers;
  add_pointers(pointers, table, problem, args, {problem.extents});
  return pointers.result();
}

/// Options that a problem keeps as the description has them. A number may be wider in the problem.
template <class Table, class Desc, class Problem>
void copy_options(const Table& table, const Desc& desc, Problem& problem) {
  for_each_field(table, [&](const auto& field) {
    using Row = std::remove_cvref_t<decltype(field)>;
    constexpr bool kIsNumber = std::is_floating_point_v<typename Row::InProblem> && std::is_floating_point_v<typename Row::InDesc>;
    if constexpr (kIsNumber ||
                  (!std::is_void_v<typename Row::InProblem> && std::is_same_v<typename Row::InProblem, typename Row::InDesc>)) {
      problem.*Row::kProblem = desc.*Row::kDesc;
    }
  });
}

/// Whether a row is an option of `Problem`. A gradient always has the outputs of its forward pass, so they are no options of it.
template <class Problem, class Row>
inline constexpr bool kIsOption =
    !std::is_void_v<typename Row::InProblem> && (std::is_same_v<Problem, typename Row::Types::Problem> || !Row::kIsOutput);

template <class Problem, class Row>
constexpr std::size_t options_of_row(const Row& row) {
  if (!kIsOption<Problem, Row>) return 0;
  return std::is_same_v<typename Row::InProblem, BandMask> ? 2 + (row.has_anchor ? 1 : 0) : 1;
}

/// Options that an implementation handles by name, or planning declines for it: `others`, the fields of the tables in order, and batch
/// invariance. The options are those of the first table's problem.
template <const auto& table, const auto&... more, class... Others>
consteval auto options_of(const Others&... others) {
  using Problem = typename TypesOf<table>::Problem;
  constexpr auto kRows = std::tuple_cat(table, more...);
  constexpr std::size_t kCount = std::apply([](const auto&... field) { return (options_of_row<Problem>(field) + ... + 1); }, kRows);
  std::array<Option<Problem>, sizeof...(others) + kCount> options{others...};
  std::size_t at = sizeof...(others);
  for_each_field(kRows, [&](const auto& field) {
    using Row = std::remove_cvref_t<decltype(field)>;
    if constexpr (!kIsOption<Problem, Row>) {
      return;
    } else if constexpr (std::is_same_v<typename Row::InProblem, BandMask>) {
      options[at++] = option::kMaskLeft<Problem>;
      options[at++] = option::kMaskRight<Problem>;
      if (field.has_anchor) options[at++] = option::kMaskTopLeft<Problem>;
    } else {
      options[at++] = {field.name, [](const Problem& problem) { return in_use(problem.*Row::kProblem); }};
    }
  });
  options[at] = option::kBatchInvariant<Problem>;
  return options;
}

}  // namespace fovea::detail
