// SPDX-License-Identifier: Apache-2.0
/// Rows of a latent cache for one tile, through a block table or a list of tokens. Packed rows are decoded to bf16.
#include <array>
#include <span>

#include "cpu/attention/item.hpp"

namespace fovea::cpu {
namespace {

/// The slots of one tile.
struct Slots {
  std::array<std::int64_t, kMostLatentKeys> slot;
  std::size_t count = 0;

  void add(std::int64_t value) { slot[count++] = value; }
  std::span<const std::int64_t> all() const { return {slot.data(), count}; }
};

PackedBytes packed_bytes(const LatentCache& cache, const void* base, std::int64_t slot) {
  const std::int64_t offset = slot % cache.page;
  const std::byte* block = static_cast<const std::byte*>(base) + slot / cache.page * cache.strides.block;
  return {block + cache.format->codes_at(offset), block + cache.format->scales_at(offset, cache.page),
          block + cache.format->rope_at(offset)};
}

[[gnu::always_inline]] inline void prefetch(const LatentCache& cache, const PackedBytes& bytes) {  // as prefetch_row()
  prefetch_row(bytes.codes, cache.format->code_bytes() + 2 * cache.format->rope);
  __builtin_prefetch(bytes.scales);
  __builtin_prefetch(static_cast<const std::byte*>(bytes.codes) + cache.format->bytes() - 1);
}

/// Decodes the rows of `slots` into `decoded`, and prefetches a few listed rows ahead. The hardware prefetches rows that lie side by side.
void decode_rows(const Item& item, const LatentCache& cache, const void* base, std::span<const std::int64_t> slots, std::uint16_t* decoded,
                 Row* rows) {
  constexpr std::size_t kAhead = 8;
  const auto format = static_cast<std::size_t>(cache.format - kPackedFormats.data());
  const auto decode = item.setup.latent->kernels->decode[format][static_cast<std::size_t>(DType::bf16)];
  for (std::size_t i = 0; i < slots.size(); ++i, decoded += item.setup.core.head_dim_qk) {
    if (item.setup.latent->sparse && i + kAhead < slots.size()) prefetch(cache, packed_bytes(cache, base, slots[i + kAhead]));
    decode(packed_bytes(cache, base, slots[i]), decoded);
    rows[i] = decoded;
  }
}

/// Finds the first byte of each token.
void find_rows(const LatentCache& cache, const void* base, std::span<const std::int64_t> slots, Row* rows) {
  for (const std::int64_t slot : slots) {
    const std::int64_t offset = slot % cache.page;
    *rows++ = static_cast<const std::byte*>(base) + slot / cache.page * cache.strides.block +
              (cache.format != nullptr ? cache.format->codes_at(offset) : offset * cache.strides.row);
  }
}

/// Adds the slots of entries [begin, end) of a row's list. An index outside the cache names no token.
void find_slots(const Item& item, const LatentCache& cache, const std::int32_t* indices, detail::KeyRange list, Slots& slots) {
  const std::int32_t* row = indices + item.sequence.batch * cache.batch_stride + item.sequence.first_q * cache.row_stride;
  for (std::int64_t at = list.begin; at < list.end; ++at) {
    if (const std::int64_t slot = row[at]; slot >= 0 && slot < cache.slots) slots.add(slot);
  }
}

/// Calls use(cache, base, slots) for the tokens of keys [begin, end), one cache after the other.
template <class Use>
void for_each_cache(const Item& item, detail::KeyRange keys, const Use& use) {
  const Latent& latent = *item.setup.latent;
  Slots slots;
  if (!latent.sparse) {
    const std::int32_t* table = item.call.block_table + item.sequence.index * item.setup.table_stride;
    for (std::int64_t key = keys.begin; key < keys.end; ++key)
      slots.add(table[key / latent.main.page] * latent.main.page + key % latent.main.page);
    return use(latent.main, item.call.k, slots.all());
  }
  const std::int64_t main_k = item.sequence.main_k;
  if (keys.begin < main_k) {
    find_slots(item, latent.main, item.call.main.indices, {keys.begin, std::min(keys.end, main_k)}, slots);
    use(latent.main, item.call.main.cache, slots.all());
  }
  if (keys.end > main_k) {
    slots.count = 0;
    find_slots(item, *latent.extra, item.call.extra.indices, {std::max(keys.begin, main_k) - main_k, keys.end - main_k}, slots);
    use(*latent.extra, item.call.extra.cache, slots.all());
  }
}

}  // namespace

int gather_latent(const Item& item, detail::KeyRange keys, int buffer, Row* k, Row* v) {
  const Latent& latent = *item.setup.latent;
  if (!latent.sparse && !latent.packed()) {  // the rows of a block together, without a division for each
    gather_rows(item, item.setup.k, item.call.k, keys, k);
    std::copy_n(k, keys.size(), v);
    return static_cast<int>(keys.size());
  }
  std::uint16_t* decoded = item.scratch.decoded[buffer];
  Row* end = k;
  for_each_cache(item, keys, [&](const LatentCache& cache, const void* base, std::span<const std::int64_t> slots) {
    if (cache.format != nullptr) {
      decode_rows(item, cache, base, slots, decoded + (end - k) * item.setup.core.head_dim_qk, end);
    } else {
      find_rows(cache, base, slots, end);
    }
    end += slots.size();
  });
  std::copy(k, end, v);
  return static_cast<int>(end - k);
}

int locate_latent(const Item& item, detail::KeyRange keys, Row* rows) {
  const Latent& latent = *item.setup.latent;
  if (!latent.sparse && !latent.packed()) {
    gather_rows(item, item.setup.k, item.call.k, keys, rows);
    return static_cast<int>(keys.size());
  }
  Row* end = rows;
  for_each_cache(item, keys, [&](const LatentCache& cache, const void* base, std::span<const std::int64_t> slots) {
    find_rows(cache, base, slots, end);
    end += slots.size();
  });
  return static_cast<int>(end - rows);
}

}  // namespace fovea::cpu
