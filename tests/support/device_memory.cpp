// SPDX-License-Identifier: Apache-2.0
#include "device_memory.hpp"

#include <algorithm>
#include <stdexcept>
#include <tuple>

#include "device_runtime.hpp"
#include "op/attention/fields.hpp"
#include "op/attention_backward/fields.hpp"
#include "op/index_logits/fields.hpp"
#include "op/latent_attention/fields.hpp"
#include "op/paged_attention/fields.hpp"
#include "op/paged_cache_append/fields.hpp"
#include "op/quantized_attention/fields.hpp"
#include "op/topk_rows/fields.hpp"

namespace fovea::check {
namespace {

auto pointers(SparseLatentAttentionArgs::Selection& a) { return std::tie(a.cache, a.indices, a.topk_length); }
auto pointers(SparseLatentAttentionArgs& a) {
  return std::tuple_cat(std::tie(a.q, a.out, a.lse, a.max_logits, a.sink), pointers(a.main), pointers(a.extra));
}
auto pointers(QuantizeLatentCacheArgs& a) { return std::tie(a.rows, a.cache, a.slot_mapping); }
auto pointers(DequantizeLatentCacheArgs& a) { return std::tie(a.rows, a.cache, a.slot_mapping); }

template <class T>
void move(T*& pointer, const DeviceMemory& memory) {
  pointer = static_cast<T*>(memory.translate(pointer));
}

template <class Args>
void move_all(Args& args, std::vector<MergeStatesArgs::Part>&, const DeviceMemory& memory) {
  const auto all = pointers(args);
  static_assert(std::tuple_size_v<std::remove_const_t<decltype(all)>> * sizeof(void*) == sizeof(Args), "an argument is missing above");
  std::apply([&](auto&... pointer) { (move(pointer, memory), ...); }, all);
}

template <const auto& table>
void move_fields(typename detail::TypesOf<table>::Args& args, const DeviceMemory& memory) {
  detail::for_each_pointer(table, args, [&](auto*& pointer) { move(pointer, memory); });
}

using Parts = std::vector<MergeStatesArgs::Part>;
void move_all(AttentionArgs& args, Parts&, const DeviceMemory& memory) { move_fields<detail::kAttentionFields>(args, memory); }
void move_all(AttentionBackwardArgs& args, Parts& parts, const DeviceMemory& memory) {
  move_all(args.forward, parts, memory);
  move_fields<detail::kAttentionBackwardFields>(args, memory);
}
void move_all(PagedAttentionArgs& args, Parts&, const DeviceMemory& memory) { move_fields<detail::kPagedAttentionFields>(args, memory); }
void move_all(LatentAttentionArgs& args, Parts&, const DeviceMemory& memory) { move_fields<detail::kLatentAttentionFields>(args, memory); }
void move_all(PagedCacheAppendArgs& args, Parts&, const DeviceMemory& memory) {
  move_fields<detail::kPagedCacheAppendFields>(args, memory);
}

void move_all(IndexLogitsArgs& args, Parts&, const DeviceMemory& memory) { move_fields<detail::kIndexLogitsFields>(args, memory); }
void move_all(TopkRowsArgs& args, Parts&, const DeviceMemory& memory) { move_fields<detail::kTopkRowsFields>(args, memory); }
void move_all(QuantizeQkInt8Args& args, Parts&, const DeviceMemory& memory) { move_fields<detail::kQuantizeQkInt8Fields>(args, memory); }
void move_all(QuantizeVArgs& args, Parts&, const DeviceMemory& memory) { move_fields<detail::kQuantizeVFields>(args, memory); }
void move_all(QuantizedAttentionArgs& args, Parts&, const DeviceMemory& memory) {
  move_fields<detail::kQuantizedAttentionFields>(args, memory);
}
void move_all(QuantizeAndAttendArgs& args, Parts&, const DeviceMemory& memory) {
  move_fields<detail::kQuantizeAndAttendFields>(args, memory);
}

void move_all(MergeStatesArgs& args, std::vector<MergeStatesArgs::Part>& parts, const DeviceMemory& memory) {
  parts.assign(args.parts.begin(), args.parts.end());
  for (MergeStatesArgs::Part& part : parts) {
    move(part.out, memory);
    move(part.lse, memory);
  }
  args.parts = parts;
  move(args.out, memory);
  move(args.lse, memory);
}

/// Each storage once, in the order of the tensors.
std::vector<std::shared_ptr<Storage>> storages_of(const std::vector<Named>& tensors) {
  std::vector<std::shared_ptr<Storage>> storages;
  for (const Named& named : tensors) {
    const auto& storage = named.tensor.shared_storage();
    if (std::find(storages.begin(), storages.end(), storage) == storages.end()) storages.push_back(storage);
  }
  return storages;
}

}  // namespace

DeviceMemory::DeviceMemory(const std::vector<Named>& tensors, Device device) : device_(device) {
  for (const auto& storage : storages_of(tensors)) copies_.push_back({storage, device_allocate(device, storage->allocation().size())});
}

DeviceMemory::~DeviceMemory() {
  for (const Copy& copy : copies_) device_free(device_, copy.base);
}

void DeviceMemory::upload(const std::vector<Named>& from) const {
  const auto storages = storages_of(from);
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    storages.at(i)->guard(false);
    copy_to_device(device_, copies_[i].base, storages[i]->allocation().first(copies_[i].host->allocation().size()));
    storages[i]->guard(true);
  }
}

void DeviceMemory::download(const std::vector<Named>& to) const {
  const auto storages = storages_of(to);
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    storages.at(i)->guard(false);
    copy_from_device(device_, storages[i]->allocation().first(copies_[i].host->allocation().size()), copies_[i].base);
    storages[i]->guard(true);
  }
}

void* DeviceMemory::translate(const void* host) const {
  if (host == nullptr) return nullptr;
  const auto* address = static_cast<const std::byte*>(host);
  for (const Copy& copy : copies_) {
    const auto all = copy.host->allocation();
    if (address >= all.data() && address < all.data() + all.size()) return static_cast<std::byte*>(copy.base) + (address - all.data());
  }
  throw std::logic_error("an argument lies in none of the tensors of the case");
}

template <class Args>
DeviceArgs<Args>::DeviceArgs(const Args& host, const DeviceMemory& memory) : args(host) {
  move_all(args, parts, memory);
}

template struct DeviceArgs<AttentionArgs>;
template struct DeviceArgs<AttentionBackwardArgs>;
template struct DeviceArgs<PagedAttentionArgs>;
template struct DeviceArgs<PagedCacheAppendArgs>;
template struct DeviceArgs<MergeStatesArgs>;
template struct DeviceArgs<LatentAttentionArgs>;
template struct DeviceArgs<SparseLatentAttentionArgs>;
template struct DeviceArgs<QuantizeLatentCacheArgs>;
template struct DeviceArgs<DequantizeLatentCacheArgs>;
template struct DeviceArgs<IndexLogitsArgs>;
template struct DeviceArgs<TopkRowsArgs>;
template struct DeviceArgs<QuantizeQkInt8Args>;
template struct DeviceArgs<QuantizeVArgs>;
template struct DeviceArgs<QuantizedAttentionArgs>;
template struct DeviceArgs<QuantizeAndAttendArgs>;

}  // namespace fovea::check
