// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/sm100/emulation/shared_memory.hpp"

#include <algorithm>

namespace fovea::gpu::sm100::emulation {

std::string thread_name(int thread) { return "warp " + std::to_string(thread / 32) + " lane " + std::to_string(thread % 32); }

SharedMemory::SharedMemory(std::size_t bytes)
    : size_(bytes), storage_(bytes + 1024, std::byte{0xff}), data_(storage_.data()), words_(bytes / 4) {
  while (reinterpret_cast<std::uintptr_t>(data_) % 1024 != 0) ++data_;
}

std::string SharedMemory::agent_name(int agent) const {
  if (agent < kMostThreads) return thread_name(agent);
  if (agent == kTensorCore) return "an MMA";
  return "a copy of the mbarrier at byte " + std::to_string(barriers_[static_cast<std::size_t>(agent - kCopies)]);
}

std::string SharedMemory::at(std::size_t word) const { return "shared memory at byte " + std::to_string(4 * word); }

void SharedMemory::add_barrier(std::int64_t offset, int index) {
  if (static_cast<int>(barriers_.size()) <= index) barriers_.resize(static_cast<std::size_t>(index) + 1);
  barriers_[static_cast<std::size_t>(index)] = offset;
  for (std::size_t i = 0; i < 2; ++i) words_[static_cast<std::size_t>(offset) / 4 + i].barrier = true;
}

std::string SharedMemory::unordered_write(std::size_t word, int thread, const Clock& known, bool proxied) const {
  const Word& it = words_[word];
  if (it.writer == kNobody) return {};
  const std::string by = " is not ordered after its write by " + agent_name(it.writer);
  if (it.writer >= kMostThreads) return known.shared[it.writer] < it.write_time ? by : std::string();
  if (it.writer != thread && known.shared[it.writer] < it.write_time) return by;
  if (proxied && known.proxied[it.writer] < it.write_time) return by + ": no fence.proxy.async between";
  return {};
}

std::string SharedMemory::unordered_reads(std::size_t word, int thread, const Clock& known) const {
  const Word& it = words_[word];
  if (known.shared[kTensorCore] < it.tensor_core_time) return " is not ordered after its read by an MMA";
  const auto early = [&](std::uint16_t reader, std::uint32_t time) { return reader != thread && known.shared[reader] < time; };
  const auto text = [&](std::uint16_t reader) { return " is not ordered after its read by " + agent_name(reader); };
  if (it.reader != kNobody && early(it.reader, it.read_time)) return text(it.reader);
  const auto more = more_reads_.find(word);
  if (more == more_reads_.end()) return {};
  for (const auto& [reader, time] : more->second) {
    if (early(reader, time)) return text(reader);
  }
  return {};
}

void SharedMemory::note_read(std::size_t word, int thread, const Clock& known) {
  Word& it = words_[word];
  const bool replaces = it.reader == kNobody || it.reader == thread || known.shared[it.reader] >= it.read_time;
  if (!replaces) more_reads_[word].push_back({it.reader, it.read_time});
  it.reader = static_cast<std::uint16_t>(thread);
  it.read_time = known.shared[static_cast<std::size_t>(thread)];
}

std::string SharedMemory::thread_access(std::int64_t offset, std::size_t bytes, int thread, const Clock& known, bool write) {
  for (std::size_t word = static_cast<std::size_t>(offset) / 4; word < (static_cast<std::size_t>(offset) + bytes) / 4; ++word) {
    Word& it = words_[word];
    if (it.barrier) return at(word) + " is an mbarrier";
    if (!write && it.writer == kNobody) return at(word) + " is read before any write";
    std::string wrong = unordered_write(word, thread, known, false);
    if (write && wrong.empty()) wrong = unordered_reads(word, thread, known);
    if (!wrong.empty()) return (write ? "write of " : "read of ") + at(word) + wrong;
    if (!write) {
      note_read(word, thread, known);
      continue;
    }
    it = {known.shared[static_cast<std::size_t>(thread)], 0, 0, static_cast<std::uint16_t>(thread), kNobody, false};
    more_reads_.erase(word);
  }
  return {};
}

std::string SharedMemory::tensor_core_read(std::int64_t offset, std::size_t bytes, std::uint32_t time, const Clock& known) {
  for (std::size_t word = static_cast<std::size_t>(offset) / 4; word < (static_cast<std::size_t>(offset) + bytes) / 4; ++word) {
    Word& it = words_[word];
    if (it.barrier) return "MMA: operand: " + at(word) + " is an mbarrier";
    if (it.writer == kNobody) return "MMA: operand: " + at(word) + " is read before any write";
    const std::string wrong = unordered_write(word, -1, known, true);
    if (!wrong.empty()) return "MMA: operand: read of " + at(word) + wrong;
    it.tensor_core_time = time;
  }
  return {};
}

std::string SharedMemory::copy_write(std::int64_t offset, std::size_t bytes, int barrier, std::uint32_t phases, const Clock& known) {
  for (std::size_t word = static_cast<std::size_t>(offset) / 4; word < (static_cast<std::size_t>(offset) + bytes) / 4; ++word) {
    Word& it = words_[word];
    if (it.barrier) return "TMA: " + at(word) + " is an mbarrier";
    std::string wrong = unordered_write(word, -1, known, true);
    if (wrong.empty()) wrong = unordered_reads(word, -1, known);
    if (!wrong.empty()) return "TMA: write of " + at(word) + wrong;
    it = {phases, 0, 0, static_cast<std::uint16_t>(kCopies + barrier), kNobody, false};
    more_reads_.erase(word);
  }
  return {};
}

}  // namespace fovea::gpu::sm100::emulation
