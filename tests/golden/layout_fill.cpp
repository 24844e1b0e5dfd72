#include "golden/layout_fill.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "golden/fields.hpp"
#include "golden/layout_data.hpp"

namespace fp4moe::golden {

// `element` makes one element of `bytes` bytes from as many as `taken` of the stream,
// little-endian.
struct FillRule {
  std::string_view name;
  std::size_t taken, bytes;
  std::uint32_t (*element)(std::uint32_t x);
};

namespace {

constexpr std::uint32_t no_nan(std::uint32_t b) { return (b & 0x7F) == 0x7F ? b - 1 : b; }

constexpr FillRule kFills[] = {
    {"raw", 1, 1, [](std::uint32_t b) { return b; }},
    {"bytes", 1, 1, [](std::uint32_t b) { return b; }},
    {"u8_mod250", 1, 1, [](std::uint32_t b) { return b % 250; }},
    {"e4m3_pos", 1, 1, [](std::uint32_t b) { return no_nan(b & 0x7F); }},
    {"e4m3_signed", 1, 1, no_nan},
    {"e4m3_hi", 1, 1, [](std::uint32_t b) { return 0x38 + b % 0x47; }},
    {"e4m3_mid", 1, 1, [](std::uint32_t b) { return 0x20 + b % 0x30; }},
    {"e4m3_lo", 1, 1, [](std::uint32_t b) { return b % 0x40; }},
    {"bf16", 2, 2,
     [](std::uint32_t x) {
       return (x & 0x8000) | ((120 + ((x >> 7) & 0xFF) % 16) << 7) | (x & 0x7F);
     }},
    {"f32", 4, 4,
     [](std::uint32_t x) { return ((110 + ((x >> 23) & 0xFF) % 16) << 23) | (x & 0x7FFFFF); }},
    {"int8_over_16_bf16", 1, 2,
     [](std::uint32_t b) -> std::uint32_t {
       return formats::Bf16::encode(static_cast<float>(static_cast<std::int8_t>(b)) / 16);
     }},
};

const FillRule* find_fill(std::string_view name) {
  const auto* found = std::ranges::find(kFills, name, &FillRule::name);
  return found == std::end(kFills) ? nullptr : found;
}

Error unknown_fill(std::string_view key, std::string_view found) {
  std::string names;
  for (const FillRule& rule : kFills)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", rule.name);
  return malformed(key, "one of " + names, fmt::format("\"{}\"", found));
}

// 64 bits, in hexadecimal with "0x" or a plain number.
Result<std::uint64_t> seed_field(const Json& item) {
  const std::string_view wanted = "up to 16 hexadecimal digits after 0x";
  const auto found = item.find("seed");
  if (found == item.end()) return malformed("seed", wanted, "none");
  if (found->is_number_unsigned()) return found->get<std::uint64_t>();
  if (!found->is_string()) return malformed("seed", wanted, found->type_name());
  const auto& text = found->string();
  std::uint64_t seed = 0;
  bool good = text.starts_with("0x") && text.size() > 2 && text.size() <= 18;
  for (std::size_t i = 2; good && i < text.size(); ++i) {
    const char c = text[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    good = digit >= 0;
    seed = seed * 16 + static_cast<std::uint64_t>(digit & 15);
  }
  if (!good) return malformed("seed", wanted, fmt::format("\"{}\"", text));
  return seed;
}

// One sample of the document: what `rule` makes of `seed` begins with these bytes.
Result<Done> check_sample(const Json& sample, const FillRule& rule, std::uint64_t seed,
                          std::string_view key) {
  const Result<std::vector<std::uint8_t>> wanted = bytes_field(sample, key);
  if (!wanted) return wanted.why();
  if (wanted->empty() || wanted->size() > 4096 || wanted->size() % rule.bytes != 0)
    return malformed(key, fmt::format("whole elements of {} bytes", rule.bytes),
                     fmt::format("{} bytes", wanted->size()));
  std::vector<std::byte> result(wanted->size());
  Fill(rule, seed).make(result);
  for (std::size_t i = 0; i < result.size(); ++i)
    if (std::to_integer<std::uint8_t>(result[i]) != (*wanted)[i])
      return malformed(key, fmt::format("byte {} = {:02x}", i, (*wanted)[i]),
                       fmt::format("{:02x} generated here", std::to_integer<unsigned>(result[i])));
  return Done{};
}

// {"seed", "first_32_bytes_hex"} or {"seed", "first16"}
Result<Done> check_stream(const Json& sample) {
  if (!sample.is_object()) return malformed("prng", "objects", sample.type_name());
  const Result<std::uint64_t> seed = seed_field(sample);
  if (!seed) return seed.why();
  const bool is_long = sample.contains("first_32_bytes_hex");
  return check_sample(sample, kFills[0], *seed, is_long ? "first_32_bytes_hex" : "first16");
}

Result<Done> check_streams(const Json& prng) {
  if (!prng.is_object()) return malformed("prng", "an object", prng.type_name());
  const Result<std::string> name = string_field(prng, "name");
  if (!name) return name.why();
  if (*name != "splitmix64") return malformed("prng", "splitmix64", "\"" + *name + "\"");
  if (const auto one = prng.find("check"); one != prng.end())
    if (Result<Done> checked = check_stream(*one); !checked) return checked;
  const auto several = prng.find("checks");
  if (several == prng.end()) return Done{};
  if (!several->is_array()) return malformed("prng", "a list of checks", several->type_name());
  for (const Json& sample : *several)
    if (Result<Done> checked = check_stream(sample); !checked) return checked;
  return Done{};
}

Result<Done> check_fills(const Json& checks) {
  if (!checks.is_object()) return malformed("fill_checks", "an object", checks.type_name());
  const Result<std::uint64_t> seed = seed_field(checks);
  if (!seed) return seed.why();
  const auto samples = checks.find("hex_by_fill");
  if (samples == checks.end() || !samples->is_object())
    return malformed("hex_by_fill", "an object",
                     samples == checks.end() ? "none" : samples->type_name());
  for (const auto& [name, hex] : samples->items()) {
    const FillRule* rule = find_fill(name);
    if (rule == nullptr) return unknown_fill("hex_by_fill", name);
    if (Result<Done> checked = check_sample(*samples, *rule, *seed, name); !checked) return checked;
  }
  return Done{};
}

}  // namespace

std::size_t Fill::element_bytes() const { return rule_->bytes; }

void Fill::make(std::span<std::byte> out) const {
  SplitMix64 stream(seed_);
  std::uint64_t word = 0;
  std::size_t used = 8;  // bytes of `word`; elements never straddle two words
  const std::uint32_t mask = rule_->taken == 4 ? ~0u : (1u << (8 * rule_->taken)) - 1;
  for (std::size_t at = 0; at + rule_->bytes <= out.size(); at += rule_->bytes) {
    if (used == 8) {
      word = stream.next();
      used = 0;
    }
    const std::uint32_t element =
        rule_->element(static_cast<std::uint32_t>(word >> (8 * used)) & mask);
    used += rule_->taken;
    for (std::size_t byte = 0; byte < rule_->bytes; ++byte)
      out[at + byte] = static_cast<std::byte>(element >> (8 * byte));
  }
}

Result<Fill> read_fill(const Json& item) {
  const std::string_view key = item.contains("fill") ? "fill" : "gen";
  const Result<std::string> name = string_field(item, key);
  if (!name) return name.why();
  const FillRule* rule = find_fill(*name);
  if (rule == nullptr) return unknown_fill(key, *name);
  const Result<std::uint64_t> seed = seed_field(item);
  if (!seed) return seed.why();
  return Fill(*rule, *seed);
}

Result<Done> check_generators(const Json& document) {
  if (const auto prng = document.find("prng"); prng != document.end())
    if (Result<Done> checked = check_streams(*prng); !checked) return checked;
  if (const auto fills = document.find("fill_checks"); fills != document.end())
    return check_fills(*fills);
  return Done{};
}

}  // namespace fp4moe::golden
