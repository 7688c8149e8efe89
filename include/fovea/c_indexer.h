/* SPDX-License-Identifier: Apache-2.0
 *
 * The indexer of token-sparse attention from C: a part of the C interface with a header of its own. fovea/indexer.hpp says what is
 * computed.
 */
#ifndef FOVEA_C_INDEXER_H
#define FOVEA_C_INDEXER_H

#include "fovea/c.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fovea_index_logits_desc {
  fovea_tensor q, k, k_scale, weights, out;
  const fovea_tensor* block_table; /**< NULL: k is flat */
  int32_t has_first, has_last, has_kv_len;
  int32_t keep_outside;
} fovea_index_logits_desc;

typedef struct fovea_index_logits_args {
  const void *q, *k;
  const float *k_scale, *weights;
  const int32_t* block_table;
  void* out;
  const int32_t *first, *last, *kv_len;
} fovea_index_logits_args;

fovea_status fovea_index_logits_plan(const fovea_index_logits_desc* desc, const fovea_options* options, fovea_plan** plan);
fovea_status fovea_index_logits_run(const fovea_plan* plan, const fovea_index_logits_args* args, void* workspace, size_t workspace_bytes,
                                    void* stream);

typedef struct fovea_topk_rows_desc {
  fovea_tensor logits, out;
  const fovea_tensor* block_table; /**< NULL: places stay as they are */
  int32_t has_first, has_last, has_offset;
  int32_t sorted;
  int64_t page; /**< 0 without a table */
} fovea_topk_rows_desc;

typedef struct fovea_topk_rows_args {
  const void* logits;
  int32_t* out;
  const int32_t *block_table, *first, *last, *offset;
} fovea_topk_rows_args;

fovea_status fovea_topk_rows_plan(const fovea_topk_rows_desc* desc, const fovea_options* options, fovea_plan** plan);
fovea_status fovea_topk_rows_run(const fovea_plan* plan, const fovea_topk_rows_args* args, void* workspace, size_t workspace_bytes,
                                 void* stream);

#ifdef __cplusplus
}
#endif

#endif
