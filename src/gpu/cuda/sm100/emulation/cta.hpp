// SPDX-License-Identifier: Apache-2.0
/// A running CTA: its threads, the order in which they run, mbarriers and queues of asynchronous work.
#pragma once

#include <array>
#include <boost/context/fiber.hpp>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gpu/cuda/sm100/emulation/clock.hpp"
#include "gpu/cuda/sm100/emulation/machine.hpp"
#include "gpu/cuda/sm100/emulation/shared_memory.hpp"
#include "gpu/cuda/sm100/emulation/tensor_cells.hpp"
#include "gpu/cuda/sm100/emulation/tensor_core.hpp"
#include "gpu/cuda/sm100/emulation/tensor_map.hpp"

namespace fovea::gpu::sm100::emulation {

struct Fault : std::exception {};

enum class State : std::uint8_t { ready, waiting, ended };

struct PendingLoad {
  std::uint32_t* to = nullptr;
  int columns = 0, column = 0;
};
struct PendingStore {
  int column = 0;
  std::vector<std::uint32_t> values{};
};

struct Thread {
  Place place{};
  int warp = 0, lane = 0;
  State state = State::ready;
  std::string waits_for{};              ///< where it is waiting
  std::deque<std::string> history{};    ///< of its barriers, the last few
  Clock known;                          ///< zero at first, as are the others
  TensorClock tensor;                   ///< accesses of tensor memory before its next one
  std::uint32_t loads = 0, stores = 0;  ///< of tensor memory, so far
  std::vector<PendingLoad> pending_loads{};
  std::vector<PendingStore> pending_stores{};
  boost::context::fiber fiber{};
};

struct Warp {
  int arrived = 0, turn = 0;
  const char* operation = nullptr;
  std::uint64_t operand = 0;
  std::array<std::uint32_t, 2> votes{};  ///< by turn
  std::array<Clock, 2> known;            ///< of sync_warp, by turn
  int registers = 0;
  std::string register_history{};
};

struct Barrier {
  std::int64_t offset = 0;
  int expected = 0, pending = 0;
  std::int64_t bytes = 0;
  std::uint32_t phase = 0;  ///< phases that are complete
  int initialiser = 0;
  std::uint32_t init_time = 0, copy_phases = 0;
  bool fenced = false;
  Clock arriving;
  std::array<Clock, 2> complete;  ///< the last phases, by number
  std::vector<int> waiters{};
};

struct NamedBarrier {
  int threads = 0, arrived = 0;
  Clock arriving;
  std::vector<int> waiters{};
};

/// An MMA, or the arrival of a commit.
struct TensorCoreWork {
  Mma mma{};
  DecodedMma decoded{};
  int barrier = -1;
  std::unique_ptr<Clock> known{};  ///< of a commit
};
struct Copy {
  TensorMap map{};
  std::array<int, 5> start{};
  std::uint32_t address = 0;
  int barrier = 0;
  std::uint32_t phase = 0;  ///< of its mbarrier at issue
};

class Cta {
 public:
  Cta(void (*kernel)(const void*), const void* context, const Launch& launch, int block, const Schedule& schedule);
  Cta(const Cta&) = delete;
  Cta& operator=(const Cta&) = delete;

  std::optional<std::string> run();

  // ---- for the running thread
  Thread& current() { return *current_; }
  int threads() const { return static_cast<int>(threads_.size()); }
  [[noreturn]] void fail(const std::string& message);
  std::uint32_t rendezvous(const char* operation, std::uint64_t operand, bool vote);
  int elected_lane() const { return elected_lane_; }
  void sync_warp();
  void named_barrier(int id, int threads, bool wait);
  void set_registers(int registers, bool grow);

  SharedMemory& shared() { return shared_; }
  std::int64_t shared_offset(const void* at, std::size_t bytes, std::size_t alignment);
  void shared_access(const void* at, std::size_t bytes, bool write);

  void barrier_init(const void* at, int arrivals);
  void fence_barrier_init();
  void barrier_arrive(const void* at, int bytes);
  void barrier_wait(const void* at, std::uint32_t parity);
  void fence_proxy_async();
  void tma_load(void* shared, const void* map, const int (&start)[5], const void* barrier);

  void tensor_allocate(std::uint32_t& slot, int columns);
  void tensor_relinquish();
  void tensor_free(std::uint32_t address, int columns);
  void tensor_load(std::uint32_t* to, int columns, std::uint32_t address);
  void tensor_store(const std::uint32_t* from, int columns, std::uint32_t address);
  void tensor_load_wait();
  void tensor_store_wait();
  void tensor_fence_before_sync();
  void tensor_fence_after_sync();

  void mma_issue(const Mma& mma);
  void mma_commit(const void* barrier);

 private:
  void start(void (*kernel)(const void*), const void* context, int block, int blocks);
  void run_pass();
  void run_thread(int index);
  void wait(std::string why);
  void wake(std::vector<int>& waiters);
  void wake(Thread& thread);
  void end_of_thread(Thread& thread);
  void land_stores(Thread& thread);
  void check_end();
  std::string deadlock() const;
  std::uint32_t now() const { return current_->known.shared[static_cast<std::size_t>(current_->place.thread)]; }
  /// The thread's accesses so far are handed on; later ones are not.
  void released() { ++current_->known.shared[static_cast<std::size_t>(current_->place.thread)]; }
  void note(std::string event);
  void fail_if(const std::string& wrong) {
    if (!wrong.empty()) fail(wrong);
  }

  // ---- asynchronous work
  bool has_work() const { return !tensor_core_.empty() || !copies_.empty(); }
  void do_some_work();
  void run_tensor_core_work();
  void run_copy(std::size_t index);

  // ---- mbarriers
  int barrier_index(const void* at, bool asynchronous);
  void arrive(Barrier& barrier, int bytes);
  void complete_phases(Barrier& barrier);
  std::string text(const Barrier& barrier) const;

  int tensor_column(const char* operation, std::uint32_t address, int columns);
  void check_mma(const Mma& mma, const DecodedMma& decoded);

  Schedule schedule_;
  std::mt19937_64 random_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  SharedMemory shared_;
  TensorCells tensor_{};
  std::map<std::int64_t, int> barrier_of_{};
  std::deque<Barrier> barriers_{};
  std::array<NamedBarrier, 16> named_{};
  std::deque<TensorCoreWork> tensor_core_{};
  std::vector<Copy> copies_{};
  std::uint32_t mmas_ = 0;  ///< issued
  int mma_thread_ = -1;
  std::unique_ptr<Clock> mma_known_;  ///< what the MMAs so far have seen
  int free_registers_ = 0;
  std::vector<int> register_waiters_{};
  std::vector<int> ready_{};
  int elected_lane_ = 0;
  Thread* current_ = nullptr;
  boost::context::fiber scheduler_{};
  std::optional<std::string> fault_{};
};

}  // namespace fovea::gpu::sm100::emulation
