// The pages about layouts, made from their rows and maps.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/layout/describe.hpp"

namespace fp4moe::cli {

// Names of the backends whose kernels read a layout, each once.
std::vector<std::string> backends_reading(std::string_view layout_id);

// All generations of one layout, in Markdown.
std::string layout_page(std::string_view id);

struct LayoutPage {
  std::string file{};  // "marlin.mxfp4.md"
  std::string text{};
};
// A page for each layout and README.md, which lists them.
std::vector<LayoutPage> layout_pages();

}  // namespace fp4moe::cli
