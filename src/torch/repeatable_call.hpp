// SPDX-License-Identifier: Apache-2.0
/// What an operator leaves behind, so that the short path can run its call again.
#pragma once

#include <memory>

#include "arguments.hpp"
#include "short_path.hpp"

namespace fovea::binding {

/// A planned call without its memory.
class RepeatableCall {
 public:
  RepeatableCall() = default;
  virtual ~RepeatableCall() = default;
  RepeatableCall(const RepeatableCall&) = delete;
  RepeatableCall& operator=(const RepeatableCall&) = delete;

  /// Takes addresses as ShortPath::run does.
  virtual void run(void* const* addresses) const = 0;
};

/// `args_at(desc, addresses)` makes the arguments of the plan. `schedule` is the place of the tensor that a plan may run prepared with; -1
/// of operators that take none.
template <auto args_at, int schedule, class Planned>
class PlannedCall final : public RepeatableCall {
 public:
  explicit PlannedCall(const Planned& planned) : planned_(planned) {}

  void run(void* const* addresses) const override {
    begin_call();
    set_call_device(planned_.device);
    const auto args = args_at(planned_.desc, addresses);
    if constexpr (schedule >= 0) {
      if (addresses[schedule] != nullptr && planned_.device.backend != Backend::cpu) {
        const Workspace memory{addresses[schedule], planned_.plan.workspace_bytes()};
        return raise_if_failed(planned_.plan.run_prepared(args, memory, call_stream()));
      }
    }
    raise_if_failed(binding::run(planned_.plan, args));
  }

 private:
  Planned planned_;
};

/// Says that the call has run and may be repeated.
template <auto args_at, int schedule = -1, class Planned>
void may_be_repeated(const Planned& planned) {
  last_call() = {&planned, [](const void* kept) -> std::unique_ptr<RepeatableCall> {
                   return std::make_unique<PlannedCall<args_at, schedule, Planned>>(*static_cast<const Planned*>(kept));
                 }};
}

/// What the Python module gets.
const ShortPath& short_path();

}  // namespace fovea::binding
