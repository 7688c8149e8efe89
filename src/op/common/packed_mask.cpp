// SPDX-License-Identifier: Apache-2.0
#include "op/common/packed_mask.hpp"

#include <string>

#include "op/common/division.hpp"

namespace fovea::detail {

void check_packed_mask(Checker& check, const PackedMaskDesc& mask, const AttentionCore& core) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 48, kMostKeys = (std::int64_t{1} << 31) - 1;
  check.expect(mask.bytes >= 0 && mask.bytes <= kMostBytes, "packed_mask.bytes", mask.bytes, "0 to 2^48");
  check.expect(mask.tail >= 0 && mask.tail <= kMostKeys, "packed_mask.tail (keys that have bits)", mask.tail, "0 (every key) to 2^31 - 1");
  check.expect(mask.row_bytes >= 0 && mask.row_bytes <= kMostKeys, "packed_mask.row_bytes", mask.row_bytes,
               "0 (rows without gaps) to 2^31 - 1");
  if (!check.ok() || mask.row_bytes == 0) return;
  const std::int64_t keys = mask.tail == 0 ? core.max_seq_k : mask.tail;
  if (ceil_div(keys, std::int64_t{8}) > mask.row_bytes) {
    check.fail(invalid("packed_mask.row_bytes", mask.row_bytes,
                       std::to_string(ceil_div(keys, std::int64_t{8})) + " or more (bits of " + std::to_string(keys) + " keys)"));
  }
  if (core.total_q > mask.bytes / mask.row_bytes) {
    check.fail(
        invalid("packed_mask.bytes", mask.bytes, std::to_string(core.total_q) + " rows of " + std::to_string(mask.row_bytes) + " bytes"));
  }
}

void check_sequence_mask(Checker& check, const PackedMaskDesc& mask, const std::int32_t* indptr, std::int64_t b, std::int64_t seq_q,
                         std::int64_t seq_k) {
  if (!check.ok() || mask.row_bytes != 0) return;
  const auto subject = [](std::int64_t at) { return "mask_indptr[" + std::to_string(at) + "]"; };
  const std::int64_t begin = indptr == nullptr ? 0 : indptr[b], end = indptr == nullptr ? mask.bytes : indptr[b + 1];
  const std::int64_t keys = mask.tail == 0 ? seq_k : mask.tail, needed = ceil_div(seq_q * keys, std::int64_t{8});
  if (begin < 0) return check.fail(invalid(subject(b), begin, "0 or more"));
  if (end < begin) return check.fail(invalid(subject(b + 1), end, std::to_string(begin) + " or more (the entry before it)"));
  if (end > mask.bytes) {
    return check.fail(invalid(subject(b + 1), end, "at most " + std::to_string(mask.bytes) + " (bytes of packed_mask)"));
  }
  if (end - begin < needed) {
    const std::string rows = std::to_string(seq_q) + " rows of " + std::to_string(keys) + " bits";
    const std::string bytes = indptr == nullptr ? std::string("packed_mask.bytes") : subject(b + 1) + " (bytes of the sequence)";
    check.fail(invalid(bytes, end - begin, std::to_string(needed) + " or more (" + rows + ")"));
  }
}

}  // namespace fovea::detail
