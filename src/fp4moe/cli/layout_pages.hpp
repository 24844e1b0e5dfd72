// The pages about layouts, made from their rows and maps.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/layout/describe.hpp"

namespace fp4moe::cli {

// All generations of one layout, in Markdown.
std::string layout_page(std::string_view id);

struct LayoutPage {
  std::string file{};  // "marlin.mxfp4.md"
  std::string text{};
};
// A page for each layout and README.md, which lists them.
std::vector<LayoutPage> layout_pages();
// Writes them into a folder, which is made; their number.
Result<std::size_t> write_layout_pages(const std::string& folder);

}  // namespace fp4moe::cli
