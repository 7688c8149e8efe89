// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <numeric>

#include "cpu/attention_backward/head.hpp"
#include "cpu/parallel.hpp"
#include "op/common/dropout.hpp"

namespace fovea::cpu {
namespace {

/// One run of a call.
class Run {
 public:
  Run(const BackwardSetup& setup, const BackwardCall& call, std::byte* workspace)
      : setup_(setup), call_(call), extents_(setup), map_(map_backward_workspace(setup, workspace)) {}

  void operator()() {
    const detail::AttentionCore& core = setup_.forward.core;
    const std::int64_t pairs = order_sequences();
    if (map_.dbias != nullptr) {
      differentiate_planes(pairs);
    } else {
      for_items(0, pairs, core.heads, [&](const Head& head) { differentiate(head); });
    }
    if (setup_.shares_keys()) for_items(1, pairs, core.kv_heads, [&](const Head& head) { add_heads(head); });
    if (call_.dsink != nullptr) add_sinks();
  }

 private:
  /// Orders the sequences, longest first. Returns the number of (query, key) pairs of all heads.
  std::int64_t order_sequences() {
    const std::int64_t batch = setup_.forward.core.batch;
    const auto cost = [&](std::int64_t index) {
      const Sequence s = sequence_of(setup_.forward, call_.forward, index);
      return s.seq_q * s.seq_k;
    };
    std::iota(map_.order, map_.order + batch, 0);
    const auto longer = [&](std::int32_t a, std::int32_t b) { return cost(a) != cost(b) ? cost(a) > cost(b) : a < b; };
    if (setup_.forward.ragged) std::sort(map_.order, map_.order + batch, longer);
    std::int64_t total = 0;
    for (std::int64_t index = 0; index < batch; ++index) total += cost(index);
    return total * setup_.forward.core.heads;
  }

  /// Calls body(scratch, item) for items [0, items) of a phase, in the thread that takes the item.
  template <class Body>
  void share_out(int phase, std::int64_t pairs, std::int64_t items, const Body& body) {
    const int threads = worthwhile_threads(backward_work(setup_.forward.core, static_cast<double>(pairs)), items, setup_.forward.threads);
    map_.next[phase] = 0;
    parallel_for(threads, [&](int thread) {
      const BackwardScratch scratch = map_backward_scratch(setup_, map_.scratch + static_cast<std::size_t>(thread) * map_.scratch_bytes);
      const std::atomic_ref<std::int32_t> next(map_.next[phase]);
      for (std::int64_t i = next.fetch_add(1); i < items; i = next.fetch_add(1)) body(scratch, i);
    });
  }

  Head head_of(const BackwardScratch& scratch, std::int64_t sequence, std::int64_t index, std::int64_t heads) const {
    Head head{.setup = setup_, .call = call_, .extents = extents_, .scratch = scratch};
    head.sequence = sequence_of(setup_.forward, call_.forward, sequence);
    head.index = index;
    head.kv_index = index * setup_.forward.core.kv_heads / heads;
    return head;
  }

  /// Calls body(head) for each of `heads` heads of each sequence.
  template <class Body>
  void for_items(int phase, std::int64_t pairs, std::int64_t heads, const Body& body) {
    share_out(phase, pairs, setup_.forward.core.batch * heads,
              [&](const BackwardScratch& scratch, std::int64_t i) { body(head_of(scratch, map_.order[i / heads], i % heads, heads)); });
  }

  /// With a gradient of the bias an item is all heads that share a part of it, in their order: its sums do not depend on threads.
  void differentiate_planes(std::int64_t pairs) {
    const detail::AttentionCore& core = setup_.forward.core;
    const detail::BiasStrides& shape = setup_.dbias_extents;
    std::fill_n(map_.dbias, setup_.dbias_elements, 0.0f);
    share_out(0, pairs, shape.batch * shape.head, [&](const BackwardScratch& scratch, std::int64_t plane) {
      const std::int64_t b = plane / shape.head, h = plane % shape.head;
      for (std::int64_t sequence = shape.batch == 1 ? 0 : b; sequence < (shape.batch == 1 ? core.batch : b + 1); ++sequence) {
        for (std::int64_t index = shape.head == 1 ? 0 : h; index < (shape.head == 1 ? core.heads : h + 1); ++index) {
          Head head = head_of(scratch, sequence, index, core.heads);
          head.dbias = map_.dbias + plane * shape.row * shape.key;
          differentiate(head);
        }
      }
      store_plane(b, h, map_.dbias + plane * shape.row * shape.key);
    });
  }

  void store_plane(std::int64_t batch, std::int64_t head, const float* values) const {
    const detail::BiasStrides &to = setup_.dbias, &shape = setup_.dbias_extents;
    const auto dtype = static_cast<std::size_t>(setup_.forward.core.out_dtype);
    const auto size = static_cast<std::int64_t>(size_of(setup_.forward.core.out_dtype));
    const std::int64_t step = to.key == 1 ? shape.key : 1;  // elements that lie side by side
    for (std::int64_t i = 0; i < shape.row * shape.key; i += step) {
      const std::int64_t at = batch * to.batch + head * to.head + i / shape.key * to.row + i % shape.key * to.key;
      setup_.forward.rows->store_divided[dtype](static_cast<std::byte*>(call_.dbias) + at * size, values + i, 1.0f, 1.0f, step);
    }
  }

  /// Index of the head's first row in the gradients of one query head.
  std::int64_t first_shared_row(const Head& head, std::int64_t query_head) const {
    const std::int64_t before = setup_.forward.ragged ? head.sequence.first_k : head.sequence.batch * head.core().max_seq_k;
    return query_head * setup_.total_k + before;
  }

  void store(const Head& head, void* target, const float* source, float factor, std::int64_t dim) const {
    setup_.forward.rows->store_divided[head.dtype()](target, source, 1.0f, factor, dim);
  }

  void differentiate(const Head& head) const {
    const detail::AttentionCore& core = head.core();
    const float dsink = load_head(head);
    if (map_.dsink != nullptr) map_.dsink[head.sequence.index * core.heads + head.index] = dsink;
    if (head.kernels().enter != nullptr) head.kernels().enter();
    for (std::int64_t key = 0; key < head.sequence.seq_k; key += setup_.tuning.kv_tile) {
      const auto count = static_cast<int>(std::min<std::int64_t>(setup_.tuning.kv_tile, head.sequence.seq_k - key));
      differentiate_tile(head, key, count);
      store_keys(head, key, count);
    }
    if (head.kernels().leave != nullptr) head.kernels().leave();
    for (std::int64_t query = 0; query < head.sequence.seq_q; ++query) {
      head.prefetch_query(call_.dq, setup_.dq, query, core.head_dim_qk);
      void* row = const_cast<std::byte*>(head.query_row(call_.dq, setup_.dq, query));
      store(head, row, head.scratch.dq + query * extents_.qk_values, static_cast<float>(core.scale), core.head_dim_qk);
    }
  }

  void store_keys(const Head& head, std::int64_t key, int count) const {
    const detail::AttentionCore& core = head.core();
    const BackwardScratch& s = head.scratch;
    const std::int64_t shared = first_shared_row(head, head.index) + key;
    for (int i = 0; i < count; ++i) {
      const float *dk = s.dk + i * extents_.qk_values, *dv = s.dv + i * extents_.v_values;
      if (setup_.shares_keys()) {
        std::copy_n(dk, core.head_dim_qk, map_.dk + (shared + i) * core.head_dim_qk);
        std::copy_n(dv, core.head_dim_v, map_.dv + (shared + i) * core.head_dim_v);
      } else {
        head.prefetch_key(call_.dk, setup_.dk, key + i, core.head_dim_qk);
        head.prefetch_key(call_.dv, setup_.dv, key + i, core.head_dim_v);
        store(head, head.key_row(call_.dk, setup_.dk, key + i), dk, static_cast<float>(core.scale), core.head_dim_qk);
        store(head, head.key_row(call_.dv, setup_.dv, key + i), dv, detail::keep_factor(core.dropout_p), core.head_dim_v);
      }
    }
  }

  /// dk and dv of one kv head: the sum over its query heads, in the order of the heads.
  void add_heads(const Head& head) const {
    const detail::AttentionCore& core = head.core();
    const std::int64_t group = core.group();
    const auto sum_of = [&](const float* heads, std::int64_t key, std::int64_t dim, float* sum) {
      std::fill_n(sum, dim, 0.0f);
      for (std::int64_t g = 0; g < group; ++g) {
        setup_.forward.rows->add_scaled[0](sum, heads + (first_shared_row(head, head.kv_index * group + g) + key) * dim, 1.0f, dim);
      }
    };
    for (std::int64_t key = 0; key < head.sequence.seq_k; ++key) {
      sum_of(map_.dk, key, core.head_dim_qk, head.scratch.dk);
      store(head, head.key_row(call_.dk, setup_.dk, key), head.scratch.dk, static_cast<float>(core.scale), core.head_dim_qk);
      sum_of(map_.dv, key, core.head_dim_v, head.scratch.dv);
      store(head, head.key_row(call_.dv, setup_.dv, key), head.scratch.dv, detail::keep_factor(core.dropout_p), core.head_dim_v);
    }
  }

  void add_sinks() const {
    const std::int64_t heads = setup_.forward.core.heads;
    for (std::int64_t head = 0; head < heads; ++head) {
      double sum = 0;
      for (std::int64_t index = 0; index < setup_.forward.core.batch; ++index) sum += map_.dsink[index * heads + head];
      call_.dsink[head] = static_cast<float>(sum);
    }
  }

  const BackwardSetup& setup_;
  const BackwardCall& call_;
  const BackwardExtents extents_;
  const BackwardWorkspace map_;
};

}  // namespace

void attend_backward(const BackwardSetup& setup, const BackwardCall& call, std::byte* workspace) { Run(setup, call, workspace)(); }

}  // namespace fovea::cpu
