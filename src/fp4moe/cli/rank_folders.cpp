#include "fp4moe/cli/rank_folders.hpp"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "fp4moe/convert/folder/manifest.hpp"

namespace fp4moe::cli {

std::vector<std::string> rank_folders(const std::string& path) {
  std::error_code code;
  const auto is_converted = [&code](const std::string& folder) {
    return std::filesystem::exists(fmt::format("{}/{}", folder, convert::kManifestName), code);
  };
  std::vector<std::string> ranks;
  if (is_converted(path)) return {path};
  for (std::string next; is_converted(next = fmt::format("{}/rank-{}", path, ranks.size()));)
    ranks.push_back(next);
  return ranks.empty() ? std::vector<std::string>{path} : ranks;
}

}  // namespace fp4moe::cli
