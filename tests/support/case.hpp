// SPDX-License-Identifier: Apache-2.0
/// One case of the table in tests/cases.hpp: plain data. Tensors, expectations and names follow from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/kv_format.hpp"
#include "fovea/mask.hpp"
#include "fovea/tensor.hpp"
#include "trial.hpp"
#include "vast.hpp"

namespace fovea::check {

enum class Operation : std::uint8_t { attention, paged_attention, paged_cache_append, merge_states };

struct Sequence {
  std::int64_t q = 0;
  std::int64_t kv = 0;
};

/// Inputs that make a mistake visible. Uniform noise would hide it.
enum class Values : std::uint8_t {
  normal,         ///< near-normal, variance 1
  sharp,          ///< queries x 20: a nearly one-hot softmax
  huge_scores,    ///< |s| up to several hundreds, both signs: exp overflows without a running maximum, a naive tanh gives NaN
  descending,     ///< the first keys' scores lie hundreds above the last ones'
  ascending,      ///< reversed: every tile rescales
  very_negative,  ///< all scores near -10000, far below any finite stand-in for -inf that is too small
  large_offset,   ///< all scores near +5000, differing by units
  ties,           ///< all keys equal
  dominant_key,   ///< one key takes nearly all the weight
  positive,       ///< all of V near 1, so that sums grow with the keys
  nan_value,      ///< a NaN in a V row that some queries see
  nan_key,        ///< a NaN in a K row that some queries see
  loud_nan,       ///< scores near a million, whose rounding depends on the order of sums; V of 1 and -1 with a NaN as of nan_value
  spread,         ///< blocks of 32 channels of a token differ by powers of two; V is tiny; some blocks and whole tokens of V are zeros
  nan_tail,       ///< as loud, and NaN in the last third of K and V, which no row of these cases sees
};

enum class Sink : std::uint8_t { none, finite, minus_inf, plus_inf, mixed };

enum class Layout : std::uint8_t {
  contiguous,
  padded,       ///< gaps after rows, heads, tokens and blocks; rows stay 16-byte aligned
  odd_rows,     ///< gaps that leave rows aligned to the element only
  unaligned,    ///< pointers aligned to the element only
  head_major,   ///< [batch, head, seq, dim] in memory; lse [head, total_q]
  broadcast,    ///< K and V with stride 0 over batch and heads
  interleaved,  ///< caches: K and V of a token side by side in one allocation
  far,          ///< offsets beyond 2^31 elements
};

/// Scale tensors of e4m3 values. negative: one value each, that of q below 0.
enum class Scales : std::uint8_t { none, one_value, negative, per_head };

/// A packed mask: none, rows without gaps behind `mask_indptr`, or whole bytes for each row of q.
enum class MaskBits : std::uint8_t { none, flat, rows };
/// The extents of a bias, of which the others are 1, or its strides.
enum class BiasShape : std::uint8_t { none, full, heads, rows, keys, transposed };

/// merge_states: the (part, row, head) triples that carry the mark of an empty part, with NaN in out.
enum class Empties : std::uint8_t { none, some, all };

/// A block mask: which kind each block is, and which bits a partial one has, follow from hashes (values.hpp).
struct Blocks {
  std::int64_t q = 0, k = 0;                ///< rows and keys of a block; 0: no mask
  bool full = true, partial = true;         ///< kinds of blocks, so of lists
  bool own_batch = false, own_head = true;  ///< lists for each, or one for all
};

struct Case {
  std::string name{};
  Operation operation{};
  Tier tier = Tier::full;

  DType dtype = DType::bf16;     ///< q; append: k and v; merge: parts and out
  DType kv_dtype = DType::bf16;  ///< k and v, or the caches
  DType out_dtype = DType::bf16;
  std::int64_t head = 4, kv_head = 2, dqk = 64, dv = 64;
  std::vector<Sequence> sequences{};  ///< append and merge use the first one's q as the number of rows
  bool ragged = false;                ///< attention only; paged attention always is
  std::int64_t padding_rows = 0;      ///< rows of q and out past the last sequence, which are never written
  std::int64_t page = 16;
  bool shared_prefix = false;  ///< paged: all sequences start with the same blocks
  bool loose_bounds = false;   ///< paged: lengths are bounded by the tensors alone

  BandMask mask{};
  Blocks blocks{};  ///< attention only
  float scale = 0.0f, softcap = 0.0f;
  Sink sink = Sink::none;
  bool lse = true;
  Values values = Values::normal;
  Vast vast{};  ///< q and the first channel of K, or the lse of parts, instead of `values`
  Layout layout = Layout::contiguous;
  Scales scales = Scales::none;
  bool nan_scale = false;  ///< of K, beside Scales::per_head: that of kv head 0
  MaskBits mask_bits = MaskBits::none;
  std::int64_t mask_tail = 0;  ///< the last keys that have bits; 0: all
  bool alibi = false;          ///< slopes by head, in a ragged batch by sequence and head
  bool wild_slopes = false;    ///< 0, negative and steep ones among them
  BiasShape bias = BiasShape::none;
  double dropout = 0;
  KvFormat k_format = KvFormat::rows, v_format = KvFormat::rows;  ///< of paged caches; plain rows have kv_dtype
  DType scale_dtype = DType::f32;                                 ///< of formats with one scale a row
  bool inline_scales = false;                                     ///< behind the codes of their row, in one allocation

  int parts = 2;                    ///< merge
  Empties empties = Empties::none;  ///< merge
  bool in_place = false;            ///< merge
};

std::string_view name_of(Operation operation);

/// The dtype of a format's scales: those of a row have the dtype of the case, if the format takes it.
DType scale_dtype_of(const Case& spec, const KvRowFormat& format);

/// Whether k_scale or v_scale multiplies a cache in this format.
bool has_tensor_scale(const Case& spec, KvFormat format);

/// Rows of q: those of the sequences and the padding.
std::int64_t total_q(const Case& spec);
std::int64_t max_q(const Case& spec);
std::int64_t max_kv(const Case& spec);
/// Bytes of a row of a packed mask in that layout.
std::int64_t mask_row_bytes(const Case& spec);

/// The keys [begin, end) that row `row` of a sequence sees: the mask once more, stated as plainly as possible.
struct Keys {
  std::int64_t begin = 0, end = 0;
};
Keys visible_keys(const BandMask& mask, Sequence sequence, std::int64_t row);

/// Whether the packed mask of a case shows a key of sequence b to a row: at random, to some rows all or none, and some keys to no row.
bool bits_show(const Case& spec, std::int64_t b, std::int64_t row, std::int64_t key);
/// Whether no row's bit shows the key. Its K and V stay poisoned.
bool bits_hide(const Case& spec, std::int64_t b, std::int64_t key);

/// Number of (query, key) pairs to compute, for each head.
double visible_pairs(const BandMask& mask, const std::vector<Sequence>& sequences);

/// The band of a lone query row. Its own position becomes the last one (bottom-right with one query).
BandMask mask_of_row(const BandMask& mask, Sequence sequence, std::int64_t row);

Work work_of(const Case& spec);

/// The table of attention, paged attention, appending and merging, once per process.
const std::vector<Case>& core_cases();
const Case* find_case(std::string_view name);

}  // namespace fovea::check
