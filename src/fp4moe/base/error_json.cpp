#include "fp4moe/base/error_json.hpp"

#include <string>

namespace fp4moe {

Json to_json(const Error& why) {
  Json object{{"code", static_cast<int>(why.code)}, {"id", why.id}, {"message", why.message}};
  const auto add = [&object](const char* key, const std::string& value) {
    if (!value.empty()) object[key] = value;
  };
  add("file", why.path);
  add("tensor", why.tensor);
  add("expected", why.expected);
  add("found", why.found);
  add("remedy", why.remedy);
  return object;
}

}  // namespace fp4moe
