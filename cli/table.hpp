// SPDX-License-Identifier: Apache-2.0
/// Text for people: aligned tables, and a line of progress that overwrites itself on a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace fovea::cli {

/// whole: left, and never wrapped, as a name that people search for.
enum class Align : unsigned char { left, right, whole };

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::left;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }
  /// With a width other than 0, lines have at most `width` characters: text cells wrap; numbers and names never do.
  std::string text(std::size_t width = 0) const;
  std::string markdown() const;

 private:
  std::vector<std::size_t> widths(std::size_t width) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_{};
};

/// Characters of a line on standard output. 0 means unlimited: standard output is no terminal.
std::size_t terminal_width();

/// Writes to standard error, so that output stays clean. Silent if that is no terminal.
class Progress {
 public:
  Progress();
  ~Progress();
  void show(const std::string& text);

 private:
  bool on_terminal_;
};

}  // namespace fovea::cli
