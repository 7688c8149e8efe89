// SPDX-License-Identifier: Apache-2.0
/// The one formula: a query row against the keys it sees.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "fovea/mask.hpp"
#include "fovea/packed_mask.hpp"
#include "fovea/tensor.hpp"

namespace fovea::reference {

/// Rows in double precision.
struct Matrix {
  std::int64_t columns = 0;
  std::vector<double> values{};

  Matrix(std::int64_t rows, std::int64_t cols) : columns(cols), values(static_cast<std::size_t>(rows * cols)) {}
  double* row(std::int64_t index) { return &values[static_cast<std::size_t>(index * columns)]; }
  const double* row(std::int64_t index) const { return &values[static_cast<std::size_t>(index * columns)]; }
};

/// Row-major copy of the rows that start at the element offsets `at`. A row with a negative offset is not needed and stays zero.
Matrix gather(DType dtype, const void* data, std::span<const std::int64_t> at, std::int64_t columns);

double dot(const double* a, const double* b, std::int64_t size);

struct RowOptions {
  double scale = 1, softcap = 0, v_scale = 1;
  std::optional<double> sink{};
  std::function<double(std::int64_t key)> added{}, kept{};  ///< to a capped score, and the share of a weight that dropout leaves
};

/// The capped score of one query and one key.
double score(const double* q, const double* k, std::int64_t size, const RowOptions& options);

struct RowResult {
  double lse, largest;  ///< both -inf when no key is visible
};

/// out[0 .. v.columns) = softmax over the `visible` keys, which may occur more than once.
RowResult attend(const double* q, const Matrix& k, const Matrix& v, std::span<const std::int64_t> visible, const RowOptions& options,
                 double* out);

/// The keys that a row sees, straight from the definition of the mask.
std::vector<std::int64_t> visible_keys(const BandMask& mask, std::int64_t row, std::int64_t seq_q, std::int64_t seq_k);

/// For each key, whether some row sees it.
std::vector<char> keys_seen(const BandMask& mask, std::int64_t seq_q, std::int64_t seq_k);

/// The packed mask of one sequence, whose bits begin at byte `begin`.
struct MaskedSequence {
  PackedMaskDesc mask{};
  const std::uint8_t* bytes = nullptr;
  std::int64_t begin = 0;
};

/// The mask of sequence b, whose rows begin at `first_row` of q, counted through the batch. Nothing in a call without a packed mask.
std::optional<MaskedSequence> masked_sequence(const auto& core, const auto& args, std::int64_t b, std::int64_t first_row) {
  if (!core.packed_mask) return std::nullopt;
  MaskedSequence sequence{.mask = *core.packed_mask, .bytes = args.packed_mask};
  if (sequence.mask.row_bytes > 0) {
    sequence.begin = first_row * sequence.mask.row_bytes;
  } else if (args.mask_indptr != nullptr) {
    sequence.begin = args.mask_indptr[b];
  }
  return sequence;
}

/// Takes the keys away whose bit for the row is 0. Keys without a bit stay.
void hide_masked(std::vector<std::int64_t>& keys, const MaskedSequence& sequence, std::int64_t row, std::int64_t seq_k);

}  // namespace fovea::reference
