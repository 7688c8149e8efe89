/* SPDX-License-Identifier: Apache-2.0
 *
 * 8-bit attention from C: a part of the C interface with a header of its own. fovea/quantized_attention.hpp says what is computed.
 */
#ifndef FOVEA_C_QUANTIZED_ATTENTION_H
#define FOVEA_C_QUANTIZED_ATTENTION_H

#include "fovea/c.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Which tokens share an int8 scale. */
typedef int32_t fovea_int8_granularity;
enum { FOVEA_INT8_BLOCK = 0, FOVEA_INT8_WARP = 1, FOVEA_INT8_THREAD = 2 };

/** NULL in its place means by thread, 32 rows a warp. */
typedef struct fovea_int8_groups {
  fovea_int8_granularity granularity;
  int32_t warp_rows; /**< 32 or 16; block granularity ignores it */
} fovea_int8_groups;

/** The dense f32 tensors that go with q, k and v: scales by group, and numbers for each channel (k_mean, v_mean, v_scale). For a tensor
 * that planning would refuse, the result is an empty tensor, which planning refuses too. */
fovea_tensor fovea_int8_q_scale(const fovea_tensor* q, const fovea_ragged* ragged, const fovea_int8_groups* groups);
fovea_tensor fovea_int8_k_scale(const fovea_tensor* k, const fovea_ragged* ragged, const fovea_int8_groups* groups);
fovea_tensor fovea_int8_channels(const fovea_tensor* kv, const fovea_ragged* ragged);

typedef struct fovea_quantize_qk_int8_desc {
  fovea_tensor q, k, q_int8, k_int8, q_scale, k_scale;
  const fovea_tensor* k_mean;    /**< NULL: k is not smoothed */
  const fovea_tensor* lse_shift; /**< only with k_mean */
  const fovea_ragged* ragged;    /**< NULL: a fixed batch */
  const fovea_int8_groups* groups;
} fovea_quantize_qk_int8_desc;

typedef struct fovea_quantize_qk_int8_args {
  const void *q, *k;
  int8_t *q_int8, *k_int8;
  float *q_scale, *k_scale, *k_mean, *lse_shift;
  const int32_t *cu_seqlens_q, *cu_seqlens_k;
} fovea_quantize_qk_int8_args;

typedef struct fovea_quantize_v_desc {
  fovea_tensor v, v_out;       /**< v_out: FOVEA_F16 or FOVEA_E4M3 */
  const fovea_tensor* v_scale; /**< exactly when v_out is e4m3 */
  const fovea_tensor* v_mean;  /**< NULL: v is not smoothed */
  const fovea_ragged* ragged;
} fovea_quantize_v_desc;

typedef struct fovea_quantize_v_args {
  const void* v;
  void* v_out;
  float *v_scale, *v_mean;
  const int32_t* cu_seqlens_k;
} fovea_quantize_v_args;

typedef struct fovea_quantized_attention_desc {
  fovea_tensor q, k, v, out, q_scale, k_scale;
  const fovea_tensor *v_scale, *v_mean, *lse, *lse_shift;
  const fovea_ragged* ragged;
  const fovea_mask* mask; /**< NULL: every query sees every key */
  float scale;            /**< 0: head_dim ** -0.5 */
  const fovea_int8_groups* groups;
} fovea_quantized_attention_desc;

typedef struct fovea_quantized_attention_args {
  const int8_t *q, *k;
  const void* v;
  void* out;
  const float *q_scale, *k_scale, *v_scale, *v_mean;
  float* lse;
  const float* lse_shift;
  const int32_t *cu_seqlens_q, *cu_seqlens_k;
} fovea_quantized_attention_args;

/** All steps in one call. */
typedef struct fovea_quantize_and_attend_desc {
  fovea_tensor q, k, v, out;
  const fovea_tensor* lse;
  const fovea_ragged* ragged;
  const fovea_mask* mask;
  float scale;
  const fovea_int8_groups* groups;
  fovea_dtype v_dtype;        /**< FOVEA_F16 or FOVEA_E4M3 */
  int32_t smooth_k, smooth_v; /**< not 0: subtract the means of the channels first, which k wants as a rule */
} fovea_quantize_and_attend_desc;

typedef struct fovea_quantize_and_attend_args {
  const void *q, *k, *v;
  void* out;
  float* lse;
  const int32_t *cu_seqlens_q, *cu_seqlens_k;
} fovea_quantize_and_attend_args;

fovea_status fovea_quantize_qk_int8_plan(const fovea_quantize_qk_int8_desc* desc, const fovea_options* options, fovea_plan** plan);
fovea_status fovea_quantize_qk_int8_run(const fovea_plan* plan, const fovea_quantize_qk_int8_args* args, void* workspace,
                                        size_t workspace_bytes, void* stream);
fovea_status fovea_quantize_v_plan(const fovea_quantize_v_desc* desc, const fovea_options* options, fovea_plan** plan);
fovea_status fovea_quantize_v_run(const fovea_plan* plan, const fovea_quantize_v_args* args, void* workspace, size_t workspace_bytes,
                                  void* stream);
fovea_status fovea_quantized_attention_plan(const fovea_quantized_attention_desc* desc, const fovea_options* options, fovea_plan** plan);
fovea_status fovea_quantized_attention_run(const fovea_plan* plan, const fovea_quantized_attention_args* args, void* workspace,
                                           size_t workspace_bytes, void* stream);
fovea_status fovea_quantize_and_attend_plan(const fovea_quantize_and_attend_desc* desc, const fovea_options* options, fovea_plan** plan);
fovea_status fovea_quantize_and_attend_run(const fovea_plan* plan, const fovea_quantize_and_attend_args* args, void* workspace,
                                           size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* FOVEA_C_QUANTIZED_ATTENTION_H */
