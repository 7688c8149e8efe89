// SPDX-License-Identifier: Apache-2.0
/// The elements that a backward case expects of one gradient.
#pragma once

#include <cstdint>
#include <vector>

namespace fovea::check {

/// One of dq, dk, dv and dsink, and its known elements. Rows are numbered through.
struct KnownGradient {
  std::vector<double> exact{};
  std::vector<float> plain{};
  std::vector<char> known{};  ///< [row, head]
  std::int64_t heads = 0, dim = 0;

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  KnownGradient(std::int64_t rows, std::int64_t heads_, std::int64_t dim_)
      : exact(at(rows * heads_ * dim_)), plain(exact.size()), known(at(rows * heads_)), heads(heads_), dim(dim_) {}

  /// Takes the rows of `part`, [rows, count, dim], as those of heads `head`, `head` + 1 and so on.
  void take(std::int64_t first_row, std::int64_t head, std::int64_t count, const std::vector<double>& part,
            const std::vector<float>& plain_part) {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(part.size()) / dim; ++i) {
      const std::int64_t to = (first_row + i / count) * heads + head + i % count;
      known[at(to)] = 1;
      for (std::int64_t d = 0; d < dim; ++d) {  // the sink's gradient sums over sequences
        exact[at(to * dim + d)] += part[at(i * dim + d)];
        plain[at(to * dim + d)] += plain_part[at(i * dim + d)];
      }
    }
  }
};

}  // namespace fovea::check
