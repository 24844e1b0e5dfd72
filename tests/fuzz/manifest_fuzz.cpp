// The manifest of a converted folder, as it is and with its checksum made right.
#include "fp4moe/convert/folder/manifest.hpp"
#include "fuzz.hpp"
#include "sealed.hpp"

namespace fp4moe {
namespace {

void check(std::string_view text) {
  const auto manifest = convert::manifest_from_text(text);
  if (!manifest) {
    fuzz::require_complete(manifest.why(), "converted.");
    return;
  }
  for (const convert::FileRecord& file : manifest->files) fuzz::require_inside(file.name);
  for (const convert::CompanionRecord& file : manifest->companions) fuzz::require_inside(file.name);
  for (const convert::SourceFile& file : manifest->source_files) fuzz::require_inside(file.name);
  // What was read can be written, and reads as the same.
  const std::string written = convert::to_text(*manifest);
  const auto again = convert::manifest_from_text(written);
  fuzz::require(again && convert::to_text(*again) == written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view whole = fuzz::characters(data, size);
  check(whole);
  if (const auto text = fuzz::sealed(whole, 1, "\n")) check(*text);
  return 0;
}

}  // namespace fp4moe
