// What the tests of golden data share.
#pragma once
#include <cstddef>
#include <string>

#include "fp4moe/base/json.hpp"
#include "golden/report.hpp"

namespace fp4moe::golden::testing {

// Changes one hexadecimal digit of a string field.
inline void flip_digit(Json& text, std::size_t at) {
  auto& digits = text.string();
  digits.at(at) = digits.at(at) == '1' ? '2' : '1';
}

// Why a case does not agree; empty: it does.
inline std::string what(const Outcome& outcome) {
  if (!outcome) return "malformed: " + text(outcome.why());
  if (!*outcome) return "";
  return (*outcome)->what + "; expected " + (*outcome)->expected + ", found " + (*outcome)->found;
}

}  // namespace fp4moe::golden::testing
