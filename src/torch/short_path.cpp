// SPDX-License-Identifier: Apache-2.0
#include "short_path.hpp"

#include <algorithm>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "arguments.hpp"

namespace fovea::binding {
namespace {

using torch::stable::detail::from, torch::stable::detail::to;

/// Calls f(type, name) for each argument of a schema, in order.
template <class F>
void for_each_argument(std::string_view schema, F&& f) {
  schema = schema.substr(schema.find('(') + 1);
  schema.remove_suffix(1);
  while (!schema.empty()) {
    const std::size_t end = std::min(schema.find(','), schema.size());
    const std::string_view argument = schema.substr(0, end);
    const std::size_t space = argument.find(' ');
    f(argument.substr(0, space), argument.substr(space + 1));
    schema.remove_prefix(std::min(end + 2, schema.size()));
  }
}

/// All notes of the process. The Python package bounds how many it makes.
class Notes {
 public:
  std::int64_t add(Note note) {
    const std::scoped_lock lock(mutex_);
    note.number = static_cast<std::int64_t>(notes_.size());
    return notes_.emplace_back(std::move(note)).number;
  }
  const Note& at(std::int64_t number) {
    const std::scoped_lock lock(mutex_);
    if (number < 0 || number >= static_cast<std::int64_t>(notes_.size())) raise_invalid("note", std::to_string(number), "one of note_*");
    return notes_[static_cast<std::size_t>(number)];  // stays where it is
  }

 private:
  std::mutex mutex_;
  std::deque<Note> notes_;
};

Notes& notes() {
  static Notes all;
  return all;
}

}  // namespace

bool has_short_path(std::string_view schema) { return schema.find("[]") == std::string_view::npos; }

std::string noted_arguments(std::string_view schema) {
  std::string text;
  for_each_argument(schema, [&](std::string_view type, std::string_view name) {
    if (!type.starts_with("Tensor")) text.append(text.empty() ? "" : ", ").append(type).append(" ").append(name);
  });
  return text;
}

NotedCall*& noted_call() {
  thread_local NotedCall* call = nullptr;
  return call;
}

void note(std::string_view schema, StableIValue* stack) {
  Arguments arguments(stack);
  Note made;
  for_each_argument(schema, [&](std::string_view type, std::string_view) {
    if (type.starts_with("Tensor")) return;
    Note::Value& value = made.values.emplace_back();
    if (type == "str") {
      value.text = arguments.text();
    } else if (type.ends_with("?")) {
      const std::optional<std::int64_t> integer = arguments.optional_integer();
      value = {.given = integer.has_value(), .number = from(integer.value_or(0))};
    } else {
      value.number = arguments.take<StableIValue>();
    }
  });
  stack[0] = from(notes().add(std::move(made)));
}

void run_noted(Operator* run, StableIValue* stack) {
  NotedCall call{notes().at(to<std::int64_t>(stack[1])), to<std::vector<OptionalTensor>>(stack[0])};
  struct InProgress {
    explicit InProgress(NotedCall& call) { noted_call() = &call; }
    ~InProgress() { noted_call() = nullptr; }
  } const in_progress(call);
  run(stack, 0, 0);
}

}  // namespace fovea::binding
