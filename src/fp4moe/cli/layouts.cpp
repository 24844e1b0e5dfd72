// fp4moe layouts: every weight layout, its generations and its drawing. The pages under
// docs/layouts are this command's --markdown output.
#include "fp4moe/backends/layouts.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/layout_pages.hpp"
#include "fp4moe/cli/layout_places.hpp"
#include "fp4moe/cli/options.hpp"

namespace fp4moe::cli {

Run declare_layouts(OptionSet& set);

namespace {

using layout::Layout;

struct LayoutsOptions {
  std::string id{}, folder{}, places{};
};

Json to_json(const Layout& layout) {
  return {{"layout", layout.id},
          {"generation", layout.generation},
          {"format", name(layout.format)},
          {"reads", layout.reads},
          {"note", layout.note},
          {"order", layout::order_words(layout)},
          {"codes", layout::formula(layout.codes)},
          {"scales", layout::formula(layout.scales)},
          {"backends", backends::readers(layout.id)}};
}

Result<int> write_pages(const std::string& folder, const Io& io) {
  const Result<std::size_t> count = write_layout_pages(folder);
  if (!count) return count.why();
  io.out << fmt::format("{} pages in {}\n", *count, folder);
  return kDone;
}

Result<Json> rows_json(const std::vector<const Layout*>& layouts, const std::string& places) {
  std::optional<Matrix> matrix;
  if (!places.empty()) {
    const Result<Matrix> read = read_matrix(places);
    if (!read) return read.why();
    matrix = *read;
  }
  Json rows = Json::array();
  for (const Layout* layout : layouts) {
    Json row = to_json(*layout);
    if (matrix) {
      Result<Json> found = places_json(*layout, *matrix);
      row["places"] = found ? *std::move(found) : Json{{"error", fp4moe::to_json(found.why())}};
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Result<int> run_layouts(const LayoutsOptions& options, const Io& io) {
  if (!options.folder.empty()) return write_pages(options.folder, io);
  std::vector<const Layout*> chosen;
  for (const Layout& layout : backends::layouts())
    if (options.id.empty() || layout.id == options.id) chosen.push_back(&layout);
  if (chosen.empty()) return backends::require_layout(options.id, {}).why();
  if (io.json) {
    Result<Json> rows = rows_json(chosen, options.places);
    if (!rows) return rows.why();
    io.print({{"command", "layouts"}, {"layouts", *std::move(rows)}});
    return kDone;
  }
  if (!options.id.empty()) {
    io.out << layout_page(options.id);
    return kDone;
  }
  io.out << fmt::format("{:32} {:26} {}\n", "layout", "generation", "read by");
  for (const Layout* layout : chosen)
    io.out << fmt::format("{:32} {:26} {}\n", layout->id, layout->generation, layout->reads);
  return kDone;
}

}  // namespace

Run declare_layouts(OptionSet& set) {
  auto options = std::make_shared<LayoutsOptions>();
  set.add("LAYOUT", options->id, "Draw this one, e.g. marlin.mxfp4 (default: list all)")
      .listed("layouts");
  set.add("--places", options->places,
          "With --json: the offset of every element of a matrix, e.g. w13:64x128 or w2:64x128");
  set.add("--markdown", options->folder, "Write a page for each into this folder").as(Form::path);
  return [options](const Io& io) { return run_layouts(*options, io); };
}

}  // namespace fp4moe::cli
