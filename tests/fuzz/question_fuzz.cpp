// The JSON of `explain --config` and of the C API's requests: fields of a layer.
#include "fp4moe/base/json.hpp"
#include "fp4moe/runtime/selection_request.hpp"
#include "fuzz.hpp"

namespace fp4moe {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto json = parse_json(fuzz::characters(data, size));
  if (!json) return 0;
  for (const char* format : {"mxfp4", "nvfp4"}) {
    runtime::SelectionOptions options;
    options.device = "h100";
    options.format = format;
    options.layer = *json;
    if (const auto request = runtime::resolve(options); !request)
      fuzz::require_words(request.why());
  }
  return 0;
}

}  // namespace fp4moe
