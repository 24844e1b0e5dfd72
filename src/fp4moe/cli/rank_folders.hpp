// The folders that `convert --tp N` and `--ep N` write: OUT/rank-0, OUT/rank-1, ...
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace fp4moe::cli {

// The name of a rank's folder in OUT: rank-0, ...
std::string rank_folder_name(std::size_t rank);

// The folders of all ranks where `path` holds such; else the path itself.
std::vector<std::string> rank_folders(const std::string& path);

}  // namespace fp4moe::cli
