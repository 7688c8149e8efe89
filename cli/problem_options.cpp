// SPDX-License-Identifier: Apache-2.0
/// The options that describe problems: which there are, who takes them, and what was read from them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "problem_size.hpp"
#include "values.hpp"

namespace fovea::cli {
namespace {

using Enumerators = std::vector<std::pair<std::string, int>>;

/// Plain rows, and the formats of a table.
template <class Formats>
Enumerators rows_and(const Formats& formats) {
  Enumerators all{{"rows", 0}};
  for (const auto& row : formats) all.emplace_back(row.name, static_cast<int>(row.format));
  return all;
}
static_assert(static_cast<int>(CacheFormat::rows) == 0 && static_cast<int>(KvFormat::rows) == 0);

std::string names_of(const Enumerators& all) {
  std::string text;
  for (const auto& [name, number] : all) text += (text.empty() ? "" : "|") + name;
  return text;
}

void add_sizes(CLI::App& command, ProblemSize& s) {
  command.add_option("--batch", s.batch, "Sequences")->check(count(0))->capture_default_str();
  command.add_option("--seq-q", s.seq_q, "Queries of each sequence; of caches: new rows")->check(count(0))->capture_default_str();
  command.add_option("--seq-k", s.seq_k, "Keys of each sequence, or tokens that a cache has room for")
      ->check(count(0))
      ->capture_default_str();
  command.add_option("--heads", s.heads, "Query heads")->check(count(0))->capture_default_str();
  command.add_option("--kv-heads", s.kv_heads, "Key and value heads")->option_text("INT [8; latent 1]")->check(count(1));
  command.add_option("--head-dim", s.dim_qk, "Head dim of q and k")
      ->option_text("INT [128; latent 576, or what the format holds]")
      ->check(count(1));
  command.add_option("--head-dim-v", s.dim_v, "Head dim of v, when it differs")->check(count(1));
  command.add_option("--page", s.page, "Tokens of a page")->option_text("INT [16; latent 64]")->check(count(1));
  command.add_option("--topk", s.topk, "Sparse: tokens that a query lists")->check(count(0))->capture_default_str();
  command.add_option("--extra-topk", s.extra_topk, "Sparse: tokens of the extra cache")
      ->check(count(0))
      ->capture_default_str()
      ->needs("--extra-format");
  constexpr std::int64_t kMostParts = 1 << 16;
  command.add_option("--parts", s.parts, "merge_states: partial results")->capture_default_str()->check(count(0, kMostParts));
}

void add_types(CLI::App& command, ProblemSize& s) {
  const auto all = rows_and(kPackedFormats);
  command.add_option("--dtype", s.dtype, "Type of q, and of k, v and out")
      ->transform(dtype_name())
      ->option_text("f32|f16|bf16|e4m3|f64 [bf16]");
  command.add_option("--cache-dtype", s.cache, "Type of the cache, when it differs; 8-bit attention: of V")
      ->transform(dtype_name())
      ->option_text("f32|f16|bf16|e4m3");
  command.add_option("--format", s.format, "Latent caches: plain rows, or packed ones")
      ->transform(enumerator(all))
      ->option_text(names_of(all) + " [rows; conversions v32_fp8]");
  command.add_option("--extra-format", s.extra, "Sparse: a second cache of this format")
      ->transform(enumerator(all))
      ->option_text("as --format");
}

void add_kv_format(CLI::App& command, ProblemSize& s) {
  const auto all = rows_and(kKvFormats);
  command.add_option("--kv-format", s.kv, "Paged caches: how rows of K and V are stored")
      ->transform(enumerator(all))
      ->option_text(names_of(all) + " [rows]");
}

void add_rules(CLI::App& command, ProblemSize& s) {
  command.add_flag("--causal", s.causal, "Causal mask (operations on caches always have one; sparse: none)");
  command.add_option("--window", s.window, "Causal, and at most this many keys back")->check(count(1));
  command.add_option("--mask-tail", s.mask_tail, "A packed mask over so many of the last keys")->check(count(1));
  command.add_option("--block-size", s.block_size, "A block mask with blocks of so many queries and keys")->check(count(1));
  command.add_option("--softcap", s.softcap, "Bound of the scores")->check(number());
  command.add_flag("--sink", s.sink, "A sink logit for each head");
  command.add_flag("--alibi-slopes", s.alibi, "ALiBi slopes for each head");
  command.add_flag("--bias", s.bias, "A bias for each head, query and key");
  command.add_option("--dropout-p", s.dropout, "Share of weights that dropout takes away")->check(number());
  command.add_flag("--lse", s.lse, "Return the log-sum-exp; attention_backward: take its gradient");
  command.add_flag("--flat", s.flat, "Sparse: rows without a batch dimension (prefill)");
}

/// Numbers and types in the order in which people say them.
std::vector<std::string> numbers_of(const ProblemSize& s, const ExplainedOperation& operation) {
  std::vector<std::string> parts;
  const auto add = [&](const std::string& option, const auto& value) {
    if (operation.takes("--" + option)) parts.push_back(fmt::format("{} {}", option, value));
  };
  if (operation.takes("--dtype")) parts.emplace_back(name_of(s.dtype));
  if (s.cache) add("cache-dtype", name_of(*s.cache));
  if (const PackedFormat* packed = packed_format(format_of(s))) add("format", packed->name);
  if (s.kv) add("kv-format", name_of(*s.kv));
  if (s.extra) add("extra-format", s.extra == CacheFormat::rows ? "rows" : packed_format(*s.extra)->name);
  add("batch", s.batch);
  add("seq-q", s.seq_q);
  add("seq-k", s.seq_k);
  add("heads", s.heads);
  add("kv-heads", s.kv_heads);
  add("head-dim", s.dim_qk);
  if (s.dim_v != s.dim_qk) add("head-dim-v", s.dim_v);
  if (s.page != 0) add("page", s.page);
  add("topk", s.topk);
  if (s.extra) add("extra-topk", s.extra_topk);
  add("parts", s.parts);
  return parts;
}

}  // namespace

std::shared_ptr<const ProblemSize> usual_problem(const ProblemTypes& types) {
  ProblemSize size;
  size.dtype = types.dtype;
  size.cache = types.cache;
  size.format = types.format;
  size.kv = types.kv;
  return std::make_shared<const ProblemSize>(size);
}

std::shared_ptr<ProblemSize> add_problem_options(CLI::App& command) {
  auto size = std::make_shared<ProblemSize>();
  add_types(command, *size);
  add_kv_format(command, *size);
  add_sizes(command, *size);
  add_rules(command, *size);
  return size;
}

std::string described(const ProblemSize& given, const ExplainedOperation& operation) {
  const ProblemSize s = with_usual_values(given, operation.usual);
  std::vector<std::string> parts = numbers_of(s, operation);
  const bool causal = s.causal || operation.usual.is_causal;
  if (s.window > 0) {
    parts.push_back(fmt::format("window {}", s.window));
  } else if (operation.takes("--causal")) {
    parts.emplace_back(causal ? "causal" : "no mask");
  }
  if (s.mask_tail != 0) parts.push_back(fmt::format("mask-tail {}", s.mask_tail));
  if (s.block_size != 0) parts.push_back(fmt::format("block-size {}", s.block_size));
  if (s.softcap != 0) parts.push_back(fmt::format("softcap {}", s.softcap));
  if (s.sink) parts.emplace_back("sink");
  if (s.alibi) parts.emplace_back("ALiBi");
  if (s.bias) parts.emplace_back("bias");
  if (s.dropout != 0) parts.push_back(fmt::format("dropout {}", s.dropout));
  if (s.lse) parts.emplace_back("lse");
  if (s.flat) parts.emplace_back("flat");
  return fmt::format("{}: {}", operation.name, fmt::join(parts, ", "));
}

std::vector<std::string> operation_names() {
  std::vector<std::string> names;
  for (const ExplainedOperation& row : explained_operations()) names.emplace_back(row.name);
  return names;
}

bool ExplainedOperation::takes(std::string_view option) const { return std::find(options.begin(), options.end(), option) != options.end(); }

std::string misplaced_options(const CLI::App& command, const ExplainedOperation& operation, const ProblemSize& size) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || operation.takes(name)) continue;
    std::string takers;
    for (const ExplainedOperation& other : explained_operations()) {
      if (other.takes(name)) takers += (takers.empty() ? "" : ", ") + std::string(other.name);
    }
    if (!takers.empty()) return fmt::format("{}: got with {}, want it with {}", name, operation.name, takers);
  }
  const bool of_v = operation.name.starts_with("quantize"), packed = packed_format(format_of(size)) != nullptr;
  if (of_v && size.cache && *size.cache != DType::e4m3 && *size.cache != DType::f16)
    return fmt::format("--cache-dtype: got {}, want f16 or e4m3 with {}", name_of(*size.cache), operation.name);
  if (packed && size.extra.value_or(CacheFormat::v32_fp8) != CacheFormat::rows) {
    for (const char* of_rows : {"--cache-dtype", "--kv-heads"}) {
      if (command.count(of_rows) != 0) return fmt::format("{}: got with a packed --format, want it with rows", of_rows);
    }
  }
  return {};
}

}  // namespace fovea::cli
