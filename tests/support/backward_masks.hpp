// SPDX-License-Identifier: Apache-2.0
/// The block mask and the packed mask of a backward case: lists and bits in hostile memory, made as those of the forward table.
#pragma once

#include <memory>

#include "bind_masks.hpp"

namespace fovea::check {

struct BackwardCase;

/// A case without either has none of them, and every row sees every key.
class BackwardMasks {
 public:
  explicit BackwardMasks(const BackwardCase& spec);

  bool sees(std::int64_t sequence, std::int64_t head, std::int64_t row, std::int64_t key) const;
  /// Fills in the fields of the lists and of the bits.
  void add_to(AttentionDesc& desc, AttentionArgs& args) const;
  /// The same for query heads [head, head + count) of one sequence, as a batch of one.
  void add_part(std::int64_t sequence, std::int64_t head, std::int64_t count, AttentionDesc& desc, AttentionArgs& args) const;
  std::vector<Named> inputs() const;

 private:
  void cut_bits(std::int64_t sequence, PackedMaskDesc& desc, AttentionArgs& args) const;

  std::unique_ptr<BoundCase> bound_ = std::make_unique<BoundCase>();  // its masks alone
  std::unique_ptr<Generator> values_{};
  AttentionDesc desc_{};
};

}  // namespace fovea::check
