// SPDX-License-Identifier: Apache-2.0
/// Threads of a CTA: fibers, their schedule, warps and named barriers.
#include "gpu/cuda/sm100/emulation/cta.hpp"

#include <algorithm>
#include <boost/context/preallocated.hpp>
#include <utility>

namespace fovea::gpu::sm100::emulation {
namespace {

constexpr std::size_t kStackBytes = 128 << 10;
constexpr int kRegisterFile = 64 << 10;
constexpr std::size_t kHistory = 4;

/// Takes stacks from a pool, which all CTAs share.
boost::context::preallocated stack_of(int thread, boost::context::stack_context& context) {
  thread_local std::vector<std::unique_ptr<std::byte[]>> stacks;
  while (static_cast<int>(stacks.size()) <= thread) stacks.push_back(std::make_unique_for_overwrite<std::byte[]>(kStackBytes));
  context.size = kStackBytes;
  context.sp = stacks[static_cast<std::size_t>(thread)].get() + kStackBytes;
  return {context.sp, context.size, context};
}
struct KeepStack {
  void deallocate(boost::context::stack_context&) const {}
};

}  // namespace

Cta::Cta(void (*kernel)(const void*), const void* context, const Launch& launch, int block, const Schedule& schedule)
    : schedule_(schedule),
      random_(schedule.seed * 0x9e3779b97f4a7c15 + static_cast<std::uint64_t>(block)),
      threads_(static_cast<std::size_t>(launch.threads)),
      warps_(static_cast<std::size_t>(launch.threads) / 32),
      shared_(launch.shared_bytes),
      mma_known_(std::make_unique<Clock>()) {
  const bool random = schedule.order == Order::random || schedule.order == Order::starved;
  elected_lane_ = random ? static_cast<int>(random_() % 32) : schedule.order == Order::descending ? 31 : 0;
  for (Warp& warp : warps_) warp.registers = std::min(256, kRegisterFile / launch.threads / 8 * 8);
  free_registers_ = kRegisterFile - warps_.front().registers * launch.threads;
  start(kernel, context, block, launch.blocks);
}

void Cta::start(void (*kernel)(const void*), const void* context, int block, int blocks) {
  for (int index = 0; index < threads(); ++index) {
    Thread& thread = threads_[static_cast<std::size_t>(index)];
    thread.place = {index, block, blocks};
    thread.warp = index / 32;
    thread.lane = index % 32;
    thread.known.shared[static_cast<std::size_t>(index)] = 1;
    ready_.push_back(index);
    boost::context::stack_context stack_context;
    const auto stack = stack_of(index, stack_context);
    thread.fiber = boost::context::fiber(std::allocator_arg, stack, KeepStack{}, [this, &thread, kernel, context](auto&& scheduler) {
      scheduler_ = std::move(scheduler);
      try {
        kernel(context);
        end_of_thread(thread);
      } catch (const Fault&) {
      }
      thread.state = State::ended;
      return std::move(scheduler_);
    });
  }
}

std::optional<std::string> Cta::run() {
  try {
    while (true) {
      if (!ready_.empty()) {
        run_pass();
      } else if (has_work()) {
        do_some_work();
      } else {
        break;
      }
    }
    check_end();
  } catch (const Fault&) {
  }
  for (Thread& thread : threads_) thread.fiber = {};  // unwinds what a fault has left
  return std::move(fault_);
}

void Cta::run_pass() {
  std::vector<int> pass = std::exchange(ready_, {});
  switch (schedule_.order) {
    case Order::ascending: std::sort(pass.begin(), pass.end()); break;
    case Order::descending: std::sort(pass.begin(), pass.end(), std::greater<>()); break;
    case Order::random: std::shuffle(pass.begin(), pass.end(), random_); break;
    case Order::starved: {
      std::shuffle(pass.begin(), pass.end(), random_);
      const auto starved = [&](int index) {
        const auto which = schedule_.seed / 2;
        return schedule_.seed % 2 == 0 ? index / 128 == static_cast<int>(which % 4) : index / 32 == static_cast<int>(which % 16);
      };
      const auto rest = std::stable_partition(pass.begin(), pass.end(), [&](int index) { return !starved(index); });
      if (rest == pass.begin()) break;
      ready_.assign(rest, pass.end());
      pass.erase(rest, pass.end());
      break;
    }
  }
  for (const int index : pass) {
    run_thread(index);
    while (schedule_.timing == Timing::eager && has_work()) do_some_work();
    if (schedule_.timing == Timing::random && has_work() && random_() % 8 == 0) do_some_work();
  }
}

void Cta::run_thread(int index) {
  current_ = &threads_[static_cast<std::size_t>(index)];
  current_->fiber = std::move(current_->fiber).resume();
  current_ = nullptr;
  if (fault_) throw Fault();
}

void Cta::fail(const std::string& message) {
  if (!fault_) {
    fault_ = message;
    if (current_ != nullptr) {
      fault_ = "block " + std::to_string(current_->place.block) + " " + thread_name(current_->place.thread) + ": " + message;
      for (const std::string& event : current_->history) *fault_ += (&event == &current_->history.front() ? "; before: " : ", ") + event;
    }
  }
  throw Fault();
}

void Cta::note(std::string event) {
  current_->history.push_back(std::move(event));
  if (current_->history.size() > kHistory) current_->history.pop_front();
}

void Cta::wait(std::string why) {
  current_->state = State::waiting;
  current_->waits_for = std::move(why);
  scheduler_ = std::move(scheduler_).resume();
  if (fault_) throw Fault();
}

void Cta::wake(Thread& thread) {
  thread.state = State::ready;
  ready_.push_back(thread.place.thread);
}
void Cta::wake(std::vector<int>& waiters) {
  for (const int index : waiters) wake(threads_[static_cast<std::size_t>(index)]);
  waiters.clear();
}

void Cta::end_of_thread(Thread& thread) {
  const Warp& warp = warps_[static_cast<std::size_t>(thread.warp)];
  if (warp.arrived > 0) fail(std::string("ends while other lanes of its warp are at ") + warp.operation);
  land_stores(thread);
}

void Cta::check_end() {
  const bool all = std::all_of(threads_.begin(), threads_.end(), [](const Thread& it) { return it.state == State::ended; });
  if (!all) fail(deadlock());
  Clock known{};
  for (const Thread& thread : threads_) join(known, thread.known);
  if (known.shared[kTensorCore] < mmas_) {
    fail("the CTA ends with MMAs that no thread has waited for: " + std::to_string(known.shared[kTensorCore]) + " of " +
         std::to_string(mmas_) + " are known to be complete");
  }
  for (std::size_t i = 0; i < barriers_.size(); ++i) {
    if (known.shared[kCopies + i] < barriers_[i].copy_phases)
      fail("the CTA ends with copies that no thread has waited for: " + text(barriers_[i]));
  }
  if (tensor_.allocated() > 0) fail("the CTA ends with " + std::to_string(tensor_.allocated()) + " columns of tensor memory allocated");
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    const Warp& first = warps_[w / 4 * 4];
    if (warps_[w].register_history == first.register_history) continue;
    fail("setmaxnreg: warp " + std::to_string(w) + " has" + warps_[w].register_history + ", the first of its warpgroup" +
         first.register_history);
  }
}

std::string Cta::deadlock() const {
  std::map<std::string, std::map<int, std::vector<int>>> where;  // lanes of warps
  for (const Thread& thread : threads_) {
    if (thread.state == State::waiting) where[thread.waits_for][thread.warp].push_back(thread.place.thread);
  }
  std::string all = "deadlock";
  for (const auto& [why, warps] : where) {
    all += "; " + why;
    const char* separator = ": ";
    for (const auto& [warp, waiting] : warps) {
      const std::string name = "warp " + std::to_string(warp), lanes = std::to_string(waiting.size()) + " lanes of ";
      all += separator;
      all += waiting.size() == 1 ? thread_name(waiting.front()) : waiting.size() == 32 ? name : lanes + name;
      separator = ", ";
    }
  }
  for (const Barrier& barrier : barriers_) all += "; " + text(barrier);
  return all;
}

// ---- warps --------------------------------------------------------------------------------------------------------------------------

std::uint32_t Cta::rendezvous(const char* operation, std::uint64_t operand, bool vote) {
  Thread& thread = *current_;
  Warp& warp = warps_[static_cast<std::size_t>(thread.warp)];
  const auto first = threads_.begin() + thread.warp * 32;
  if (std::any_of(first, first + 32, [](const Thread& it) { return it.state == State::ended; })) {
    fail(std::string("is at ") + operation + ", which other lanes of its warp have ended without");
  }
  const auto turn = static_cast<std::size_t>(warp.turn % 2);
  if (warp.arrived == 0) {
    warp.operation = operation;
    warp.operand = operand;
    warp.votes[turn] = 0;
  } else if (std::string_view(warp.operation) != operation) {
    fail(std::string("is at ") + operation + ", other lanes of its warp at " + warp.operation);
  } else if (warp.operand != operand) {
    fail(std::string(operation) + " with " + std::to_string(operand) + ", other lanes of its warp with " + std::to_string(warp.operand));
  }
  warp.votes[turn] |= vote ? std::uint32_t{1} << thread.lane : 0;
  if (++warp.arrived < 32) {
    const int before = warp.turn;
    wait(std::string("at ") + operation + " of a warp");
    if (warp.turn == before) fail("woken at a collective");
  } else {
    warp.arrived = 0;
    ++warp.turn;
    for (auto it = first; it != first + 32; ++it) {
      if (&*it != &thread) wake(*it);
    }
  }
  return warp.votes[turn];
}

void Cta::sync_warp() {
  Warp& warp = warps_[static_cast<std::size_t>(current_->warp)];
  Clock& shared = warp.known[static_cast<std::size_t>(warp.turn % 2)];
  join(shared, current_->known);
  released();
  rendezvous("sync_warp", 0, false);
  join(current_->known, shared);
}

void Cta::set_registers(int registers, bool grow) {
  Warp& warp = warps_[static_cast<std::size_t>(current_->warp)];
  if (registers % 8 != 0 || registers < 24 || registers > 256)
    fail("setmaxnreg of " + std::to_string(registers) + ", want a multiple of 8 from 24 to 256");
  rendezvous(grow ? "setmaxnreg.inc" : "setmaxnreg.dec", static_cast<std::uint64_t>(registers), false);
  if (current_->lane != 0) return;
  if (grow ? registers < warp.registers : registers > warp.registers) {
    fail("setmaxnreg from " + std::to_string(warp.registers) + " to " + std::to_string(registers) + (grow ? " grows" : " shrinks") +
         " nothing");
  }
  while (free_registers_ < 32 * (registers - warp.registers)) {
    register_waiters_.push_back(current_->place.thread);
    wait("for registers of setmaxnreg " + std::to_string(registers));
  }
  free_registers_ -= 32 * (registers - warp.registers);
  warp.registers = registers;
  warp.register_history += " " + std::to_string(registers);
  if (!grow) wake(register_waiters_);
}

// ---- named barriers -----------------------------------------------------------------------------------------------------------------

void Cta::named_barrier(int id, int threads, bool wait_for_it) {
  const std::string name = "named barrier " + std::to_string(id);
  if (id < 0 || id > 15 || threads <= 0 || threads % 32 != 0) fail(name + " of " + std::to_string(threads) + " threads");
  NamedBarrier& barrier = named_[static_cast<std::size_t>(id)];
  if (barrier.arrived == 0) barrier.threads = threads;
  if (barrier.threads != threads) fail(name + " of " + std::to_string(threads) + " threads, of others " + std::to_string(barrier.threads));
  join(barrier.arriving, current_->known);
  released();
  note(name);
  if (wait_for_it) barrier.waiters.push_back(current_->place.thread);
  if (++barrier.arrived == threads) {
    std::vector<int> waiters = std::exchange(barrier.waiters, {});
    for (const int index : waiters) join(threads_[static_cast<std::size_t>(index)].known, barrier.arriving);
    std::erase(waiters, current_->place.thread);
    barrier.arrived = 0;
    wake(waiters);
  } else if (wait_for_it) {
    wait("at " + name + " of " + std::to_string(threads) + " threads");
  }
}

}  // namespace fovea::gpu::sm100::emulation
