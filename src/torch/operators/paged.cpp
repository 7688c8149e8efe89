// SPDX-License-Identifier: Apache-2.0
/// Attention over a block-table cache, and writing into that cache.
#include "op/paged_attention/fields.hpp"
#include "op/paged_cache_append/fields.hpp"
#include "operation.hpp"

namespace fovea::binding {
namespace {

struct PagedAttention : OverFields<detail::kPagedAttentionFields, plan_paged_attention, Asks::options> {
  static PagedAttentionDesc describe(const Call& call) {
    PagedAttentionDesc desc = call.describe();
    desc.max_seq_q = query_bound(call.value<"cu_seqlens_q">(), desc.max_seq_q, desc.q.shape[0], desc.block_table.shape[0]);
    return desc;
  }

  /// One row a sequence, if the call has no cu_seqlens_q.
  static PagedAttentionArgs args(const PagedAttentionDesc& desc, void* const* addresses) {
    PagedAttentionArgs args = Call::args(desc, addresses);
    if (args.cu_seqlens_q == nullptr) args.cu_seqlens_q = one_row_each(desc.block_table.shape[0]);
    return args;
  }
};

using PagedCacheAppend = OverFields<detail::kPagedCacheAppendFields, plan_paged_cache_append, Asks::implementation>;

}  // namespace

std::vector<Operation> paged_operations() {
  return {operation<PagedAttention>("paged_attention(" + schema_of(detail::kPagedAttentionFields) + kOptions),
          operation<PagedCacheAppend>("paged_cache_append(" + schema_of(detail::kPagedCacheAppendFields) + kImplementation)};
}

}  // namespace fovea::binding
