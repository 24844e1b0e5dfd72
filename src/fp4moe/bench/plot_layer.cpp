#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/bench/plot.hpp"

namespace fp4moe::bench {
namespace {

// The keys that tell series apart, in the order of their names. Kernels name their numerics.
constexpr std::array<std::string_view, 5> kParts{"model", "format", "kernel", "threads", "routing"};
using SeriesKey = std::array<std::string, kParts.size()>;

Error not_a_layer(std::string_view key, std::string_view expected) {
  return invalid("plot.report", "not a report of fp4moe bench layer")
      .at(key)
      .expects(expected, "something else")
      .try_this("fp4moe bench layer --json writes them");
}

std::optional<double> number_in(const Json& row, std::string_view key) {
  const auto found = row.find(key);
  if (found == row.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

Result<SeriesKey> key_of(const Json& row) {
  SeriesKey key;
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    const auto found = row.find(kParts[i]);
    if (found == row.end() || !(found->is_string() || found->is_number_integer()))
      return not_a_layer(kParts[i], "a word or a whole number");
    key[i] = found->is_string() ? found->string() : fmt::format("{}", found->get<std::int64_t>());
  }
  return key;
}

// The parts in which the series differ; all that are the same go to the title.
struct Names {
  std::array<bool, kParts.size()> differs{};

  std::string join(const SeriesKey& key, bool wanted) const {
    std::string result;
    for (std::size_t i = 0; i < kParts.size(); ++i) {
      if (differs[i] != wanted) continue;
      if (!result.empty()) result += ", ";
      result += key[i];
      if (kParts[i] == "threads") result += key[i] == "1" ? " thread" : " threads";
      if (kParts[i] == "routing") result += " routing";
    }
    return result;
  }
};

}  // namespace

Result<Plot> layer_plot(std::span<const Json> reports) {
  std::map<SeriesKey, std::size_t> known;
  std::vector<SeriesKey> keys;
  Plot plot{.x_label = "tokens", .y_label = "microseconds per layer (dashed: floor)"};
  for (const Json& report : reports) {
    const auto rows = report.is_object() ? report.find("results") : report.end();
    if (!report.is_object() || rows == report.end() || !rows->is_array())
      return not_a_layer("results", "a list");
    for (const Json& row : *rows) {
      if (!row.is_object()) return not_a_layer("results", "objects");
      const Result<SeriesKey> key = key_of(row);
      if (!key) return key.why();
      const auto tokens = number_in(row, "tokens"), time = number_in(row, "us_median"),
                 floor = number_in(row, "floor_us");
      if (!tokens || !time || !floor)
        return not_a_layer("tokens, us_median, floor_us", "three numbers");
      const auto [place, is_new] = known.try_emplace(*key, keys.size());
      if (is_new) {
        keys.push_back(*key);
        plot.series.emplace_back();
      }
      PlotSeries& series = plot.series[place->second];
      series.points.push_back({*tokens, *time});
      series.floor.push_back({*tokens, *floor});
    }
  }
  Names names;
  for (const SeriesKey& key : keys)
    for (std::size_t i = 0; i < kParts.size(); ++i)
      if (key[i] != keys.front()[i]) names.differs[i] = true;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    plot.series[i].name = keys.size() == 1 ? "measured" : names.join(keys[i], true);
    for (auto* points : {&plot.series[i].points, &plot.series[i].floor})
      std::ranges::stable_sort(*points, {}, &PlotPoint::x);
  }
  if (!keys.empty()) plot.title = names.join(keys.front(), false);
  return plot;
}

}  // namespace fp4moe::bench
