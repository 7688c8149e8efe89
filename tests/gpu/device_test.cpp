// SPDX-License-Identifier: Apache-2.0
/// Promises on a GPU beyond a right result. A call can be recorded into a graph and replayed over other lengths. It runs on the caller's
/// stream, gives the same bits again, and refuses plans and memory of another device.
#include <gtest/gtest.h>

#include <algorithm>

#include "../latent_cases.hpp"
#include "bound_case.hpp"
#include "device_runtime.hpp"
#include "fovea/info.hpp"
#include "run_case.hpp"

namespace fovea::check {
namespace {

std::vector<std::string> cuda_implementations(std::string_view operation) {
  std::vector<std::string> names;
  for (const ImplementationInfo& info : implementations())
    if (info.operation == operation && info.available && info.backend == Backend::cuda) names.emplace_back(info.name);
  return names;
}

/// Calls f(trial, placed, plan) for every quick case and every CUDA implementation that takes it. Returns how many there were.
template <class F>
int for_each_plan(Stream stream, F&& f, bool deterministic = false) {
  int plans = 0;
  for (const AnyCase& entry : all_cases()) {
    const std::vector<std::string> names = cuda_implementations(entry.operation);
    if (entry.tier != Tier::quick || names.empty()) continue;
    const auto trial = entry.bind();
    trial->answers();
    for (const std::string& name : names) {
      SCOPED_TRACE(entry.name + " " + name);
      const PlacedTrial placed(*trial, name, stream);
      const auto planned = trial->plan({.implementation = name, .deterministic = deterministic}, placed.place());
      if (!planned) continue;
      ++plans;
      f(*trial, placed, *planned);
    }
  }
  return plans;
}

void expect_right(Trial& trial, const PlacedTrial& placed, const AnyPlan& plan) {
  const Result<void> done = placed.download(trial);
  ASSERT_TRUE(done) << done.error().message;
  const Judgement verdict = trial.judge(products_of(plan));
  EXPECT_TRUE(verdict.ok) << verdict.message;
}

using Bits = std::vector<std::vector<std::byte>>;

Bits bits_of(const Trial& trial, const PlacedTrial& placed) {
  EXPECT_TRUE(placed.download(trial));
  Bits bits;
  for (const Named& named : trial.outputs()) {
    const Storage& storage = named.tensor.storage();
    bits.emplace_back(storage.data(), storage.data() + storage.bytes());
  }
  trial.reset_outputs();
  return bits;
}

class Cuda : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto all = devices();
    const auto is_cuda = [](const DeviceInfo& info) { return info.device.backend == Backend::cuda; };
    if (std::none_of(all.begin(), all.end(), is_cuda)) GTEST_SKIP() << "no CUDA device";
  }
  Device device_{Backend::cuda, 0};
};

TEST_F(Cuda, GraphsReplayOnASideStream) {
  const SideStream side(device_);
  const int plans = for_each_plan(side.get(), [&](Trial& trial, const PlacedTrial& placed, const AnyPlan& planned) {
    const HostileWorkspace workspace(planned.workspace_bytes, device_);
    const Graph graph(device_, side.get(), [&] { return planned.run(workspace.view()); });
    for (int replay = 0; replay < 2; ++replay) {
      placed.upload(trial);
      graph.launch();
      expect_right(trial, placed, planned);
    }
    EXPECT_TRUE(workspace.red_zones_intact());
  });
  EXPECT_GT(plans, 0);
}

/// A case, then the same sequences rotated by one: other lengths and other blocks in tensors of the same shapes.
template <class Case>
void expect_replays(const Case& spec, std::string_view operation, Device device, const SideStream& side) {
  if (spec.tier != Tier::quick || spec.sequences.size() < 2) return;
  Case rotated = spec;
  std::rotate(rotated.sequences.begin(), rotated.sequences.begin() + 1, rotated.sequences.end());
  const auto first = bind(spec), second = bind(rotated);
  for (const std::string& name : cuda_implementations(operation)) {
    SCOPED_TRACE(spec.name + " " + name);
    const PlacedTrial placed(*first, name, side.get());
    const auto planned = first->plan({.implementation = name}, placed.place());
    if (!planned) continue;
    const HostileWorkspace workspace(planned->workspace_bytes, device);
    const Graph graph(device, side.get(), [&] { return planned->run(workspace.view()); });
    for (Trial* trial : std::initializer_list<Trial*>{first.get(), second.get(), first.get()}) {
      placed.upload(*trial);
      graph.launch();
      expect_right(*trial, placed, *planned);
    }
  }
}

TEST_F(Cuda, GraphsReplayOverOtherLengths) {
  const SideStream side(device_);
  for (const LatentCase& spec : latent_cases()) expect_replays(spec, "latent_attention", device_, side);
  for (const Case& spec : core_cases()) {
    if (spec.operation == Operation::paged_attention) expect_replays(spec, "paged_attention", device_, side);
  }
}

/// The host has not seen these slots. Those outside the cache are skipped: neither written nor read.
TEST_F(Cuda, WildSlotsAreSkipped) {
  for (const PackedFormat& format : kPackedFormats)
    for (const bool quantize : {true, false})
      for (const std::int64_t gap : {11, 16}) {
        const auto trial =
            bind(ConversionCase{.quantize = quantize, .format = format.format, .dtype = DType::bf16, .gap = gap, .wild_slots = true});
        for (const std::string& name : cuda_implementations(quantize ? "quantize_latent_cache" : "dequantize_latent_cache")) {
          SCOPED_TRACE(std::string(format.name) + " " + name);
          const PlacedTrial placed(*trial, name);
          const auto planned = trial->plan({.implementation = name}, placed.place());
          ASSERT_TRUE(planned) << planned.error().message;
          placed.upload(*trial);
          ASSERT_TRUE(planned->run({}));
          expect_right(*trial, placed, *planned);
        }
      }
}

TEST_F(Cuda, SameBitsAgainAndPrepared) {
  const auto expect_same_bits = [&](Trial& trial, const PlacedTrial& placed, const AnyPlan& planned) {
    const HostileWorkspace workspace(planned.workspace_bytes, device_), other(planned.workspace_bytes, device_);
    ASSERT_TRUE(planned.run(workspace.view()));
    const Bits first = bits_of(trial, placed);
    placed.upload(trial);
    ASSERT_TRUE(planned.run(workspace.view()));
    EXPECT_EQ(bits_of(trial, placed), first) << "with the workspace as the first run left it";
    placed.upload(trial);
    ASSERT_TRUE(planned.prepare(other.view()));
    EXPECT_TRUE(placed.download(trial));
    EXPECT_EQ(trial.what_changed(), "") << "prepare() wrote outputs";
    for (int layer = 0; layer < 2; ++layer) {
      placed.upload(trial);
      ASSERT_TRUE(planned.run_prepared(other.view()));
      EXPECT_EQ(bits_of(trial, placed), first) << "layer " << layer << " of a prepared step";
    }
  };
  for_each_plan({}, expect_same_bits, /*deterministic=*/true);
}

/// Copy engines read memory that no element lies in, if a box has no element in bounds.
TEST_F(Cuda, TouchesNothingAroundItsTensors) {
  const IsolatedMemory isolated;
  const int plans = for_each_plan({}, [&](Trial& trial, const PlacedTrial& placed, const AnyPlan& planned) {
    const HostileWorkspace workspace(planned.workspace_bytes, device_);
    ASSERT_TRUE(planned.run(workspace.view()));
    expect_right(trial, placed, planned);
  });
  EXPECT_GT(plans, 0);
}

TEST_F(Cuda, RefusesASmallWorkspace) {
  for_each_plan({}, [&](Trial& trial, const PlacedTrial& placed, const AnyPlan& planned) {
    if (planned.workspace_bytes == 0) return;
    const HostileWorkspace workspace(planned.workspace_bytes, device_);
    const Result<void> ran = planned.run({workspace.view().data, planned.workspace_bytes - 1});
    ASSERT_FALSE(ran);
    EXPECT_EQ(ran.error().code, ErrorCode::out_of_workspace);
    EXPECT_TRUE(placed.download(trial));
    EXPECT_EQ(trial.what_changed(), "");
  });
}

/// Planning needs no device of its own kind to decline.
TEST(OtherDevices, AreDeclinedWithTheReason) {
  const TensorDesc out = contiguous(DType::f32, {2, 1, 8}), lse = contiguous(DType::f32, {2, 1});
  const MergeStatesDesc desc{.parts = {{out, lse}}, .out = out, .lse = lse};
  const auto reason = [&](Device device, std::string_view implementation) {
    const auto planned = plan_merge_states(desc, device, {.implementation = implementation});
    return planned ? std::string("planned") : planned.error().declines.at(0).reason;
  };
  EXPECT_EQ(reason({Backend::cuda, 0}, "reference.merge_states"), "device.backend: got cuda, want cpu");
  EXPECT_EQ(reason({Backend::cpu, 0}, "cuda.portable.merge_states"), "device.backend: got cpu, want cuda");
  const std::string absent = reason({Backend::cuda, 999}, "cuda.portable.merge_states");
  EXPECT_TRUE(absent.starts_with("device.ordinal: got 999, want 0 to") || absent.find("no CUDA device") != std::string::npos) << absent;
}

}  // namespace
}  // namespace fovea::check
