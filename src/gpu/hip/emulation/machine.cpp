// SPDX-License-Identifier: Apache-2.0
#include "gpu/hip/emulation/machine.hpp"

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/hip/emulation/shared_memory.hpp"

namespace fovea::gpu::emulation {
namespace {

constexpr std::size_t kStackBytes = 128 << 10;

struct Fault : std::exception {};

enum class Waiting : std::uint8_t { no, wave, workgroup, ended };

struct Lane {
  WorkItem item{};
  Waiting waiting = Waiting::no;
  const char* operation = nullptr;
  Resolve resolve = nullptr;
  void* operand = nullptr;
  std::int64_t collectives = 0;  ///< so far: two turns of one loop are not the same place
  boost::context::fiber fiber{};
};

class Workgroup;
thread_local Workgroup* running = nullptr;

/// Takes stacks from a pool, which the workgroups of a process share.
boost::context::preallocated stack_of(int thread, boost::context::stack_context& context) {
  thread_local std::vector<std::unique_ptr<std::byte[]>> stacks;
  while (static_cast<int>(stacks.size()) <= thread) stacks.push_back(std::make_unique<std::byte[]>(kStackBytes));
  context.size = kStackBytes;
  context.sp = stacks[static_cast<std::size_t>(thread)].get() + kStackBytes;
  return {context.sp, context.size, context};
}
struct KeepStack {
  void deallocate(boost::context::stack_context&) const {}
};

class Workgroup {
 public:
  Workgroup(void (*kernel)(const void*), const void* params, const Shape& shape, const int (&at)[3], Order order)
      : lanes_(static_cast<std::size_t>(shape.threads)), order_(order), memory_(shape.threads) {
    for (int thread = 0; thread < shape.threads; ++thread) {
      Lane& lane = lanes_[static_cast<std::size_t>(thread)];
      lane.item = {thread, {at[0], at[1], at[2]}};
      boost::context::stack_context context;
      const auto stack = stack_of(thread, context);
      lane.fiber = boost::context::fiber(std::allocator_arg, stack, KeepStack{}, [this, &lane, kernel, params](auto&& scheduler) {
        scheduler_ = std::move(scheduler);
        try {
          kernel(params);
        } catch (const Fault&) {
        }
        lane.waiting = Waiting::ended;
        return std::move(scheduler_);
      });
    }
  }

  std::optional<std::string> run() {
    running = this;
    try {
      while (advance()) {
      }
    } catch (const Fault&) {
    }
    for (Lane& lane : lanes_) lane.fiber = {};  // unwinds what a fault has left
    running = nullptr;
    return std::move(fault_);
  }

  Lane& current() { return *current_; }
  SharedMemoryModel& memory() { return memory_; }

  void yield(Waiting waiting) {
    current_->waiting = waiting;
    scheduler_ = std::move(scheduler_).resume();
    if (fault_) throw Fault();
  }
  [[noreturn]] void fail(std::string message) {
    if (!fault_) fault_ = std::move(message);
    throw Fault();
  }
  void order_wave(int wave) { memory_.order_wave(wave); }
  int resolving_wave = 0;

 private:
  /// Returns whether some work-item has not ended.
  bool advance() {
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      Lane& lane = lanes_[order_ == Order::ascending ? i : lanes_.size() - 1 - i];
      if (lane.waiting != Waiting::no) continue;
      current_ = &lane;
      lane.fiber = std::move(lane.fiber).resume();
      if (fault_) throw Fault();
    }
    bool released = false;
    for (std::size_t begin = 0; begin < lanes_.size(); begin += kWaveLanes) released |= resolve(begin);
    if (released) return true;
    return release_barrier();
  }

  static std::string at(const Lane& lane) {
    return "workgroup (" + std::to_string(lane.item.workgroup[0]) + ", " + std::to_string(lane.item.workgroup[1]) + ", " +
           std::to_string(lane.item.workgroup[2]) + ") thread " + std::to_string(lane.item.thread);
  }

  /// The collective of the wave whose first lane this is, if all lanes are there.
  bool resolve(std::size_t begin) {
    void* operands[kWaveLanes];
    const Lane& first = lanes_[begin];
    int waiting = 0;
    for (std::size_t l = 0; l < kWaveLanes; ++l) {
      const Lane& lane = lanes_[begin + l];
      waiting += lane.waiting == Waiting::wave ? 1 : 0;
      operands[l] = lane.operand;
    }
    if (waiting == 0) return false;
    for (std::size_t l = 0; l < kWaveLanes; ++l) {
      const Lane& lane = lanes_[begin + l];
      if (lane.waiting != Waiting::wave) {
        fail(at(lane) + ": does not reach the collective '" + waiting_operation(begin) + "' that other lanes of its wave wait at");
      }
      if (lane.resolve != first.resolve || lane.collectives != first.collectives) {
        fail(at(lane) + ": is at the collective '" + lane.operation + "', lane 0 of its wave at another, '" + first.operation + "'");
      }
    }
    resolving_wave = static_cast<int>(begin) / kWaveLanes;
    current_ = &lanes_[begin];
    first.resolve(operands);
    for (std::size_t l = 0; l < kWaveLanes; ++l) lanes_[begin + l].waiting = Waiting::no;
    return true;
  }
  std::string waiting_operation(std::size_t begin) const {
    const auto found = std::find_if(lanes_.begin() + static_cast<std::ptrdiff_t>(begin), lanes_.end(),
                                    [](const Lane& lane) { return lane.waiting == Waiting::wave; });
    return found->operation;
  }

  bool release_barrier() {
    const auto count = [&](Waiting which) {
      return std::count_if(lanes_.begin(), lanes_.end(), [&](const Lane& lane) { return lane.waiting == which; });
    };
    if (count(Waiting::ended) == static_cast<std::ptrdiff_t>(lanes_.size())) return false;
    for (const Lane& lane : lanes_) {
      if (lane.waiting != Waiting::workgroup) fail(at(lane) + ": ends without the barrier that others of its workgroup wait at");
    }
    memory_.order_workgroup();
    for (Lane& lane : lanes_) lane.waiting = Waiting::no;
    return true;
  }

  std::vector<Lane> lanes_;
  Order order_;
  SharedMemoryModel memory_;
  Lane* current_ = nullptr;
  boost::context::fiber scheduler_{};
  std::optional<std::string> fault_{};
};

std::vector<Kernel>& kernels() {
  static std::vector<Kernel> all;
  return all;
}

}  // namespace

std::optional<std::string> run(void (*kernel)(const void*), const void* params, const Shape& shape, Order order) {
  if (shape.threads <= 0 || shape.threads % kWaveLanes != 0)
    return "a workgroup of " + std::to_string(shape.threads) + " threads, want waves of 64";
  const std::int64_t count = std::int64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2];
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t index = order == Order::ascending ? i : count - 1 - i;
    const int at[3]{static_cast<int>(index % shape.grid[0]), static_cast<int>(index / shape.grid[0] % shape.grid[1]),
                    static_cast<int>(index / shape.grid[0] / shape.grid[1])};
    if (auto fault = Workgroup(kernel, params, shape, at, order).run()) return fault;
  }
  return std::nullopt;
}

Order order_of_launches() {
  static const char* const kOrder = std::getenv("FOVEA_EMULATED_ORDER");
  return kOrder != nullptr && std::string_view(kOrder) == "descending" ? Order::descending : Order::ascending;
}

const WorkItem& work_item() { return running->current().item; }

void wait_for_wave(const char* operation, Resolve resolve, void* operand) {
  Lane& lane = running->current();
  lane.operation = operation;
  lane.resolve = resolve;
  lane.operand = operand;
  ++lane.collectives;
  running->yield(Waiting::wave);
}

void wait_for_workgroup() { running->yield(Waiting::workgroup); }

void fail(std::string message) { running->fail(std::move(message)); }

void order_shared_accesses() { running->order_wave(running->resolving_wave); }

std::byte* shared_access(std::size_t size, std::int64_t offset, std::size_t bytes, std::size_t alignment, bool write) {
  SharedMemoryModel& memory = running->memory();
  const std::string wrong = memory.check(running->current().item.thread, size, offset, bytes, alignment, write);
  if (!wrong.empty()) fail("thread " + std::to_string(running->current().item.thread) + ": " + wrong);
  return memory.bytes() + offset;
}

Registration::Registration(std::string_view name, void (*body)(const void*), int threads) { kernels().push_back({name, body, threads}); }

const Kernel* find_kernel(std::string_view name) {
  const auto found = std::find_if(kernels().begin(), kernels().end(), [&](const Kernel& kernel) { return kernel.name == name; });
  return found == kernels().end() ? nullptr : &*found;
}

}  // namespace fovea::gpu::emulation
