// SPDX-License-Identifier: Apache-2.0
#include "output.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <system_error>

#include "commands.hpp"

namespace fovea::cli {
namespace {

unsigned byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

/// Bytes of the character at the begin of `text`, or 0 where there is none that may be shown.
std::size_t character(std::string_view text) {
  constexpr unsigned kDelete = 0x7f, kSpace = 0x20;
  const unsigned first = byte_at(text, 0);
  if (first <= kDelete) return (first >= kSpace && first != kDelete) || first == '\n' ? 1 : 0;
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < size) return 0;
  const auto continues = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U; };
  if (!std::all_of(text.begin() + 1, text.begin() + static_cast<std::ptrdiff_t>(size), continues)) return 0;
  const unsigned second = byte_at(text, 1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool no_character = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90) || (first == 0xc2 && second < 0xa0);
  return overlong || no_character ? 0 : size;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const std::size_t size = character(text);
    shown += size == 0 ? fmt::format("\\x{:02x}", byte_at(text, 0)) : std::string(text.substr(0, size));
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return shown;
}

void complain(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  const std::string line = printable(text) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int finish_output(int status, int error) {
  if (error == 0) {
    errno = 0;
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
    error = errno;
  }
  if (error == EPIPE) {  // whoever read has enough
    std::signal(SIGPIPE, SIG_DFL);
    std::raise(SIGPIPE);
  }
  complain(fmt::format("fovea: standard output: {}", error != 0 ? std::generic_category().message(error) : "a write failed"));
  return kUsage;
}

}  // namespace fovea::cli
