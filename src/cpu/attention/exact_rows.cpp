// SPDX-License-Identifier: Apache-2.0
/// Rows that are the same bits whatever is beside them (PlanOptions::exact_rows).
#include <cmath>

#include "cpu/attention/item.hpp"

namespace fovea::cpu {

void add_part(const Item& item, RowSums& total, RowSums& part) {
  if (part.sum == 0) return;
  const std::int64_t dv = item.setup.core.head_dim_v;
  if (total.sum == 0) {
    std::copy_n(part.acc, dv, total.acc);
    total.maximum = part.maximum;
    total.sum = part.sum;
    return;
  }
  const auto add = item.setup.rows->add_scaled[0];
  const float weight = std::exp2(-std::abs(part.maximum - total.maximum) * item.factors->factor);
  if (part.maximum > total.maximum) {
    add(part.acc, total.acc, weight, dv);
    std::copy_n(part.acc, dv, total.acc);
    total.maximum = part.maximum;
    total.sum = part.sum + total.sum * weight;
  } else {
    add(total.acc, part.acc, weight, dv);
    total.sum += part.sum * weight;
  }
}

void add_parts(const Item& item) {
  const Scratch& s = item.scratch;
  for (int row = 0; row < item.rows; ++row) {
    const std::int64_t at = row * item.extents.acc_stride;
    RowSums total{s.total_acc + at, s.total_maximum[row], s.total_sum[row]};
    RowSums part{s.acc + at, s.maximum[row], s.sum[row]};
    add_part(item, total, part);
    s.total_maximum[row] = total.maximum;
    s.total_sum[row] = total.sum;
  }
  clear_sums(item);
}

void take_totals(const Item& item) {
  const Scratch& s = item.scratch;
  add_parts(item);
  std::copy_n(s.total_acc, item.rows * item.extents.acc_stride, s.acc);
  std::copy_n(s.total_maximum, item.rows, s.maximum);
  std::copy_n(s.total_sum, item.rows, s.sum);
}

}  // namespace fovea::cpu
