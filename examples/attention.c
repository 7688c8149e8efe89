/* SPDX-License-Identifier: Apache-2.0
 * Causal attention from C99: describe, plan, run. */
#include <fovea/c.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 2, SEQ = 128, HEADS = 8, KV_HEADS = 2, HEAD_DIM = 64 };

static float* values(size_t count) {
  float* all = malloc(count * sizeof *all);
  for (size_t i = 0; all != NULL && i < count; ++i) all[i] = (float)((i * 2654435761u) % 2001) / 1000.0f - 1.0f;
  return all;
}

// [run]
static fovea_status attend(const float* q, const float* k, const float* v, float* out) {
  const fovea_mask causal = fovea_causal();
  fovea_attention_desc desc = {0}; /* what stays zero requests nothing */
  desc.q = desc.out = fovea_contiguous(FOVEA_F32, 4, (const int64_t[]){BATCH, SEQ, HEADS, HEAD_DIM});
  desc.k = desc.v = fovea_contiguous(FOVEA_F32, 4, (const int64_t[]){BATCH, SEQ, KV_HEADS, HEAD_DIM});
  desc.mask = &causal;

  fovea_plan* plan = NULL;
  fovea_status status = fovea_attention_plan(&desc, NULL, &plan);
  if (status != FOVEA_OK) return status; /* fovea_last_error() says why */
  fputs(fovea_plan_explain(plan), stdout);

  const size_t bytes = (fovea_plan_workspace_bytes(plan) + 63) / 64 * 64;
  void* workspace = aligned_alloc(64, bytes > 0 ? bytes : 64);
  fovea_attention_args args = {0};
  args.q = q, args.k = k, args.v = v, args.out = out;
  status = fovea_attention_run(plan, &args, workspace, bytes, NULL);
  free(workspace);
  fovea_plan_destroy(plan);
  return status;
}
// [/run]

int main(void) {
  const size_t rows = (size_t)BATCH * SEQ * HEADS * HEAD_DIM, keys = (size_t)BATCH * SEQ * KV_HEADS * HEAD_DIM;
  float *q = values(rows), *k = values(keys), *v = values(keys), *out = values(rows);
  const fovea_status status = attend(q, k, v, out);
  if (status != FOVEA_OK) fprintf(stderr, "%s\n", fovea_last_error());
  /* The first query of a sequence sees the first key alone: its result is that key's value. */
  const int right = status == FOVEA_OK && fabsf(out[0] - v[0]) < 1e-5f;
  free(q), free(k), free(v), free(out);
  return right ? 0 : 1;
}
