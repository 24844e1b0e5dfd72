#include "golden/report.hpp"

#include <algorithm>

#include "fp4moe/base/text.hpp"

namespace fp4moe::golden {

std::string text(const Failure& failure) {
  std::string line = printable(failure.case_id) + ": " + printable(failure.what);
  if (!failure.expected.empty()) line += "; expected " + printable(failure.expected);
  if (!failure.found.empty()) line += ", found " + printable(failure.found);
  return line;
}

void Report::add(std::string_view case_id, const Outcome& outcome) {
  if (outcome && !outcome->has_value()) {
    ++passed;
    return;
  }
  ++failed;
  Failure failure{.case_id = std::string(case_id), .malformed = !outcome};
  if (outcome) {
    failure.what = (*outcome)->what;
    failure.expected = (*outcome)->expected;
    failure.found = (*outcome)->found;
  } else {
    const Error& why = outcome.why();
    failure.what = why.id + ": " + why.message;
    if (!why.tensor.empty()) failure.what += " (" + why.tensor + ")";
    failure.expected = why.expected;
    failure.found = why.found;
  }
  failures.push_back(std::move(failure));
}

bool Report::has_malformed() const {
  return std::any_of(failures.begin(), failures.end(),
                     [](const Failure& failure) { return failure.malformed; });
}

}  // namespace fp4moe::golden
