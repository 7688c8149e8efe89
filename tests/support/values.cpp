// SPDX-License-Identifier: Apache-2.0
#include "values.hpp"

#include <cmath>
#include <limits>

#include "noise.hpp"

namespace fovea::check {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

bool is_loud(const Case& spec) { return spec.values == Values::loud_nan || spec.values == Values::nan_tail; }

/// The factor of q and k: e4m3 ends at 448.
float loudness(const Case& spec, DType dtype) {
  if (!is_loud(spec)) return 1.0f;
  return dtype == DType::e4m3 ? 100.0f : 1000.0f;
}

bool in_tail(Index at, std::int64_t kv_len) { return at.token >= kv_len - kv_len / 3; }

/// The size of a block of 32 channels in Values::spread, 1 to 2^-19.
float size_of_block(std::uint64_t hash) { return std::ldexp(1.0f, -static_cast<int>(hash % 20)); }

}  // namespace

Generator::Generator(const Case& spec) : spec_(spec), seed_(0x2545f4914f6cdd1du) {
  // FNV-1a by hand: std::hash may differ between standard libraries, and inputs must not.
  for (const char letter : spec.name) seed_ = (seed_ ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  const float scale = spec.scale != 0 ? spec.scale : 1.0f / std::sqrt(static_cast<float>(spec.dqk));
  key_per_score_ = 1.0f / (scale * static_cast<float>(spec.dqk));
}

std::uint64_t Generator::hash(std::uint64_t tag, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const {
  const auto fold = [](std::int64_t x) { return static_cast<std::uint64_t>(x); };
  const std::uint64_t outer = seed_ + tag * 0x9e3779b97f4a7c15u + fold(a) * 0xd1342543de82ef95u + fold(b) * 0xaf251af3b0f025b5u;
  return mix(outer + fold(c) * 0xb564ef22ec7aece5u + fold(d) * 0xf7c2ebc08f67f2b5u);
}

float Generator::normal(std::uint64_t tag, Index at) const { return near_normal(hash(tag, at.sequence, at.token, at.head, at.channel)); }

bool Generator::aimed() const {
  switch (spec_.values) {
    case Values::huge_scores:
    case Values::descending:
    case Values::ascending:
    case Values::very_negative:
    case Values::large_offset:
    case Values::dominant_key: return true;
    default: return false;
  }
}

float Generator::target_score(Index at, std::int64_t kv_len) const {
  const auto token = static_cast<float>(at.token);
  const float noise = near_normal(hash(7, at.sequence, at.token, at.head));
  switch (spec_.values) {
    case Values::huge_scores: return 300.0f * noise;
    case Values::descending: return 200.0f - 4.0f * token;
    case Values::ascending: return -200.0f + 4.0f * token;
    case Values::very_negative: return -10000.0f + 3.0f * noise;
    case Values::large_offset: return 5000.0f + 3.0f * noise;
    case Values::dominant_key: return at.token == kv_len * 2 / 3 ? 40.0f : noise;
    default: return 0.0f;
  }
}

float Generator::q(Index at) const {
  if (spec_.vast) return spec_.vast.q(at.channel, spec_.scale);
  const float noise = normal(1, at);
  if (aimed()) return 1.0f + 0.1f * noise;
  return spec_.values == Values::sharp ? 20.0f * noise : loudness(spec_, spec_.dtype) * noise;
}

float Generator::k(Index at, std::int64_t kv_len) const {
  if (spec_.vast && at.channel == 0) return spec_.vast.k(at.token);
  if (spec_.operation == Operation::paged_cache_append && spec_.values == Values::huge_scores) return 300.0f * normal(2, at);
  if (spec_.values == Values::nan_key && at.token == kv_len / 2 && at.head == 0 && at.channel == 5) return kNaN;
  if (spec_.values == Values::ties) at.token = 0;
  const float noise = normal(2, at);
  if (spec_.values == Values::nan_tail && in_tail(at, kv_len)) return kNaN;
  if (spec_.values == Values::spread) return size_of_block(hash(8, at.sequence, at.token, at.head, at.channel / 32)) * noise;
  return aimed() ? target_score(at, kv_len) * key_per_score_ + 0.02f * noise : loudness(spec_, spec_.kv_dtype) * noise;
}

float Generator::v(Index at, std::int64_t kv_len) const {
  const bool has_nan = spec_.values == Values::nan_value || spec_.values == Values::loud_nan;
  if (has_nan && at.token == kv_len / 2 && at.head == 0 && at.channel == 3) return kNaN;
  if (spec_.values == Values::nan_tail && in_tail(at, kv_len)) return kNaN;
  if (spec_.values == Values::positive) return 1.0f + 0.1f * normal(3, at);
  if (is_loud(spec_)) return std::copysign(1.0f, normal(3, at));
  if (spec_.values == Values::spread) {
    const std::uint64_t block = hash(10, at.sequence, at.token, at.head, at.channel / 32);
    return at.token % 7 == 3 || block / 20 % 5 == 0 ? 0.0f : size_of_block(block) * std::ldexp(normal(3, at), -60);
  }
  return normal(3, at);
}

Generator::Block Generator::block(std::int64_t sequence, std::int64_t head, std::int64_t q_block, std::int64_t k_block) const {
  const Blocks& blocks = spec_.blocks;
  if (!blocks.own_batch) sequence = 0;
  if (!blocks.own_head) head = 0;
  if (q_block % 4 == 2) return Block::hidden;  // rows without keys
  switch (hash(30, sequence, head, q_block, k_block) % 4) {
    case 0: return blocks.partial ? Block::partial : Block::full;
    case 1: return blocks.full ? Block::full : Block::partial;
    default: return Block::hidden;
  }
}

bool Generator::sees(std::int64_t sequence, std::int64_t head, std::int64_t row, std::int64_t key) const {
  const Blocks& blocks = spec_.blocks;
  const Block kind = block(sequence, head, row / blocks.q, key / blocks.k);
  if (kind != Block::partial) return kind == Block::full;
  return hash(31, blocks.own_batch ? sequence : 0, blocks.own_head ? head : 0, row, key) % 3 == 0;
}

float Generator::slope(std::int64_t sequence, std::int64_t head) const {
  constexpr float kWild[] = {0.5f, 300.0f, -0.02f, 0.9f, 0.0f};
  if (spec_.wild_slopes) return kWild[(2 * sequence + head) % 5];
  return 0.01f * static_cast<float>(1 + (7 * sequence + 3 * head) % 20);
}

float Generator::bias(std::int64_t sequence, std::int64_t head, std::int64_t row, std::int64_t key) const {
  const bool many = spec_.bias == BiasShape::full || spec_.bias == BiasShape::transposed;
  const std::uint64_t bits = hash(9, sequence, head, row, key);
  return many && bits % 13 == 0 ? -std::numeric_limits<float>::infinity() : 2 * near_normal(bits);
}

float Generator::sink(std::int64_t head) const {
  const float strong = 4.0f + 0.5f * static_cast<float>(head % 5);  // about the lse of some hundred keys, so that leaving it out shows
  switch (spec_.sink) {
    case Sink::minus_inf: return -kInf;
    case Sink::plus_inf: return kInf;
    case Sink::mixed: {
      const float values[] = {-kInf, strong, kInf, 300.0f, -1e30f};
      return values[head % 5];
    }
    default: return strong;
  }
}

float Generator::scale(char tensor, std::int64_t kv_head) const {
  if (spec_.scales == Scales::negative && tensor == 'q') return -2.0f;
  const float base = tensor == 'q' ? 2.0f : tensor == 'k' ? 0.5f : 0.25f;
  return spec_.scales == Scales::per_head ? base * (1.0f + 0.37f * static_cast<float>(kv_head % 4)) : base;
}

bool Generator::empty(int part, std::int64_t row, std::int64_t head) const {
  if (spec_.empties == Empties::all) return true;
  return spec_.empties == Empties::some && hash(4, part, row, head) % 3 == 0;
}

float Generator::part_out(int part, std::int64_t row, std::int64_t head, std::int64_t channel) const {
  return empty(part, row, head) ? kNaN : near_normal(hash(5, part, row, head, channel));
}

float Generator::part_lse(int part, std::int64_t row, std::int64_t head) const {
  const float marks[] = {-kInf, kInf, kNaN};
  if (empty(part, row, head)) return marks[hash(6, part, row, head) % 3];
  if (spec_.vast) return spec_.vast.size * spec_.vast.k(part + 3 * row + head);
  const float noise = near_normal(hash(8, part, row, head));
  if (spec_.values == Values::huge_scores) return 500.0f * noise;
  return spec_.values == Values::very_negative ? -30000.0f + noise : 3.0f * noise;
}

}  // namespace fovea::check
