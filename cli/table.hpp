// SPDX-License-Identifier: Apache-2.0
/// Text for people: aligned tables, and a line of progress that overwrites itself on a terminal.
#pragma once

#include <string>
#include <vector>

namespace fovea::cli {

enum class Align : unsigned char { left, right };

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::left;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;
  std::string markdown() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_{};
};

/// On standard error, so that output stays clean; silent where that is no terminal.
class Progress {
 public:
  Progress();
  ~Progress();
  void show(const std::string& text);

 private:
  bool on_terminal_;
};

}  // namespace fovea::cli
