/* SPDX-License-Identifier: Apache-2.0
 *
 * The C functions of the backward pass, of latent attention, of packed caches and of the indexer, each against arithmetic written out here.
 */
#include "checks.h"
#include "fovea/c_indexer.h"

enum { SEQ = 5, HEADS = 2, DIM = 8 };                                            /* backward */
enum { LATENT = 512, ROW = 576, TOKENS = 6, PAGE = 4, BLOCKS = 3, QUERIES = 3 }; /* latent: heads of one query row */

static void check_near(const float* got, const double* want, size_t count, int line) {
  size_t i;
  for (i = 0; i < count; ++i) {
    if (!near(got[i], want[i])) {
      check(0, line, "a number is wrong");
      return;
    }
  }
}
#define CHECK_NEAR(got, want, count) check_near(got, want, count, __LINE__)

/* Plans, runs and destroys. */
#define RUN(operation, desc, args)                                                            \
  do {                                                                                        \
    fovea_plan* made = NULL;                                                                  \
    CHECK(fovea_##operation##_plan(&(desc), NULL, &made) == FOVEA_OK);                        \
    if (made != NULL) {                                                                       \
      const size_t size = fovea_plan_workspace_bytes(made);                                   \
      CHECK(strstr(fovea_plan_implementation(made), "." #operation) != NULL);                 \
      CHECK(fovea_##operation##_run(made, &(args), workspace(size), size, NULL) == FOVEA_OK); \
    }                                                                                         \
    fovea_plan_destroy(made);                                                                 \
  } while (0)

/* ---- gradients of causal attention --------------------------------------------------------------------------------------- */

typedef struct tensors {
  float q[SEQ * HEADS * DIM], k[SEQ * HEADS * DIM], v[SEQ * HEADS * DIM], dout[SEQ * HEADS * DIM];
  float out[SEQ * HEADS * DIM], lse[HEADS * SEQ], dlse[HEADS * SEQ];
  float dq[SEQ * HEADS * DIM], dk[SEQ * HEADS * DIM], dv[SEQ * HEADS * DIM];
} tensors;

static double dot(const float* a, const float* b) {
  double sum = 0.0;
  int d;
  for (d = 0; d < DIM; ++d) sum += (double)a[d] * b[d];
  return sum;
}

/* Rows of one head lie HEADS * DIM apart. */
static void add_gradients(const tensors* t, int row, int head, double* dq, double* dk, double* dv) {
  const int at = (row * HEADS + head) * DIM;
  const double scale = 1.0 / sqrt((double)DIM);
  double p[SEQ], dp[SEQ], sum = 0.0, delta = 0.0;
  int key, d;
  for (key = 0; key <= row; ++key) sum += p[key] = exp(scale * dot(t->q + at, t->k + (key * HEADS + head) * DIM));
  for (key = 0; key <= row; ++key) {
    p[key] /= sum;
    dp[key] = dot(t->dout + at, t->v + (key * HEADS + head) * DIM);
    delta += p[key] * dp[key];
  }
  for (key = 0; key <= row; ++key) {
    const int from = (key * HEADS + head) * DIM;
    const double ds = scale * p[key] * (dp[key] - delta + t->dlse[head * SEQ + row]);
    for (d = 0; d < DIM; ++d) {
      dq[at + d] += ds * t->k[from + d];
      dk[from + d] += ds * t->q[at + d];
      dv[from + d] += p[key] * t->dout[at + d];
    }
  }
}

static void test_backward(void) {
  static const uint8_t bits[SEQ] = {0x01, 0x03, 0x07, 0x0f, 0x1f}; /* the causal mask, as a packed one */
  static tensors t;
  static double dq[SEQ * HEADS * DIM], dk[SEQ * HEADS * DIM], dv[SEQ * HEADS * DIM];
  const int64_t lse_shape[3] = {1, HEADS, SEQ};
  const fovea_tensor lse = fovea_contiguous(FOVEA_F32, 3, lse_shape), all = tensor4(1, SEQ, HEADS, DIM);
  const fovea_mask causal = fovea_causal();
  const fovea_packed_mask packed = {SEQ, 0, 1};
  fovea_attention_backward_desc desc = {0};
  fovea_attention_backward_args args = {0};
  fovea_plan* plan = NULL;
  unsigned state = 7;
  int i, row, head, with_bits;

  for (i = 0; i < SEQ * HEADS * DIM; ++i) {
    t.q[i] = noise(&state), t.k[i] = noise(&state), t.v[i] = noise(&state), t.dout[i] = noise(&state);
  }
  for (i = 0; i < HEADS * SEQ; ++i) t.dlse[i] = noise(&state);
  desc.forward.q = desc.forward.k = desc.forward.v = desc.forward.out = all;
  desc.forward.lse = desc.dlse = &lse, desc.forward.mask = &causal;
  desc.dout = desc.dq = desc.dk = desc.dv = all;
  args.forward.q = t.q, args.forward.k = t.k, args.forward.v = t.v, args.forward.out = t.out, args.forward.lse = t.lse;
  args.dout = t.dout, args.dlse = t.dlse, args.dq = t.dq, args.dk = t.dk, args.dv = t.dv;
  for (row = 0; row < SEQ; ++row)
    for (head = 0; head < HEADS; ++head) add_gradients(&t, row, head, dq, dk, dv);
  for (with_bits = 0; with_bits < 2; ++with_bits) {
    if (with_bits) desc.forward.mask = NULL, desc.forward.packed_mask = &packed, args.forward.packed_mask = bits;
    for (i = 0; i < SEQ * HEADS * DIM; ++i) t.dq[i] = t.dk[i] = t.dv[i] = NAN;
    RUN(attention, desc.forward, args.forward);
    RUN(attention_backward, desc, args);
    CHECK_NEAR(t.dq, dq, SEQ * HEADS * DIM);
    CHECK_NEAR(t.dk, dk, SEQ * HEADS * DIM);
    CHECK_NEAR(t.dv, dv, SEQ * HEADS * DIM);
  }

  desc.forward.lse = NULL;
  CHECK_ERROR(fovea_attention_backward_plan(&desc, NULL, &plan), FOVEA_INVALID_ARGUMENT, "lse");
  desc.forward.lse = &lse, desc.dk.dtype = 99;
  CHECK_ERROR(fovea_attention_backward_plan(&desc, NULL, &plan), FOVEA_INVALID_ARGUMENT, "dk.dtype: got 99");
}

/* ---- latent attention ------------------------------------------------------------------------------------------------------ */

typedef struct latent {
  float q[QUERIES * ROW], cache[BLOCKS * PAGE * ROW], out[QUERIES * LATENT], lse[QUERIES], max_logits[QUERIES];
} latent;

static const int32_t block_table[2] = {2, 0};

static int slot_of(int token) { return block_table[token / PAGE] * PAGE + token % PAGE; }

/* One query row with QUERIES heads; unused slots hold NaN. */
static void fill_latent(latent* t) {
  unsigned state = 3;
  int i, token;
  for (i = 0; i < QUERIES * ROW; ++i) t->q[i] = noise(&state);
  for (i = 0; i < BLOCKS * PAGE * ROW; ++i) t->cache[i] = NAN;
  for (token = 0; token < TOKENS; ++token)
    for (i = 0; i < ROW; ++i) t->cache[slot_of(token) * ROW + i] = noise(&state);
  for (i = 0; i < QUERIES * LATENT; ++i) t->out[i] = NAN;
  for (i = 0; i < QUERIES; ++i) t->lse[i] = t->max_logits[i] = NAN;
}

/* out [QUERIES, LATENT], lse and the largest score of the first `tokens` tokens. */
static void expect_latent(const latent* t, int tokens, double* out, double* lse, double* largest) {
  int head, token, d;
  for (head = 0; head < QUERIES; ++head) {
    double sum = 0.0;
    for (d = 0; d < LATENT; ++d) out[head * LATENT + d] = 0.0;
    largest[head] = -INFINITY;
    for (token = 0; token < tokens; ++token) {
      const float* row = t->cache + slot_of(token) * ROW;
      double score = 0.0;
      for (d = 0; d < ROW; ++d) score += (double)t->q[head * ROW + d] * row[d];
      score /= sqrt((double)ROW);
      if (score > largest[head]) largest[head] = score;
      sum += exp(score);
      for (d = 0; d < LATENT; ++d) out[head * LATENT + d] += exp(score) * row[d];
    }
    for (d = 0; d < LATENT; ++d) out[head * LATENT + d] /= sum;
    lse[head] = log(sum);
  }
}

static fovea_latent_cache plain_cache(void) {
  fovea_latent_cache cache = {0};
  cache.format = FOVEA_ROWS;
  cache.rows = tensor4(BLOCKS, PAGE, 1, ROW);
  return cache;
}

static void test_latent(void) {
  static latent t;
  static double out[QUERIES * LATENT];
  const int64_t table_shape[2] = {1, 2}, lse_shape[3] = {1, QUERIES, 1};
  const fovea_tensor lse_desc = fovea_contiguous(FOVEA_F32, 3, lse_shape);
  const int32_t kv_len[1] = {TOKENS};
  double lse[QUERIES], largest[QUERIES];
  fovea_latent_attention_desc desc = {0};
  fovea_latent_attention_args args = {0};
  fovea_plan* plan = NULL;
  size_t bytes, i;

  fill_latent(&t);
  expect_latent(&t, TOKENS, out, lse, largest);
  desc.q = tensor4(1, 1, QUERIES, ROW), desc.out = tensor4(1, 1, QUERIES, LATENT);
  desc.block_table = fovea_contiguous(FOVEA_I32, 2, table_shape);
  desc.cache = plain_cache(), desc.lse = &lse_desc;
  args.q = t.q, args.cache = t.cache, args.out = t.out, args.lse = t.lse, args.block_table = block_table, args.kv_len = kv_len;
  RUN(latent_attention, desc, args);
  CHECK_NEAR(t.out, out, QUERIES * LATENT);
  CHECK_NEAR(t.lse, lse, QUERIES);

  for (i = 0; i < QUERIES * LATENT; ++i) t.out[i] = NAN;
  CHECK(fovea_latent_attention_plan(&desc, NULL, &plan) == FOVEA_OK);
  bytes = fovea_plan_workspace_bytes(plan);
  CHECK(fovea_latent_attention_prepare(plan, &args, workspace(bytes), bytes, NULL) == FOVEA_OK);
  CHECK(fovea_latent_attention_run_prepared(plan, &args, workspace(bytes), bytes, NULL) == FOVEA_OK);
  CHECK_NEAR(t.out, out, QUERIES * LATENT);
  fovea_plan_destroy(plan);
  desc.cache.format = 6;
  CHECK_ERROR(fovea_latent_attention_plan(&desc, NULL, &plan), FOVEA_INVALID_ARGUMENT, "cache.format: got 6, want 0 .. 5");
}

/* The same tokens as a list, once in one cache and once divided over two, among indices that name nothing. */
static void test_sparse(void) {
  enum { TOPK = 5 };
  static latent t;
  static double out[QUERIES * LATENT];
  const int32_t first[TOPK] = {slot_of(0), -1, slot_of(1), BLOCKS * PAGE, slot_of(2)}, length[1] = {3};
  const int32_t second[TOPK] = {slot_of(3), slot_of(4), slot_of(5), 4, 4}; /* slot 4 holds NaN */
  const int64_t index_shape[3] = {1, 1, TOPK}, lse_shape[3] = {1, QUERIES, 1};
  const fovea_tensor numbers = fovea_contiguous(FOVEA_F32, 3, lse_shape);
  double lse[QUERIES], largest[QUERIES];
  fovea_sparse_selection extra = {0};
  fovea_sparse_latent_attention_desc desc = {0};
  fovea_sparse_latent_attention_args args = {0};
  fovea_plan* plan = NULL;

  fill_latent(&t);
  desc.q = tensor4(1, 1, QUERIES, ROW), desc.out = tensor4(1, 1, QUERIES, LATENT), desc.lse = desc.max_logits = &numbers;
  desc.main.cache = plain_cache(), desc.main.indices = fovea_contiguous(FOVEA_I32, 3, index_shape);
  args.q = t.q, args.out = t.out, args.lse = t.lse, args.max_logits = t.max_logits;
  args.main.cache = t.cache, args.main.indices = first;
  RUN(sparse_latent_attention, desc, args);
  expect_latent(&t, 3, out, lse, largest);
  CHECK_NEAR(t.out, out, QUERIES * LATENT);
  CHECK_NEAR(t.lse, lse, QUERIES);
  CHECK_NEAR(t.max_logits, largest, QUERIES);

  extra = desc.main, extra.has_topk_length = 1, desc.extra = &extra;
  args.extra.cache = t.cache, args.extra.indices = second, args.extra.topk_length = length;
  RUN(sparse_latent_attention, desc, args);
  expect_latent(&t, TOKENS, out, lse, largest);
  CHECK_NEAR(t.out, out, QUERIES * LATENT);
  CHECK_NEAR(t.lse, lse, QUERIES);
  CHECK_NEAR(t.max_logits, largest, QUERIES);
  extra.indices.dtype = FOVEA_I64;
  CHECK_ERROR(fovea_sparse_latent_attention_plan(&desc, NULL, &plan), FOVEA_INVALID_ARGUMENT, "extra.indices");
}

/* Small whole numbers, with a largest one of 448, are what e4m3 holds exactly. */
static void test_conversion(void) {
  static float rows[2 * ROW], back[2 * ROW];
  static unsigned char cache[BLOCKS * PAGE * 656];
  const int64_t slots[2] = {9, -1}, shape[2] = {2, ROW};
  fovea_latent_cache_conversion_desc desc = {0};
  fovea_quantize_latent_cache_args pack = {0};
  fovea_dequantize_latent_cache_args unpack = {0};
  fovea_plan* plan = NULL;
  int i;

  for (i = 0; i < 2 * ROW; ++i) rows[i] = i % 128 == 0 ? 448.0f : (float)(i % 15 - 7), back[i] = -1.0f;
  memset(cache, 0xff, sizeof cache);
  desc.rows = fovea_contiguous(FOVEA_F32, 2, shape);
  desc.cache.format = FOVEA_V32_FP8, desc.cache.blocks = BLOCKS, desc.cache.page = PAGE, desc.rule = FOVEA_EXACT;
  pack.rows = rows, pack.cache = cache, pack.slot_mapping = slots;
  unpack.rows = back, unpack.cache = cache, unpack.slot_mapping = slots;
  RUN(quantize_latent_cache, desc, pack);
  CHECK(cache[9 * 656 - 1] == 0xff && cache[9 * 656] == 0x7e && cache[10 * 656] == 0xff); /* 0x7e is 448; the neighbours are untouched */
  RUN(dequantize_latent_cache, desc, unpack);
  CHECK(memcmp(back, rows, ROW * sizeof(float)) == 0);
  CHECK(back[ROW] == -1.0f); /* a skipped slot leaves its row */
  desc.rule = 2;
  CHECK_ERROR(fovea_quantize_latent_cache_plan(&desc, NULL, &plan), FOVEA_INVALID_ARGUMENT, "rule: got 2, want 0 .. 1");
}

/* ---- the indexer: scores that can be counted, and their lists ------------------------------------------------------------ */

enum { INDEX_ROWS = 2, INDEX_HEADS = 3, INDEX_DIM = 64, KEYS = 5, TOPK = 3, ONE = 0x38, MINUS_ONE = 0xb8 }; /* e4m3 of 1 and -1 */

static uint8_t index_q[INDEX_ROWS * INDEX_HEADS * INDEX_DIM], index_k[KEYS * INDEX_DIM];
static float k_scale[KEYS], weights[INDEX_ROWS * INDEX_HEADS], logits[INDEX_ROWS * KEYS];

/* Heads of ones; key t has 8 t ones, and key 2 is negative. */
static void test_index_logits(void) {
  const int64_t q_shape[] = {INDEX_ROWS, INDEX_HEADS, INDEX_DIM}, k_shape[] = {KEYS, INDEX_DIM}, scale_shape[] = {KEYS};
  const int64_t weight_shape[] = {INDEX_ROWS, INDEX_HEADS}, out_shape[] = {INDEX_ROWS, KEYS};
  const int32_t last[INDEX_ROWS] = {KEYS, 2};
  fovea_index_logits_desc desc = {0};
  fovea_index_logits_args args = {0};
  int row, token, d;
  memset(index_q, ONE, sizeof index_q);
  for (token = 0; token < KEYS; ++token) {
    for (d = 0; d < 8 * token; ++d) index_k[token * INDEX_DIM + d] = token == 2 ? MINUS_ONE : ONE;
    k_scale[token] = 0.5f;
  }
  for (d = 0; d < INDEX_ROWS * INDEX_HEADS; ++d) weights[d] = 2.0f;
  desc.q = fovea_contiguous(FOVEA_E4M3, 3, q_shape), desc.k = fovea_contiguous(FOVEA_E4M3, 2, k_shape);
  desc.k_scale = fovea_contiguous(FOVEA_F32, 1, scale_shape), desc.weights = fovea_contiguous(FOVEA_F32, 2, weight_shape);
  desc.out = fovea_contiguous(FOVEA_F32, 2, out_shape), desc.has_last = 1;
  args.q = index_q, args.k = index_k, args.k_scale = k_scale, args.weights = weights, args.out = logits, args.last = last;
  RUN(index_logits, desc, args);
  for (row = 0; row < INDEX_ROWS; ++row) {
    for (token = 0; token < KEYS; ++token) {
      const double want = token >= last[row] ? -INFINITY : token == 2 ? 0.0 : 8.0 * token * INDEX_HEADS;
      CHECK(logits[row * KEYS + token] == want);
    }
  }
}

static void test_topk_rows(void) {
  const int64_t logit_shape[] = {INDEX_ROWS, KEYS}, out_shape[] = {INDEX_ROWS, TOPK}, table_shape[] = {INDEX_ROWS, 3};
  const int32_t last[INDEX_ROWS] = {KEYS, 2}, table[INDEX_ROWS * 3] = {7, 1, 5, 4, 0, 0};
  const int32_t want[INDEX_ROWS * TOPK] = {15, 3, 10, 8, 9, -1}; /* tokens 1, 3 and 4, then 0 and 1 */
  int32_t out[INDEX_ROWS * TOPK];
  fovea_topk_rows_desc desc = {0};
  fovea_topk_rows_args args = {0};
  fovea_tensor blocks = fovea_contiguous(FOVEA_I32, 2, table_shape);
  fovea_plan* plan = NULL;
  desc.logits = fovea_contiguous(FOVEA_F32, 2, logit_shape), desc.out = fovea_contiguous(FOVEA_I32, 2, out_shape);
  desc.has_last = 1, desc.block_table = &blocks, desc.page = 2;
  args.logits = logits, args.out = out, args.last = last, args.block_table = table;
  RUN(topk_rows, desc, args);
  CHECK(memcmp(out, want, sizeof want) == 0);
  desc.page = 0;
  CHECK_ERROR(fovea_topk_rows_plan(&desc, NULL, &plan), FOVEA_INVALID_ARGUMENT, "page: got 0");
}

int main(void) {
  test_backward();
  test_latent();
  test_sparse();
  test_conversion();
  test_index_logits();
  test_topk_rows();
  printf(failures == 0 ? "the C functions work\n" : "%d checks failed\n", failures);
  return failures == 0 ? 0 : 1;
}
