// SPDX-License-Identifier: Apache-2.0
/// Plans of earlier calls. A call whose key is known runs that plan; nothing is described, validated or planned again.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <utility>

#include "torch/convert/arguments.hpp"

namespace fovea::binding {

/// A plan, its description, and the device of the call's tensors.
template <class Desc_, class Plan>
struct Planned {
  Planned(Desc_ of, Plan made) : desc(std::move(of)), plan(std::move(made)), device(call_device()) {}

  Desc_ desc;
  Plan plan;
  Device device;
};

/// Plans of one operation in one thread, so no lock is needed.
template <class Planned>
class PlanCache {
 public:
  /// The plan of the call in progress, or null. Valid until the thread's next call of the operation.
  const Planned* find() {
    CallKey& key = CallKey::current();
    key.add(follow_torch_threads());
    key.add(exact_rows() ? 1 : 0);
    if (!key.is_whole()) plans_.erase(key.words());
    const auto found = plans_.find(key.words());
    if (found == plans_.end()) return nullptr;
    set_call_device(found->second.device);
    return &found->second;
  }

  /// Likewise; `make` describes, validates and plans where there is none.
  template <class Make>
  const Planned& get(const Make& make) {
    if (const Planned* const known = find()) return *known;
    Planned made = make();  // before the cache is emptied: it may raise
    if (plans_.size() >= kMost) plans_.clear();
    return plans_.emplace(CallKey::current().words(), std::move(made)).first->second;
  }

 private:
  /// Several models' worth of decode steps. Prefills come in many shapes and fill the cache, which is emptied then.
  static constexpr std::size_t kMost = 512;
  std::unordered_map<std::vector<std::int64_t>, Planned, CallKeyHash> plans_;
};

}  // namespace fovea::binding
