/* SPDX-License-Identifier: Apache-2.0
 *
 * The C functions of 8-bit attention: the quantisers against their rule written out here, both ways to attend against quantised values.
 */
#include "checks.h"
#include "fovea/c_quantized_attention.h"

enum { SEQ = 70, HEADS = 2, DIM = 64, SIZE = SEQ * HEADS * DIM, Q_GROUPS = 32, K_GROUPS = 8 };

typedef struct tensors {
  float q[SIZE], k[SIZE], v[SIZE], out[SIZE], lse[HEADS * SEQ];
  int8_t q_int8[SIZE], k_int8[SIZE];
  unsigned char v_codes[SIZE];
  float q_scale[HEADS * Q_GROUPS], k_scale[HEADS * K_GROUPS];
  float k_mean[HEADS * DIM], v_mean[HEADS * DIM], v_scale[HEADS * DIM], lse_shift[HEADS * SEQ];
} tensors;

/* Tensors and mask that the descriptions point to. */
typedef struct parts {
  fovea_tensor rows, codes, values, q_scale, k_scale, channels, lse;
  fovea_mask mask;
} parts;

static parts make_parts(void) {
  const int64_t lse_shape[3] = {1, HEADS, SEQ};
  parts p;
  p.rows = p.codes = p.values = tensor4(1, SEQ, HEADS, DIM);
  p.codes.dtype = FOVEA_I8, p.values.dtype = FOVEA_E4M3;
  p.q_scale = fovea_int8_q_scale(&p.rows, NULL, NULL);
  p.k_scale = fovea_int8_k_scale(&p.rows, NULL, NULL);
  p.channels = fovea_int8_channels(&p.rows, NULL);
  p.lse = fovea_contiguous(FOVEA_F32, 3, lse_shape);
  p.mask = fovea_causal();
  return p;
}

static fovea_quantize_qk_int8_desc qk_desc(const parts* p) {
  fovea_quantize_qk_int8_desc desc = {0};
  desc.q = desc.k = p->rows, desc.q_int8 = desc.k_int8 = p->codes, desc.q_scale = p->q_scale, desc.k_scale = p->k_scale;
  desc.k_mean = &p->channels, desc.lse_shift = &p->lse;
  return desc;
}

static fovea_quantize_v_desc v_desc(const parts* p) {
  fovea_quantize_v_desc desc = {0};
  desc.v = p->rows, desc.v_out = p->values, desc.v_scale = desc.v_mean = &p->channels;
  return desc;
}

static fovea_quantized_attention_desc attention_desc(const parts* p) {
  fovea_quantized_attention_desc desc = {0};
  desc.q = desc.k = p->codes, desc.v = p->values, desc.out = p->rows, desc.q_scale = p->q_scale, desc.k_scale = p->k_scale;
  desc.v_scale = desc.v_mean = &p->channels, desc.lse = desc.lse_shift = &p->lse, desc.mask = &p->mask;
  return desc;
}

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

static void quantise(tensors* t, const parts* p) {
  fovea_quantize_qk_int8_desc qk = qk_desc(p);
  fovea_quantize_v_desc v = v_desc(p);
  fovea_quantize_qk_int8_args qk_args = {0};
  fovea_quantize_v_args v_args = {0};
  qk_args.q = t->q, qk_args.k = t->k, qk_args.q_int8 = t->q_int8, qk_args.k_int8 = t->k_int8;
  qk_args.q_scale = t->q_scale, qk_args.k_scale = t->k_scale, qk_args.k_mean = t->k_mean, qk_args.lse_shift = t->lse_shift;
  v_args.v = t->v, v_args.v_out = t->v_codes, v_args.v_scale = t->v_scale, v_args.v_mean = t->v_mean;
  RUN(quantize_qk_int8, qk, qk_args);
  RUN(quantize_v, v, v_args);
}

static int at(int row, int head) { return (row * HEADS + head) * DIM; }
static int q_group(int row) { return row / 32 * 8 + row % 8; }
static int k_group(int key) { return key / 64 * 4 + key % 8 / 2; }

/* Every scale is the largest magnitude of its group over 127, and every code the nearest. */
static void check_codes(const tensors* t) {
  int row, head, d;
  double largest_q[HEADS * Q_GROUPS] = {0}, largest_k[HEADS * K_GROUPS] = {0};
  for (row = 0; row < SEQ; ++row)
    for (head = 0; head < HEADS; ++head)
      for (d = 0; d < DIM; ++d) {
        const double q = fabs(t->q[at(row, head) + d]), k = fabs((double)t->k[at(row, head) + d] - t->k_mean[head * DIM + d]);
        double* of_q = &largest_q[head * Q_GROUPS + q_group(row)];
        double* of_k = &largest_k[head * K_GROUPS + k_group(row)];
        if (q > *of_q) *of_q = q;
        if (k > *of_k) *of_k = k;
      }
  for (row = 0; row < SEQ; ++row)
    for (head = 0; head < HEADS; ++head) {
      const int of_q = head * Q_GROUPS + q_group(row), of_k = head * K_GROUPS + k_group(row);
      CHECK(near(t->q_scale[of_q], largest_q[of_q] / 127) && near(t->k_scale[of_k], largest_k[of_k] / 127));
      for (d = 0; d < DIM; ++d) {
        const double k = ((double)t->k[at(row, head) + d] - t->k_mean[head * DIM + d]) / t->k_scale[of_k];
        CHECK(fabs(t->q[at(row, head) + d] / t->q_scale[of_q] - t->q_int8[at(row, head) + d]) < 0.501);
        CHECK(fabs(k - t->k_int8[at(row, head) + d]) < 0.501);
      }
    }
}

/* out and lse of the quantised tensors, causal. */
static void check_attention(const tensors* t) {
  int row, head, key, d;
  for (row = 0; row < SEQ; ++row)
    for (head = 0; head < HEADS; ++head) {
      double sum = 0.0, out[DIM] = {0}, shift = 0.0;
      for (key = 0; key <= row; ++key) {
        const double scale = (double)t->q_scale[head * Q_GROUPS + q_group(row)] * t->k_scale[head * K_GROUPS + k_group(key)];
        int dot = 0;
        double weight;
        for (d = 0; d < DIM; ++d) dot += t->q_int8[at(row, head) + d] * t->k_int8[at(key, head) + d];
        weight = exp(dot * scale / 8.0);
        sum += weight;
        for (d = 0; d < DIM; ++d) {
          const unsigned char code = t->v_codes[at(key, head) + d];
          const int exponent = code >> 3 & 15, mantissa = code & 7;
          const double size = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
          out[d] += weight * (code & 128 ? -size : size);
        }
      }
      for (d = 0; d < DIM; ++d) {
        shift += (double)t->q[at(row, head) + d] * t->k_mean[head * DIM + d];
        CHECK(near(t->out[at(row, head) + d], out[d] / sum * t->v_scale[head * DIM + d] + t->v_mean[head * DIM + d]));
      }
      CHECK(near(t->lse[head * SEQ + row], log(sum) + shift / 8.0));
    }
}

static void test_steps_and_whole(void) {
  static tensors t;
  static float out[SIZE];
  const parts p = make_parts();
  fovea_quantized_attention_desc desc = attention_desc(&p);
  fovea_quantized_attention_args args = {0};
  fovea_quantize_and_attend_desc whole = {0};
  fovea_quantize_and_attend_args whole_args = {0};
  unsigned state = 11;
  int i;

  for (i = 0; i < SIZE; ++i) t.q[i] = noise(&state), t.k[i] = 3.0f + noise(&state), t.v[i] = noise(&state), t.out[i] = NAN;
  quantise(&t, &p);
  check_codes(&t);
  args.q = t.q_int8, args.k = t.k_int8, args.v = t.v_codes, args.out = t.out, args.lse = t.lse, args.lse_shift = t.lse_shift;
  args.q_scale = t.q_scale, args.k_scale = t.k_scale, args.v_scale = t.v_scale, args.v_mean = t.v_mean;
  RUN(quantized_attention, desc, args);
  check_attention(&t);

  memcpy(out, t.out, sizeof out);
  for (i = 0; i < SIZE; ++i) t.out[i] = NAN;
  whole.q = whole.k = whole.v = whole.out = p.rows, whole.lse = &p.lse, whole.mask = &p.mask;
  whole.v_dtype = FOVEA_E4M3, whole.smooth_k = whole.smooth_v = 1;
  whole_args.q = t.q, whole_args.k = t.k, whole_args.v = t.v, whole_args.out = t.out, whole_args.lse = t.lse;
  RUN(quantize_and_attend, whole, whole_args);
  CHECK(memcmp(out, t.out, sizeof out) == 0);
  check_attention(&t);
}

static void test_errors(void) {
  const parts p = make_parts();
  const fovea_int8_groups no_such = {3, 32}, no_rows = {FOVEA_INT8_WARP, 24}, warp16 = {FOVEA_INT8_WARP, 16};
  const fovea_ragged ragged = {3, 40, 50};
  const int64_t shape[3] = {SEQ, HEADS, DIM};
  const fovea_tensor packed = fovea_contiguous(FOVEA_F32, 3, shape);
  fovea_quantize_qk_int8_desc qk = qk_desc(&p);
  fovea_quantize_v_desc v = v_desc(&p);
  fovea_quantize_and_attend_desc whole = {0};
  fovea_tensor bad = p.rows;
  fovea_plan* plan = NULL;

  CHECK(p.q_scale.rank == 3 && p.q_scale.shape[1] == HEADS && p.q_scale.shape[2] == Q_GROUPS && p.k_scale.shape[2] == K_GROUPS);
  CHECK(fovea_int8_q_scale(&p.rows, NULL, &warp16).shape[2] == 8);
  CHECK(fovea_int8_k_scale(&packed, &ragged, NULL).rank == 2 && fovea_int8_k_scale(&packed, &ragged, NULL).shape[1] == 16);
  CHECK(fovea_int8_channels(&packed, &ragged).shape[0] == 3 && fovea_int8_channels(&packed, &ragged).shape[2] == DIM);
  bad.shape[1] = INT64_MAX;
  CHECK(fovea_int8_q_scale(NULL, NULL, NULL).rank == 0 && fovea_int8_q_scale(&bad, NULL, NULL).rank == 0);
  CHECK(fovea_int8_q_scale(&packed, NULL, NULL).rank == 0 && fovea_int8_q_scale(&p.rows, NULL, &no_rows).rank == 0);

  qk.groups = &no_such;
  CHECK_ERROR(fovea_quantize_qk_int8_plan(&qk, NULL, &plan), FOVEA_INVALID_ARGUMENT, "groups.granularity: got 3, want 0 .. 2");
  qk.groups = &no_rows;
  CHECK_ERROR(fovea_quantize_qk_int8_plan(&qk, NULL, &plan), FOVEA_INVALID_ARGUMENT, "groups.warp_rows: got 24, want 32 or 16");
  v.v_scale = NULL;
  CHECK_ERROR(fovea_quantize_v_plan(&v, NULL, &plan), FOVEA_INVALID_ARGUMENT, "v_scale: got none");
  whole.q = whole.k = whole.v = whole.out = p.rows;
  CHECK_ERROR(fovea_quantize_and_attend_plan(&whole, NULL, &plan), FOVEA_INVALID_ARGUMENT, "v_dtype: got f32, want f16 or e4m3");
  whole.v_dtype = 17;
  CHECK_ERROR(fovea_quantize_and_attend_plan(&whole, NULL, &plan), FOVEA_INVALID_ARGUMENT, "v_dtype: got 17");
  whole.v_dtype = FOVEA_F16;
  CHECK(fovea_quantize_and_attend_plan(&whole, NULL, &plan) == FOVEA_OK);
  CHECK_ERROR(fovea_quantize_v_run(plan, NULL, NULL, 0, NULL), FOVEA_INVALID_ARGUMENT, "want a quantize_v plan");
  fovea_plan_destroy(plan);
}

int main(void) {
  test_steps_and_whole();
  test_errors();
  printf(failures == 0 ? "the C functions work\n" : "%d checks failed\n", failures);
  return failures == 0 ? 0 : 1;
}
