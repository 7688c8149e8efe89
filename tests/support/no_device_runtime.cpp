// SPDX-License-Identifier: Apache-2.0
/// A build without a GPU backend: no implementation needs a device's memory.
#include <stdexcept>

#include "device_runtime.hpp"

namespace fovea::check {
namespace {

[[noreturn]] void none() { throw std::logic_error("this build has no GPU backend"); }

}  // namespace

Device device_of(std::string_view) { return {}; }
bool has_own_memory(Device) { return false; }
IsolatedMemory::IsolatedMemory() { none(); }
IsolatedMemory::~IsolatedMemory() = default;
void* device_allocate(Device, std::size_t) { none(); }
void device_free(Device, void*) {}
void copy_to_device(Device, void*, std::span<const std::byte>) { none(); }
void copy_from_device(Device, std::span<std::byte>, const void*) { none(); }
double device_copy_seconds(Device, std::size_t) { none(); }
void poison_unwritten_memory(Device) { none(); }
Result<void> synchronize(Device) { return {}; }
SideStream::SideStream(Device) { none(); }
SideStream::~SideStream() = default;
Graph::Graph(Device, Stream, const std::function<Result<void>()>&) { none(); }
Graph::~Graph() = default;
void Graph::launch() const { none(); }
double Graph::seconds(int) const { none(); }

}  // namespace fovea::check
