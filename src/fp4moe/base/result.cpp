#include "fp4moe/base/result.hpp"

#include <cerrno>
#include <cstring>

#include "fp4moe/base/text.hpp"

namespace fp4moe {

std::string text(const Error& why) {
  std::string line = why.id;
  const auto add = [&line](std::string_view lead, std::string_view part) {
    if (part.empty()) return;
    line += lead;
    line += printable(part);
  };
  add(": ", why.path);
  if (!why.tensor.empty()) line += ": \"" + printable(why.tensor) + "\"";
  add(": ", why.message);
  add("; expected ", why.expected);
  add(why.expected.empty() ? "; found " : ", found ", why.found);
  add(". ", why.remedy);
  return line;
}

Error system_error(std::string_view id, std::string_view action, int errno_value) {
  const bool exhausted = errno_value == ENOSPC || errno_value == EDQUOT || errno_value == ENOMEM ||
                         errno_value == EFBIG || errno_value == EMFILE || errno_value == ENFILE;
  return error(exhausted ? ErrorCode::exhausted : ErrorCode::failed, id,
               std::string(action) + ": " + std::strerror(errno_value));
}

}  // namespace fp4moe
