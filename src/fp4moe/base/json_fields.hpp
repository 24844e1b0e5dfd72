// Typed reads of the fields of an untrusted JSON object.
//
// A document's reader derives from JsonFields and says what a field is that is wrong or missing: each
// document has an error of its own. Reads go on with empty values after it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fp4moe/base/json.hpp"

namespace fp4moe {

// A type of fields: its words in errors, and whether a value is one.
template <class T>
struct JsonType;
template <>
struct JsonType<bool> {
  static constexpr std::string_view kWords = "true or false";
  static bool is(const Json& value) { return value.is_boolean(); }
};
template <>
struct JsonType<std::uint64_t> {
  static constexpr std::string_view kWords = "a whole number";
  static bool is(const Json& value) {
    return value.is_number_unsigned() ||
           (value.is_number_integer() && value.get<std::int64_t>() >= 0);
  }
};
template <>
struct JsonType<double> {
  static constexpr std::string_view kWords = "a number";
  static bool is(const Json& value) { return value.is_number(); }
};
template <>
struct JsonType<std::string> {
  static constexpr std::string_view kWords = "a string";
  static bool is(const Json& value) { return value.is_string(); }
};

class JsonFields {
 public:
  // `inner` (a multimodal model's text_config) is asked before `outer`.
  explicit JsonFields(const Json& outer, const Json* inner = nullptr)
      : outer_(&outer), inner_(inner) {}
  virtual ~JsonFields() = default;

  // Null where there is none; `null` counts as none, as writers use it so.
  const Json* find(std::string_view key) const {
    for (const Json* object : {inner_, outer_}) {
      if (object == nullptr || !object->is_object()) continue;
      const auto at = object->find(key);
      if (at != object->end() && !at->is_null()) return &*at;
    }
    return nullptr;
  }

  // The field as a bool, std::uint64_t, double or std::string; none where it is absent or wrong.
  template <class T>
  std::optional<T> get(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (JsonType<T>::is(*value)) return value->get<T>();
    wrong(key, JsonType<T>::kWords, value);
    return std::nullopt;
  }
  // The same of one that must be there.
  template <class T>
  T need(std::string_view key) {
    if (find(key) == nullptr) wrong(key, JsonType<T>::kWords, nullptr);
    return get<T>(key).value_or(T{});
  }
  const Json* object(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr || value->is_object()) return value;
    wrong(key, "an object", value);
    return nullptr;
  }
  const Json* array(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr || value->is_array()) return value;
    wrong(key, "a list", value);
    return nullptr;
  }

 protected:
  JsonFields(const JsonFields&) = default;
  JsonFields& operator=(const JsonFields&) = default;
  // Keeps the first; `found` is null where the field is missing.
  virtual void wrong(std::string_view key, std::string_view expected, const Json* found) = 0;

 private:
  const Json* outer_;
  const Json* inner_;
};

}  // namespace fp4moe
