// Reads the fields of configurations.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "fp4moe/base/json_fields.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/config.hpp"

namespace fp4moe::checkpoint {

// The first field of a wrong type is remembered.
class ConfigFields : public JsonFields {
 public:
  using JsonFields::JsonFields;

  std::optional<std::uint64_t> count(std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys) {
      const Json* value = find(key);
      if (value == nullptr) continue;
      return is_counts(*value) ? common_count(*value) : get<std::uint64_t>(key);
    }
    return std::nullopt;
  }
  std::optional<double> number(std::string_view key) { return get<double>(key); }
  std::optional<bool> boolean(std::string_view key) { return get<bool>(key); }
  std::string string(std::string_view key) { return get<std::string>(key).value_or(""); }
  void exclusions(std::string_view key, Exclusions& into) {
    const Json* value = find(key);
    if (value == nullptr) return;
    if (!value->is_array()) {
      wrong(key, "a list of module names", value);
      return;
    }
    for (const Json& item : *value) {
      if (!item.is_string()) {
        wrong(key, "a list of module names", &item);
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
  void wrong(std::string_view key, std::string_view expected, const Json* found) override {
    if (problem_) return;
    problem_ =
        invalid("config.type", "a field has the wrong type")
            .at(key)
            .expects(expected, fmt::format("{} {}", found->type_name(), printable(found->dump())));
  }

  std::optional<Error> problem_{};
};

}  // namespace fp4moe::checkpoint
