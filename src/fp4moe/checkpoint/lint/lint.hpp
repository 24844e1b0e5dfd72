// Finds what is wrong with a checkpoint before anything is built on it. Opening errors are findings
// too. Reads all scales and, with `deep`, codes as far as a check needs them; memory stays
// bounded because pages are released.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"

namespace fp4moe::tensor {
class Store;
}

namespace fp4moe::checkpoint {

enum class Severity : std::uint8_t { error, warning, note };
std::string_view name(Severity severity);

// A defect we look for in values, stable by its code. Problems of names, types and shapes keep the
// ids of the errors that opening gives.
struct LintRule {
  std::string_view code;
  Severity severity;
  std::string_view what;  // human-readable
  std::string_view remedy;
  std::string_view fix;  // the policy of `--fix` that repairs it; empty: none
};
std::span<const LintRule> lint_rules();

struct Finding {
  std::string code{};
  Severity severity = Severity::error;
  std::string file{};  // where it is; of the whole checkpoint: its path
  std::optional<std::uint64_t> layer{}, expert{};
  std::string tensor{};
  std::string fact{};
  std::string remedy{};
  std::string_view fix{};
};

struct LintOptions {
  bool deep = false;          // look at the codes too
  bool scalars_only = false;  // global and input scales and biases, which are few: no block scales
  std::optional<std::uint64_t> layer{};  // the values of this block alone; none: of all
  std::size_t threads = 1;
  std::function<void(std::uint64_t bytes)> progress{};  // from any thread
};

struct LintReport {
  std::string path{};
  std::string dialect{};  // "modelopt nvfp4"; empty when it was not recognized
  // By severity, then code, layer and expert. Of each code the first kMaxFindings are kept.
  std::vector<Finding> findings{};
  std::map<std::string, std::uint64_t> counts{};  // by code, all of them
  std::uint64_t errors = 0, warnings = 0, notes = 0;
  std::uint64_t layers = 0;   // checked
  std::uint64_t experts = 0;  // of all those layers together
  std::uint64_t bytes_read = 0;
  double seconds = 0;
  bool interrupted = false;          // stopped on request: the findings are not all
  std::optional<Error> exhausted{};  // what this machine lacked: likewise
  static constexpr std::size_t kMaxFindings = 1000;
};

LintReport lint(const std::string& path, const LintOptions& options = {});
// The same of a store that is open already; `path` is what it was opened by.
LintReport lint(const tensor::Store& store, const std::string& path,
                const LintOptions& options = {});

// A global scale that looks like its own reciprocal: NVFP4 quantizers set scale = max |w| / (448 *
// 6), so a factor above 4 means weights above 10,000 while its reciprocal means weights in
// [0.0001, 10,000].
bool looks_inverted(float canonical_global_scale);

}  // namespace fp4moe::checkpoint
