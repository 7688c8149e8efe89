// SPDX-License-Identifier: Apache-2.0
/// Shared memory with a shadow: for each word, who wrote it last, and who has read it since.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpu/cuda/sm100/emulation/clock.hpp"

namespace fovea::gpu::sm100::emulation {

inline constexpr std::size_t kMostSharedBytes = 227 << 10;
inline constexpr std::uint32_t kSharedBase = 1024;  ///< address of the first byte: the system has the first KiB

/// "warp 3 lane 0"
std::string thread_name(int thread);

class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes);

  std::byte* data() { return data_; }
  std::size_t size() const { return size_; }
  bool contains(std::int64_t offset, std::size_t bytes) const { return offset >= 0 && static_cast<std::size_t>(offset) + bytes <= size_; }

  // Each notes an access of words and says what is wrong with it, if anything.
  std::string thread_access(std::int64_t offset, std::size_t bytes, int thread, const Clock& known, bool write);
  std::string tensor_core_read(std::int64_t offset, std::size_t bytes, std::uint32_t time, const Clock& known);
  std::string copy_write(std::int64_t offset, std::size_t bytes, int barrier, std::uint32_t phases, const Clock& known);

  /// Makes the 8 bytes there an mbarrier with this index.
  void add_barrier(std::int64_t offset, int index);

 private:
  static constexpr std::uint16_t kNobody = 0xffff;

  struct Word {
    std::uint32_t write_time = 0, read_time = 0, tensor_core_time = 0;
    std::uint16_t writer = kNobody, reader = kNobody;
    bool barrier = false;
  };
  using Reads = std::vector<std::pair<std::uint16_t, std::uint32_t>>;

  std::string agent_name(int agent) const;
  std::string at(std::size_t word) const;
  /// The last write is one that `known` has. `proxied`: behind a proxy fence, if a thread's.
  std::string unordered_write(std::size_t word, int thread, const Clock& known, bool proxied) const;
  std::string unordered_reads(std::size_t word, int thread, const Clock& known) const;
  void note_read(std::size_t word, int thread, const Clock& known);

  std::size_t size_;
  std::vector<std::byte> storage_;
  std::byte* data_;
  std::vector<Word> words_;
  std::unordered_map<std::size_t, Reads> more_reads_{};
  std::vector<std::int64_t> barriers_{};
};

}  // namespace fovea::gpu::sm100::emulation
