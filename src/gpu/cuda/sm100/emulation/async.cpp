// SPDX-License-Identifier: Apache-2.0
/// Accesses of a CTA's threads to shared and tensor memory, mbarriers, and the work that completes later.
#include <algorithm>
#include <cstring>
#include <utility>

#include "gpu/cuda/sm100/emulation/cta.hpp"

namespace fovea::gpu::sm100::emulation {
namespace {

constexpr std::int64_t kMostBytes = (1 << 20) - 1;  ///< of an mbarrier's transaction count

std::string at_byte(std::int64_t offset) { return "the mbarrier at byte " + std::to_string(offset); }

}  // namespace

// ---- shared memory ------------------------------------------------------------------------------------------------------------------

std::int64_t Cta::shared_offset(const void* at, std::size_t bytes, std::size_t alignment) {
  const std::int64_t offset = static_cast<const std::byte*>(at) - shared_.data();
  if (!shared_.contains(offset, bytes)) fail("address outside of shared memory of " + std::to_string(shared_.size()) + " bytes");
  if (static_cast<std::size_t>(offset) % alignment != 0) {
    fail("shared memory at byte " + std::to_string(offset) + " is not aligned to " + std::to_string(alignment));
  }
  return offset;
}

void Cta::shared_access(const void* at, std::size_t bytes, bool write) {
  const std::int64_t offset = shared_offset(at, bytes, std::min<std::size_t>(bytes, 16));
  if (bytes % 4 != 0) fail("access of " + std::to_string(bytes) + " bytes of shared memory, want words of 4");
  fail_if(shared_.thread_access(offset, bytes, current_->place.thread, current_->known, write));
}

void Cta::fence_proxy_async() {
  join(current_->known.proxied.data(), current_->known.shared.data(), kMostThreads);
  released();
}

// ---- mbarriers ----------------------------------------------------------------------------------------------------------------------

std::string Cta::text(const Barrier& barrier) const {
  return at_byte(barrier.offset) + " is in phase " + std::to_string(barrier.phase) + " with " +
         std::to_string(barrier.expected - barrier.pending) + " of " + std::to_string(barrier.expected) + " arrivals and " +
         std::to_string(barrier.bytes) + " bytes to come";
}

void Cta::barrier_init(const void* at, int arrivals) {
  const std::int64_t offset = shared_offset(at, 8, 8);
  if (arrivals < 1 || arrivals > kMostBytes) fail("mbarrier.init with " + std::to_string(arrivals) + " arrivals");
  if (barrier_of_.contains(offset)) fail("mbarrier.init of " + at_byte(offset) + ", which is one already");
  if (barriers_.size() == kMostBarriers) fail("more than " + std::to_string(kMostBarriers) + " mbarriers");
  shared_.add_barrier(offset, static_cast<int>(barriers_.size()));
  barrier_of_[offset] = static_cast<int>(barriers_.size());
  Barrier& barrier = barriers_.emplace_back();
  barrier.offset = offset;
  barrier.expected = barrier.pending = arrivals;
  barrier.initialiser = current_->place.thread;
  barrier.init_time = now();
}

void Cta::fence_barrier_init() {
  for (Barrier& barrier : barriers_) barrier.fenced |= barrier.initialiser == current_->place.thread;
}

int Cta::barrier_index(const void* at, bool asynchronous) {
  const std::int64_t offset = shared_offset(at, 8, 8);
  const auto found = barrier_of_.find(offset);
  if (found == barrier_of_.end()) fail(at_byte(offset) + " is used before mbarrier.init");
  const Barrier& barrier = barriers_[static_cast<std::size_t>(found->second)];
  const bool own = barrier.initialiser == current_->place.thread;
  if (!own && current_->known.shared[static_cast<std::size_t>(barrier.initialiser)] < barrier.init_time) {
    fail("use of " + at_byte(offset) + " is not ordered after mbarrier.init by " + thread_name(barrier.initialiser));
  }
  if (asynchronous && !barrier.fenced) fail(at_byte(offset) + " is used by asynchronous work without fence.mbarrier_init");
  return found->second;
}

void Cta::arrive(Barrier& barrier, int bytes) {
  if (barrier.pending == 0) fail("arrival beyond those expected: " + text(barrier));
  barrier.bytes += bytes;
  if (barrier.bytes > kMostBytes) fail("transaction count beyond 2^20 - 1: " + text(barrier));
  --barrier.pending;
  complete_phases(barrier);
}

void Cta::complete_phases(Barrier& barrier) {
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  const auto index = static_cast<std::size_t>(barrier_of_.at(barrier.offset));
  barrier.arriving.shared[kCopies + index] = barrier.phase + 1;
  barrier.complete[barrier.phase % 2] = barrier.arriving;
  ++barrier.phase;
  barrier.pending = barrier.expected;
  wake(barrier.waiters);
}

void Cta::barrier_arrive(const void* at, int bytes) {
  Barrier& barrier = barriers_[static_cast<std::size_t>(barrier_index(at, false))];
  note("arrival at byte " + std::to_string(barrier.offset) + " phase " + std::to_string(barrier.phase));
  join(barrier.arriving, current_->known);
  released();
  arrive(barrier, bytes);
}

void Cta::barrier_wait(const void* at, std::uint32_t parity) {
  const int index = barrier_index(at, false);
  Barrier& barrier = barriers_[static_cast<std::size_t>(index)];
  if (parity > 1) fail("wait for parity " + std::to_string(parity) + " of " + at_byte(barrier.offset));
  // The phase that the thread means: the last that it knows to be complete, or the next.
  const std::int64_t last = std::int64_t{current_->known.shared[static_cast<std::size_t>(kCopies + index)]} - 1;
  const std::int64_t complete = std::int64_t{barrier.phase} - 1;
  const bool next = (last & 1) != parity;
  const auto past = [&](std::int64_t phase) { fail("wait for phase " + std::to_string(phase) + ", which is past: " + text(barrier)); };
  if (next && complete > last + 1) past(last + 1);
  const std::int64_t wanted = next ? last + 1 : (complete & 1) == parity ? complete : complete + 1;
  note("wait at byte " + std::to_string(barrier.offset) + " phase " + std::to_string(wanted));
  while (std::int64_t{barrier.phase} <= wanted) {
    barrier.waiters.push_back(current_->place.thread);
    wait("for phase " + std::to_string(wanted) + " of " + at_byte(barrier.offset));
  }
  // Hardware polls: a thread that looks only after the next phase has ended too would wait on.
  if (std::int64_t{barrier.phase} > wanted + 1) past(wanted);
  if (wanted >= 0) join(current_->known, barrier.complete[static_cast<std::size_t>(wanted % 2)]);
}

// ---- TMA ----------------------------------------------------------------------------------------------------------------------------

void Cta::tma_load(void* shared, const void* map, const int (&start)[5], const void* barrier_at) {
  const int index = barrier_index(barrier_at, true);
  Barrier& barrier = barriers_[static_cast<std::size_t>(index)];
  Copy copy;
  if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0) fail("TMA: the tensor map is not aligned to 64 bytes");
  std::memcpy(&copy.map, map, sizeof copy.map);
  if (copy.map.mark != TensorMap::kMark) fail("TMA: not a tensor map");
  if (copy.map.rank != 5) fail("TMA: a map of " + std::to_string(copy.map.rank) + " dimensions, want 5");
  const std::size_t bytes = copy.map.box_bytes();
  const std::int64_t offset = shared_offset(shared, bytes, 128);
  std::copy(std::begin(start), std::end(start), copy.start.begin());
  copy.address = kSharedBase + static_cast<std::uint32_t>(offset);
  copy.barrier = index;
  copy.phase = barrier.phase;
  barrier.copy_phases = barrier.phase + 1;
  fail_if(shared_.copy_write(offset, bytes, index, barrier.phase + 1, current_->known));
  std::memset(shared_.data() + offset, 0xff, bytes);
  copies_.push_back(copy);
}

void Cta::run_copy(std::size_t index) {
  const Copy copy = copies_[index];
  copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(index));
  fill_box(copy.map, copy.start, shared_.data(), kSharedBase, copy.address);
  Barrier& barrier = barriers_[static_cast<std::size_t>(copy.barrier)];
  const auto bytes = static_cast<std::int64_t>(copy.map.box_bytes());
  if (barrier.phase != copy.phase) {
    fail("TMA: bytes of a copy arrive after the phase " + std::to_string(copy.phase) + " that it began in: too few were expected; " +
         text(barrier));
  }
  barrier.bytes -= bytes;
  if (barrier.bytes < -kMostBytes) fail("transaction count below -(2^20 - 1): " + text(barrier));
  complete_phases(barrier);
}

void Cta::do_some_work() {
  const bool copy = tensor_core_.empty() || (!copies_.empty() && random_() % 2 == 0);
  if (copy) {
    run_copy(random_() % copies_.size());
  } else {
    run_tensor_core_work();
  }
}

// ---- MMAs ---------------------------------------------------------------------------------------------------------------------------

void Cta::mma_issue(const Mma& mma) {
  if (mma_thread_ >= 0 && mma_thread_ != current_->place.thread) fail("MMA: " + thread_name(mma_thread_) + " has issued others");
  mma_thread_ = current_->place.thread;
  TensorCoreWork work{.mma = mma};
  if (const std::string wrong = decode(mma, work.decoded); !wrong.empty()) fail("MMA: " + wrong);
  ++mmas_;
  check_mma(mma, work.decoded);
  join(mma_known_->proxied.data(), current_->known.proxied.data(), kMostThreads);
  join(mma_known_->shared.data() + kCopies, current_->known.shared.data() + kCopies, kMostBarriers);
  join(mma_known_->tensor, current_->tensor);
  tensor_core_.push_back(std::move(work));
}

void Cta::check_mma(const Mma& mma, const DecodedMma& decoded) {
  const auto check_operand = [&](const SharedOperand& operand) {
    for (int line = 0; line < operand.lines(); ++line) {
      for (int chunk = 0; chunk < operand.chunks(); ++chunk) {
        const std::int64_t offset = std::int64_t{operand.address(line, chunk)} - kSharedBase;
        if (!shared_.contains(offset, 16)) fail("MMA: operand at byte " + std::to_string(offset) + " is outside of shared memory");
        fail_if(shared_.tensor_core_read(offset, 16, mmas_, current_->known));
      }
    }
  };
  if (!mma.a_in_tensor_memory) check_operand(decoded.a);
  check_operand(decoded.b);
  // MMAs are ordered among themselves.
  TensorClock& known = current_->tensor;
  const std::uint32_t seen = std::exchange(known[kTensorCoreInTensor], mmas_);
  const auto check_column = [&](const std::string& wrong) {
    if (!wrong.empty()) fail("MMA: " + wrong);
  };
  const auto a = static_cast<std::uint32_t>(mma.a);
  if (mma.a_in_tensor_memory) {
    check_column(tensor_.outside(a, kMmaDepth / 2));
    for (int c = 0; c < kMmaDepth / 2; ++c) check_column(tensor_.mma_read(static_cast<int>(a) + c, mmas_, known, false));
  }
  check_column(tensor_.outside(mma.d, decoded.columns));
  for (int c = static_cast<int>(mma.d); c < static_cast<int>(mma.d) + decoded.columns; ++c) {
    if (mma.accumulate) check_column(tensor_.mma_read(c, 0, known, true));
    check_column(tensor_.mma_write(c, mmas_, known));
  }
  known[kTensorCoreInTensor] = seen;
}

void Cta::mma_commit(const void* at) {
  TensorCoreWork work{.barrier = barrier_index(at, true)};
  const bool any = mma_thread_ == current_->place.thread;
  if (mma_thread_ >= 0 && !any) fail("tcgen05.commit: " + thread_name(mma_thread_) + " has issued the MMAs");
  work.known = std::make_unique<Clock>(*mma_known_);
  work.known->shared[kTensorCore] = mmas_;
  work.known->tensor[kTensorCoreInTensor] = mmas_;
  note("commit to byte " + std::to_string(barriers_[static_cast<std::size_t>(work.barrier)].offset));
  tensor_core_.push_back(std::move(work));
}

void Cta::run_tensor_core_work() {
  const TensorCoreWork work = std::move(tensor_core_.front());
  tensor_core_.pop_front();
  if (work.barrier >= 0) {
    Barrier& barrier = barriers_[static_cast<std::size_t>(work.barrier)];
    join(barrier.arriving, *work.known);
    arrive(barrier, 0);
    return;
  }
  static thread_local Factors<kMmaRows> a;
  static thread_local Factors<kMostMmaColumns> b;
  const DecodedMma& decoded = work.decoded;
  if (work.mma.a_in_tensor_memory) {
    fetch(a, tensor_.column(static_cast<int>(work.mma.a)), decoded.a_bf16);
  } else {
    fetch(a, decoded.a, decoded.a_bf16, shared_.data(), kSharedBase);
  }
  fetch(b, decoded.b, decoded.b_bf16, shared_.data(), kSharedBase);
  multiply(reinterpret_cast<float*>(tensor_.column(static_cast<int>(work.mma.d))), a, b, decoded.columns, work.mma.accumulate);
}

}  // namespace fovea::gpu::sm100::emulation
