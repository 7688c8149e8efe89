// SPDX-License-Identifier: Apache-2.0
/// The indexer of token-sparse attention: scores of tokens, and lists of the best.
#include "op/index_logits/fields.hpp"
#include "op/topk_rows/fields.hpp"
#include "operation.hpp"

namespace fovea::binding {
namespace {

using IndexLogits = OverFields<detail::kIndexLogitsFields, plan_index_logits, Asks::implementation>;
using TopkRows = OverFields<detail::kTopkRowsFields, plan_topk_rows, Asks::implementation>;

}  // namespace

std::vector<Operation> indexer_operations() {
  return {operation<IndexLogits>("index_logits(" + schema_of(detail::kIndexLogitsFields) + kImplementation),
          operation<TopkRows>("topk_rows(" + schema_of(detail::kTopkRowsFields) + kImplementation)};
}

}  // namespace fovea::binding
