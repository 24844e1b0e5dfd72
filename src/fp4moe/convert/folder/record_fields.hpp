// Reads fields of what conversions write about themselves. Each must be there: a wrong or missing one
// gives an empty value, and the first complaint is kept.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/json_fields.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/convert/folder/checksum.hpp"
#include "fp4moe/tensor/dtype.hpp"

namespace fp4moe::convert {

// True if a name can only be that of a file inside a folder, none below it or elsewhere.
inline bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.size() < 256 &&
         name.find('/') == name.npos && name.find('\0') == name.npos;
}

class RecordFields : public JsonFields {
 public:
  // `why` outlives this and stays empty while nothing is wrong.
  RecordFields(const Json& json, std::string_view place, std::string& why)
      : JsonFields(json), place_(place), why_(&why) {
    if (!json.is_object()) complain(fmt::format("{} that is not an object", place_));
  }

  void fail(std::string_view key, std::string_view wanted) { wrong(key, wanted, nullptr); }

  const Json& any(std::string_view key) {
    const Json* const found = find(key);
    if (found == nullptr) fail(key, "a value");
    return found == nullptr ? nothing() : *found;
  }
  std::string string(std::string_view key) { return need<std::string>(key); }
  std::uint64_t number(std::string_view key) { return need<std::uint64_t>(key); }
  bool flag(std::string_view key) { return need<bool>(key); }
  // The list, or an empty one if it is missing.
  const Json& array(std::string_view key) {
    static const Json kEmpty = Json::array();
    if (find(key) == nullptr) fail(key, "a list");
    const Json* const found = JsonFields::array(key);
    return found == nullptr ? kEmpty : *found;
  }
  RecordFields object(std::string_view key) { return {any(key), key, *why_}; }
  RecordFields inside(const Json& json, std::string_view place) { return {json, place, *why_}; }

  tensor::DType dtype(const char* key) {
    const auto found = tensor::dtype_from_safetensors(string(key));
    if (!found) fail(key, "a type of safetensors");
    return found.value_or(tensor::DType::u8);
  }
  Digest digest(const char* key) {
    const auto found = digest_from_text(string(key));
    if (!found) fail(key, "32 hexadecimal digits");
    return found.value_or(Digest{});
  }
  // A name inside the folder itself.
  std::string file_name(const char* key) {
    std::string found = string(key);
    if (!is_plain_file_name(found)) fail(key, "a plain file name");
    return found;
  }
  // The same, perhaps in folders below.
  std::string relative_name(const char* key) {
    std::string found = string(key);
    bool is_fine = true;
    for (const std::string_view part : split(found, '/'))
      is_fine = is_fine && is_plain_file_name(part);
    if (!is_fine) fail(key, "a relative file name");
    return found;
  }

 private:
  void wrong(std::string_view key, std::string_view expected, const Json* /*found*/) override {
    complain(fmt::format("\"{}\" of {} without {}", printable(key), place_, expected));
  }
  static const Json& nothing() {
    static const Json kNothing;
    return kNothing;
  }
  void complain(std::string what) const {
    if (why_->empty()) *why_ = std::move(what);
  }

  std::string place_;
  std::string* why_;
};

}  // namespace fp4moe::convert
