#include "fp4moe/oracle/releases.hpp"

#include <algorithm>
#include <charconv>
#include <compare>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::oracle {
namespace {

constexpr ReleasePolicy same(std::string_view policy) { return {policy, Match::exact}; }
constexpr ReleasePolicy like(std::string_view policy) { return {policy, Match::near}; }
constexpr ReleasePolicy lacks(std::string_view policy) { return {policy, Match::none}; }

constexpr std::string_view kNoOracle =
    "no oracle: selection is spread over the quantization methods";
constexpr std::string_view k014 = "NVFP4: no list of priorities, no class predicates";
constexpr std::string_view k015 =
    "NVFP4: FlashInferExperts wants dp_size 1 or dp_size = ep_size, MarlinExperts takes every "
    "parallel layout";
constexpr std::string_view k016 =
    "NVFP4: newer class rows: CutlassExpertsFp4 and CUTEDSL ask for CUDA, FlashInferExperts takes "
    "11.x and 12.x, MarlinExperts takes layers without a gate";
constexpr std::string_view k017 = "NVFP4: no CUTEDSL_BATCHED and no EMULATION";
constexpr std::string_view k020 =
    "MXFP4: TRITON_UNFUSED is not in the automatic list, triton_kernels is required, a second "
    "entry for DeepSeek-V4";
constexpr std::string_view k021 =
    "MXFP4: LoRA is a predicate, AITER is split in two, a second entry for DeepSeek-V4";
constexpr std::string_view k022 =
    "NVFP4: already has the clamp; MXFP4: still has the variables, EMULATION is not in the list";
constexpr std::string_view k024 =
    "NVFP4: no HUMMING, VLLM_TEST_FORCE_FP8_MARLIN counts; MXFP4: no EMULATION in the list; else "
    "as 0.25.0";
constexpr std::string_view k025 =
    "no B12X, older class rows; MXFP4: on ROCm a last try of TRITON_UNFUSED, explicit names are "
    "asked with the requested activations, the last error names neither candidates nor reasons";
constexpr std::string_view k027 =
    "no B12X, older class rows; MXFP4: explicit names are asked with the requested activations; "
    "NVFP4: VLLM_TEST_FORCE_FP8_MARLIN counts";
constexpr std::string_view k028 =
    "no B12X; MXFP4: explicit names are asked with the requested activations; NVFP4: "
    "VLLM_TEST_FORCE_FP8_MARLIN counts";
constexpr std::string_view k029 =
    "MXFP4: one shape (512 experts, 64 local, hidden 2560, intermediate 640, 8 expert-parallel "
    "ranks, MXFP4 activations, gfx950) is forced to EMULATION";
constexpr std::string_view k032 =
    "NVFP4: TRTLLM still routes Simulated itself; MXFP4: CPU without GELU, AiterW4A16 refuses "
    "expert parallelism and hash routing, no AITER_TRITON_MXFP4_MXFP4, no LoRA class of TRTLLM, "
    "routes may be adjusted anywhere, AITER_MXFP4_BF16 names AiterExperts, the one shape of 0.29.0";

// clang-format off
constexpr Release kReleases[] = {
    {"0.10.0", "2025-07-23", "",           lacks("2026-03-20"),  lacks("2026-01-seed"), kNoOracle},
    {"0.11.0", "2025-10-10", "",           lacks("2026-03-20"),  lacks("2026-01-seed"), kNoOracle},
    {"0.11.1", "2025-11-18", "",           lacks("2026-03-20"),  lacks("2026-01-seed"), kNoOracle},
    {"0.11.2", "2025-11-19", "",           lacks("2026-03-20"),  lacks("2026-01-seed"), kNoOracle},
    {"0.12.0", "2025-12-02", "",           lacks("2026-03-20"),  lacks("2026-01-seed"), kNoOracle},
    {"0.13.0", "2025-12-18", "",           lacks("2026-03-20"),  lacks("2026-01-seed"), kNoOracle},
    {"0.14.0", "2026-01-16", "2026-01-13", lacks("2026-03-20"),  like("2026-01-seed"), k014},
    {"0.14.1", "2026-01-23", "2026-01-13", lacks("2026-03-20"),  like("2026-01-seed"), k014},
    {"0.15.0", "2026-01-28", "2026-01-26", lacks("2026-03-20"),  like("2026-01-27"),   k015},
    {"0.15.1", "2026-02-03", "2026-01-26", lacks("2026-03-20"),  like("2026-01-27"),   k015},
    {"0.16.0", "2026-02-24", "2026-02-09", lacks("2026-03-20"),  like("2026-01-27"),   k016},
    {"0.17.0", "2026-03-06", "2026-03-04", lacks("2026-03-20"),  like("2026-04-24"),   k017},
    {"0.17.1", "2026-03-11", "2026-03-04", lacks("2026-03-20"),  like("2026-04-24"),   k017},
    {"0.18.0", "2026-03-19", "2026-03-16", lacks("2026-03-20"),  like("2026-04-24"),   k017},
    {"0.18.1", "2026-03-30", "2026-03-16", lacks("2026-03-20"),  like("2026-04-24"),   k017},
    {"0.19.0", "2026-04-02", "2026-03-29", same("2026-03-27"), like("2026-04-24"),   k017},
    {"0.19.1", "2026-04-17", "2026-03-29", same("2026-03-27"), like("2026-04-24"),   k017},
    {"0.20.0", "2026-04-27", "2026-04-26", like("2026-04-24"),  same("2026-04-24"),  k020},
    {"0.20.1", "2026-05-04", "2026-04-26", like("2026-04-24"),  same("2026-04-24"),  k020},
    {"0.20.2", "2026-05-07", "2026-04-26", like("2026-04-24"),  same("2026-04-24"),  k020},
    {"0.21.0", "2026-05-14", "2026-05-11", like("2026-04-24"),  like("2026-04-24"),   k021},
    {"0.22.0", "2026-05-29", "2026-05-25", like("2026-08-22"),  like("2026-04-24"),   k022},
    {"0.22.1", "2026-06-03", "2026-05-25", like("2026-08-22"),  like("2026-04-24"),   k022},
    {"0.23.0", "2026-06-14", "2026-06-07", like("2026-08-22"),  like("2026-04-24"),   k022},
    {"0.24.0", "2026-06-28", "2026-06-23", like("2026-08-22"),  like("2026-08-22"),   k024},
    {"0.25.0", "2026-07-11", "2026-07-07", like("2026-08-22"),  like("2026-08-22"),   k025},
    {"0.25.1", "2026-07-12", "2026-07-07", like("2026-08-22"),  like("2026-08-22"),   k025},
    {"0.26.0", "2026-07-26", "2026-07-20", like("2026-08-22"),  like("2026-08-22"),   k025},
    {"0.27.0", "2026-08-10", "2026-08-03", like("2026-08-22"),  like("2026-08-22"),   k027},
    {"0.27.1", "2026-08-11", "2026-08-03", like("2026-08-22"),  like("2026-08-22"),   k027},
    {"0.28.0", "2026-08-21", "2026-08-17", like("2026-08-22"),  like("2026-08-22"),   k028},
    {"0.29.0", "2026-09-09", "",           like("2026-08-22"),  same("2026-08-22"),  k029},
    {"0.32.0", "2026-10-20", "",           like("vllm-0.33.0"), like("vllm-0.33.0"),  k032},
    {"0.33.0", "2026-11-02", "",           same("vllm-0.33.0"), same("vllm-0.33.0"), ""},
};
// clang-format on

// Since which state of the main line a layout has had which form.
struct LayoutChange {
  std::string_view layout, since, generation;
};
constexpr LayoutChange kLayoutChanges[] = {
    {"marlin.nvfp4", "", "2026-01"},
    {"marlin.nvfp4", "2026-03-18", "2026-03"},
    {"marlin.nvfp4", "2026-04-07", "2026-04"},
    {"flashinfer_cutlass_sm90.mxfp4", "", "seed"},
    {"flashinfer_cutlass_sm90.mxfp4", "2026-05-17", "g2"},
    {"flashinfer_cutlass_sm90.mxfp4", "2026-08-09", "g3"},
    {"triton.mxfp4 (Hopper)", "", "hopper.v3.5.w8"},
    {"triton.mxfp4 (Hopper)", "2026-02-01", "hopper.v3.6.w8"},
    {"triton.mxfp4 (Hopper)", "2026-07-01", "hopper.v3.5.w8.k4"},
};

struct Version {
  int major = 0, minor = 0, patch = 0;
  friend constexpr auto operator<=>(const Version&, const Version&) = default;
};

// A version as written: a number with or without a patch, and whether it is one of a release.
struct Written {
  Version version{};
  bool has_patch = false;
  bool is_release = true;
};

// "0.33.0", "v0.33", "0.33.0rc1", "0.34.0.dev12+g1a2b": digits, then what Python's rules allow.
std::optional<Written> parse_version(std::string_view text) {
  if (text.starts_with('v')) text.remove_prefix(1);
  Written result;
  int* const parts[] = {&result.version.major, &result.version.minor, &result.version.patch};
  std::size_t count = 0;
  for (; count < 3; ++count) {
    const char* const end = text.data() + text.size();
    const auto [at, code] = std::from_chars(text.data(), end, *parts[count]);
    if (code != std::errc{} || text.front() == '-') break;
    text.remove_prefix(static_cast<std::size_t>(at - text.data()));
    const bool goes_on = text.size() > 1 && text[0] == '.' && text[1] >= '0' && text[1] <= '9';
    if (!goes_on) {
      ++count;
      break;
    }
    if (count < 2) text.remove_prefix(1);
  }
  if (count < 2) return std::nullopt;
  result.has_patch = count == 3;
  if (text.empty()) return result;
  constexpr std::string_view kSuffixes[] = {"rc", "a", "b", ".dev", ".post", "+"};
  const bool fits = std::ranges::any_of(
      kSuffixes, [&](std::string_view suffix) { return text.starts_with(suffix); });
  const bool is_plain = std::ranges::all_of(text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '+' || c == '_' || c == '-';
  });
  if (!fits || !is_plain) return std::nullopt;
  result.is_release = text.front() == '+';
  return result;
}

Version version_of(const Release& release) { return parse_version(release.version)->version; }

// The listed release that is meant, or the nearest before it; null before the first.
const Release* at_or_before(const Written& written) {
  const Release* found = nullptr;
  for (const Release& release : kReleases) {
    const Version version = version_of(release);
    const bool same_minor =
        version.major == written.version.major && version.minor == written.version.minor;
    if (version <= written.version || (!written.has_patch && same_minor)) found = &release;
  }
  return found;
}

bool is_listed(const Written& written, const Release& release) {
  const Version version = version_of(release);
  if (!written.is_release) return false;
  if (written.has_patch) return version == written.version;
  return version.major == written.version.major && version.minor == written.version.minor;
}

std::string known_versions() {
  return fmt::format("a version such as {}, latest or auto",
                     kReleases[std::size(kReleases) - 1].version);
}

// A note on the match; empty when the policy is the release's own.
std::string note_on(const ReleaseChoice& choice, bool listed, bool older, bool newer,
                    WeightFormat format) {
  const Release& release = *choice.release;
  std::string note;
  if (older)
    note = fmt::format("vLLM {} is older than {}, the oldest release known here", choice.asked,
                       release.version);
  else if (newer)
    note = fmt::format(
        "vLLM {} is newer than {}, the newest release known here; its rules may "
        "differ",
        choice.asked, release.version);
  else if (!listed)
    note = fmt::format("vLLM {} is not listed; {} is the nearest that is", choice.asked,
                       release.version);
  if (choice.match == Match::none) {
    const std::string none = fmt::format("vLLM {} has no {} oracle; {} is the nearest policy",
                                         release.version, formats::name(format), choice.policy);
    return note.empty() ? none : note + "; " + none;
  }
  const Match own = release.of(format).match;
  if (own == Match::near && !release.differs.empty()) {
    const std::string differs =
        fmt::format("policy {} is near {}: {}", choice.policy, release.version, release.differs);
    return note.empty() ? differs : note + "; " + differs;
  }
  return note;
}

}  // namespace

std::span<const Release> vllm_releases() { return kReleases; }

std::string layout_generations(const Release& release) {
  const std::string_view state = release.branched.empty() ? release.date : release.branched;
  std::vector<std::pair<std::string_view, std::string_view>> result;
  for (const LayoutChange& change : kLayoutChanges) {
    if (change.since > state) continue;
    if (!result.empty() && result.back().first == change.layout)
      result.back().second = change.generation;
    else
      result.emplace_back(change.layout, change.generation);
  }
  std::vector<std::string> parts;
  for (const auto& [layout, generation] : result)
    parts.push_back(fmt::format("{} {}", layout, generation));
  return join(parts, ", ");
}

Json to_json(const ReleaseChoice& choice) {
  return {{"version", choice.asked},
          {"release", choice.release->version},
          {"policy", choice.policy},
          {"match", name(choice.match)},
          {"note", choice.note}};
}

Result<ReleaseChoice> choose_release(std::string_view word, WeightFormat format,
                                     const platform::LibrariesFrom& from) {
  const Release& newest = kReleases[std::size(kReleases) - 1];
  ReleaseChoice choice{.asked = std::string(word)};
  if (word == "latest") choice.asked = newest.version;
  if (word == "auto") {
    const std::optional<platform::FoundPackage> installed =
        platform::find_installed_package("vllm", from);
    if (!installed)
      return error(ErrorCode::unavailable, "vllm.absent", "no installed vLLM was found here")
          .expects("the package vllm where Python looks for it", "none")
          .try_this(fmt::format("name a version: --vllm {}", newest.version));
    choice.asked = installed->version;
  }
  const std::optional<Written> written = parse_version(choice.asked);
  if (!written)
    return usage("vllm.version", "unknown version of vLLM")
        .expects(known_versions(), "'" + printable(choice.asked) + "'")
        .try_this("`fp4moe vllm-versions` lists the releases");
  const Release* found = at_or_before(*written);
  const bool older = found == nullptr;
  choice.release = older ? &kReleases[0] : found;
  const bool listed = !older && is_listed(*written, *choice.release);
  const bool newer = !listed && written->version > version_of(newest);
  const ReleasePolicy& policy = choice.release->of(format);
  choice.policy = policy.policy;
  choice.match = listed || policy.match == Match::none ? policy.match : Match::near;
  choice.note = note_on(choice, listed, older, newer, format);
  return choice;
}

}  // namespace fp4moe::oracle
