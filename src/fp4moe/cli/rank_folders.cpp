#include "fp4moe/cli/rank_folders.hpp"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "fp4moe/convert/folder/manifest.hpp"

namespace fp4moe::cli {

std::string rank_folder_name(std::size_t rank) { return fmt::format("rank-{}", rank); }

std::vector<std::string> rank_folders(const std::string& path) {
  std::error_code code;
  const auto is_converted = [&code](const std::string& folder) {
    return std::filesystem::exists(fmt::format("{}/{}", folder, convert::kManifestName), code);
  };
  std::vector<std::string> ranks;
  if (is_converted(path)) return {path};
  const auto next = [&] { return fmt::format("{}/{}", path, rank_folder_name(ranks.size())); };
  for (std::string folder; is_converted(folder = next());) ranks.push_back(folder);
  return ranks.empty() ? std::vector<std::string>{path} : ranks;
}

}  // namespace fp4moe::cli
