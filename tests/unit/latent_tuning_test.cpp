// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>

#include "gpu/cuda/sm90/latent_attention/tuning.hpp"

namespace fovea::gpu::sm90::latent {
namespace {

constexpr std::array kRows{Row::plain, Row::e4m3, Row::v32, Row::v4, Row::v41, Row::fp4, Row::any, Row::v41_and_fp4};

template <class Check>
void for_all_calls(Check&& check) {
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const int head_dim : {576, 512})
      for (const Row rows : kRows)
        for (int flags = 0; flags < 8; ++flags) {
          check(Call{dtype, head_dim, rows, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0});
        }
}

/// The rule once more, one decision after another.
Tuning expected(const Call& call) {
  if (call.rows == Row::plain) {
    if (!call.tma) return {.kernel = Kernel::pingpong, .load = Load::gather, .cluster = 1};
    return {.kernel = Kernel::pingpong, .load = Load::tma, .cluster = call.pairs ? 2 : 1};
  }
  const bool special = call.dtype == DType::bf16 && !call.edges;
  const bool packed576 = call.rows == Row::v32, packed512 = call.rows == Row::v4 || call.rows == Row::v41 || call.rows == Row::v41_and_fp4;
  if (special && (call.head_dim == 576 ? packed576 : packed512)) {
    return {.rows = call.rows, .specialised = true, .kernel = Kernel::specialised, .load = Load::quantised, .cluster = 1};
  }
  if (special && call.rows == Row::e4m3) {
    return {.rows = call.rows, .specialised = true, .kernel = Kernel::pingpong, .load = Load::quantised, .cluster = call.pairs ? 2 : 1};
  }
  return {.kernel = Kernel::pingpong, .load = Load::quantised, .cluster = 1};
}

TEST(LatentTuning, EveryCallGetsItsKernel) {
  std::set<std::size_t> chosen;
  for_all_calls([&](const Call& call) {
    const std::size_t index = tuning_index(call);
    ASSERT_LT(index, kTunings.size());
    chosen.insert(index);
    const Tuning &tuning = kTunings[index], want = expected(call);
    EXPECT_TRUE(tuning.kernel == want.kernel && tuning.load == want.load && tuning.cluster == want.cluster &&
                tuning.known_rows() == want.known_rows())
        << "rows " << static_cast<int>(call.rows) << ", head dim " << call.head_dim << ", entry " << index;
  });
  EXPECT_EQ(chosen.size(), kTunings.size());
}

TEST(LatentTuning, ThereIsAnInstanceOfWhatIsChosen) {
  for_all_calls([](const Call& call) { EXPECT_TRUE(kTunings[tuning_index(call)].has_instance(call.dtype, call.head_dim, call.edges)); });
}

TEST(LatentTuning, AConfigNamesItsKernel) {
  for (const Tuning& tuning : kTunings) EXPECT_EQ(kernel_of(tuning.load, tuning.known_rows()), tuning.kernel);
}

TEST(LatentTuning, SpecialisedDecodesPackedRowsAlone) {
  for (const Tuning& tuning : kTunings) {
    if (tuning.kernel != Kernel::specialised) continue;
    EXPECT_TRUE(tuning.load == Load::quantised && tuning.cluster == 1 && tuning.specialised);
  }
}

}  // namespace
}  // namespace fovea::gpu::sm90::latent
