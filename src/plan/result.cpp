// SPDX-License-Identifier: Apache-2.0
#include "fovea/result.hpp"

namespace fovea {

std::string to_string(const Error& error) {
  std::string text = error.message;
  for (const Decline& decline : error.declines) text.append("\n  ").append(decline.implementation).append(": ").append(decline.reason);
  return text;
}

Exception::Exception(Error error) : std::runtime_error(to_string(error)), error_(std::move(error)) {}

}  // namespace fovea
