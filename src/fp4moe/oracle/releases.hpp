// Releases of vLLM and the policy that each has, in one table. A policy is exact for a release when
// selection is the same, near when it is the closest there is, and none when the release has no
// oracle for the format at all.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/words.hpp"
#include "fp4moe/platform/libraries.hpp"

namespace fp4moe::oracle {

enum class Match : std::uint8_t { exact, near, none };
inline constexpr std::array<std::string_view, 3> kMatchNames{"exact", "near", "none"};
constexpr std::string_view name(Match match) {
  return kMatchNames[static_cast<std::size_t>(match)];
}

struct ReleasePolicy {
  std::string_view policy;  // the nearest one where the release has no oracle
  Match match{};
};

struct Release {
  std::string_view version;  // "0.20.1"
  std::string_view date;     // of the tag or, where none was seen, of its files
  std::string_view
      branched;  // from the main line, which decides what it contains; empty: not known
  ReleasePolicy mxfp4, nvfp4;
  std::string_view differs;  // what is known to differ from near policies; empty: nothing
  const ReleasePolicy& of(WeightFormat format) const {
    return format == WeightFormat::mxfp4 ? mxfp4 : nvfp4;
  }
};

// Oldest first; the last one is the newest known.
std::span<const Release> vllm_releases();

// The generations of weight layouts that a release reads: "marlin.nvfp4 2026-03, ...".
std::string layout_generations(const Release& release);

// The release that a user means, and its policy for a format.
struct ReleaseChoice {
  std::string asked{};  // the number that was asked for or found
  const Release* release = nullptr;
  std::string policy{};
  Match match{};
  std::string note{};  // empty for an exact policy
};
Json to_json(const ReleaseChoice& choice);  // {version, release, policy, match, note}

// `word` is a version ("0.33.0", "0.33", "v0.33.0rc1"), "latest", or "auto" for the vLLM that is
// installed here. A release that is not listed takes the nearest earlier one, a newer one the
// newest. Errors: vllm.version (usage) for anything else, vllm.absent when none is installed.
Result<ReleaseChoice> choose_release(std::string_view word, WeightFormat format,
                                     const platform::LibrariesFrom& from = {});

}  // namespace fp4moe::oracle
