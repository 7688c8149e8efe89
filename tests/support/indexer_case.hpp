// SPDX-License-Identifier: Apache-2.0
/// Cases of index_logits and topk_rows: plain data (tests/indexer_cases.hpp has the table).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fovea/indexer.hpp"
#include "trial.hpp"

namespace fovea::check {

/// Contents of logits.
enum class Logits : std::uint8_t {
  normal,
  ties,        ///< few values, zeros of both signs among them
  specials,    ///< NaN and infinities among numbers
  nan,         ///< nothing else
  ascending,   ///< every column is the best so far
  descending,  ///< the first columns are the best
  comb,        ///< four of 64 columns, at even distances, exceed all others
};

/// A range of columns. Past the ends of a row it counts as cut.
struct Columns {
  std::int32_t first = 0, last = 0;
};

/// Columns that a row does not have are NaN, and so are the gaps between rows.
struct TopkCase {
  std::string name{};
  Tier tier = Tier::quick;
  DType dtype = DType::f32;
  std::int64_t rows = 5, columns = 300, k = 64, gap = 8;
  Logits logits = Logits::normal;
  std::vector<Columns> ranges{};  ///< of rows in turn; all columns without
  bool only_last = false;         ///< no `first`
  bool offset = false, sorted = false;
  std::int64_t page = 0;  ///< with a table of blocks, some of them negative
};

/// Keys that no query sees are NaN, and so are their scales. Paged keys are a planar cache, and entries of the table that nobody reads are
/// garbage.
struct IndexCase {
  std::string name{};
  Tier tier = Tier::quick;
  DType out = DType::f32;
  std::int64_t rows = 5, heads = 64, head_dim = 128, tokens = 300, gap = 16;
  std::vector<Columns> ranges{};           ///< flat: of rows in turn; all tokens without
  std::vector<std::int32_t> kv_len{};      ///< paged: of each sequence
  std::int64_t page = 64;                  ///< paged
  std::int64_t columns = 0;                ///< paged; 0: as many as the longest sequence has
  std::int64_t blocks = 0;                 ///< paged, of a sequence; 0: as many as hold the columns
  bool keep_outside = false, nan = false;  ///< nan: codes of NaN in q and k
  std::size_t scale_misalignment = 0;      ///< bytes; other than 0: paged scales have memory of their own
};

std::unique_ptr<Trial> bind(const TopkCase& spec);
std::unique_ptr<Trial> bind(const IndexCase& spec);

}  // namespace fovea::check
