// SPDX-License-Identifier: Apache-2.0
/// The emulated runtime as a library of the HIP runtime's name and functions, for programs that find it as they would find AMD's. They load
/// code objects, which must hold the kernels by their names; the emulated ones run in their place.
#include <elf.h>

#include <cstring>
#include <string>
#include <string_view>

#include "gpu/hip/runtime.hpp"

#define FOVEA_EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

using fovea::gpu::hip::FunctionHandle;
using fovea::gpu::hip::ModuleHandle;
using fovea::gpu::hip::Status;

const fovea::gpu::hip::Runtime& emulated() { return *fovea::gpu::hip::found_runtime().functions; }

/// A code object is an ELF file, at whose end the table of its sections stands. A kernel `k` has a descriptor, the symbol `k.kd`.
bool has_kernel(const void* image, const char* name) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != EM_AMDGPU) return false;
  const std::string_view bytes(static_cast<const char*>(image), header.e_shoff + std::size_t{header.e_shentsize} * header.e_shnum);
  const std::string symbol = std::string(1, '\0') + name + ".kd" + std::string(1, '\0');
  return bytes.find(symbol) != bytes.npos;
}

}  // namespace

FOVEA_EXPORTED Status hipGetDeviceCount(int* count) { return emulated().get_device_count(count); }
FOVEA_EXPORTED Status hipDeviceGetAttribute(int* value, int attribute, int ordinal) {
  return emulated().get_attribute(value, attribute, ordinal);
}
FOVEA_EXPORTED Status hipDeviceGetName(char* name, int bytes, int ordinal) { return emulated().get_name(name, bytes, ordinal); }
FOVEA_EXPORTED Status hipGetDevice(int* ordinal) { return emulated().get_device(ordinal); }
FOVEA_EXPORTED Status hipSetDevice(int ordinal) { return emulated().set_device(ordinal); }
FOVEA_EXPORTED Status hipGetLastError() { return emulated().get_last_error(); }
FOVEA_EXPORTED const char* hipGetErrorName(Status status) { return emulated().name_of_error(status); }
FOVEA_EXPORTED Status hipModuleLoadData(ModuleHandle* module, const void* image) { return emulated().load_module(module, image); }
FOVEA_EXPORTED Status hipModuleGetFunction(FunctionHandle* function, ModuleHandle module, const char* name) {
  constexpr Status kNotFound = 500;
  return has_kernel(module, name) ? emulated().get_function(function, module, name) : kNotFound;
}
FOVEA_EXPORTED Status hipModuleLaunchKernel(FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                            unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** params,
                                            void** extra) {
  // #lizard forgives(parameter_count): the signature of hipModuleLaunchKernel
  return emulated().launch(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, params, extra);
}
