// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fovea/standard.hpp"

namespace fovea {

enum class ErrorCode : std::uint8_t {
  invalid_argument,  ///< The call contradicts itself; no device could run it.
  unsupported,       ///< Valid, but no implementation on this device accepts it.
  out_of_workspace,  ///< The workspace given to run() is smaller than workspace_bytes().
  device_error,      ///< The CUDA, HIP or operating-system runtime reported a failure.
};

/// Why one implementation did not take a problem.
struct Decline {
  std::string implementation;  ///< "cpu.avx2.attention"
  std::string reason;          ///< "q.shape[3] (head_dim_qk): got 12, want a multiple of 8"
};

struct Error {
  ErrorCode code{};
  std::string message;              ///< "k.shape[2] (kv_head): got 6, want a divisor of 32"
  std::vector<Decline> declines{};  ///< Filled when code == unsupported.
};

/// The exception that `Result::value()` throws. `what()` is the error's message, with the declines on lines of their own.
class Exception : public std::runtime_error {
 public:
  explicit Exception(Error error);
  const Error& error() const noexcept { return error_; }

 private:
  Error error_;
};

/// The message, and below it one line for each implementation that declined.
std::string to_string(const Error& error);

/// The part of `std::expected<T, Error>` that Fovea uses. Test it, or call `value()` and let it throw.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Error error) : state_(std::move(error)) {}

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }
  T& operator*() noexcept { return *std::get_if<0>(&state_); }
  const T& operator*() const noexcept { return *std::get_if<0>(&state_); }
  T* operator->() noexcept { return std::get_if<0>(&state_); }
  const T* operator->() const noexcept { return std::get_if<0>(&state_); }
  const Error& error() const { return std::get<1>(state_); }
  /// The value, or an Exception. A kept result gives a reference, which lives as long as the result.
  T& value() & {
    require();
    return **this;
  }
  const T& value() const& {
    require();
    return **this;
  }
  T value() && {
    require();
    return std::move(**this);
  }

 private:
  void require() const {
    if (!has_value()) throw Exception(error());
  }

  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool has_value() const noexcept { return !error_.has_value(); }
  explicit operator bool() const noexcept { return has_value(); }
  const Error& error() const { return error_.value(); }
  void value() const {
    if (error_) throw Exception(*error_);
  }

 private:
  std::optional<Error> error_;
};

}  // namespace fovea
