// SPDX-License-Identifier: Apache-2.0
#include "op/common/attention_core.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "op/common/band.hpp"
#include "op/common/head_dims.hpp"

namespace fovea::detail {
std::string number_text(double number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.9g", number);
  return text.data();
}

void check_scalars(Checker& check, double scale, AttentionCore& core) {
  const double softcap = core.softcap;
  check.expect(core.heads >= 1, "q.shape (head)", core.heads, "1 or more");
  check.expect(core.kv_heads >= 1, "k.shape (kv_head)", core.kv_heads, "1 or more");
  check.expect(core.head_dim_qk >= 1, "q.shape (head_dim_qk)", core.head_dim_qk, "1 or more");
  check.expect(core.head_dim_v >= 1, "v.shape (head_dim_v)", core.head_dim_v, "1 or more");
  if (check.ok() && core.heads % core.kv_heads != 0) {
    check.fail(invalid("k.shape (kv_head)", core.kv_heads, "a divisor of " + std::to_string(core.heads) + " (head)"));
  }
  const auto zero_or_normal = [](double number) { return number == 0.0 || std::isnormal(static_cast<float>(number)); };
  check.expect(zero_or_normal(scale), "scale", number_text(scale), "1.2e-38 to 3.4e38 in magnitude (a normal float), or 0 (the default)");
  check.expect(zero_or_normal(softcap) && softcap >= 0, "softcap", number_text(softcap), "1.2e-38 to 3.4e38 (a normal float), or 0 (none)");
  if (!check.ok()) return;
  const auto rounded = [&](double number) { return core.q_dtype == DType::f64 ? number : static_cast<float>(number); };
  core.scale = rounded(scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(core.head_dim_qk)));
  core.softcap = rounded(softcap);
}

void set_alignments(AttentionCore& core, const TensorDesc& q, const TensorDesc& k, const TensorDesc& v, const TensorDesc& out) {
  core.q_base_alignment = base_alignment(q);
  core.k_base_alignment = base_alignment(k);
  core.v_base_alignment = base_alignment(v);
  core.out_base_alignment = base_alignment(out);
  core.q_alignment = row_alignment(q);
  core.k_alignment = row_alignment(k);
  core.v_alignment = row_alignment(v);
  core.out_alignment = row_alignment(out);
}

RowStrides check_row_numbers(Checker& check, std::string_view name, const TensorDesc& desc, const AttentionCore& core, bool ragged,
                             bool is_output) {
  constexpr std::array<std::string_view, 3> kFixedAxes{"batch", "head", "seq_q"};
  constexpr std::array<std::string_view, 2> kRaggedAxes{"total_q", "head"};
  constexpr std::array kF32{DType::f32};
  const std::span<const std::string_view> axes = ragged ? std::span<const std::string_view>(kRaggedAxes) : std::span(kFixedAxes);
  const NamedTensor tensor{name, desc, axes, is_output, false};
  check_tensor(check, tensor);
  check_dtype(check, tensor, kF32);
  if (!check.ok()) return {};
  if (ragged) {
    check_extent(check, tensor, 0, core.total_q, "rows of q");
    check_extent(check, tensor, 1, core.heads, "head of q");
    return {0, desc.strides[0], desc.strides[1]};
  }
  check_extent(check, tensor, 0, core.batch, "q.shape[0]");
  check_extent(check, tensor, 1, core.heads, "head of q");
  check_extent(check, tensor, 2, core.max_seq_q, "rows of q");
  return {desc.strides[0], desc.strides[2], desc.strides[1]};
}

void check_lse(Checker& check, std::string_view name, const std::optional<TensorDesc>& lse, AttentionCore& core, bool ragged) {
  if (!lse || !check.ok()) return;
  core.lse = check_row_numbers(check, name, *lse, core, ragged);
  core.has_lse = true;
}

namespace {

std::optional<Error> decline_head_dims(const AttentionCore& core, bool widest) {
  const auto fits = [&](std::int64_t dim) { return dim % 8 == 0 && dim <= (widest ? kWidestHeadDim : kMaxHeadDim); };
  if (!fits(core.head_dim_qk))
    return declined("q.shape (head_dim_qk)", core.head_dim_qk, widest ? "a multiple of 8 up to 512" : "a multiple of 8 up to 256");
  if (!fits(core.head_dim_v))
    return declined("v.shape (head_dim_v)", core.head_dim_v, widest ? "a multiple of 8 up to 512" : "a multiple of 8 up to 256");
  return std::nullopt;
}

}  // namespace

std::optional<Error> decline_head_dims(const AttentionCore& core) { return decline_head_dims(core, false); }
std::optional<Error> decline_widest_head_dims(const AttentionCore& core) { return decline_head_dims(core, true); }

void check_bound(Checker& check, std::string_view name, std::int64_t bound) {
  check.expect(bound >= 0 && bound < std::int64_t{1} << 31, name, bound, "0 to 2^31 - 1");
}

void check_cu_seqlens(Checker& check, std::string_view name, std::span<const std::int32_t> cu, std::int64_t total, std::int64_t bound) {
  const auto subject = [&](std::size_t index) { return std::string(name).append("[").append(std::to_string(index)).append("]"); };
  if (check.ok() && cu[0] < 0) check.fail(invalid(subject(0), cu[0], "0 or more"));
  for (std::size_t i = 1; check.ok() && i < cu.size(); ++i) {
    const std::int64_t length = std::int64_t{cu[i]} - cu[i - 1];
    if (length < 0) {
      check.fail(invalid(subject(i), cu[i], std::to_string(cu[i - 1]) + " or more (the entry before it)"));
    } else if (length > bound) {
      check.fail(invalid(subject(i) + " (length of the sequence)", length, "at most " + std::to_string(bound) + " (the planned bound)"));
    }
  }
  if (check.ok() && cu.back() > total) {
    check.fail(invalid(subject(cu.size() - 1), cu.back(), "at most " + std::to_string(total) + " (rows of the tensor)"));
  }
}

std::int64_t bound_of_keys(std::int64_t max_kv_len, std::int64_t max_blocks, std::int64_t page) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;  // lengths are i32, whatever the table has room for
  const std::int64_t capacity = max_blocks > kMost / page ? kMost : max_blocks * page;
  return max_kv_len == 0 ? capacity : std::min(max_kv_len, capacity);
}

void check_sequence_blocks(Checker& check, const BlockTableView& table, const BandMask& mask, std::int64_t b, std::int64_t seq_q,
                           std::int64_t kv_len) {
  if (!check.ok()) return;
  if (kv_len < 0 || kv_len > table.max_kv_len) {
    check.fail(invalid("kv_len[" + std::to_string(b) + "]", kv_len, "0 to " + std::to_string(table.max_kv_len) + " (the planned bound)"));
    return;
  }
  if (seq_q == 0) return;
  const KeyRange keys = keys_seen_by_some(make_band(mask, seq_q, kv_len), 0, seq_q, kv_len);
  if (keys.size() == 0) return;
  const std::int32_t* row = table.entries + b * table.stride;
  for (std::int64_t i = keys.begin / table.page; i <= (keys.end - 1) / table.page; ++i) {
    if (row[i] >= 0 && row[i] < table.blocks) continue;
    const std::string subject = "block_table[" + std::to_string(b) + "][" + std::to_string(i) + "] (block number)";
    return check.fail(invalid(subject, row[i], "0 to " + std::to_string(table.blocks - 1)));
  }
}

}  // namespace fovea::detail
