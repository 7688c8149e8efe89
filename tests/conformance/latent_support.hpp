// SPDX-License-Identifier: Apache-2.0
/// What the tests of the latent operations share: caches in which every token that nobody reads is NaN, a plain implementation that sets
/// the tolerance, and the judging of strided outputs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "compare.hpp"
#include "fovea/device.hpp"
#include "fovea/info.hpp"
#include "fovea/latent_attention.hpp"
#include "hostile_tensor.hpp"
#include "numeric.hpp"
#include "reference/attend.hpp"
#include "reference/packed_row.hpp"
#include "reference/reference.hpp"

namespace fovea::check {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr std::int64_t kLatent = 512;

/// The implementations of an operation that run here, the reference too: it is judged like any other.
inline std::vector<std::string> available(std::string_view operation) {
  std::vector<std::string> names;
  for (const ImplementationInfo& info : implementations()) {
    if (info.operation == operation && info.available) names.emplace_back(info.name);
  }
  return names;
}

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  float normal() { return normal_(engine_); }
  std::int64_t below(std::int64_t bound) { return std::uniform_int_distribution<std::int64_t>(0, bound - 1)(engine_); }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_{};
};

/// A cache with gaps in every stride. Tokens become readable one by one; all other bytes are 0xff, which is NaN in every format.
class TestCache {
 public:
  TestCache(CacheFormat format, DType dtype, std::int64_t blocks, std::int64_t page, std::int64_t row, std::int64_t kv_heads = 1) {
    desc.format = format;
    if (const PackedFormat* packed = packed_format(format)) {
      constexpr std::int64_t kGap = 37;
      desc.blocks = blocks;
      desc.page = page;
      desc.block_stride = page * packed->bytes() + kGap;
      rows = HostileTensor(contiguous(DType::e4m3, {blocks * desc.block_stride}), 1);  // not even aligned to two bytes
    } else {
      desc.rows = contiguous(dtype, {blocks, page, kv_heads, row});
      const std::int64_t head = row + 8, token = kv_heads * head + 24;
      desc.rows.strides = {page * token + 16, token, head, 1};
      rows = HostileTensor(desc.rows);
    }
  }

  const void* data() const { return rows.data(); }

  /// Fills a token with values about as large as `size`.
  void fill(std::int64_t slot, Random& random, float size = 1.0f) {
    if (!filled_.insert(slot).second) return;
    if (const PackedFormat* packed = packed_format(desc.format)) {
      std::vector<float> values(static_cast<std::size_t>(packed->row()));
      for (float& value : values) value = size * random.normal();
      auto* block = rows.as<std::uint8_t>() + slot / desc.page * desc.block_stride;
      reference::encode_row(*packed, ScaleRule::exact, values, block, slot % desc.page, desc.page);
      return;
    }
    for (std::int64_t head = 0; head < desc.rows.shape[2]; ++head) {
      for (std::int64_t d = 0; d < desc.rows.shape[3]; ++d) rows.set(offset(slot, head) + d, size * random.normal());
    }
  }

  std::vector<float> row(std::int64_t slot, std::int64_t head) const {
    if (const PackedFormat* packed = packed_format(desc.format)) {
      std::vector<double> exact(static_cast<std::size_t>(packed->row()));
      reference::decode_row(*packed, rows.as<std::uint8_t>() + slot / desc.page * desc.block_stride, slot % desc.page, desc.page,
                            exact.data());
      std::vector<float> values;
      for (const double value : exact) values.push_back(rounded(DType::bf16, static_cast<float>(value)));
      return values;
    }
    std::vector<float> values;
    for (std::int64_t d = 0; d < desc.rows.shape[3]; ++d) values.push_back(rows.at(offset(slot, head) + d));
    return values;
  }

  LatentCacheDesc desc{};
  HostileTensor rows{};

 private:
  std::int64_t offset(std::int64_t slot, std::int64_t head) const {
    return rows.offset(slot / desc.rows.shape[1], slot % desc.rows.shape[1], head);
  }
  std::set<std::int64_t> filled_{};
};

/// A tensor whose rows lie `gap` elements further apart than they must, in each dimension.
inline TensorDesc with_gaps(DType dtype, std::initializer_list<std::int64_t> shape, std::int64_t gap = 8) {
  TensorDesc desc = contiguous(dtype, shape);
  for (int axis = desc.rank - 2; axis >= 0; --axis) {
    const auto at = static_cast<std::size_t>(axis);
    desc.strides[at] = desc.shape[at + 1] * desc.strides[at + 1] + gap;
  }
  return desc;
}

inline HostileTensor random_tensor(const TensorDesc& desc, Random& random) {
  HostileTensor tensor(desc);
  for_each_element(desc, [&](auto, auto, auto, auto, std::int64_t at) { tensor.set(at, random.normal()); });
  return tensor;
}

/// The math in f32, term by term, operands and result rounded where 16-bit hardware rounds them.
inline std::vector<float> plain_row(const std::vector<float>& q, const std::vector<std::vector<float>>& rows, float scale, float v_scale,
                                    float sink, DType dtype) {
  std::vector<float> scores, sums(static_cast<std::size_t>(kLatent));
  float largest = -kInfinity, total = 0;
  for (const auto& row : rows) {
    float dot = 0;
    for (std::size_t d = 0; d < q.size(); ++d) dot += q[d] * row[d];
    scores.push_back(scale * dot);
    largest = std::max(largest, scores.back());
  }
  for (std::size_t key = 0; key < rows.size(); ++key) {
    const float weight = std::exp(scores[key] - largest), operand = rounded(dtype, weight);
    total += weight;
    for (std::size_t d = 0; d < sums.size(); ++d) sums[d] += operand * rows[key][d];
  }
  if (!rows.empty()) total += std::exp(sink - largest);
  for (float& sum : sums) sum = rounded(dtype, rows.empty() || std::isinf(total) ? 0.0f : sum / total * v_scale);
  return sums;
}

/// Elements in the order of their indices; then everything between them must still be poison.
inline std::vector<float> take(const HostileTensor& tensor) {
  std::vector<float> values;
  const std::size_t size = size_of(tensor.desc().dtype);
  std::vector<std::byte> gaps(tensor.storage().data(), tensor.storage().data() + tensor.storage().bytes());
  for_each_element(tensor.desc(), [&](auto, auto, auto, auto, std::int64_t at) {
    values.push_back(tensor.at(at));
    std::memset(gaps.data() + static_cast<std::size_t>(at) * size, 0xff, size);
  });
  EXPECT_TRUE(tensor.storage().red_zones_intact());
  EXPECT_TRUE(std::all_of(gaps.begin(), gaps.end(), [](std::byte byte) { return byte == std::byte{0xff}; }))
      << "bytes between the elements changed";
  return values;
}

inline void poison(const HostileTensor& tensor) { std::memset(tensor.storage().data(), 0xff, tensor.storage().bytes()); }

/// Rows of f32 numbers [batch, head, seq_q] in the order of the reference, [batch * seq_q, head].
inline std::vector<float> by_row(const std::vector<float>& numbers, std::int64_t batch, std::int64_t heads, std::int64_t seq_q) {
  std::vector<float> sorted;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t row = 0; row < seq_q; ++row) {
      for (std::int64_t head = 0; head < heads; ++head)
        sorted.push_back(numbers[static_cast<std::size_t>((b * heads + head) * seq_q + row)]);
    }
  }
  return sorted;
}

inline void expect_close(const std::vector<float>& got, const std::vector<double>& want, Tolerance tolerance, const char* what) {
  const Comparison result = compare(got, want, tolerance);
  EXPECT_TRUE(result.ok()) << what << ": " << describe(result, {static_cast<std::int64_t>(want.size())});
}

inline Tolerance out_tolerance(const std::vector<float>& plain, const std::vector<double>& exact, DType dtype) {
  return {.absolute = 2 * largest_error(plain, exact) + 0.5 * ulp(dtype, largest_magnitude(exact))};
}

inline constexpr Tolerance kLseTolerance{.absolute = 1e-6, .relative = 8.0 / 65536.0};

/// A workspace full of NaN.
struct TestWorkspace {
  explicit TestWorkspace(std::size_t bytes) : storage(bytes, 0) {}
  Workspace get() const { return {storage.data(), storage.bytes()}; }
  Storage storage;
};

}  // namespace fovea::check
