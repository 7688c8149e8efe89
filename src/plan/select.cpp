// SPDX-License-Identifier: Apache-2.0
#include "plan/select.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace fovea::detail {
namespace {

enum class Cause {
  call,     ///< The implementation runs here, and does not take such a call.
  option,   ///< The same for an option that it never takes. Its device was not looked at.
  machine,  ///< It is for this backend, and does not run on this device or machine.
  backend,  ///< It is for other devices.
};

Cause cause_of(const Decline& decline) {
  const std::string_view reason = decline.reason;
  if (reason.starts_with("device.backend")) return Cause::backend;
  if (reason.ends_with("(the implementation does not handle it)")) return Cause::option;  // plan_with()'s words
  return reason.starts_with("device") || reason.starts_with("not available") ? Cause::machine : Cause::call;
}

}  // namespace

Error refusal_of(std::vector<Decline> declines) {
  std::ranges::stable_sort(declines, {}, cause_of);
  std::vector<std::string_view> reasons;
  for (const Decline& decline : declines) {
    if (cause_of(decline) != cause_of(declines.front())) break;
    if (std::ranges::find(reasons, decline.reason) == reasons.end()) reasons.push_back(decline.reason);
  }
  std::string message;
  for (const std::string_view reason : reasons) message.append(message.empty() ? "" : ", or ").append(reason);
  return {ErrorCode::unsupported, message + "; no implementation on this device accepts the call", std::move(declines)};
}

}  // namespace fovea::detail
