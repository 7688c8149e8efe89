/* SPDX-License-Identifier: Apache-2.0
 *
 * Fovea from C99, and from every language that can call C: the calls of fovea.hpp, one to one. The C++ headers say what a tensor, an
 * option or an argument means (attention.hpp, attention_backward.hpp, paged_attention.hpp, merge.hpp, latent_attention.hpp). The names of
 * the fields are the same. 8-bit attention has a header of its own, c_quantized_attention.h.
 *
 *     fovea_plan* plan = NULL;
 *     if (fovea_attention_plan(&desc, NULL, &plan) != FOVEA_OK) puts(fovea_last_error());
 *     if (fovea_attention_run(plan, &args, workspace, fovea_plan_workspace_bytes(plan), NULL) != FOVEA_OK) puts(fovea_last_error());
 *     fovea_plan_destroy(plan);
 *
 * Set every description to zero first (`= {0}`): a field that stays zero, and a pointer that stays NULL, request nothing.
 * Plans are immutable: threads may share one, each with a workspace of its own. No call throws, prints or aborts.
 */
#ifndef FOVEA_C_H
#define FOVEA_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ------------------------------------------------------------------------------------------------------------ */

typedef int32_t fovea_status;
enum {
  FOVEA_OK = 0,
  FOVEA_INVALID_ARGUMENT = 1, /**< the call contradicts itself */
  FOVEA_UNSUPPORTED = 2,      /**< valid, but no implementation on this device accepts it; the message says which ones declined and why */
  FOVEA_OUT_OF_WORKSPACE = 3, /**< the workspace is smaller than fovea_plan_workspace_bytes() */
  FOVEA_DEVICE_ERROR = 4      /**< the device's runtime or the operating system reported a failure */
};

/** The message of the last call in this thread that failed, "" before any did. Valid until the next failure in this thread. */
const char* fovea_last_error(void);

/* "major.minor.patch" */
const char* fovea_version(void);

/* ---- tensors and options ----------------------------------------------------------------------------------------------- */

typedef int32_t fovea_dtype;
enum { FOVEA_F32 = 0, FOVEA_F16 = 1, FOVEA_BF16 = 2, FOVEA_E4M3 = 3, FOVEA_I8 = 4, FOVEA_I32 = 5, FOVEA_I64 = 6, FOVEA_F64 = 7 };

typedef struct fovea_tensor {
  fovea_dtype dtype;
  int32_t rank;
  int64_t shape[4], strides[4]; /**< strides in elements */
  int32_t alignment;            /**< bytes that the pointer given to run will be aligned to; 0 promises the element's own size */
} fovea_tensor;

/** A dense row-major tensor of 1 to 4 dimensions; without a shape, one of rank 0, which planning refuses. */
fovea_tensor fovea_contiguous(fovea_dtype dtype, int32_t rank, const int64_t* shape);

typedef int32_t fovea_anchor;
enum { FOVEA_TOP_LEFT = 0, FOVEA_BOTTOM_RIGHT = 1 };

#define FOVEA_UNBOUNDED INT64_MAX

/** Query i sees key j iff -left <= j - (i + offset) <= right. */
typedef struct fovea_mask {
  int64_t left, right; /**< FOVEA_UNBOUNDED: no bound; right 0: causal */
  fovea_anchor anchor;
} fovea_mask;

fovea_mask fovea_causal(void);
fovea_mask fovea_sliding_window(int64_t tokens); /**< causal, `tokens` keys in all, the query's own included; 0 or fewer: none */

/** Strides of an f32 scale tensor [batch, kv_head]; both 0: one value. */
typedef struct fovea_scale {
  int64_t batch_stride, head_stride;
} fovea_scale;

/** Bits of the last keys that a query row sees, beside the band: packed_mask.hpp. */
typedef struct fovea_packed_mask {
  int64_t bytes;
  int64_t tail;      /**< keys that have bits; 0: every key */
  int64_t row_bytes; /**< 0: rows without gaps, and mask_indptr */
} fovea_packed_mask;

typedef int32_t fovea_backend;
enum { FOVEA_CPU = 0, FOVEA_CUDA = 1, FOVEA_HIP = 2 };

/** Where and how to plan; NULL in its place means the CPU and the library's own choice. */
typedef struct fovea_options {
  fovea_backend backend;
  int32_t ordinal;
  const char* implementation; /**< force one by name; NULL or "" chooses */
  int32_t batch_invariant;    /**< not 0: a row's result must not depend on the rest of the batch */
  int32_t deterministic;      /**< not 0: gradients must have the same bits from run to run */
  int32_t exact_rows;         /**< not 0: a row has the same bits in dense, ragged and paged attention */
} fovea_options;

/* ---- plans ------------------------------------------------------------------------------------------------------------- */

typedef struct fovea_plan fovea_plan;

void fovea_plan_destroy(fovea_plan* plan); /**< NULL is fine */

/** Scratch memory that a run needs, aligned to 64 bytes. */
size_t fovea_plan_workspace_bytes(const fovea_plan* plan);

/** "cpu.avx2.attention"; lives as long as the plan. */
const char* fovea_plan_implementation(const fovea_plan* plan);

/** The choice, and which implementations declined, for people. Valid until the thread's next call of this function. */
const char* fovea_plan_explain(const fovea_plan* plan);

/* ---- attention --------------------------------------------------------------------------------------------------------- */

/** Bounds of a ragged batch. Rows of its outputs that no sequence has are left alone. */
typedef struct fovea_ragged {
  int64_t batch, max_seq_q, max_seq_k;
} fovea_ragged;

typedef struct fovea_attention_desc {
  fovea_tensor q, k, v, out;
  const fovea_tensor* lse;
  const fovea_ragged* ragged; /**< NULL: a fixed batch */
  const fovea_mask* mask;     /**< NULL: every query sees every key */
  float scale, softcap;       /**< scale 0: head_dim_qk ** -0.5 */
  int32_t has_sink;
  const fovea_scale *q_scale, *k_scale, *v_scale; /**< e4m3 only */
  /** Lists of a block mask; NULL: an empty list */
  const fovea_tensor *full_block_counts, *full_block_indices, *partial_block_counts, *partial_block_indices, *partial_block_bits;
  int64_t block_q, block_k; /**< rows and keys of a block; 0 without a block mask */
  const fovea_packed_mask* packed_mask;
  const fovea_tensor *alibi_slopes, *bias; /**< may be NULL */
  float dropout_p;
} fovea_attention_desc;

typedef struct fovea_attention_args {
  const void *q, *k, *v;
  void* out;
  float* lse;
  const int32_t *cu_seqlens_q, *cu_seqlens_k;
  const float *sink, *q_scale, *k_scale, *v_scale, *alibi_slopes;
  const int32_t *full_block_counts, *full_block_indices, *partial_block_counts, *partial_block_indices, *partial_block_bits;
  const uint8_t* packed_mask;
  const int32_t* mask_indptr; /**< [batch + 1] */
  const void* bias;
  const int64_t* dropout_state; /**< seed and offset, where dropout_p is not 0 */
} fovea_attention_args;

fovea_status fovea_attention_plan(const fovea_attention_desc* desc, const fovea_options* options, fovea_plan** plan);
fovea_status fovea_attention_run(const fovea_plan* plan, const fovea_attention_args* args, void* workspace, size_t workspace_bytes,
                                 void* stream);
/** The two halves of run: the schedule that prepare leaves in the workspace may serve several run_prepared calls, one after another. */
fovea_status fovea_attention_prepare(const fovea_plan* plan, const fovea_attention_args* args, void* workspace, size_t workspace_bytes,
                                     void* stream);
fovea_status fovea_attention_run_prepared(const fovea_plan* plan, const fovea_attention_args* args, void* workspace, size_t workspace_bytes,
                                          void* stream);

/* ---- gradients of attention -------------------------------------------------------------------------------------------- */

typedef struct fovea_attention_backward_desc {
  fovea_attention_desc forward; /**< its lse is required */
  fovea_tensor dout, dq, dk, dv;
  const fovea_tensor *dlse, *dbias; /**< of lse and of the bias; may be NULL */
} fovea_attention_backward_desc;

typedef struct fovea_attention_backward_args {
  fovea_attention_args forward; /**< out and lse are inputs here */
  const void* dout;
  void *dq, *dk, *dv;
  float* dsink; /**< when there was a sink */
  const float* dlse;
  void* dbias;
} fovea_attention_backward_args;

fovea_status fovea_attention_backward_plan(const fovea_attention_backward_desc* desc, const fovea_options* options, fovea_plan** plan);
fovea_status fovea_attention_backward_run(const fovea_plan* plan, const fovea_attention_backward_args* args, void* workspace,
                                          size_t workspace_bytes, void* stream);

/* ---- paged attention --------------------------------------------------------------------------------------------------- */

/** kv_format.hpp says what each one is. */
typedef int32_t fovea_kv_format;
enum {
  FOVEA_KV_ROWS = 0,
  FOVEA_KV_INT8_TOKEN = 1,
  FOVEA_KV_E4M3_TOKEN = 2,
  FOVEA_KV_INT4_TOKEN = 3,
  FOVEA_KV_E5M2 = 4,
  FOVEA_KV_NVFP4 = 5,
  FOVEA_KV_MXFP4 = 6,
  FOVEA_KV_MXFP8 = 7
};

typedef struct fovea_paged_attention_desc {
  fovea_tensor q, k_cache, v_cache, block_table, out;
  const fovea_tensor* lse;
  int64_t max_seq_q;      /**< 0, or more than there are: total_q */
  int64_t max_kv_len;     /**< 0, or more than fit: max_blocks * page */
  const fovea_mask* mask; /**< NULL: causal */
  float scale, softcap;
  int32_t has_sink;
  const fovea_scale *k_scale, *v_scale;
  const fovea_packed_mask* packed_mask;
  fovea_kv_format k_format, v_format;
  const fovea_tensor *k_scale_cache, *v_scale_cache;
} fovea_paged_attention_desc;

typedef struct fovea_paged_attention_args {
  const void *q, *k_cache, *v_cache;
  void* out;
  float* lse;
  const int32_t *block_table, *cu_seqlens_q, *kv_len;
  const float *sink, *k_scale, *v_scale;
  const uint8_t* packed_mask;
  const int32_t* mask_indptr; /**< [batch + 1] */
  const void *k_scale_cache, *v_scale_cache;
} fovea_paged_attention_args;

fovea_status fovea_paged_attention_plan(const fovea_paged_attention_desc* desc, const fovea_options* options, fovea_plan** plan);
fovea_status fovea_paged_attention_run(const fovea_plan* plan, const fovea_paged_attention_args* args, void* workspace,
                                       size_t workspace_bytes, void* stream);
fovea_status fovea_paged_attention_prepare(const fovea_plan* plan, const fovea_paged_attention_args* args, void* workspace,
                                           size_t workspace_bytes, void* stream);
fovea_status fovea_paged_attention_run_prepared(const fovea_plan* plan, const fovea_paged_attention_args* args, void* workspace,
                                                size_t workspace_bytes, void* stream);

typedef struct fovea_paged_cache_append_desc {
  fovea_tensor k, v, k_cache, v_cache;
  const fovea_scale *k_scale, *v_scale;
  fovea_kv_format k_format, v_format;
  const fovea_tensor *k_scale_cache, *v_scale_cache;
} fovea_paged_cache_append_desc;

typedef struct fovea_paged_cache_append_args {
  const void *k, *v;
  void *k_cache, *v_cache;
  const int64_t* slot_mapping;
  const float *k_scale, *v_scale;
  void *k_scale_cache, *v_scale_cache;
} fovea_paged_cache_append_args;

fovea_status fovea_paged_cache_append_plan(const fovea_paged_cache_append_desc* desc, const fovea_options* options, fovea_plan** plan);
fovea_status fovea_paged_cache_append_run(const fovea_plan* plan, const fovea_paged_cache_append_args* args, void* workspace,
                                          size_t workspace_bytes, void* stream);

/* ---- merging partial results -------------------------------------------------------------------------------------------- */

typedef struct fovea_merge_part_desc {
  fovea_tensor out, lse;
} fovea_merge_part_desc;

typedef struct fovea_merge_states_desc {
  const fovea_merge_part_desc* parts;
  size_t part_count; /**< 1 to 2^20 */
  fovea_tensor out;
  const fovea_tensor* lse;
} fovea_merge_states_desc;

typedef struct fovea_merge_part {
  const void* out;
  const float* lse;
} fovea_merge_part;

typedef struct fovea_merge_states_args {
  const fovea_merge_part* parts;
  size_t part_count; /**< as planned, else nothing is read */
  void* out;
  float* lse;
} fovea_merge_states_args;

fovea_status fovea_merge_states_plan(const fovea_merge_states_desc* desc, const fovea_options* options, fovea_plan** plan);
fovea_status fovea_merge_states_run(const fovea_plan* plan, const fovea_merge_states_args* args, void* workspace, size_t workspace_bytes,
                                    void* stream);

/* ---- latent (MLA) attention -------------------------------------------------------------------------------------------- */

typedef int32_t fovea_cache_format;
enum { FOVEA_ROWS = 0, FOVEA_V32_FP8 = 1, FOVEA_V4_FP8 = 2, FOVEA_V41_FP8 = 3, FOVEA_V41_FP8_PLANAR = 4, FOVEA_V41_FP4 = 5 };

typedef struct fovea_latent_cache {
  fovea_cache_format format;
  fovea_tensor rows;    /**< FOVEA_ROWS only */
  int64_t blocks, page; /**< packed formats only, here and below */
  int64_t block_stride; /**< bytes; 0: blocks without gaps */
  int32_t alignment;    /**< bytes that the pointer given to run will be aligned to; 0 promises none */
} fovea_latent_cache;

typedef struct fovea_latent_attention_desc {
  fovea_tensor q, out, block_table;
  fovea_latent_cache cache;
  const fovea_tensor* lse;
  int64_t max_seq_q;      /**< 0, or more than there are: total_q */
  int64_t max_kv_len;     /**< 0, or more than fit: max_blocks * page */
  const fovea_mask* mask; /**< NULL: causal */
  float scale;            /**< 0: d ** -0.5 */
  int32_t has_scale;
} fovea_latent_attention_desc;

typedef struct fovea_latent_attention_args {
  const void *q, *cache;
  void* out;
  float* lse;
  const int32_t *block_table, *cu_seqlens_q, *kv_len;
  const float* cache_scale;
} fovea_latent_attention_args;

fovea_status fovea_latent_attention_plan(const fovea_latent_attention_desc* desc, const fovea_options* options, fovea_plan** plan);
fovea_status fovea_latent_attention_run(const fovea_plan* plan, const fovea_latent_attention_args* args, void* workspace,
                                        size_t workspace_bytes, void* stream);
fovea_status fovea_latent_attention_prepare(const fovea_plan* plan, const fovea_latent_attention_args* args, void* workspace,
                                            size_t workspace_bytes, void* stream);
fovea_status fovea_latent_attention_run_prepared(const fovea_plan* plan, const fovea_latent_attention_args* args, void* workspace,
                                                 size_t workspace_bytes, void* stream);

/** A cache, and the tokens that each query row reads from it. */
typedef struct fovea_sparse_selection {
  fovea_latent_cache cache;
  fovea_tensor indices;
  int32_t has_topk_length;
} fovea_sparse_selection;

typedef struct fovea_sparse_latent_attention_desc {
  fovea_tensor q, out;
  fovea_sparse_selection main;
  const fovea_sparse_selection* extra;
  const fovea_tensor *lse, *max_logits;
  float scale;
  int32_t has_sink;
} fovea_sparse_latent_attention_desc;

typedef struct fovea_sparse_selection_args {
  const void* cache;
  const int32_t *indices, *topk_length;
} fovea_sparse_selection_args;

typedef struct fovea_sparse_latent_attention_args {
  const void* q;
  void* out;
  fovea_sparse_selection_args main, extra;
  float *lse, *max_logits;
  const float* sink;
} fovea_sparse_latent_attention_args;

fovea_status fovea_sparse_latent_attention_plan(const fovea_sparse_latent_attention_desc* desc, const fovea_options* options,
                                                fovea_plan** plan);
fovea_status fovea_sparse_latent_attention_run(const fovea_plan* plan, const fovea_sparse_latent_attention_args* args, void* workspace,
                                               size_t workspace_bytes, void* stream);
fovea_status fovea_sparse_latent_attention_prepare(const fovea_plan* plan, const fovea_sparse_latent_attention_args* args, void* workspace,
                                                   size_t workspace_bytes, void* stream);
fovea_status fovea_sparse_latent_attention_run_prepared(const fovea_plan* plan, const fovea_sparse_latent_attention_args* args,
                                                        void* workspace, size_t workspace_bytes, void* stream);

typedef int32_t fovea_scale_rule;
enum { FOVEA_POWER_OF_TWO = 0, FOVEA_EXACT = 1 };

typedef struct fovea_latent_cache_conversion_desc {
  fovea_tensor rows;
  fovea_latent_cache cache;
  fovea_scale_rule rule; /**< quantize only */
} fovea_latent_cache_conversion_desc;

typedef struct fovea_quantize_latent_cache_args {
  const void* rows;
  void* cache;
  const int64_t* slot_mapping;
} fovea_quantize_latent_cache_args;

typedef struct fovea_dequantize_latent_cache_args {
  void* rows;
  const void* cache;
  const int64_t* slot_mapping;
} fovea_dequantize_latent_cache_args;

fovea_status fovea_quantize_latent_cache_plan(const fovea_latent_cache_conversion_desc* desc, const fovea_options* options,
                                              fovea_plan** plan);
fovea_status fovea_quantize_latent_cache_run(const fovea_plan* plan, const fovea_quantize_latent_cache_args* args, void* workspace,
                                             size_t workspace_bytes, void* stream);
fovea_status fovea_dequantize_latent_cache_plan(const fovea_latent_cache_conversion_desc* desc, const fovea_options* options,
                                                fovea_plan** plan);
fovea_status fovea_dequantize_latent_cache_run(const fovea_plan* plan, const fovea_dequantize_latent_cache_args* args, void* workspace,
                                               size_t workspace_bytes, void* stream);

/* ---- threads ----------------------------------------------------------------------------------------------------------- */

/** Threads that plans made from now on use on the CPU; 0: the default. */
void fovea_set_num_threads(int32_t threads);
int32_t fovea_num_threads(void);

/** Calls body(context, thread) for thread = 0 .. threads-1, each once, and returns when all are done; the calls may follow one another. */
typedef void (*fovea_parallel_for)(int threads, void (*body)(void* context, int thread), void* context);

/** Replaces the CPU backend's thread pool; NULL restores the default. Not while a run is under way. */
void fovea_set_parallel_for(fovea_parallel_for parallel_for);

#ifdef __cplusplus
}
#endif

#endif /* FOVEA_C_H */
