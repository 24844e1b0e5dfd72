// What running golden data says: how many cases agreed, and about each of the others where it first
// differs, or why it could not be read.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"

namespace fp4moe::golden {

// Where a case first differs, in a sentence without a full stop, and both values.
struct Mismatch {
  std::string what{};
  std::string expected{};
  std::string found{};
};

// A case agreed (nothing), differs (a mismatch), or is malformed (an error).
using Outcome = Result<std::optional<Mismatch>>;
inline constexpr std::optional<Mismatch> kAgrees{};

struct Failure {
  std::string case_id{};
  std::string what{};
  std::string expected{};
  std::string found{};
  bool malformed = false;  // the golden data themselves are wrong
};

// One human-readable line.
std::string text(const Failure& failure);

struct Report {
  std::string path{};
  std::string schema{};
  std::size_t passed = 0;
  std::size_t failed = 0;
  std::vector<Failure> failures{};

  void add(std::string_view case_id, const Outcome& outcome);
  bool has_malformed() const;
};

}  // namespace fp4moe::golden
