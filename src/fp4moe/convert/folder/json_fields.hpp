// Reads fields of a document nobody vouches for: a wrong or missing one gives an empty value, and
// the first complaint is kept.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/convert/folder/checksum.hpp"
#include "fp4moe/tensor/dtype.hpp"

namespace fp4moe::convert {

class Fields {
 public:
  // `why` outlives this and stays empty while nothing is wrong.
  Fields(const Json& json, std::string_view place, std::string& why)
      : json_(&json), place_(place), why_(&why) {
    if (!json.is_object()) complain(fmt::format("{} that is not an object", place_));
  }

  void fail(std::string_view key, std::string_view wanted) const {
    complain(fmt::format("\"{}\" of {} without {}", printable(key), place_, wanted));
  }

  const Json& any(const char* key) const {
    return get(key, [](const Json&) { return true; });
  }
  std::string string(const char* key) const {
    const Json& value = get(key, [](const Json& json) { return json.is_string(); });
    return value.is_string() ? value.string() : std::string();
  }
  std::uint64_t number(const char* key) const {
    const Json& value = get(key, [](const Json& json) { return json.is_number_unsigned(); });
    return value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
  }
  bool flag(const char* key) const {
    const Json& value = get(key, [](const Json& json) { return json.is_boolean(); });
    return value.is_boolean() && value.get<bool>();
  }
  // Of a list that is missing, an empty one.
  const Json& array(const char* key) const {
    return get(
        key, [](const Json& json) { return json.is_array(); }, Json::array());
  }
  Fields object(const char* key) const { return {any(key), key, *why_}; }
  Fields inside(const Json& json, std::string_view place) const { return {json, place, *why_}; }

  tensor::DType dtype(const char* key) const {
    const auto found = tensor::dtype_from_safetensors(string(key));
    if (!found) fail(key, "a type of safetensors");
    return found.value_or(tensor::DType::u8);
  }
  Digest digest(const char* key) const {
    const auto found = digest_from_text(string(key));
    if (!found) fail(key, "32 hexadecimal digits");
    return found.value_or(Digest{});
  }
  // A name inside the folder itself.
  std::string file_name(const char* key) const {
    std::string found = string(key);
    if (!is_plain(found)) fail(key, "a plain file name");
    return found;
  }
  // The same, perhaps in folders below.
  std::string relative_name(const char* key) const {
    std::string found = string(key);
    bool is_fine = true;
    for (const std::string_view part : split(found, '/')) is_fine = is_fine && is_plain(part);
    if (!is_fine) fail(key, "a relative file name");
    return found;
  }

 private:
  static bool is_plain(std::string_view name) {
    return !name.empty() && name != "." && name != ".." && name.size() < 256 &&
           name.find('/') == name.npos && name.find('\0') == name.npos;
  }

  template <class Is>
  const Json& get(const char* key, const Is& is, const Json& otherwise = nothing()) const {
    if (!json_->is_object()) return nothing_like(otherwise);
    const auto found = json_->find(key);
    if (found != json_->end() && is(*found)) return *found;
    fail(key, found == json_->end() ? "a value" : "a value of its type");
    return nothing_like(otherwise);
  }
  static const Json& nothing() {
    static const Json kNothing;
    return kNothing;
  }
  static const Json& nothing_like(const Json& otherwise) {
    static const Json kList = Json::array();
    return otherwise.is_array() ? kList : nothing();
  }
  void complain(std::string what) const {
    if (why_->empty()) *why_ = std::move(what);
  }

  const Json* json_;
  std::string place_;
  std::string* why_;
};

}  // namespace fp4moe::convert
