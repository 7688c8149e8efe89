// SPDX-License-Identifier: Apache-2.0
/// The fovea program inside the Python extension, over the same library: python/fovea/__main__.py calls it through ctypes.
#include <cstdio>

#include "program.hpp"

extern "C" __attribute__((visibility("default"))) int fovea_program(int argc, char** argv) {
  const int status = fovea::cli::run_program(argc, argv);
  std::fflush(nullptr);
  return status;
}
