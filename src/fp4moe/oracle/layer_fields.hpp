// The fields of a layer that users set, in one table: the key in configuration files, the option
// on the command line, what it means, which words it takes.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/request.hpp"

namespace fp4moe::oracle {

struct LayerField {
  std::string_view key;     // as the reference and the golden data spell it
  std::string_view option;  // as the command line spells it, without the dashes
  std::string_view help;
  std::string (*accepted)();                         // for messages: "silu, gelu, ..."
  bool (*set)(Layer& layer, std::string_view text);  // false: `text` is not a value of this field
  std::string (*show)(const Layer& layer);
};

std::span<const LayerField> layer_fields();

// Errors have id layer.value or layer.field, list what is accepted and name the nearest spelling.
Result<Done> set_field(Layer& layer, std::string_view key, std::string_view text);
// Every key of a configuration object; null leaves a field as it is. "parallel" holds the stored
// fields of a parallel layout.
Result<Done> set_fields(Layer& layer, const Json& config);

}  // namespace fp4moe::oracle
