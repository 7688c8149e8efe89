// SPDX-License-Identifier: Apache-2.0
/// LDS with a shadow: for each byte, who wrote it last, and who has read it since.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fovea::gpu::emulation {

inline constexpr std::size_t kSharedBytes = 64 << 10;  ///< of a workgroup, on gfx90a and gfx942

class SharedMemoryModel {
 public:
  explicit SharedMemoryModel(int threads) : wave_times_(static_cast<std::size_t>(threads) / 64, 1) {}

  std::byte* bytes() { return data_.data(); }
  void order_workgroup() { ++time_; }
  void order_wave(int wave) { ++wave_times_[static_cast<std::size_t>(wave)]; }

  /// Notes an access. Says what is wrong with it, if anything.
  std::string check(int thread, std::size_t size, std::int64_t offset, std::size_t count, std::size_t alignment, bool write) {
    if (size > kSharedBytes) return "LDS of " + std::to_string(size) + " bytes, want at most " + std::to_string(kSharedBytes);
    if (offset < 0 || static_cast<std::size_t>(offset) + count > size)
      return at(offset) + " is outside of the array of " + std::to_string(size);
    if (static_cast<std::size_t>(offset) % alignment != 0) return at(offset) + " is not aligned to " + std::to_string(alignment);
    if (data_.size() < size) grow(size);
    for (std::size_t i = static_cast<std::size_t>(offset); i < static_cast<std::size_t>(offset) + count; ++i) {
      Shadow& byte = shadow_[i];
      if (!write && byte.write.thread < 0) return at(offset) + " is read before any write";
      if (races(byte.write, thread)) return at(offset) + race(write ? "written" : "read", byte.write, "written");
      if (write && races(byte.read, thread)) return at(offset) + race("written", byte.read, "read");
      if (write && byte.read_by_waves && byte.read.time == time_) return at(offset) + race("written", byte.read, "read");
      note(byte, thread, write);
    }
    return {};
  }

 private:
  struct Access {
    int thread = -1;
    std::int64_t time = 0, wave_time = 0;
  };
  struct Shadow {
    Access write{}, read{};
    bool read_by_waves = false;  ///< by several, since the last barrier
  };

  static std::string at(std::int64_t offset) { return "LDS at byte " + std::to_string(offset); }
  static std::string race(const char* now, const Access& other, const char* then) {
    return std::string(" races: ") + now + " while thread " + std::to_string(other.thread) + " has " + then +
           " it, with no barrier between";
  }
  std::int64_t wave_time(int thread) const { return wave_times_[static_cast<std::size_t>(thread) / 64]; }

  bool races(const Access& before, int thread) const {
    if (before.thread < 0 || before.thread == thread || before.time < time_) return false;
    return before.thread / 64 != thread / 64 || before.wave_time == wave_time(thread);
  }
  void note(Shadow& byte, int thread, bool write) {
    const Access now{thread, time_, wave_time(thread)};
    if (write) {
      byte = {now, {}, false};
      return;
    }
    const bool others = byte.read.thread >= 0 && byte.read.time == time_ && byte.read.thread / 64 != thread / 64;
    byte.read_by_waves = (byte.read_by_waves && byte.read.time == time_) || others;
    byte.read = now;
  }
  void grow(std::size_t size) {
    data_.resize(size, std::byte{0xff});
    shadow_.resize(size);
  }

  std::vector<std::byte> data_{};
  std::vector<Shadow> shadow_{};
  std::vector<std::int64_t> wave_times_;
  std::int64_t time_ = 1;
};

}  // namespace fovea::gpu::emulation
