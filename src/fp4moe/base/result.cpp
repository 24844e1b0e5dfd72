#include "fp4moe/base/result.hpp"

#include <cerrno>
#include <cstring>

#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe {

Error::Error() = default;
Error::Error(ErrorCode why, std::string_view stable_id, std::string_view sentence)
    : code(why), id(stable_id), message(sentence) {}
Error::Error(const Error& other) = default;
Error::Error(Error&& other) noexcept = default;
Error& Error::operator=(const Error& other) = default;
Error& Error::operator=(Error&& other) noexcept = default;
Error::~Error() = default;

Error&& Error::in(std::string_view file) && {
  path = file;
  return std::move(*this);
}

Error&& Error::at(std::string_view name) && {
  tensor = name;
  return std::move(*this);
}

Error&& Error::expects(std::string_view requirement, std::string_view fact) && {
  expected = requirement;
  found = fact;
  return std::move(*this);
}

Error&& Error::try_this(std::string_view what) && {
  remedy = what;
  return std::move(*this);
}

Error error(ErrorCode code, std::string_view id, std::string_view message) {
  return {code, id, message};
}

Error invalid(std::string_view id, std::string_view message) {
  return {ErrorCode::invalid_input, id, message};
}

Error usage(std::string_view id, std::string_view message) {
  return {ErrorCode::usage, id, message};
}

ErrorPointer::ErrorPointer(Error&& why) : why_(new Error(std::move(why))) {}
Error* ErrorPointer::copy(const Error& why) { return new Error(why); }
void ErrorPointer::destroy() noexcept { delete why_; }

std::string text(const Error& why) {
  constexpr std::size_t kMax = 4000;  // of a part: lists are shown whole
  std::string line = why.id;
  const auto add = [&line](std::string_view lead, std::string_view part) {
    if (part.empty()) return;
    line += lead;
    line += escaped(part, kMax);
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
