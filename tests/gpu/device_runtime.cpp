// SPDX-License-Identifier: Apache-2.0
#include "device_runtime.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "isolated_memory.hpp"
#include "shared_memory.hpp"

namespace fovea::check {
namespace {

void require(cudaError_t status, const char* action) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(action) + ": " + cudaGetErrorString(status));
}

void use(Device device) { require(cudaSetDevice(device.ordinal), "cudaSetDevice"); }

bool isolated = false;

cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace

IsolatedMemory::IsolatedMemory() { isolated = true; }
IsolatedMemory::~IsolatedMemory() { isolated = false; }

Device device_of(std::string_view implementation) { return {implementation.starts_with("cuda.") ? Backend::cuda : Backend::cpu, 0}; }
bool has_own_memory(Device device) { return device.backend == Backend::cuda; }

void* device_allocate(Device device, std::size_t bytes) {
  use(device);
  if (isolated) return isolated_allocate(device, bytes);
  void* memory = nullptr;
  require(cudaMalloc(&memory, bytes), "cudaMalloc");
  return memory;
}

void device_free(Device device, void* memory) {
  use(device);
  static_cast<void>(cudaDeviceSynchronize());
  if (!isolated_free(memory)) static_cast<void>(cudaFree(memory));
}

void copy_to_device(Device device, void* to, std::span<const std::byte> from) {
  use(device);
  require(cudaMemcpy(to, from.data(), from.size(), cudaMemcpyHostToDevice), "cudaMemcpy to the device");
  require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // pageable copies may be in flight; side streams do not wait
}

void copy_from_device(Device device, std::span<std::byte> to, const void* from) {
  use(device);
  require(cudaMemcpy(to.data(), from, to.size(), cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
}

double device_copy_seconds(Device device, std::size_t bytes) {
  const SideStream side(device);
  void *from = device_allocate(device, bytes), *to = device_allocate(device, bytes);
  const Graph copy(device, side.get(), [&]() -> Result<void> {
    require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, native(side.get())), "cudaMemcpyAsync");
    return {};
  });
  std::array<double, 20> samples{};
  for (double& sample : samples) sample = copy.seconds(1);
  std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
  device_free(device, from);
  device_free(device, to);
  return samples[samples.size() / 2];
}

void poison_unwritten_memory(Device device) {
  use(device);
  require(poison_shared_memory(device.ordinal), "poison_shared_memory");
}

Result<void> synchronize(Device device) {
  use(device);
  const cudaError_t status = cudaDeviceSynchronize();
  if (status == cudaSuccess) return {};
  return Error{ErrorCode::device_error, cudaGetErrorString(status)};
}

SideStream::SideStream(Device device) : device_(device) {
  use(device);
  cudaStream_t stream{};
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  stream_.handle = stream;
}

SideStream::~SideStream() {
  use(device_);
  static_cast<void>(cudaStreamDestroy(native(stream_)));
}

Graph::Graph(Device device, Stream stream, const std::function<Result<void>()>& call) : device_(device), stream_(stream) {
  use(device);
  require(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  const Result<void> called = call();
  cudaGraph_t graph{};
  const cudaError_t ended = cudaStreamEndCapture(native(stream), &graph);
  called.value();
  require(ended, "cudaStreamEndCapture");
  cudaGraphExec_t executable{};
  const cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  require(made, "cudaGraphInstantiate");
  executable_ = executable;
}

Graph::~Graph() {
  use(device_);
  static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_)));
}

void Graph::launch() const { require(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), native(stream_)), "cudaGraphLaunch"); }

double Graph::seconds(int count) const {
  use(device_);
  cudaEvent_t begin{}, end{};
  require(cudaEventCreate(&begin), "cudaEventCreate");
  require(cudaEventCreate(&end), "cudaEventCreate");
  require(cudaEventRecord(begin, native(stream_)), "cudaEventRecord");
  for (int i = 0; i < count; ++i) launch();
  require(cudaEventRecord(end, native(stream_)), "cudaEventRecord");
  require(cudaEventSynchronize(end), "cudaEventSynchronize");
  float milliseconds = 0;
  require(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
  static_cast<void>(cudaEventDestroy(begin));
  static_cast<void>(cudaEventDestroy(end));
  return milliseconds * 1e-3 / count;
}

}  // namespace fovea::check
