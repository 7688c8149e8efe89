// SPDX-License-Identifier: Apache-2.0
/// Packing, both products and the streamed forms of every instruction set, against plain loops. Inputs are small integers, so every sum is
/// exact in any order and results must be equal.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "fovea/tensor.hpp"
#include "op/common/numeric.hpp"
#include "unit/cpu_tables.hpp"

namespace fovea::cpu {
namespace {

constexpr auto kBf16 = static_cast<std::size_t>(DType::bf16);

/// [rows][columns] in bf16 with a gap between rows, and the same as numbers.
struct Matrix {
  Matrix(int row_count, int column_count, int seed) : rows(row_count), columns(column_count), stride(column_count + 24) {
    codes.assign(static_cast<std::size_t>(rows * stride), 0x7fc0);  // NaN in the gaps
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) codes[at(r, c)] = detail::bf16_from_f32(static_cast<float>((r * 7 + c * 5 + r * c + seed) % 9 - 4));
    }
    for (int r = 0; r < rows; ++r) pointers.push_back(&codes[at(r, 0)]);
    zeros.assign(static_cast<std::size_t>(columns), 0);
  }
  std::size_t at(int r, int c) const { return static_cast<std::size_t>(r * stride + c); }
  float number(int r, int c) const { return detail::f32_from_bf16(codes[at(r, c)]); }
  /// Rows, padded with rows of zeros to a multiple.
  std::vector<Row> padded(int multiple) const {
    std::vector<Row> all = pointers;
    while (static_cast<int>(all.size()) % multiple != 0) all.push_back(zeros.data());
    return all;
  }

  int rows, columns, stride;
  std::vector<std::uint16_t> codes, zeros;
  std::vector<Row> pointers{};
};

int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

class CpuKernels : public testing::TestWithParam<NamedAttention> {
 protected:
  const AttentionKernels& kernels() const { return *GetParam().kernels; }
  void SetUp() override {
    if (kernels().enter != nullptr) kernels().enter();
  }
  void TearDown() override {
    if (kernels().leave != nullptr) kernels().leave();
  }
  /// Room for `count` operands, all of them NaN.
  std::vector<std::byte> operands(int count) const {
    return std::vector<std::byte>(static_cast<std::size_t>(count * kernels().operand_bytes), std::byte{0xff});
  }
  std::vector<std::byte> load(const Matrix& q, int stride) const {
    std::vector<std::byte> packed = operands(round_up(q.rows, 32) * stride);
    for (int r = 0; r < q.rows; ++r)
      kernels().load_q[kBf16](q.pointers[static_cast<std::size_t>(r)], q.columns, stride, false,
                              packed.data() + r * stride * kernels().operand_bytes);
    return packed;
  }
};

TEST_P(CpuKernels, PackedScores) {
  for (const int head_dim : {8, 40, 64, 136}) {
    for (int rows = 1; rows <= kernels().block_rows; ++rows) {
      const int count = 3 * kernels().panel - 5, keys = round_up(count, kernels().panel), stride = round_up(head_dim, 32);
      const int padded = round_up(head_dim, kernels().depth), score_stride = keys + 32;
      const Matrix q(rows, head_dim, 1), k(count, head_dim, 2);
      const std::vector<std::byte> left = load(q, stride);
      std::vector<std::byte> panels = operands(keys * padded);
      kernels().pack_keys[kBf16](k.padded(kernels().panel).data(), keys, head_dim, padded, panels.data());
      std::vector<float> scores(static_cast<std::size_t>(round_up(rows, 32) * score_stride), -1.0f);
      const RowBlock block{0, rows, 0, round_up(count, kernels().depth)};
      kernels().scores({.q = left.data(),
                        .keys = panels.data(),
                        .scores = scores.data(),
                        .q_stride = stride,
                        .score_stride = score_stride,
                        .head_dim = padded,
                        .blocks = &block,
                        .block_count = 1});
      for (int r = 0; r < rows; ++r) {
        for (int key = 0; key < keys; ++key) {
          float want = 0;
          for (int d = 0; d < head_dim && key < count; ++d) want += q.number(r, d) * k.number(key, d);
          ASSERT_EQ(scores[static_cast<std::size_t>(r * score_stride + key)], want) << head_dim << " " << rows << ": " << r << ", " << key;
        }
      }
    }
  }
}

TEST_P(CpuKernels, PackedValues) {
  for (const int head_dim : {8, 40, 64, 136}) {
    for (int rows = 1; rows <= kernels().block_rows; ++rows) {
      const int count = 3 * kernels().panel - 5, keys = round_up(count, kernels().panel),
                columns = round_up(round_up(head_dim, 32), kernels().panel);
      const Matrix weights(rows, keys, 3), v(count, head_dim, 4);
      const std::vector<std::byte> left = load(weights, keys);
      std::vector<std::byte> panels = operands(keys * columns);
      EXPECT_TRUE(kernels().pack_values[kBf16](v.padded(kernels().panel).data(), keys, head_dim, keys, panels.data()));
      std::vector<float> acc(static_cast<std::size_t>(round_up(rows, 32) * columns), 2.0f), rescale(static_cast<std::size_t>(rows));
      for (int r = 0; r < rows; ++r) rescale[static_cast<std::size_t>(r)] = static_cast<float>(r % 3);
      const int begin = kernels().depth;
      const RowBlock block{0, rows, begin, keys};
      kernels().values({.p = left.data(),
                        .values = panels.data(),
                        .acc = acc.data(),
                        .rescale = rescale.data(),
                        .p_stride = keys,
                        .acc_stride = columns,
                        .kv_tile = keys,
                        .head_dim = head_dim,
                        .blocks = &block,
                        .block_count = 1});
      for (int r = 0; r < rows; ++r) {
        for (int d = 0; d < head_dim; ++d) {
          float want = 2.0f * static_cast<float>(r % 3);
          for (int key = begin; key < count; ++key) want += weights.number(r, key) * v.number(key, d);
          ASSERT_EQ(acc[static_cast<std::size_t>(r * columns + d)], want) << head_dim << " " << rows << ": " << r << ", " << d;
        }
      }
    }
  }
}

TEST_P(CpuKernels, PackingValuesReportsWhatIsNotFinite) {
  for (const float special : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const int count = kernels().panel, columns = round_up(72, 32);
    for (const int key : {0, 1, count - 1}) {
      Matrix v(count, 72, 5);
      std::vector<std::byte> panels = operands(count * columns);
      EXPECT_TRUE(kernels().pack_values[kBf16](v.pointers.data(), count, 72, count, panels.data()));
      v.codes[v.at(key, 71)] = detail::bf16_from_f32(special);
      EXPECT_FALSE(kernels().pack_values[kBf16](v.pointers.data(), count, 72, count, panels.data()));
    }
  }
}

/// Tokens of several heads, side by side or one head after another.
struct Streamed {
  Streamed(int tokens, int all_heads, int columns, bool head_major, int seed)
      : heads(all_heads), count(tokens), by_head(head_major), matrix(tokens * all_heads, columns, seed) {
    for (int token = 0; token < count; ++token) first.push_back(matrix.pointers[static_cast<std::size_t>(row(0, token))]);
  }
  int row(int head, int token) const { return by_head ? head * count + token : token * heads + head; }
  float number(int head, int token, int d) const { return matrix.number(row(head, token), d); }
  StreamRows rows() const {
    const int bytes = 2 * matrix.stride;
    return {.rows = first.data(), .head_stride = by_head ? count * bytes : bytes, .count = count};
  }

  int heads, count;
  bool by_head;
  Matrix matrix;
  std::vector<Row> first{};
};

struct StreamShape {
  int head_dim = 0, rows = 0, count = 0, heads = 0;
  bool by_head = false;
};

void check_streamed(const NamedAttention& table, const StreamShape& shape, const std::vector<std::byte>& left, const Matrix& q) {
  const auto [head_dim, rows, count, heads, by_head] = shape;
  const int stride = round_up(head_dim, 32), score_stride = round_up(count, 16);
  const Streamed k(count, heads, head_dim, by_head, 7), v(count, heads, head_dim, by_head, 8);
  const Streamed next(count % 12, heads, head_dim, by_head, 9);  // too few to be fetched, or more
  const auto all = static_cast<std::size_t>(heads * rows);
  std::vector<float> scores(all * static_cast<std::size_t>(score_stride)), acc(all * static_cast<std::size_t>(stride), 1.0f);
  const std::vector<float> rescale(all, 3.0f);
  table.kernels->stream_scores[kBf16]({.q = left.data(),
                                       .keys = k.rows(),
                                       .next = next.rows(),
                                       .scores = scores.data(),
                                       .q_stride = stride,
                                       .score_stride = score_stride,
                                       .heads = heads,
                                       .rows = rows,
                                       .head_dim = head_dim});
  table.rows->stream_values[kBf16]({.p = scores.data(),
                                    .values = v.rows(),
                                    .next = next.rows(),
                                    .acc = acc.data(),
                                    .rescale = rescale.data(),
                                    .p_stride = score_stride,
                                    .acc_stride = stride,
                                    .heads = heads,
                                    .head_rows = rows,
                                    .rows = rows,
                                    .head_dim = head_dim});
  for (int r = 0; r < heads * rows; ++r) {
    std::vector<float> want(static_cast<std::size_t>(head_dim), 3.0f);
    for (int key = 0; key < count; ++key) {
      float score = 0;
      for (int d = 0; d < head_dim; ++d) score += q.number(r, d) * k.number(r / rows, key, d);
      ASSERT_EQ(scores[static_cast<std::size_t>(r * score_stride + key)], score);
      for (int d = 0; d < head_dim; ++d) want[static_cast<std::size_t>(d)] += score * v.number(r / rows, key, d);
    }
    for (int d = 0; d < head_dim; ++d) ASSERT_EQ(acc[static_cast<std::size_t>(r * stride + d)], want[static_cast<std::size_t>(d)]);
  }
}

TEST_P(CpuKernels, StreamedScoresAndValues) {
  for (const int head_dim : {8, 40, 64, 136}) {
    for (int rows = 1; rows <= 8; ++rows) {
      for (const int heads : {1, 3}) {
        const int stride = round_up(head_dim, 32);
        const Matrix q(heads * rows, head_dim, 6);
        std::vector<std::byte> left = load(q, stride);
        if (kernels().arrange_q[kBf16] != nullptr) kernels().arrange_q[kBf16](left.data(), heads * rows * stride);
        for (const int count : {1, 5, 8, 37, 40}) {
          for (const bool by_head : {false, true}) check_streamed(GetParam(), {head_dim, rows, count, heads, by_head}, left, q);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, CpuKernels, testing::ValuesIn(attention_tables()),
                         [](const testing::TestParamInfo<NamedAttention>& info) { return info.param.name; });

}  // namespace
}  // namespace fovea::cpu
