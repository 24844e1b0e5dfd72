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

// What a handler is told of a NUL byte.
class NulInJson : public nlohmann::detail::exception {
 public:
  NulInJson() : exception(101, "a NUL byte is not JSON") {}
};

// Walks a document without building it: `Handler` is a nlohmann SAX handler. False when the
// handler stopped or the text is malformed.
template <class Handler>
bool walk_json(std::string_view text, Handler& handler) {
  // The library takes NUL for the end of the text and would believe anything after it.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    return handler.parse_error(nul + 1, "NUL", NulInJson());
  return nlohmann::json::sax_parse(text.begin(), text.end(), &handler,
                                   nlohmann::json::input_format_t::json, true);
}

}  // namespace fp4moe
