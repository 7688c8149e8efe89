// SPDX-License-Identifier: Apache-2.0
/// Parts that dense and sparse latent attention share: queries, outputs, and the judging of rows.
#pragma once

#include <vector>

#include "latent_cache.hpp"
#include "plain.hpp"
#include "reference/reference.hpp"
#include "trial.hpp"

namespace fovea::check {

inline constexpr std::int64_t kLatent = 512;

struct LatentShape {
  DType dtype = DType::bf16;
  std::int64_t batch = 1, seq_q = 1;  ///< a fixed batch; else `rows` are counted through
  std::int64_t rows = 0;              ///< of a tensor without a batch dimension; 0: there is one
  std::int64_t heads = 16, kv_heads = 1, row = 576, gap = 8;
  Vast vast{};  ///< instead of ordinary queries
};

/// A query row, and those of its heads whose results are known.
struct LatentRow {
  std::int64_t flat = 0, sequence = 0, row = 0;
  std::int64_t head = 0, heads = 0;
};

class LatentTrial : public Trial {
 public:
  std::vector<Named> outputs() const override;

 protected:
  LatentTrial(const LatentShape& shape, bool max_logits, Random& random);

  /// Every row of every sequence, with the heads to be judged. A benchmark judges two heads of a dozen rows, other cases all heads.
  std::vector<LatentRow> judged_rows(Tier tier, const std::vector<std::int64_t>& lengths) const;
  std::vector<Answer> answer(const std::vector<LatentRow>& rows) const;

  /// out [1, heads, 512], lse and max_logits [1, heads] of these heads, from the reference.
  virtual reference::AttentionOutput exact(const LatentRow& at) const = 0;
  /// K rows that a row sees, one after another.
  virtual std::vector<float> keys(const LatentRow& at, std::int64_t kv_head) const = 0;
  struct Scales {
    float score, value, sink;
  };
  virtual Scales scales(std::int64_t head) const = 0;

  const void* q_at(const LatentRow& at) const;
  /// q of these heads, and an out to match.
  TensorDesc q_row(const LatentRow& at) const;
  TensorDesc out_row(const LatentRow& at) const;
  double io_bytes() const;  ///< of q and out

  LatentShape shape_;
  HostileTensor q_{}, out_{}, lse_{}, max_logits_{};

 private:
  TensorDesc row_shape(std::int64_t last) const;
  std::int64_t offset(const HostileTensor& tensor, const LatentRow& at, std::int64_t head) const;
  std::int64_t number_offset(const LatentRow& at, std::int64_t head) const;
  PlainOutput plain(const LatentRow& at) const;
};

}  // namespace fovea::check
