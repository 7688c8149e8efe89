// SPDX-License-Identifier: Apache-2.0
/// Dense MLA beyond a single right result: a sequence gives the same bits alone, in a batch, and with another number of threads.
#include <gtest/gtest.h>

#include <algorithm>

#include "fovea/device.hpp"
#include "fovea/info.hpp"
#include "latent_case.hpp"
#include "run_case.hpp"

namespace fovea::check {
namespace {

/// The first row of out from the implementation, with this number of threads.
std::vector<float> first_row(const std::vector<std::int64_t>& lengths, std::string_view implementation, int threads) {
  LatentCase spec{.head = 24};
  for (const std::int64_t kv : lengths) spec.sequences.push_back({1, kv});
  const auto trial = bind(spec);
  set_num_threads(threads);
  share_small_work(true);
  const auto planned = trial->plan({.implementation = implementation});
  set_num_threads(0);
  EXPECT_TRUE(planned);
  const HostileWorkspace workspace(planned->workspace_bytes);
  EXPECT_TRUE(planned->run(workspace.view()));
  share_small_work(false);
  const HostileTensor out = trial->outputs().front().tensor;
  std::vector<float> row;
  for (std::int64_t head = 0; head < spec.head; ++head)
    for (std::int64_t d = 0; d < out.desc().shape[3]; ++d) row.push_back(out.at(out.offset(0, 0, head, d)));
  return row;
}

TEST(LatentAttention, BitsDoNotDependOnTheBatchOrTheThreads) {
  for (const ImplementationInfo& info : implementations()) {
    if (info.operation != "latent_attention" || !info.available) continue;
    SCOPED_TRACE(info.name);
    const std::vector<float> alone = first_row({1500}, info.name, 1);
    ASSERT_FALSE(std::any_of(alone.begin(), alone.end(), [](float x) { return x != x; }));
    EXPECT_EQ(alone, first_row({1500, 700, 1}, info.name, 2));
    EXPECT_EQ(alone, first_row({1500, 700, 1}, info.name, 5));
  }
}

}  // namespace
}  // namespace fovea::check
