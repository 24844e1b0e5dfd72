// The journal of an unfinished conversion, as it is and with its checksum made right.
#include "fp4moe/convert/folder/journal.hpp"
#include "fuzz.hpp"
#include "sealed.hpp"

namespace fp4moe {
namespace {

void check(std::string_view text) {
  const auto records = convert::journal_from_text(text);
  if (!records) {
    const bool is_json = records.why().id.starts_with("json.");
    fuzz::require_complete(records.why(), is_json ? "json." : "converted.");
    return;
  }
  for (const convert::FileRecord& file : records->files) fuzz::require_inside(file.name);
  const std::string written = convert::to_text(*records);
  const auto again = convert::journal_from_text(written);
  fuzz::require(again && convert::to_text(*again) == written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view whole = fuzz::characters(data, size);
  check(whole);
  if (const auto text = fuzz::sealed(whole, -1, "")) check(*text);
  return 0;
}

}  // namespace fp4moe
