// Documents that end with a checksum of themselves: the search never gets past it by chance, so the
// target makes it right.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "fp4moe/base/json.hpp"
#include "fp4moe/convert/folder/checksum.hpp"

namespace fp4moe::fuzz {

// The text with the right checksum, written as fp4moe writes it; nothing where it is no object.
inline std::optional<std::string> sealed(std::string_view whole, int indent, std::string_view end) {
  constexpr std::string_view kKey = "xxh3_128";
  Result<Json> json = parse_json(whole);
  if (!json || !json->is_object()) return std::nullopt;
  const auto written = [&] { return json->dump(indent) + std::string(end); };
  json->erase(kKey);
  (*json)[kKey] = convert::text(convert::digest_of(written()));
  return written();
}

}  // namespace fp4moe::fuzz
