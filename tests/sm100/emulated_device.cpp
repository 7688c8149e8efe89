// SPDX-License-Identifier: Apache-2.0
/// The emulated device in the place of a GPU's runtime. Its memory is the host's.
#include <stdexcept>
#include <string_view>

#include "device_runtime.hpp"

namespace fovea::check {
namespace {

[[noreturn]] void none() { throw std::logic_error("the emulated device has no memory, streams or graphs of its own"); }

}  // namespace

Device device_of(std::string_view implementation) { return implementation.starts_with("cuda.") ? Device{Backend::cuda, 0} : Device{}; }
bool has_own_memory(Device) { return false; }
IsolatedMemory::IsolatedMemory() { none(); }
IsolatedMemory::~IsolatedMemory() = default;
void* device_allocate(Device, std::size_t) { none(); }
void device_free(Device, void*) {}
void copy_to_device(Device, void*, std::span<const std::byte>) { none(); }
void copy_from_device(Device, std::span<std::byte>, const void*) { none(); }
double device_copy_seconds(Device, std::size_t) { none(); }
void poison_unwritten_memory(Device) {}  // the emulation does so itself
Result<void> synchronize(Device) { return {}; }
SideStream::SideStream(Device) { none(); }
SideStream::~SideStream() = default;
Graph::Graph(Device, Stream, const std::function<Result<void>()>&) { none(); }
Graph::~Graph() = default;
void Graph::launch() const { none(); }
double Graph::seconds(int) const { none(); }

}  // namespace fovea::check
