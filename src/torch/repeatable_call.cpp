// SPDX-License-Identifier: Apache-2.0
#include "repeatable_call.hpp"

#include <exception>
#include <new>
#include <string>
#include <utility>

namespace fovea::binding {
namespace {

void* take_call() {
  const LastCall last = std::exchange(last_call(), {});
  try {
    return last.copy == nullptr ? nullptr : last.copy(last.planned).release();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void release(void* call) { delete static_cast<RepeatableCall*>(call); }

const char* run(const void* call, void* const* addresses) {
  thread_local std::string wrong;
  try {
    static_cast<const RepeatableCall*>(call)->run(addresses);
    return nullptr;
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  return wrong.c_str();
}

std::int64_t threads() { return follow_torch_threads(); }

}  // namespace

const ShortPath& short_path() {
  static constexpr ShortPath kAll{.take_call = take_call, .release = release, .run = run, .threads = threads};
  return kAll;
}

}  // namespace fovea::binding
