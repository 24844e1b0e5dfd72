// JSON from files nobody vouches for: no exceptions, no duplicate keys, bounded depth, valid UTF-8.
#pragma once
#include <cstddef>
#include <string_view>

#include <nlohmann/json.hpp>

#include "fp4moe/base/result.hpp"

namespace fp4moe {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxJsonDepth = 64;

// The document in `text`, or an error with id `json.*` that gives the byte where reading stopped.
Result<Json> parse_json(std::string_view text);

// Reads and parses a file of at most `max_bytes`.
Result<Json> read_json_file(std::string_view path, std::size_t max_bytes = 100u << 20);

// Walks a document without building it: `Handler` is a nlohmann SAX handler. False when the
// handler stopped or the text is malformed.
template <class Handler>
bool walk_json(std::string_view text, Handler& handler) {
  return nlohmann::json::sax_parse(text.begin(), text.end(), &handler,
                                   nlohmann::json::input_format_t::json, true);
}

}  // namespace fp4moe
