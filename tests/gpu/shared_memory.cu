// SPDX-License-Identifier: Apache-2.0
/// No kernel may read shared memory that it has not written. Multiprocessors do not clear it: it then holds what an
/// earlier kernel left, mostly numbers that hide the mistake. Here that kernel leaves NaN in every format.
#include <cuda_runtime.h>

#include "shared_memory.hpp"

namespace fovea::check {
namespace {

__global__ void fill_with_nan(unsigned words) {
  extern __shared__ unsigned memory[];
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) *const_cast<volatile unsigned*>(memory + i) = ~0u;
}

}  // namespace

cudaError_t poison_shared_memory(int ordinal) {
  int bytes = 0, multiprocessors = 0;
  cudaError_t status = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, ordinal);
  if (status == cudaSuccess) status = cudaFuncSetAttribute(fill_with_nan, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  fill_with_nan<<<multiprocessors, 1024, bytes>>>(static_cast<unsigned>(bytes) / 4);  // a CTA has all of a multiprocessor's
  status = cudaGetLastError();
  return status == cudaSuccess ? cudaDeviceSynchronize() : status;
}

}  // namespace fovea::check
