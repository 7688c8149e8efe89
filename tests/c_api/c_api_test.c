/* SPDX-License-Identifier: Apache-2.0
 *
 * The C functions from C99: each operation once against arithmetic written out here, and every kind of error.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checks.h"

enum { SEQ_Q = 3, SEQ_K = 7, HEADS = 4, KV_HEADS = 2, DIM = 8, PAGE = 4, BLOCKS = 5 };

typedef struct buffers {
  float q[SEQ_Q * HEADS * DIM];
  float k[SEQ_K * KV_HEADS * DIM];
  float v[SEQ_K * KV_HEADS * DIM];
  float out[SEQ_Q * HEADS * DIM];
  float lse[HEADS * SEQ_Q];
} buffers;

static void fill(buffers* b) {
  unsigned state = 1;
  size_t i;
  for (i = 0; i < sizeof b->q / sizeof(float); ++i) b->q[i] = 3.0f * noise(&state);
  for (i = 0; i < sizeof b->k / sizeof(float); ++i) b->k[i] = noise(&state);
  for (i = 0; i < sizeof b->v / sizeof(float); ++i) b->v[i] = noise(&state);
  for (i = 0; i < sizeof b->out / sizeof(float); ++i) b->out[i] = NAN;
  for (i = 0; i < sizeof b->lse / sizeof(float); ++i) b->lse[i] = NAN;
}

/* Causal attention of one query row and head over keys [begin, end), in double; returns the log of the denominator. */
static double expected_row(const buffers* b, int row, int head, int begin, int end, double* out) {
  const int kv_head = head / (HEADS / KV_HEADS);
  double sum = 0.0;
  int j, d;
  for (d = 0; d < DIM; ++d) out[d] = 0.0;
  for (j = begin; j < end && j <= row + SEQ_K - SEQ_Q; ++j) {
    double score = 0.0, weight;
    for (d = 0; d < DIM; ++d) score += (double)b->q[(row * HEADS + head) * DIM + d] * b->k[(j * KV_HEADS + kv_head) * DIM + d];
    weight = exp(score / sqrt((double)DIM));
    sum += weight;
    for (d = 0; d < DIM; ++d) out[d] += weight * b->v[(j * KV_HEADS + kv_head) * DIM + d];
  }
  for (d = 0; d < DIM; ++d) out[d] = sum > 0.0 ? out[d] / sum : 0.0;
  return log(sum);
}

static int out_is_right(const buffers* b, int begin, int end) {
  int row, head, d;
  for (row = 0; row < SEQ_Q; ++row) {
    for (head = 0; head < HEADS; ++head) {
      double want[DIM];
      expected_row(b, row, head, begin, end, want);
      for (d = 0; d < DIM; ++d) {
        if (!near(b->out[(row * HEADS + head) * DIM + d], want[d])) return 0;
      }
    }
  }
  return 1;
}

static fovea_tensor tensor3(int64_t a, int64_t b, int64_t c, fovea_dtype dtype) {
  const int64_t shape[3] = {a, b, c};
  return fovea_contiguous(dtype, 3, shape);
}

static fovea_attention_desc dense_desc(const fovea_tensor* lse, const fovea_mask* mask, int64_t seq_k) {
  fovea_attention_desc desc = {0};
  desc.q = tensor4(1, SEQ_Q, HEADS, DIM);
  desc.k = tensor4(1, seq_k, KV_HEADS, DIM);
  desc.v = tensor4(1, seq_k, KV_HEADS, DIM);
  desc.out = tensor4(1, SEQ_Q, HEADS, DIM);
  desc.lse = lse;
  desc.mask = mask;
  return desc;
}

static void test_attention(void) {
  static buffers b;
  const int64_t lse_shape[3] = {1, HEADS, SEQ_Q};
  const fovea_tensor lse = fovea_contiguous(FOVEA_F32, 3, lse_shape);
  const fovea_mask causal = fovea_causal();
  const fovea_attention_desc desc = dense_desc(&lse, &causal, SEQ_K);
  fovea_attention_args args = {0};
  fovea_plan* plan = NULL;
  size_t bytes;
  int row, head;

  fill(&b);
  args.q = b.q, args.k = b.k, args.v = b.v, args.out = b.out, args.lse = b.lse;
  CHECK(fovea_attention_plan(&desc, NULL, &plan) == FOVEA_OK);
  if (plan == NULL) return;
  bytes = fovea_plan_workspace_bytes(plan);
  CHECK(strstr(fovea_plan_implementation(plan), ".attention") != NULL);
  CHECK(strncmp(fovea_plan_explain(plan), fovea_plan_implementation(plan), strlen(fovea_plan_implementation(plan))) == 0);
  CHECK(fovea_attention_run(plan, &args, workspace(bytes), bytes, NULL) == FOVEA_OK);
  CHECK(out_is_right(&b, 0, SEQ_K));
  for (row = 0; row < SEQ_Q; ++row) {
    for (head = 0; head < HEADS; ++head) {
      double out[DIM];
      CHECK(near(b.lse[head * SEQ_Q + row], expected_row(&b, row, head, 0, SEQ_K, out)));
    }
  }
  fill(&b);
  CHECK(fovea_attention_prepare(plan, &args, workspace(bytes), bytes, NULL) == FOVEA_OK);
  CHECK(fovea_attention_run_prepared(plan, &args, workspace(bytes), bytes, NULL) == FOVEA_OK);
  CHECK(out_is_right(&b, 0, SEQ_K));
  fovea_plan_destroy(plan);
}

/* A sequence appended through a shuffled block table, then its last SEQ_Q tokens attended. */
static void test_paged(void) {
  static buffers b;
  static float k_cache[BLOCKS * PAGE * KV_HEADS * DIM], v_cache[BLOCKS * PAGE * KV_HEADS * DIM];
  const int32_t block_table[2] = {3, 1}, cu_seqlens_q[2] = {0, SEQ_Q}, kv_len[1] = {SEQ_K};
  const int64_t table_shape[2] = {1, 2};
  int64_t slots[SEQ_K];
  fovea_paged_cache_append_desc append = {0};
  fovea_paged_cache_append_args append_args = {0};
  fovea_paged_attention_desc desc = {0};
  fovea_paged_attention_args args = {0};
  fovea_plan* plan = NULL;
  size_t bytes, i;

  fill(&b);
  for (i = 0; i < sizeof k_cache / sizeof(float); ++i) k_cache[i] = v_cache[i] = NAN; /* unused slots never matter */
  for (i = 0; i < SEQ_K; ++i) slots[i] = (int64_t)block_table[i / PAGE] * PAGE + (int64_t)(i % PAGE);

  append.k = append.v = tensor3(SEQ_K, KV_HEADS, DIM, FOVEA_F32);
  append.k_cache = append.v_cache = tensor4(BLOCKS, PAGE, KV_HEADS, DIM);
  append_args.k = b.k, append_args.v = b.v, append_args.k_cache = k_cache, append_args.v_cache = v_cache, append_args.slot_mapping = slots;
  CHECK(fovea_paged_cache_append_plan(&append, NULL, &plan) == FOVEA_OK);
  bytes = fovea_plan_workspace_bytes(plan);
  CHECK(fovea_paged_cache_append_run(plan, &append_args, workspace(bytes), bytes, NULL) == FOVEA_OK);
  fovea_plan_destroy(plan);

  desc.q = desc.out = tensor3(SEQ_Q, HEADS, DIM, FOVEA_F32);
  desc.k_cache = desc.v_cache = append.k_cache;
  desc.block_table = fovea_contiguous(FOVEA_I32, 2, table_shape);
  args.q = b.q, args.k_cache = k_cache, args.v_cache = v_cache, args.out = b.out;
  args.block_table = block_table, args.cu_seqlens_q = cu_seqlens_q, args.kv_len = kv_len;
  CHECK(fovea_paged_attention_plan(&desc, NULL, &plan) == FOVEA_OK);
  bytes = fovea_plan_workspace_bytes(plan);
  CHECK(fovea_paged_attention_run(plan, &args, workspace(bytes), bytes, NULL) == FOVEA_OK);
  CHECK(out_is_right(&b, 0, SEQ_K));
  for (i = 0; i < sizeof b.out / sizeof(float); ++i) b.out[i] = NAN;
  CHECK(fovea_paged_attention_prepare(plan, &args, workspace(bytes), bytes, NULL) == FOVEA_OK);
  CHECK(fovea_paged_attention_run_prepared(plan, &args, workspace(bytes), bytes, NULL) == FOVEA_OK);
  CHECK(out_is_right(&b, 0, SEQ_K));
  fovea_plan_destroy(plan);
}

/* Attention over keys 0..3 and 4..6 apart, merged, is attention over all. (The band of each half keeps the same queries and keys.) */
static void test_merge(void) {
  enum { SPLIT = 4, ROW = HEADS * DIM };
  static buffers b;
  static float out[2][SEQ_Q * ROW], lse[2][SEQ_Q * HEADS];
  const int64_t lse_shape[2] = {SEQ_Q, HEADS};
  fovea_merge_part_desc parts[2];
  fovea_merge_part part_args[2];
  fovea_merge_states_desc desc = {0};
  fovea_merge_states_args args = {0};
  fovea_plan* plan = NULL;
  size_t bytes;
  int part, row, head, d;

  fill(&b);
  for (part = 0; part < 2; ++part) {
    for (row = 0; row < SEQ_Q; ++row) {
      for (head = 0; head < HEADS; ++head) {
        double want[DIM];
        lse[part][row * HEADS + head] = (float)expected_row(&b, row, head, part == 0 ? 0 : SPLIT, part == 0 ? SPLIT : SEQ_K, want);
        for (d = 0; d < DIM; ++d) out[part][row * ROW + head * DIM + d] = (float)want[d];
      }
    }
    parts[part].out = tensor3(SEQ_Q, HEADS, DIM, FOVEA_F32);
    parts[part].lse = fovea_contiguous(FOVEA_F32, 2, lse_shape);
    part_args[part].out = out[part];
    part_args[part].lse = lse[part];
  }
  desc.parts = parts, desc.part_count = 2, desc.out = parts[0].out;
  args.parts = part_args, args.part_count = 2, args.out = b.out;
  CHECK(fovea_merge_states_plan(&desc, NULL, &plan) == FOVEA_OK);
  bytes = fovea_plan_workspace_bytes(plan);
  CHECK(fovea_merge_states_run(plan, &args, workspace(bytes), bytes, NULL) == FOVEA_OK);
  CHECK(out_is_right(&b, 0, SEQ_K));
  args.part_count = 1;
  CHECK_ERROR(fovea_merge_states_run(plan, &args, workspace(bytes), bytes, NULL), FOVEA_INVALID_ARGUMENT, "got 1, want 2, as planned");
  /* Counts are compared before anything of the array is read. The array has two entries. */
  args.part_count = 1000000;
  CHECK_ERROR(fovea_merge_states_run(plan, &args, workspace(bytes), bytes, NULL), FOVEA_INVALID_ARGUMENT,
              "got 1000000, want 2, as planned");
  args.part_count = (size_t)1 << 60;
  CHECK_ERROR(fovea_merge_states_run(plan, &args, workspace(bytes), bytes, NULL), FOVEA_INVALID_ARGUMENT, "want 2, as planned");
  args.part_count = 2, args.parts = NULL;
  CHECK_ERROR(fovea_merge_states_run(plan, &args, workspace(bytes), bytes, NULL), FOVEA_INVALID_ARGUMENT, "parts: got null");
  fovea_plan_destroy(plan);

  desc.part_count = (size_t)1 << 60;
  CHECK_ERROR(fovea_merge_states_plan(&desc, NULL, &plan), FOVEA_INVALID_ARGUMENT,
              "parts (count): got 1152921504606846976, want 1 to 2^20");
  desc.part_count = 0;
  CHECK_ERROR(fovea_merge_states_plan(&desc, NULL, &plan), FOVEA_INVALID_ARGUMENT, "parts (count): got 0, want 1 to 2^20");
  desc.part_count = 2;

  desc.parts = NULL;
  CHECK_ERROR(fovea_merge_states_plan(&desc, NULL, &plan), FOVEA_INVALID_ARGUMENT, "parts: got null");
}

static void test_plan_errors(void) {
  const fovea_attention_desc good = dense_desc(NULL, NULL, SEQ_K);
  fovea_attention_desc desc = good;
  fovea_mask mask = fovea_causal();
  fovea_options options = {0};
  fovea_plan* plan = (fovea_plan*)&options; /* must not survive a failure */

  desc.k.shape[2] = desc.v.shape[2] = 3;
  CHECK_ERROR(fovea_attention_plan(&desc, NULL, &plan), FOVEA_INVALID_ARGUMENT, "got 3");
  CHECK(plan == NULL);
  desc = good, desc.q.dtype = 17;
  CHECK_ERROR(fovea_attention_plan(&desc, NULL, &plan), FOVEA_INVALID_ARGUMENT, "q.dtype: got 17, want 0 .. 7");
  desc = good, desc.mask = &mask, mask.anchor = -1;
  CHECK_ERROR(fovea_attention_plan(&desc, NULL, &plan), FOVEA_INVALID_ARGUMENT, "mask.anchor: got -1");
  options.implementation = "cpu.none.attention";
  CHECK_ERROR(fovea_attention_plan(&good, &options, &plan), FOVEA_INVALID_ARGUMENT, "cpu.none.attention");
  options.implementation = NULL, options.backend = 9;
  CHECK_ERROR(fovea_attention_plan(&good, &options, &plan), FOVEA_INVALID_ARGUMENT, "options.backend: got 9");
  CHECK_ERROR(fovea_attention_plan(NULL, NULL, &plan), FOVEA_INVALID_ARGUMENT, "desc: got null");
  CHECK_ERROR(fovea_attention_plan(&good, NULL, NULL), FOVEA_INVALID_ARGUMENT, "plan: got null");
  CHECK(plan == NULL);
}

static void test_run_errors(void) {
  static buffers b;
  const fovea_attention_desc desc = dense_desc(NULL, NULL, SEQ_K);
  const fovea_paged_attention_args paged_args = {0};
  fovea_attention_args args = {0};
  fovea_plan* plan = NULL;
  size_t bytes;

  fill(&b);
  args.q = b.q, args.k = b.k, args.out = b.out;
  CHECK(fovea_attention_plan(&desc, NULL, &plan) == FOVEA_OK);
  bytes = fovea_plan_workspace_bytes(plan);
  CHECK_ERROR(fovea_attention_run(plan, &args, workspace(bytes), bytes, NULL), FOVEA_INVALID_ARGUMENT, "v");
  CHECK_ERROR(fovea_attention_run(plan, NULL, workspace(bytes), bytes, NULL), FOVEA_INVALID_ARGUMENT, "args: got null");
  CHECK_ERROR(fovea_attention_run(NULL, &args, workspace(bytes), bytes, NULL), FOVEA_INVALID_ARGUMENT, "plan: got null");
  CHECK_ERROR(fovea_paged_attention_run(plan, &paged_args, NULL, 0, NULL), FOVEA_INVALID_ARGUMENT, "want a paged_attention plan");
  if (bytes > 0) {
    args.v = b.v;
    CHECK_ERROR(fovea_attention_run(plan, &args, workspace(bytes), bytes - 1, NULL), FOVEA_OUT_OF_WORKSPACE, "workspace");
  }
  CHECK(isnan(b.out[0])); /* no failed call wrote anything */
  fovea_plan_destroy(plan);
  fovea_plan_destroy(NULL);
  CHECK(fovea_plan_workspace_bytes(NULL) == 0);
}

/* Numbers that no call has: nothing overflows, and planning says what is wrong. */
static void test_extremes(void) {
  const int64_t windows[] = {INT64_MIN, INT64_MIN + 1, -1, 0};
  fovea_attention_desc desc;
  fovea_attention_args args = {0};
  fovea_plan* plan = NULL;
  size_t i, bytes;

  CHECK(fovea_sliding_window(INT64_MIN).left == INT64_MIN && fovea_sliding_window(INT64_MAX).left == INT64_MAX - 1);
  for (i = 0; i < sizeof windows / sizeof windows[0]; ++i) {
    static buffers b;
    const fovea_mask mask = fovea_sliding_window(windows[i]);
    desc = dense_desc(NULL, &mask, SEQ_K);
    fill(&b);
    args.q = b.q, args.k = b.k, args.v = b.v, args.out = b.out;
    CHECK(fovea_attention_plan(&desc, NULL, &plan) == FOVEA_OK);
    bytes = fovea_plan_workspace_bytes(plan);
    CHECK(fovea_attention_run(plan, &args, workspace(bytes), bytes, NULL) == FOVEA_OK);
    CHECK(b.out[0] == 0.0f && b.out[SEQ_Q * HEADS * DIM - 1] == 0.0f); /* rows that see no key */
    fovea_plan_destroy(plan);
  }
  desc = dense_desc(NULL, NULL, SEQ_K), desc.q = fovea_contiguous(FOVEA_F32, 4, NULL);
  CHECK_ERROR(fovea_attention_plan(&desc, NULL, &plan), FOVEA_INVALID_ARGUMENT, "q.rank: got 0, want 4");
  desc = dense_desc(NULL, NULL, SEQ_K), desc.q.rank = INT32_MIN;
  CHECK_ERROR(fovea_attention_plan(&desc, NULL, &plan), FOVEA_INVALID_ARGUMENT, "q.rank: got -2147483648, want 4");
  desc = dense_desc(NULL, NULL, SEQ_K), desc.k.shape[1] = INT64_MAX;
  CHECK_ERROR(fovea_attention_plan(&desc, NULL, &plan), FOVEA_INVALID_ARGUMENT, "k.shape[1] (seq_k): got 9223372036854775807");
  fovea_set_num_threads(INT32_MIN);
  CHECK(fovea_num_threads() >= 1);
  fovea_set_num_threads(0);
}

static int bodies = 0;

static void one_after_another(int threads, void (*body)(void* context, int thread), void* context) {
  int thread;
  for (thread = 0; thread < threads; ++thread) body(context, thread), ++bodies;
}

static void test_threads(void) {
  fovea_set_num_threads(3);
  CHECK(fovea_num_threads() == 3);
  fovea_set_parallel_for(one_after_another);
  test_attention();
  fovea_set_parallel_for(NULL);
  fovea_set_num_threads(0);
  CHECK(fovea_num_threads() >= 1);
}

int main(void) {
  CHECK(strcmp(fovea_last_error(), "") == 0);
  CHECK(strncmp(fovea_version(), "0.", 2) == 0);
  test_attention();
  test_paged();
  test_merge();
  test_plan_errors();
  test_run_errors();
  test_extremes();
  test_threads();
  printf(failures == 0 ? "the C functions work\n" : "%d checks failed\n", failures);
  return failures == 0 ? 0 : 1;
}
