// fp4moe vllm-versions: releases of vLLM and the policy that each has. The page
// docs/vllm-versions.md is this command's --markdown output.
#include <memory>
#include <string>

#include <fmt/format.h>

#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/oracle/releases.hpp"

namespace fp4moe::cli {

Run declare_vllm_versions(OptionSet& set);

namespace {

using oracle::Match;
using oracle::Release;
using oracle::ReleasePolicy;

struct VersionsOptions {
  bool markdown = false;
};

// "exact 2026-04-24", "near 2026-04-24", "none (2026-03-20)"
std::string policy_text(const ReleasePolicy& policy) {
  return policy.match == Match::none
             ? fmt::format("none ({})", policy.policy)
             : fmt::format("{} {}", oracle::name(policy.match), policy.policy);
}

Json versions_json() {
  Json rows = Json::array();
  const auto policy = [](const ReleasePolicy& one) {
    return Json{{"policy", one.policy}, {"match", oracle::name(one.match)}};
  };
  for (const Release& release : oracle::vllm_releases())
    rows.push_back({{"version", release.version},
                    {"date", release.date},
                    {"branched", release.branched.empty() ? Json() : Json(release.branched)},
                    {"mxfp4", policy(release.mxfp4)},
                    {"nvfp4", policy(release.nvfp4)},
                    {"differs", release.differs},
                    {"layouts", oracle::layout_generations(release)}});
  return {{"releases", std::move(rows)}};
}

void print_versions(const Io& io) {
  io.out << fmt::format("{:<8}  {:<10}  {:<19}  {:<19}  {}\n", "version", "date", "MXFP4", "NVFP4",
                        "differs in");
  for (const Release& release : oracle::vllm_releases()) {
    std::string line =
        fmt::format("{:<8}  {:<10}  {:<19}  {:<19}  {}", release.version, release.date,
                    policy_text(release.mxfp4), policy_text(release.nvfp4), release.differs);
    line.erase(line.find_last_not_of(' ') + 1);
    io.out << line << "\n";
  }
  io.out << "\nexact: the policy selects as the release does; near: the closest there is; none "
            "(POLICY): the release has no oracle, POLICY is the nearest.\n";
}

constexpr std::string_view kHead =
    "# Releases of vLLM\n\n"
    "`--vllm VERSION` takes the rules of a release wherever `--policy` takes those of a policy:\n\n"
    "```sh\n"
    "fp4moe explain --model gpt-oss-20b --device h100 --vllm 0.33.0\n"
    "fp4moe explain --model gpt-oss-20b --device h100 --vllm auto     # the vLLM that is installed "
    "here\n"
    "fp4moe vllm-versions                                             # this table\n"
    "```\n\n"
    "| VERSION | means |\n|---|---|\n"
    "| `0.33.0`, `0.33`, `v0.33.0` | that release; without a patch number the last one listed |\n"
    "| `latest` | the newest release in the table; `--policy latest` is the same |\n"
    "| `auto` | the installed package `vllm`, found where Python looks; `vllm.absent` when there "
    "is none |\n"
    "| a release that is not listed | the nearest earlier one, and a note says so |\n"
    "| newer than the table | the newest one, and a note says so |\n"
    "| before the first oracle | the nearest policy, and a note says so |\n"
    "| anything else | an error, exit status 2 |\n\n"
    "**exact**: the policy selects as the release does. **near**: the closest policy; the column "
    "*differs in* "
    "says what is known to differ. **none**: the release has no oracle for the format; the policy "
    "in parentheses is "
    "the nearest. MXFP4 models other than gpt-oss go through vLLM's second entry, the policies "
    "with "
    "`-deepseek-v4` at the end, where there is one.\n\n"
    "| version | date | MXFP4 | NVFP4 | differs in |\n|---|---|---|---|---|\n";

// Releases that read the same layouts stand in one row.
void print_layouts(const Io& io) {
  io.out << "\n## Layouts\n\nWhich generation of the layouts that changed a release reads "
            "([layouts](layouts/README.md)):\n\n| releases | layouts |\n|---|---|\n";
  std::string first, last, layouts;
  const auto flush = [&] {
    if (!first.empty())
      io.out << fmt::format("| {} | {} |\n", first == last ? first : first + " to " + last,
                            layouts);
  };
  for (const Release& release : oracle::vllm_releases()) {
    const std::string here = oracle::layout_generations(release);
    if (here != layouts) {
      flush();
      first = release.version;
      layouts = here;
    }
    last = release.version;
  }
  flush();
}

void print_markdown(const Io& io) {
  io.out << kHead;
  for (const Release& release : oracle::vllm_releases())
    io.out << fmt::format("| {} | {} | {} | {} | {} |\n", release.version, release.date,
                          policy_text(release.mxfp4), policy_text(release.nvfp4), release.differs);
  print_layouts(io);
  io.out << "\nWritten by tools/make_docs.py from `fp4moe vllm-versions --markdown`.\n";
}

Result<int> run_versions(const VersionsOptions& options, const Io& io) {
  if (io.json)
    io.print(versions_json());
  else if (options.markdown)
    print_markdown(io);
  else
    print_versions(io);
  return kDone;
}

}  // namespace

Run declare_vllm_versions(OptionSet& set) {
  const auto options = std::make_shared<VersionsOptions>();
  set.add("--markdown", options->markdown, "The documentation's page");
  return [options](const Io& io) { return run_versions(*options, io); };
}

}  // namespace fp4moe::cli
