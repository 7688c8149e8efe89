// SPDX-License-Identifier: Apache-2.0
/// An operation's table of fields in torch's words: the schema, and the arguments of a call as the library takes them.
#pragma once

#include <algorithm>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "describe.hpp"
#include "op/common/fields.hpp"
#include "op/common/vector_fields.hpp"

namespace fovea::binding {

/// A field's name as a template argument.
template <std::size_t size>
struct Name {
  char text[size]{};
  constexpr Name(const char (&from)[size]) { std::copy_n(from, size, text); }
  constexpr std::string_view view() const { return {text, size - 1}; }
};

/// A latent cache, as torch has it.
struct Cache {
  Tensor tensor;
  std::string format;
};

/// A packed mask, as torch has it.
struct PackedMask {
  OptionalTensor tensor;
  std::optional<std::int64_t> tail;
};

/// How torch takes a field. Bounds are those of a ragged batch, of its keys alone where there are no queries.
enum class TorchKind { tensor, optional_tensor, cache, mask, packed_mask, bounds, key_bounds, groups, dtype, format, number };

template <class Row>
constexpr TorchKind kind_of(const Row& row) {
  using T = typename Row::InDesc;
  if (std::is_same_v<T, TensorDesc> || (Row::kHasPointer && std::is_void_v<T> && !row.may_be_absent)) return TorchKind::tensor;
  if (std::is_same_v<T, LatentCacheDesc>) return TorchKind::cache;
  if (std::is_same_v<T, std::optional<PackedMaskDesc>>) return TorchKind::packed_mask;
  if (Row::kHasPointer) return TorchKind::optional_tensor;
  if (std::is_same_v<T, BandMask>) return TorchKind::mask;
  if (std::is_same_v<T, Int8Groups>) return TorchKind::groups;
  if (std::is_same_v<T, DType>) return TorchKind::dtype;
  if (std::is_same_v<T, KvFormat>) return TorchKind::format;
  if (!std::is_same_v<T, std::optional<RaggedDesc>>) return TorchKind::number;
  return requires { &Row::Types::Desc::q; }
  ? TorchKind::bounds : TorchKind::key_bounds;
}

template <TorchKind kind, class Number>
auto take_value(Arguments& arguments, bool has_anchor) {
  if constexpr (kind == TorchKind::tensor) return arguments.tensor();
  if constexpr (kind == TorchKind::optional_tensor) return arguments.optional_tensor();
  if constexpr (kind == TorchKind::cache) return Cache{.tensor = arguments.tensor(), .format = arguments.text()};
  if constexpr (kind == TorchKind::packed_mask) {
    return PackedMask{.tensor = arguments.optional_tensor(), .tail = arguments.optional_integer()};
  }
  if constexpr (kind == TorchKind::mask) return has_anchor ? arguments.band_and_anchor() : arguments.band();
  if constexpr (kind == TorchKind::bounds) return Bounds{.q = arguments.optional_integer(), .k = arguments.optional_integer()};
  if constexpr (kind == TorchKind::key_bounds) return arguments.optional_integer();
  if constexpr (kind == TorchKind::groups) return Groups{.granularity = arguments.text(), .warp_rows = arguments.integer()};
  if constexpr (kind == TorchKind::dtype) return arguments.take<std::int32_t>();
  if constexpr (kind == TorchKind::format) return arguments.text();
  if constexpr (kind == TorchKind::number) return arguments.take<std::conditional_t<std::is_same_v<Number, float>, double, Number>>();
}

inline const Tensor* given(const Tensor& tensor) { return &tensor; }
inline const Tensor* given(const OptionalTensor& tensor) { return tensor ? &*tensor : nullptr; }

/// "Tensor q, Tensor(a!) out, SymInt? window_left, ..", without parentheses. Outputs are lettered in order.
template <class Table>
std::string schema_of(const Table& table) {
  std::string text;
  char letter = 'a';
  detail::for_each_field(table, [&](const auto& field) {
    using Row = std::remove_cvref_t<decltype(field)>;
    const auto argument = [&](std::string_view type, std::string_view name) {
      text.append(text.empty() ? "" : ", ").append(type).append(" ").append(name);
    };
    const std::string tensor = Row::kIsOutput ? std::string("Tensor(") + letter++ + "!)" : "Tensor";
    switch (kind_of(field)) {
      case TorchKind::tensor: argument(tensor, field.name); break;
      case TorchKind::optional_tensor: argument(tensor + "?", field.name); break;
      case TorchKind::cache:
        argument(tensor, field.name);
        argument("str", "format");
        break;
      case TorchKind::mask:
        argument("SymInt?", "window_left");
        argument("SymInt?", "window_right");
        if (field.has_anchor) argument("bool", "top_left");
        break;
      case TorchKind::packed_mask:
        argument("Tensor?", field.name);
        argument("SymInt?", "mask_tail");
        break;
      case TorchKind::bounds:
        argument("SymInt?", "max_seqlen_q");
        argument("SymInt?", "max_seqlen_k");
        break;
      case TorchKind::key_bounds: argument("SymInt?", "max_seqlen_k"); break;
      case TorchKind::groups:
        argument("str", "granularity");
        argument("int", "warp_rows");
        break;
      case TorchKind::dtype: argument("ScalarType", field.name); break;
      case TorchKind::format: argument("str", field.name); break;
      case TorchKind::number:
        using T = typename Row::InDesc;
        argument(std::is_same_v<T, bool> ? "bool" : std::is_floating_point_v<T> ? "float" : "SymInt", field.name);
        break;
    }
  });
  return text;
}

/// The values of a call's fields, in the order of the table.
template <const auto& table>
class Fields {
 public:
  using Desc = typename detail::TypesOf<table>::Desc;
  using Args = typename detail::TypesOf<table>::Args;

  explicit Fields(Arguments& arguments) : values_(take(arguments, Indices{})) {}

  template <Name name>
  const auto& value() const {
    return std::get<index_of(name.view())>(values_);
  }

  Desc describe() const {
    Desc desc{};
    const auto describe_if = [&](bool formats) {  // formats first: they say what bytes are
      for_each([&](const auto& field, const auto& value) {
        if constexpr (std::is_same_v<typename std::remove_cvref_t<decltype(field)>::InDesc, KvFormat>) {
          if (formats) describe_field(desc, field, value);
        } else {
          if (!formats) describe_field(desc, field, value);
        }
      });
    };
    describe_if(true);
    describe_if(false);
    return desc;
  }

  /// Checks the vectors of a valid description, which says how long they are.
  void check_vectors(const Desc& desc) const {
    for_each([&](const auto& field, const auto& value) { check_field(desc, field, value); });
  }

  /// The arguments of a run from the address of each tensor in order, null for absent ones.
  static Args args(const Desc& /*desc*/, void* const* addresses) {
    Args args{};
    detail::for_each_field(table, [&](const auto& field) {
      using Row = std::remove_cvref_t<decltype(field)>;
      if constexpr (Row::kHasPointer) args.*Row::kArgs = static_cast<typename Row::Pointer>(*addresses++);
    });
    return args;
  }

  /// How many addresses args() takes.
  static consteval int tensors() {
    int count = 0;
    detail::for_each_field(table, [&](const auto& field) { count += std::remove_cvref_t<decltype(field)>::kHasPointer ? 1 : 0; });
    return count;
  }

 private:
  using Table = std::remove_cvref_t<decltype(table)>;
  using Indices = std::make_index_sequence<std::tuple_size_v<Table>>;

  static consteval std::size_t index_of(std::string_view name) {
    std::size_t at = 0, found = std::tuple_size_v<Table>;
    detail::for_each_field(table, [&](const auto& field) { field.name == name ? found = at++ : at++; });
    return found;
  }

  template <std::size_t at>
  static auto take_field(Arguments& arguments) {
    constexpr const auto& kField = std::get<at>(table);
    return take_value<kind_of(kField), typename std::tuple_element_t<at, Table>::InDesc>(arguments, kField.has_anchor);
  }
  template <std::size_t... at>
  static auto take(Arguments& arguments, std::index_sequence<at...>) {
    return std::tuple{take_field<at>(arguments)...};  // braces: from left to right
  }

  template <class F>
  void for_each(F&& f) const {
    [&]<std::size_t... at>(std::index_sequence<at...>) { (f(std::get<at>(table), std::get<at>(values_)), ...); }
    (Indices{});
  }

  template <class Row, class Value>
  void describe_field(Desc& desc, const Row& row, const Value& value) const {
    using T = typename Row::InDesc;
    const char* name = row.name.data();
    if constexpr (std::is_same_v<T, TensorDesc> || std::is_same_v<T, std::optional<TensorDesc>>) {
      desc.*Row::kDesc = binding::describe(value, name, row.format != nullptr && row.format(desc) != KvFormat::rows);
    } else if constexpr (std::is_same_v<T, std::optional<ScaleDesc>>) {
      desc.*Row::kDesc = describe_scale(value, name, row.batch == nullptr ? 0 : row.batch(desc), row.count(desc));
    } else if constexpr (std::is_same_v<Value, PackedMask>) {
      desc.*Row::kDesc = describe_packed_mask(value.tensor, value.tail, this->value<"mask_indptr">(), this->value<"q">());
    } else if constexpr (std::is_same_v<Value, Bounds>) {
      const Sequences sequences{this->value<"cu_seqlens_q">(), this->value<"cu_seqlens_k">(), value};
      desc.*Row::kDesc = describe_ragged(sequences, this->value<"q">(), this->value<"k">());
    } else if constexpr (std::is_same_v<T, std::optional<RaggedDesc>>) {
      desc.*Row::kDesc = describe_ragged(this->value<"cu_seqlens_k">(), value, this->value<"v">());
    } else if constexpr (std::is_same_v<T, Int8Groups>) {
      desc.*Row::kDesc = value.of_plan();
    } else if constexpr (std::is_same_v<T, DType>) {
      desc.*Row::kDesc = v_dtype_of(value);
    } else if constexpr (std::is_same_v<T, KvFormat>) {
      desc.*Row::kDesc = kv_format_of(value, name);
    } else if constexpr (std::is_same_v<T, LatentCacheDesc>) {
      desc.*Row::kDesc = describe_cache(value.tensor, value.format, name);
    } else if constexpr (std::is_same_v<T, bool> && Row::kHasPointer) {
      desc.*Row::kDesc = row.count != nullptr ? value.has_value() : describe_scale(value, name, 0, 1).has_value();
    } else if constexpr (std::is_floating_point_v<T>) {
      desc.*Row::kDesc = static_cast<T>(normal(value, name));
    } else if constexpr (!std::is_void_v<T>) {
      desc.*Row::kDesc = value;
    }
  }

  template <class Row, class Value>
  static void check_field(const Desc& desc, const Row& row, const Value& value) {
    if constexpr (detail::kMayBeVector<Row>) {
      const Tensor* tensor = given(value);
      if (tensor != nullptr && row.count != nullptr)
        check_vector(*tensor, row.name.data(), detail::dtype_of_pointer<Row>(), row.count(desc));
    }
  }

  using Values = decltype(take(std::declval<Arguments&>(), Indices{}));
  Values values_;
};

/// Arguments of a call behind its fields: who computes, and how.
enum class Asks {
  implementation,  ///< the name of one, alone
  gradient,        ///< and whether gradients have the same bits from run to run
  options,         ///< the name, whether it is batch-invariant and which outputs are filled where no sequence has a row
  schedule,        ///< and a schedule, between these two
};

template <const auto& table, Asks asks>
struct FieldCall : Fields<table> {
  explicit FieldCall(Arguments& arguments) : Fields<table>(arguments), implementation(arguments.text()) {
    if (asks == Asks::gradient) deterministic = arguments.flag();
    if (asks == Asks::implementation || asks == Asks::gradient) return;
    batch_invariant = arguments.flag();
    if (asks == Asks::schedule) schedule = arguments.optional_tensor();
    fill_out = arguments.flag();
    fill_lse = arguments.flag();
  }
  PlanOptions options() const {
    return {.implementation = implementation,
            .batch_invariant = batch_invariant,
            .exact_rows = (asks == Asks::options || asks == Asks::schedule) && exact_rows(),
            .deterministic = deterministic,
            .fill_out = fill_out,
            .fill_lse = fill_lse};
  }

  std::string implementation;
  bool batch_invariant = false, deterministic = false, fill_out = false, fill_lse = false;
  OptionalTensor schedule;
};

}  // namespace fovea::binding
