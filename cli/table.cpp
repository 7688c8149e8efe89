// SPDX-License-Identifier: Apache-2.0
#include "table.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace fovea::cli {

namespace {

constexpr std::size_t kGap = 2, kNarrowest = 12;

/// Removes and returns the first line of `rest`: up to `width` characters, broken at a space if there is one.
std::string take_line(std::string& rest, std::size_t width) {
  if (rest.size() <= width) return std::exchange(rest, {});
  const std::size_t space = rest.rfind(' ', width);
  const bool at_space = space != std::string::npos && space > 0;
  std::string line = rest.substr(0, at_space ? space : width);
  rest.erase(0, at_space ? space + 1 : width);
  return line;
}

}  // namespace

/// Widths from the contents. If they are too wide together, the widest text columns shrink.
std::vector<std::size_t> Table::widths(std::size_t width) const {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    all.push_back(columns_[i].title.size());
    for (const auto& row : rows_) all[i] = std::max(all[i], row[i].size());
  }
  std::size_t total = kGap * (all.size() - 1);
  for (const std::size_t each : all) total += each;
  for (; width != 0 && total > width; --total) {
    std::size_t widest = all.size();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool gives_way = columns_[i].align == Align::left && all[i] > kNarrowest;
      if (gives_way && (widest == all.size() || all[i] > all[widest])) widest = i;
    }
    if (widest == all.size()) break;
    --all[widest];
  }
  return all;
}

std::string Table::text(std::size_t width) const {
  const std::vector<std::size_t> widths = this->widths(width);
  std::string text;
  const auto add_row = [&](std::vector<std::string> rest) {
    do {
      std::string line;
      for (std::size_t i = 0; i < columns_.size(); ++i) {
        const std::string cell = take_line(rest[i], widths[i]);
        line += columns_[i].align == Align::right ? fmt::format("{:>{}}", cell, widths[i]) : fmt::format("{:<{}}", cell, widths[i]);
        line.append(kGap, ' ');
      }
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    } while (std::any_of(rest.begin(), rest.end(), [](const std::string& cell) { return !cell.empty(); }));
  };
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  add_row(titles);
  for (const auto& row : rows_) add_row(row);
  return text;
}

std::string Table::markdown() const {
  std::string text = "|", rule = "|";
  for (const Column& column : columns_) {
    text += " " + column.title + " |";
    rule += column.align == Align::right ? " ---: |" : " --- |";
  }
  text += "\n" + rule + "\n";
  for (const auto& row : rows_) {
    text += "|";
    for (const std::string& cell : row) text += " " + cell + " |";
    text += "\n";
  }
  return text;
}

std::size_t terminal_width() {
  if (isatty(STDOUT_FILENO) == 0) return 0;
  const char* columns = std::getenv("COLUMNS");  // a value set by hand overrides the terminal's
  const int set = columns == nullptr ? 0 : std::atoi(columns);
  if (set > 0) return static_cast<std::size_t>(set);
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

Progress::Progress() : on_terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() { show(""); }

void Progress::show(const std::string& text) {
  if (!on_terminal_) return;
  fmt::print(stderr, "\r{:<100.100}\r{:.100}", "", text);
  std::fflush(stderr);
}

}  // namespace fovea::cli
