/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the tests in C: checks that count failures, numbers, tensors and scratch memory. Each test is one file, so all is static.
 */
#ifndef FOVEA_TESTS_C_API_CHECKS_H
#define FOVEA_TESTS_C_API_CHECKS_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fovea/c.h"

static int failures = 0;

static void check(int holds, int line, const char* what) {
  if (holds) return;
  ++failures;
  printf("line %d: %s (last error: %s)\n", line, what, fovea_last_error());
}
#define CHECK(condition) check((condition), __LINE__, #condition)
#define CHECK_ERROR(call, want_status, want_text)           \
  do {                                                      \
    CHECK((call) == (want_status));                         \
    CHECK(strstr(fovea_last_error(), (want_text)) != NULL); \
  } while (0)

static float noise(unsigned* state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / (float)(1u << 23) - 1.0f;
}

/* NaN is never near anything: the comparison is false. */
static int near(double got, double want) { return fabs(got - want) <= 1e-5 * (1.0 + fabs(want)); }

/* Scratch memory, aligned to 64 bytes: the same as in the last call, unless it must grow. */
static void* workspace(size_t bytes) {
  static unsigned char* memory = NULL;
  static size_t size = 0;
  if (bytes + 64 > size) {
    free(memory);
    size = bytes + 64;
    memory = malloc(size);
    if (memory == NULL) {
      printf("no memory for a workspace of %lu bytes\n", (unsigned long)bytes);
      exit(1);
    }
  }
  return memory + (64 - (size_t)((uintptr_t)memory % 64)) % 64;
}

static fovea_tensor tensor4(int64_t a, int64_t b, int64_t c, int64_t d) {
  const int64_t shape[4] = {a, b, c, d};
  return fovea_contiguous(FOVEA_F32, 4, shape);
}

#endif
