// SPDX-License-Identifier: Apache-2.0
/// `fovea explain`: which implementation a problem gets, and why the others declined.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "problems.hpp"
#include "values.hpp"

namespace fovea::cli {
namespace {

struct Options {
  std::string operation = "attention", implementation, device = "cpu";
  ProblemSize size{};
  bool batch_invariant = false;
};

int explain(const Options& options) {
  const auto& operations = explained_operations();
  const auto found = std::find_if(operations.begin(), operations.end(), [&](const auto& row) { return row.name == options.operation; });
  const PlanOptions plan{.implementation = options.implementation, .batch_invariant = options.batch_invariant};
  const Device device = device_of(options.device);
  if (device.capability != 0) fmt::print("as on a device of compute capability {}.{}\n", device.capability / 10, device.capability % 10);
  const Explanation explanation = found->explain(options.size, device, plan);
  if (!explanation) {
    fmt::print(stderr, "{}\n", to_string(explanation.error()));
    return kUsage;
  }
  fmt::print("{}", *explanation);
  return kOk;
}

std::map<std::string, CacheFormat> formats() {
  std::map<std::string, CacheFormat> all{{"rows", CacheFormat::rows}};
  for (const PackedFormat& format : kPackedFormats) all.emplace(format.name, format.format);
  return all;
}

std::string names_of(const std::map<std::string, CacheFormat>& formats) {
  std::string text;
  for (const auto& [name, format] : formats) text += (text.empty() ? "" : "|") + name;
  return text;
}

void add_sizes(CLI::App& command, ProblemSize& s) {
  command.add_option("--batch", s.batch, "Sequences")->check(count(0))->capture_default_str();
  command.add_option("--seq-q", s.seq_q, "Queries of each sequence; of caches: new rows")->check(count(0))->capture_default_str();
  command.add_option("--seq-k", s.seq_k, "Keys of each sequence, or tokens that a cache has room for")
      ->check(count(0))
      ->capture_default_str();
  command.add_option("--heads", s.heads, "Query heads")->check(count(0))->capture_default_str();
  command.add_option("--kv-heads", s.kv_heads, "Key and value heads")->option_text("INT [8; latent 1]")->check(count(0));
  command.add_option("--head-dim", s.dim_qk, "Head dim of q and k")
      ->option_text("INT [128; latent 576, or what the format holds]")
      ->check(count(0));
  command.add_option("--head-dim-v", s.dim_v, "Head dim of v, when it differs")->check(count(0));
  command.add_option("--page", s.page, "Tokens of a page")->option_text("INT [16; latent 64]")->check(count(1));
  command.add_option("--topk", s.topk, "Sparse: tokens that a query lists")->check(count(0))->capture_default_str();
  command.add_option("--extra-topk", s.extra_topk, "Sparse: tokens of the extra cache")->check(count(0))->capture_default_str();
  command.add_option("--parts", s.parts, "merge_states: partial results")->capture_default_str()->check(count(0));
}

void add_types(CLI::App& command, ProblemSize& s) {
  const auto all = formats();
  command.add_option("--dtype", s.dtype, "Type of q, and of k, v and out")
      ->transform(dtype_name())
      ->option_text("f32|f16|bf16|e4m3|f64 [bf16]");
  command.add_option("--cache-dtype", s.cache, "Type of the cache, when it differs; 8-bit attention: of V")
      ->transform(dtype_name())
      ->option_text("f32|f16|bf16|e4m3");
  command.add_option("--format", s.format, "Latent caches: plain rows, or packed ones")
      ->transform(CLI::CheckedTransformer(all))
      ->option_text(names_of(all) + " [rows; conversions v32_fp8]");
  command.add_option("--extra-format", s.extra, "Sparse: a second cache of this format")
      ->transform(CLI::CheckedTransformer(all))
      ->option_text("as --format");
}

void add_rules(CLI::App& command, ProblemSize& s) {
  command.add_flag("--causal", s.causal, "Causal mask (operations on caches always have one)");
  command.add_option("--window", s.window, "Causal, and at most this many keys back")->check(count(1));
  command.add_option("--softcap", s.softcap, "Bound of the scores");
  command.add_flag("--sink", s.sink, "A sink logit for each head");
  command.add_flag("--lse", s.lse, "Return the log-sum-exp");
  command.add_flag("--flat", s.flat, "Sparse: rows without a batch dimension (prefill)");
}

}  // namespace

void add_explain(CLI::App& program, int& status) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      program.add_subcommand("explain", "Which implementation a described problem gets, with which tuning, and who declined");
  std::vector<std::string> names;
  std::string choices;
  for (const ExplainedOperation& row : explained_operations()) {
    names.emplace_back(row.name);
    choices += (choices.empty() ? "" : "|") + names.back();
  }
  command->add_option("--operation", o->operation, "What is to be computed")
      ->check(CLI::IsMember(names))
      ->option_text(choices + " [attention]");
  add_types(*command, o->size);
  add_sizes(*command, o->size);
  add_rules(*command, o->size);
  command->add_option("--device", o->device, "Where; one that is not here by its compute capability, e.g. sm90")
      ->check(device_name())
      ->option_text("cpu|cuda|cuda:N|smNN [cpu]");
  command->add_flag("--batch-invariant", o->batch_invariant, "Rows independent of the rest of the batch");
  command->add_option("--implementation", o->implementation, "Force one by name");
  command->footer("Exit status 2 when the description is wrong or nothing accepts it; the message says why.");
  command->callback([o, &status] { status = explain(*o); });
}

}  // namespace fovea::cli
