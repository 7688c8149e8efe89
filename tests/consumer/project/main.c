/* SPDX-License-Identifier: Apache-2.0 */
#include <fovea/c.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
  const int64_t shape[4] = {1, 1, 1, 8};
  const float x[8] = {2, 2, 2, 2, 2, 2, 2, 2};
  float out[8] = {0};
  fovea_attention_desc desc = {0};
  fovea_attention_args args = {0};
  fovea_plan* plan = NULL;
  fovea_status status;

  desc.q = desc.k = desc.v = desc.out = fovea_contiguous(FOVEA_F32, 4, shape);
  args.q = args.k = args.v = x;
  args.out = out;
  status = fovea_attention_plan(&desc, NULL, &plan);
  if (status == FOVEA_OK) {
    const size_t bytes = fovea_plan_workspace_bytes(plan);
    char* memory = malloc(bytes + 64);
    status = fovea_attention_run(plan, &args, memory + (64 - (size_t)((uintptr_t)memory % 64)) % 64, bytes, NULL);
    free(memory);
  }
  printf("%s: %g %s\n", fovea_plan_implementation(plan), (double)out[0], fovea_last_error());
  fovea_plan_destroy(plan);
  return status == FOVEA_OK && out[0] == 2.0f ? 0 : 1; /* one key: the output is its value */
}
