// SPDX-License-Identifier: Apache-2.0
#include "latent_cache.hpp"

#include <algorithm>

#include "reference/element.hpp"

namespace fovea::check {
namespace {

/// Bytes from block to block. Blocks lie apart; where `gap` is odd hardly anything is aligned.
std::int64_t block_bytes(std::int64_t bytes, std::int64_t gap) {
  if (gap == 0) return bytes;
  return promised_alignment(gap) == 0 ? bytes + 37 : (bytes + 15) / 16 * 16 + 48;
}

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

LatentCache::LatentCache(const LatentCacheShape& shape) : shape_(shape), filled_(index(shape.blocks * shape.page)) {
  desc_.format = shape.format;
  if (const PackedFormat* packed = packed_format(shape.format)) {
    desc_.blocks = shape.blocks;
    desc_.page = shape.page;
    desc_.block_stride = block_bytes(shape.page * packed->bytes(), shape.gap);
    desc_.alignment = promised_alignment(shape.gap);
    rows_ = HostileTensor(contiguous(DType::e4m3, {shape.blocks * desc_.block_stride}), desc_.alignment > 0 ? 16 : 1);
    return;
  }
  desc_.rows = contiguous(shape.dtype, {shape.blocks, shape.page, shape.kv_heads, shape.row});
  const std::int64_t gap = shape.gap * (size_of(shape.dtype) == 1 ? 2 : 1);  // 8 elements of 16 bits are 16 of 8
  const std::int64_t head = shape.row + gap, token = shape.kv_heads * head + 3 * gap;
  desc_.rows.strides = {shape.page * token + 2 * gap, token, head, 1};
  desc_.rows.alignment = promised_alignment(shape.gap);
  rows_ = HostileTensor(desc_.rows);
}

void LatentCache::fill(std::int64_t slot, Random& random) {
  if (filled_[index(slot)] != 0) return;
  filled_[index(slot)] = 1;
  if (const PackedFormat* packed = packed_format(shape_.format)) {
    std::vector<float> values(static_cast<std::size_t>(packed->row()));
    for (float& value : values) value = random.normal();
    if (shape_.vast) values[0] = shape_.vast.k(slot);
    reference::encode_row(*packed, ScaleRule::exact, values, block_of(slot), slot % shape_.page, shape_.page);
    return;
  }
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    for (std::int64_t d = 0; d < shape_.row; ++d) rows_.set(offset(slot, head) + d, random.normal());
    if (shape_.vast) rows_.set(offset(slot, head), shape_.vast.k(slot));
  }
}

void LatentCache::set(std::int64_t slot, std::int64_t channel, float value) {
  const PackedFormat* packed = packed_format(shape_.format);
  if (packed == nullptr) return rows_.set(offset(slot, 0) + channel, value);
  std::vector<float> values(index(packed->row()));
  read(slot, 0, values.data());
  values[index(channel)] = value;
  reference::encode_row(*packed, ScaleRule::exact, values, block_of(slot), slot % shape_.page, shape_.page);
}

void LatentCache::read(std::int64_t slot, std::int64_t head, float* values) const {
  if (const PackedFormat* packed = packed_format(shape_.format)) {
    std::vector<double> exact(static_cast<std::size_t>(packed->row()));
    reference::decode_row(*packed, block_of(slot), slot % shape_.page, shape_.page, exact.data());
    for (const double value : exact) *values++ = rounded(DType::bf16, static_cast<float>(value));
    return;
  }
  for (std::int64_t d = 0; d < shape_.row; ++d) values[d] = rows_.at(offset(slot, head) + d);
}

double LatentCache::bytes() const {
  const PackedFormat* packed = packed_format(shape_.format);
  const std::int64_t token =
      packed != nullptr ? packed->bytes() : shape_.kv_heads * shape_.row * static_cast<std::int64_t>(size_of(shape_.dtype));
  return static_cast<double>(token * std::count(filled_.begin(), filled_.end(), 1));
}

}  // namespace fovea::check
