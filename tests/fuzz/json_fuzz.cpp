#include "fp4moe/base/json.hpp"
#include "fuzz.hpp"

namespace fp4moe {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Result<Json> document = parse_json(fuzz::characters(data, size));
  if (!document) {
    fuzz::require_complete(document.why(), "json.");
    return 0;
  }
  // What was read can be written, and reads as the same.
  const Result<Json> again = parse_json(document->dump());
  fuzz::require(static_cast<bool>(again) && *again == *document);
  return 0;
}

}  // namespace fp4moe
