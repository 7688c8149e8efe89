// SPDX-License-Identifier: Apache-2.0
/// A case with memory: the description that planning sees, hostile tensors, and the arguments of the call.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "case.hpp"
#include "fovea/attention.hpp"
#include "fovea/merge.hpp"
#include "fovea/paged_attention.hpp"
#include "hostile_tensor.hpp"

namespace fovea::check {

template <class Desc, class Args>
struct Request {
  Desc desc{};
  Args args{};
};
using AnyRequest = std::variant<Request<AttentionDesc, AttentionArgs>, Request<PagedAttentionDesc, PagedAttentionArgs>,
                                Request<PagedCacheAppendDesc, PagedCacheAppendArgs>, Request<MergeStatesDesc, MergeStatesArgs>>;

/// The description alone: no memory is touched.
AnyRequest describe(const Case& spec);

struct PartTensors {
  HostileTensor out{}, lse{};
};

struct BoundCase final : Trial {
  Case spec{};
  HostileTensor q{}, k{}, v{}, out{}, lse{};       ///< paged: k and v are the caches; append: q and out are unused
  HostileTensor k_scale_cache{}, v_scale_cache{};  ///< where the formats of the caches have scales
  HostileTensor new_k{}, new_v{};                  ///< append
  HostileTensor cu_q{}, cu_k{}, kv_len{}, block_table{}, slots{}, sink{}, q_scale{}, k_scale{}, v_scale{};
  HostileTensor full_counts{}, full_indices{}, partial_counts{}, partial_indices{}, partial_bits{};  ///< lists of a block mask
  HostileTensor packed_mask{}, mask_indptr{};
  HostileTensor alibi_slopes{}, bias{}, dropout_state{};
  std::vector<PartTensors> parts{};  ///< merge
  std::vector<MergeStatesArgs::Part> part_args{};
  AnyRequest request{};

  /// Rows of q and out, numbered through. A fixed batch has batch * seq_q rows, none of them padding.
  std::int64_t flat_rows() const;
  std::int64_t flat_row(std::int64_t sequence, std::int64_t row) const;
  /// Offsets of a head's row in q or out, of one lse value, of a token's row in K or V (or their caches).
  std::int64_t row_offset(const HostileTensor& tensor, std::int64_t flat, std::int64_t head) const;
  std::int64_t lse_offset(std::int64_t flat, std::int64_t head) const;
  std::int64_t kv_offset(const HostileTensor& tensor, std::int64_t sequence, std::int64_t token, std::int64_t head) const;
  /// The same of the scales of a token, 0 where there are none.
  std::int64_t scales_at(const HostileTensor& scales, std::int64_t sequence, std::int64_t token, std::int64_t head) const;
  std::int64_t slot_offset(const HostileTensor& cache, std::int64_t slot, std::int64_t head) const;

  Result<AnyPlan> plan(const PlanOptions& options, const Place& place = {}) const override;
  std::vector<Named> inputs() const override;
  std::vector<Named> outputs() const override;
  Work work() const override { return work_of(spec); }

 protected:
  std::vector<Answer> expect() const override;  // expected.cpp

 private:
  friend std::unique_ptr<BoundCase> bind(const Case& spec);
};

/// Allocates, fills and seals everything.
std::unique_ptr<BoundCase> bind(const Case& spec);

/// The request's arguments are read at each run; it must outlive the plan.
Result<AnyPlan> plan(const AnyRequest& request, const PlanOptions& options, const Place& place = {});

}  // namespace fovea::check
