// SPDX-License-Identifier: Apache-2.0
/// Types of caches, as a kernel sees them: elements, e4m3 codes of one scale, and codes with scales of a token or a block.
#pragma once

namespace fovea::gpu::portable::paged_attention {

/// e5m2 codes. A head may have a scale, as with e4m3 elements.
struct E5m2Codes {};
/// Codes whose keys have a scale each, in f32. int4 scales hold a zero point in their lowest four bits.
struct Int8Codes {};
struct E4m3Codes {};
struct Int4Codes {};
/// e2m1 codes; every 16 have an e4m3 scale.
struct Nvfp4Codes {};
/// e2m1 and e4m3 codes; every 32 have a ue8m0 scale, a power of two.
struct Mxfp4Codes {};
struct Mxfp8Codes {};

/// K and V of any formats, the same or two, which become elements as they are loaded. A token has a scale, 1 where its format has none.
template <class Element>
struct Decoded {};

/// `Cache`: an element, or one of the types above.
template <class Cache>
struct CacheFormat {
  static constexpr int kBits = 8 * static_cast<int>(sizeof(Cache));
  static constexpr bool kTokenScales = false, kBlockScales = false, kBlockPowers = false, kZeroPoints = false;
};
template <>
struct CacheFormat<E5m2Codes> {
  static constexpr int kBits = 8;
  static constexpr bool kTokenScales = false, kBlockScales = false, kBlockPowers = false, kZeroPoints = false;
};
template <>
struct CacheFormat<Int8Codes> {
  static constexpr int kBits = 8;
  static constexpr bool kTokenScales = true, kBlockScales = false, kBlockPowers = false, kZeroPoints = false;
};
template <>
struct CacheFormat<E4m3Codes> : CacheFormat<Int8Codes> {};
template <>
struct CacheFormat<Int4Codes> {
  static constexpr int kBits = 4;
  static constexpr bool kTokenScales = true, kBlockScales = false, kBlockPowers = false, kZeroPoints = true;
};
template <>
struct CacheFormat<Nvfp4Codes> {
  static constexpr int kBits = 4;
  static constexpr bool kTokenScales = false, kBlockScales = true, kBlockPowers = false, kZeroPoints = false;
};
template <>
struct CacheFormat<Mxfp4Codes> {
  static constexpr int kBits = 4;
  static constexpr bool kTokenScales = false, kBlockScales = false, kBlockPowers = true, kZeroPoints = false;
};
template <>
struct CacheFormat<Mxfp8Codes> {
  static constexpr int kBits = 8;
  static constexpr bool kTokenScales = false, kBlockScales = false, kBlockPowers = true, kZeroPoints = false;
};
template <class Element>
struct CacheFormat<Decoded<Element>> {
  static constexpr int kBits = 16;
  static constexpr bool kTokenScales = true, kBlockScales = false, kBlockPowers = false, kZeroPoints = false;
};

/// The type of what lies in shared memory.
template <class Cache>
struct StoredElement {
  using Type = Cache;
  static constexpr bool kDecoded = false;
};
template <class Element>
struct StoredElement<Decoded<Element>> {
  using Type = Element;
  static constexpr bool kDecoded = true;
};

}  // namespace fovea::gpu::portable::paged_attention
