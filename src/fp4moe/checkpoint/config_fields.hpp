// Typed reads of untrusted JSON objects.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/config.hpp"

namespace fp4moe::checkpoint {

// Typed reads of one object. The first field of a wrong type is remembered; `null` counts as
// absent, as writers use it so.
class Fields {
 public:
  // `inner` (a multimodal model's text_config) is asked before `outer`.
  explicit Fields(const Json& outer, const Json* inner = nullptr) : outer_(outer), inner_(inner) {}

  const Json* find(std::string_view key) const {
    for (const Json* object : {inner_, &outer_}) {
      if (object == nullptr || !object->is_object()) continue;
      const auto at = object->find(key);
      if (at != object->end() && !at->is_null()) return &*at;
    }
    return nullptr;
  }
  const Json* object(std::string_view key) {
    const Json* value = find(key);
    return value == nullptr || value->is_object() ? value : wrong(key, "an object", *value);
  }
  std::optional<std::uint64_t> count(std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys) {
      const Json* value = find(key);
      if (value == nullptr) continue;
      if (value->is_number_unsigned()) return value->get<std::uint64_t>();
      if (is_counts(*value)) return common_count(*value);
      wrong(key, "a whole number", *value);
      return std::nullopt;
    }
    return std::nullopt;
  }
  std::optional<double> number(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_number()) return value->get<double>();
    wrong(key, "a number", *value);
    return std::nullopt;
  }
  std::optional<bool> boolean(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_boolean()) return value->get<bool>();
    wrong(key, "true or false", *value);
    return std::nullopt;
  }
  std::string string(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (value->is_string()) return value->string();
    wrong(key, "a string", *value);
    return {};
  }
  void exclusions(std::string_view key, Exclusions& into) {
    const Json* value = find(key);
    if (value == nullptr) return;
    if (!value->is_array()) {
      wrong(key, "a list of module names", *value);
      return;
    }
    for (const Json& item : *value) {
      if (!item.is_string()) {
        wrong(key, "a list of module names", item);
        return;
      }
      into.add(item.string());
    }
  }
  const std::optional<Error>& problem() const { return problem_; }

 private:
  // Some models give a list with a number for each layer, or for each kind of input.
  static bool is_counts(const Json& value) {
    if (!value.is_array() || value.empty()) return false;
    for (const Json& item : value)
      if (!item.is_number_unsigned()) return false;
    return true;
  }
  // Nothing where the numbers differ: no single one holds.
  static std::optional<std::uint64_t> common_count(const Json& list) {
    const auto first = list[0].get<std::uint64_t>();
    for (const Json& item : list)
      if (item.get<std::uint64_t>() != first) return std::nullopt;
    return first;
  }
  const Json* wrong(std::string_view key, std::string_view expected, const Json& found) {
    if (!problem_) {
      problem_ =
          invalid("config.type", "a field has the wrong type")
              .at(key)
              .expects(expected, fmt::format("{} {}", found.type_name(), printable(found.dump())));
    }
    return nullptr;
  }

  const Json& outer_;
  const Json* inner_;
  std::optional<Error> problem_{};
};

}  // namespace fp4moe::checkpoint
