// SPDX-License-Identifier: Apache-2.0
/// Random descriptions from bytes: mostly sensible, each field now and then spoilt.
#pragma once

#include <concepts>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>

#include "fovea/fovea.hpp"
#include "op/common/fields.hpp"

namespace fovea::fuzz {

/// The fuzzer's bytes as numbers; zeros when they run out.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  std::uint8_t byte() { return at_ < size_ ? data_[at_++] : std::uint8_t{0}; }
  bool flag() { return (byte() & 1) != 0; }
  bool rarely() { return byte() < 24; }

  std::int64_t number() {
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    constexpr std::int64_t kEdges[] = {0,
                                       1,
                                       -1,
                                       2,
                                       7,
                                       8,
                                       12,
                                       64,
                                       128,
                                       256,
                                       264,
                                       4096,
                                       1LL << 31,
                                       (1LL << 31) - 1,
                                       1LL << 32,
                                       1LL << 47,
                                       1LL << 48,
                                       1LL << 56,
                                       1LL << 62,
                                       kMax,
                                       kMax - 1,
                                       -kMax,
                                       std::numeric_limits<std::int64_t>::min()};
    const std::uint8_t kind = byte();
    if (kind < 96) return kEdges[kind % std::size(kEdges)];
    if (kind < 224) return byte();
    std::int64_t value = 0;
    for (int i = 0; i < 8; ++i) value = static_cast<std::int64_t>((static_cast<std::uint64_t>(value) << 8) | byte());
    return value;
  }
  std::int64_t small(std::int64_t most) { return byte() % (most + 1); }

  float real() {
    constexpr float kEdges[] = {0.0f,
                                1.0f,
                                -1.0f,
                                0.125f,
                                30.0f,
                                1e-40f,
                                3e38f,
                                -3e38f,
                                std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN()};
    return kEdges[byte() % std::size(kEdges)];
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_, at_ = 0;
};

/// Most descriptions stay sensible in most fields, so that the later checks and the planners are reached too.
inline void spoil(Bytes& bytes, TensorDesc& desc) {
  if (bytes.flag()) desc.alignment = 16;
  while (bytes.rarely()) {
    switch (bytes.small(5)) {
      case 0: desc.dtype = static_cast<DType>(bytes.small(9)); break;
      case 1: desc.rank = static_cast<int>(bytes.number()); break;
      case 2: desc.shape[static_cast<std::size_t>(bytes.small(3))] = bytes.number(); break;
      case 3: desc.strides[static_cast<std::size_t>(bytes.small(3))] = bytes.number(); break;
      case 4: desc.alignment = static_cast<std::int32_t>(bytes.number()); break;
      default: {
        std::int64_t& stride = desc.strides[static_cast<std::size_t>(bytes.small(3))];
        stride = static_cast<std::int64_t>(2 * static_cast<std::uint64_t>(stride));  // wraps
        break;
      }
    }
  }
}

inline void spoil(Bytes& bytes, std::int64_t& value) {
  if (bytes.rarely()) value = bytes.number();
}

struct Sizes {
  DType dtype, kv_dtype, out_dtype;
  std::int64_t batch, q, k, head, kv_head, dqk, dv, page;

  explicit Sizes(Bytes& bytes) {
    constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::e4m3};
    dtype = kv_dtype = out_dtype = kTypes[bytes.small(3)];
    batch = bytes.small(5), q = bytes.small(70), k = bytes.small(200);
    kv_head = 1 + bytes.small(3), head = kv_head * (1 + bytes.small(8));
    dqk = 8 * (1 + bytes.small(31)), dv = bytes.flag() ? dqk : 8 * (1 + bytes.small(31));
    page = 1 + bytes.small(63);
    if (dtype == DType::e4m3) out_dtype = DType::bf16;
    for (std::int64_t* size : {&batch, &q, &k, &head, &kv_head, &dqk, &dv, &page}) spoil(bytes, *size);
  }
};

inline BandMask mask(Bytes& bytes) {
  BandMask band{};
  if (bytes.flag()) band.left = bytes.number();
  if (bytes.flag()) band.right = bytes.number();
  if (bytes.rarely()) band.anchor = Anchor::top_left;
  if (bytes.rarely()) band.anchor = static_cast<Anchor>(7);
  return band;
}

inline std::optional<ScaleDesc> scale(Bytes& bytes, DType dtype) {
  if (dtype != DType::e4m3 && !bytes.rarely()) return std::nullopt;
  ScaleDesc desc{.batch_stride = bytes.small(8), .head_stride = bytes.small(2)};
  spoil(bytes, desc.batch_stride);
  spoil(bytes, desc.head_stride);
  return desc;
}

inline void randomise(Bytes& bytes, TensorDesc& desc, DType) { spoil(bytes, desc); }
inline void randomise(Bytes&, LatentCacheDesc&, DType) {}  // random as it is made
inline void randomise(Bytes& bytes, std::int64_t& bound, DType) { spoil(bytes, bound); }
inline void randomise(Bytes& bytes, std::optional<ScaleDesc>& desc, DType scaled) { desc = scale(bytes, scaled); }
inline void randomise(Bytes& bytes, std::optional<PackedMaskDesc>& desc, DType) {
  if (bytes.small(3) != 0) return;
  desc = PackedMaskDesc{.bytes = bytes.number(), .tail = bytes.small(100), .row_bytes = bytes.flag() ? 0 : bytes.small(30)};
  spoil(bytes, desc->tail);
  spoil(bytes, desc->row_bytes);
}
inline void randomise(Bytes& bytes, BandMask& band, DType) { band = mask(bytes); }
inline void randomise(Bytes& bytes, KvFormat& format, DType) {
  if (bytes.rarely()) format = static_cast<KvFormat>(bytes.small(9));
}
inline void randomise(Bytes& bytes, bool& flag, DType) { flag = bytes.flag(); }
template <std::floating_point Number>
void randomise(Bytes& bytes, Number& number, DType) {
  number = bytes.rarely() ? bytes.real() : 0;
}
inline void randomise(Bytes& bytes, std::optional<TensorDesc>& desc, DType) {
  if (!desc) return;
  if (bytes.flag()) return desc.reset();
  spoil(bytes, *desc);
}
inline void randomise(Bytes& bytes, std::optional<RaggedDesc>& desc, DType) {
  if (!desc) return;
  for (std::int64_t* bound : {&desc->batch, &desc->max_seq_q, &desc->max_seq_k}) spoil(bytes, *bound);
}

/// Options at random, and tensors now and then spoilt: those that are there, some of those that may be absent taken away. `scaled` is the
/// dtype of what scales multiply.
template <const auto& table>
void randomise(Bytes& bytes, typename detail::TypesOf<table>::Desc& desc, DType scaled) {
  detail::for_each_field(table, [&](const auto& field) {
    using Row = std::remove_cvref_t<decltype(field)>;
    if constexpr (!std::is_void_v<typename Row::InDesc>) randomise(bytes, desc.*Row::kDesc, scaled);
  });
}

}  // namespace fovea::fuzz
