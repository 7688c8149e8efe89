// SPDX-License-Identifier: Apache-2.0
#include "table.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace fovea::cli {

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t width = columns_[i].title.size();
    for (const auto& row : rows_) width = std::max(width, row[i].size());
    widths.push_back(width);
  }
  std::string text;
  const auto line = [&](auto cell) {
    std::string out;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      out += columns_[i].align == Align::right ? fmt::format("{:>{}}", cell(i), widths[i]) : fmt::format("{:<{}}", cell(i), widths[i]);
      out += "  ";
    }
    out.erase(out.find_last_not_of(' ') + 1);
    text += out + "\n";
  };
  line([&](std::size_t i) { return columns_[i].title; });
  for (const auto& row : rows_) line([&](std::size_t i) { return row[i]; });
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

Progress::Progress() : on_terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() { show(""); }

void Progress::show(const std::string& text) {
  if (!on_terminal_) return;
  fmt::print(stderr, "\r{:<100.100}\r{:.100}", "", text);
  std::fflush(stderr);
}

}  // namespace fovea::cli
