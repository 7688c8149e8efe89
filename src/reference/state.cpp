// SPDX-License-Identifier: Apache-2.0
#include "reference/state.hpp"

#include "reference/element.hpp"

namespace fovea::reference {

void round_rows(const Rounding& from, DType dtype, const detail::RowStrides& strides, void* to) {
  for (std::size_t flat = 0; flat < from.written.size(); ++flat) {
    if (from.written[flat] == 0) continue;
    const auto index = static_cast<std::int64_t>(flat);
    const std::int64_t at = index / from.rows_per_batch * strides.batch + index % from.rows_per_batch * strides.row;
    for (std::int64_t head = 0; head < from.heads; ++head) {
      for (std::int64_t d = 0; d < from.width; ++d) {
        const double value = from.values[static_cast<std::size_t>((index * from.heads + head) * from.width + d)];
        store(dtype, to, at + head * strides.head + d, value);
      }
    }
  }
}

}  // namespace fovea::reference
