// SPDX-License-Identifier: Apache-2.0
/// The tables of functions that each instruction set exports. All wide code lies behind them. Plans, schedules and the attention engine are
/// ordinary code that is compiled once.
#pragma once

#include <cstdint>

namespace fovea::cpu {

/// Storage types of the tables, in the order of DType: f32, f16, bf16, e4m3, i8.
inline constexpr int kStorages = 5;
inline constexpr int kPackedFormatCount = 5;
inline constexpr int kKvFormatCount = 7;
/// Rows that pack_keys and pack_values take at a time.
inline constexpr int kPackedRows = 8;

/// Rows of one micro-kernel call, counted from the first row of the tile, and the keys [key_begin, key_end) of the key tile that some of
/// them see. The bounds are multiples of AttentionKernels::depth.
struct RowBlock {
  int row = 0, rows = 0;
  int key_begin = 0, key_end = 0;
};

/// Half-open range of keys within a key tile.
struct KeySpan {
  int begin = 0, end = 0;
};

/// One row's bits of a packed mask for the keys of a tile. Keys before `begin` have none and are shown.
struct KeyBits {
  const std::uint8_t* bytes = nullptr;
  std::int64_t first = 0;  // bit of the tile's first key
  int begin = 0;

  [[gnu::always_inline]] bool shows(int key) const {
    const std::int64_t at = first + key;
    return key < begin || ((bytes[at / 8] >> (at % 8)) & 1) != 0;
  }
};

/// Bytes of a cache line.
inline constexpr int kLine = 64;

/// A row of a tensor, or its elements of one kv head.
using Row = const void*;

/// scores[row][key] = q[row] . key, for the keys of each block, rounded out to whole panels.
struct ScoreTile {
  const void* q = nullptr;     // [rows][q_stride] operands
  const void* keys = nullptr;  // [panel][depth][kPanel], or [key][row_stride] of a latent cache
  float* scores = nullptr;     // [rows][score_stride]; the rows of a block may have another order, which `softmax` knows
  std::int64_t q_stride = 0, score_stride = 0, row_stride = 0;
  int head_dim = 0;                                      // as packed: a multiple of depth
  const float *q_scales = nullptr, *k_scales = nullptr;  // int8: [rows] and [keys], factors of the integer products
  const Row* next = nullptr;                             // latent: [next_count] rows to prefetch, of next_bytes each
  int next_count = 0, next_bytes = 0;
  const RowBlock* blocks = nullptr;
  int block_count = 0;
};

/// Keys that a tile of a latent cache has at most.
inline constexpr int kMostLatentKeys = 256;

/// Rows of a latent cache to be packed, as K and as V, which is the beginning of K.
struct LatentRows {
  const Row* rows = nullptr;
  int count = 0;  // a multiple of the panel
  int head_dim_qk = 0, head_dim_v = 0;
  std::int64_t row_stride = 0;              // of K, in operands
  int kv_tile = 0;                          // keys of V's panels
  void *keys = nullptr, *values = nullptr;  // the same if K and V share the tile
};

/// acc[row] = acc[row] * rescale[row] + p[row] * values, over the keys of each block.
struct ValueTile {
  const void* p = nullptr;       // [rows][p_stride] operands
  const void* values = nullptr;  // [panel][kv_tile][kPanel], or [key][row_stride] if K and V share the tile
  float* acc = nullptr;          // [rows][acc_stride], acc_stride a multiple of the panel
  const float* rescale = nullptr;
  std::int64_t p_stride = 0, acc_stride = 0, row_stride = 0;
  int kv_tile = 0, head_dim = 0;
  const RowBlock* blocks = nullptr;
  int block_count = 0;
};

/// Rows of a softmax step: those of a micro-kernel call, or of a streamed item.
inline constexpr int kMaxSoftmaxRows = 32;

/// s = cap * tanh(scale * q.k / cap), in a unit that the host chooses.
struct SoftCap {
  float scale = 1;
  float cap = 0;       // 0: none
  float into_cap = 0;  // 2 log2(e) scale / cap; so small under a large cap that it loses bits, which it has no need of then
};

/// The step of the online softmax for some rows and the columns [begin, end), in powers of two.
struct SoftmaxTile {
  float* scores = nullptr;  // [rows][score_stride]; overwritten
  void* p = nullptr;        // [rows][p_stride]; `scores` itself where operands are f32
  std::int64_t score_stride = 0, p_stride = 0;
  int rows = 0, begin = 0, end = 0;  // a multiple of the vector
  const KeySpan* visible = nullptr;  // [rows], or null when every row sees [begin, end)
  const KeyBits* shown = nullptr;    // [rows], or null; beside `visible`
  const float* bias = nullptr;       // [rows][score_stride], added to (capped) scores in their unit, or null
  float factor = 0;                  // in the exponent: scale * log2(e) of q.k, or unit * log2(e) of a capped score; never negative
  SoftCap soft_cap{};
  bool coarse = false;       // the sums need be no more exact than the weights: they are not reported
  float* maximum = nullptr;  // [rows] running, of the (capped) score
  float* sum = nullptr;      // [rows] running
  float* rescale = nullptr;  // [rows] out: what the old sum and the accumulator were multiplied by
};

/// The three steps in one call, of all rows of the blocks. The softmax points at the first row, and its ranges are unused.
struct AttendTile {
  ScoreTile scores{};
  SoftmaxTile softmax{};
  ValueTile values{};
};

/// Rows of K or V that are read where they lie: those of `count` tokens, and of all neighbouring kv heads of the call.
struct StreamRows {
  const Row* rows = nullptr;     // [count], of the first head
  std::int64_t head_stride = 0;  // bytes
  int count = 0;
};

/// Decode: scores of a few queries, read straight from the rows of the cache.
struct StreamScores {
  const void* q = nullptr;    // [heads][rows][q_stride] operands in the order of arrange_q, zero behind head_dim
  StreamRows keys{}, next{};  // next: rows to prefetch, used after the keys
  float* scores = nullptr;    // [heads][rows][score_stride]
  std::int64_t q_stride = 0, score_stride = 0;
  int heads = 1, rows = 0, head_dim = 0;
};

/// Decode: acc[row] = acc[row] * rescale[row] + p[row] * values, read straight from the rows of the cache.
struct StreamValues {
  const float* p = nullptr;        // [heads][head_rows][p_stride], of which `rows` count
  StreamRows values{}, next{};     // next: rows to prefetch, used after the values
  float* acc = nullptr;            // [heads][head_rows][acc_stride]
  const float* rescale = nullptr;  // [heads][head_rows], or null for 1
  std::int64_t p_stride = 0, acc_stride = 0;
  int heads = 1, head_rows = 0, rows = 0, head_dim = 0;
};

/// Backward, elementwise on transposed tiles: p = exp(capped score - lse) and ds = p * (dout.v - delta), with the slope of the cap.
struct GradientTile {
  float* scores = nullptr;     // [keys][stride] q.k; overwritten
  float* gradients = nullptr;  // [keys][stride] dout.v; overwritten
  void* p = nullptr;           // [keys][stride] operands; `scores` itself where operands are f32
  void* ds = nullptr;          // likewise; `gradients` itself
  std::int64_t stride = 0;
  int rows = 0, begin = 0, end = 0;  // keys, and the queries computed: multiples of the panel
  const KeySpan* visible = nullptr;  // [keys] queries that see the key, or null when all do
  const float* shift = nullptr;      // [queries] -lse; -inf where the row contributes nothing
  const float* delta = nullptr;      // [queries] dout.out
  const float* bias = nullptr;       // [keys][stride] added to scores in natural units, or null
  float* dbias = nullptr;            // [keys][stride] out: ds without the slope of the cap, or null; only beside `bias`
  float factor = 0;                  // scale of q.k, or unit of a capped score
  SoftCap soft_cap{};
};

/// to[query][key] = ds[key][query], operands both.
struct TransposeTile {
  const void* ds = nullptr;
  void* to = nullptr;
  std::int64_t stride = 0, to_stride = 0;
  int keys = 0, begin = 0, end = 0;  // a multiple of 8, and multiples of the panel
};

/// Attention in one arithmetic (f32, or bf16 dot products with f32 sums).
struct AttentionKernels {
  const char* arithmetic = nullptr;  ///< "f32 6x16"
  int block_rows = 0;                ///< rows of a micro-kernel call
  int panel = 0;                     ///< keys or value columns of one packed panel
  int depth = 1;                     ///< contracted dimensions (head dim, keys) are padded to a multiple of this
  int operand_bytes = 0;             ///< of a packed element
  int qk_operand_bytes = 0;          ///< of an element of q and K, if different from P and V
  bool shared_tile = false;          ///< pack_latent makes one tile, [key][row_stride], of K and V
  int row_bytes = 0;                 ///< of q and accumulator rows that share a packing
  int tile_bytes = 0;                ///< of packed K and V that the second-level cache should hold
  int latent_tile = 64;              ///< keys of a tile of a latent cache
  /// Around the work on an item, in its thread; null where there is nothing to set up.
  void (*enter)() = nullptr;
  void (*leave)() = nullptr;
  /// A row of q as operands, negated if asked, zero from `count` to `padded`.
  void (*load_q[kStorages])(Row source, int count, int padded, bool negate, void* operands) = {};
  /// Arranges the loaded q rows of a packed item, in place, as `scores` reads them. Null if that is as they are loaded.
  void (*pack_q)(void* operands, int rows, std::int64_t stride) = nullptr;
  /// Panels [panel][padded head_dim][kPanel] of `count` rows, a multiple of the panel.
  void (*pack_keys[kStorages])(const Row* rows, int count, int head_dim, int padded, void* panels) = {};
  /// Panels [panel][kv_tile][kPanel] of `count` rows, a multiple of kPackedRows; false when some element is not finite.
  bool (*pack_values[kStorages])(const Row* rows, int count, int head_dim, int kv_tile, void* panels) = {};
  /// Instead of both, if V is the beginning of K; false when some element of V is not finite. `scores` then prefetches the next tile's
  /// rows.
  bool (*pack_latent[kStorages])(const LatentRows&) = {};
  void (*scores)(const ScoreTile&) = nullptr;
  void (*softmax)(const SoftmaxTile&) = nullptr;
  void (*values)(const ValueTile&) = nullptr;
  /// In place of these three. Null if there is none.
  void (*attend)(const AttendTile&) = nullptr;
  /// Arranges a row of q in the order in which stream_scores unpacks the rows of a storage type. Null if that is their own order.
  void (*arrange_q[kStorages])(void* operands, int padded) = {};
  void (*stream_scores[kStorages])(const StreamScores&) = {};
  void (*gradient)(const GradientTile&) = nullptr;
  void (*transpose_gradient)(const TransposeTile&) = nullptr;

  constexpr int qk_bytes() const { return qk_operand_bytes != 0 ? qk_operand_bytes : operand_bytes; }
};

/// Rows of f32 and of every storage type, of any length.
struct RowKernels {
  /// acc[i] = acc[i] + factor * source[i]
  void (*add_scaled[kStorages])(float* acc, Row source, float factor, std::int64_t count) = {};
  /// target[i] = source[i] / divisor * factor
  void (*store_divided[kStorages])(void* target, const float* source, float divisor, float factor, std::int64_t count) = {};
  /// An e4m3 row, source[i] / scale.
  void (*quantize[kStorages])(void* target, Row source, float scale, std::int64_t count) = {};
  void (*stream_values[kStorages])(const StreamValues&) = {};
  /// The softmax step with f32 weights, for streamed tiles.
  void (*softmax)(const SoftmaxTile&) = nullptr;
};

/// Addresses of the parts of one packed token. Nothing is aligned.
struct PackedBytes {
  const void *codes = nullptr, *scales = nullptr, *rope = nullptr;
};

/// Rows of the packed latent formats, in the order of kPackedFormats.
struct LatentKernels {
  /// A row of code * scale, rounded once.
  void (*decode[kPackedFormatCount][kStorages])(const PackedBytes&, void* row) = {};
  /// The largest magnitude of `count` elements, a multiple of 16. The first NaN if there is one.
  float (*largest[kStorages])(Row source, int count) = {};
  /// e2m1 codes of source[i] / scale, two to a byte.
  void (*encode_e2m1[kStorages])(void* codes, Row source, float scale, int count) = {};
  void (*to_bf16[kStorages])(void* target, Row source, int count) = {};
};

/// Rows of a KV cache format, of one head. Nothing is aligned.
struct KvRowsSource {
  const Row *codes = nullptr, *scales = nullptr;   ///< [count], of the first head
  std::int64_t code_offset = 0, scale_offset = 0;  ///< bytes from there to the rows of the head
  int count = 0;
  bool f16_scale = false;  ///< of int8_token and e4m3_token, else f32
};

/// Rows of the KV cache formats, in the order of kKvFormats.
struct KvRowKernels {
  /// Values in f32, from `stride` to `stride`, a multiple of 16 that is at least `dim`.
  void (*decode[kKvFormatCount])(const KvRowsSource&, float* rows, std::int64_t stride, int dim) = {};
};

/// Row functions of the int8 quantisers. `mean` is subtracted first. Counts are multiples of 32.
struct QuantizeKernels {
  /// max |source[i] - mean[i]|, or NaN if some element is not finite.
  float (*largest[kStorages])(Row source, const float* mean, int count) = {};
  /// codes[i] = (source[i] - mean[i]) * factor
  void (*encode_int8[kStorages])(void* codes, Row source, const float* mean, float factor, int count) = {};
  /// amax[i] = max(amax[i], |source[i] - mean[i]|). probe[i] becomes NaN if an element is not finite.
  void (*channels[kStorages])(float* amax, float* probe, Row source, const float* mean, int count) = {};
  /// codes[i] = (source[i] - mean[i]) * factor[i]
  void (*encode_e4m3[kStorages])(void* codes, Row source, const float* mean, const float* factor, int count) = {};
  void (*encode_f16[kStorages])(void* codes, Row source, const float* mean, const float* factor, int count) = {};
};

struct Kernels {
  AttentionKernels attention{};
  RowKernels rows{};
  AttentionKernels latent{};  ///< the same arithmetic on tiles that K and V share
  LatentKernels packed_rows{};
  AttentionKernels int8{};  ///< int8 q and K; P and V as in `attention`
  QuantizeKernels quantize{};
  KvRowKernels kv_rows{};
};

namespace scalar {
extern const Kernels kKernels;
}
namespace neon {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx512vnni {
extern const AttentionKernels kInt8;  ///< beside avx512::kKernels
}
namespace avx512bf16 {
extern const AttentionKernels kAttention;  ///< beside avx512::kKernels
}
namespace amx {
extern const AttentionKernels kAttention, kLatent, kInt8;  ///< beside avx512::kKernels
extern const LatentKernels kLatentRows;                    ///< decodes to bf16 alone
}  // namespace amx

}  // namespace fovea::cpu
