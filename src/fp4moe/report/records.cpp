#include "fp4moe/report/records.hpp"

#include <fmt/format.h>

#include "fp4moe/checkpoint/models.hpp"

namespace fp4moe::report {
namespace {

bool is_device(const Json& value) {
  return value.is_object() && value.contains("device") && value.at("device").is_string() &&
         value.contains("peers") && value.at("peers").is_object() && value.contains("models") &&
         value.at("models").is_object();
}

bench::PlotSeries series_from(const Json& points, const std::string& key, std::string name) {
  bench::PlotSeries series{.name = std::move(name)};
  for (const Json& point : points) {
    if (!point.is_object() || !point.contains("tokens") || !point.contains(key)) continue;
    const Json &tokens = point.at("tokens"), &time = point.at(key);
    if (tokens.is_number() && time.is_number())
      series.points.push_back({tokens.get<double>(), time.get<double>()});
  }
  return series;
}

}  // namespace

bool is_peers_record(const Json& record) {
  if (!record.is_object()) return false;
  for (const auto& [key, value] : record.items())
    if (is_device(value)) return true;
  return false;
}

Result<Done> check_record(const Json& record) {
  if (is_peers_record(record)) return Done{};
  const Result<bench::Plot> plot = bench::layer_plot(std::span(&record, 1));
  if (!plot) return plot.why();
  return Done{};
}

std::vector<bench::Plot> peers_plots(const Json& record, std::string_view model) {
  std::vector<bench::Plot> plots;
  for (const auto& [key, device] : record.items()) {
    if (!is_device(device) || !device.at("models").contains(model)) continue;
    const Json& row = device.at("models").at(model);
    if (!row.is_object() || !row.contains("points") || !row.at("points").is_array()) continue;
    bench::Plot plot{.title = fmt::format("{}: {}", device.at("device").get<std::string>(), model),
                     .x_label = "tokens",
                     .y_label = "microseconds per layer"};
    plot.series.push_back(series_from(row.at("points"), "fp4moe_us", "fp4moe"));
    for (const auto& [name, title] : device.at("peers").items())
      if (title.is_string())
        plot.series.push_back(series_from(row.at("points"), name, title.get<std::string>()));
    std::erase_if(plot.series, [](const auto& series) { return series.points.empty(); });
    if (!plot.series.empty()) plots.push_back(std::move(plot));
  }
  return plots;
}

std::string model_of_sizes(std::uint64_t experts, std::uint64_t hidden,
                           std::uint64_t intermediate) {
  for (const checkpoint::ModelRow& row : checkpoint::models())
    if (row.experts == experts && row.hidden == hidden && row.intermediate == intermediate)
      return std::string(row.name);
  return {};
}

}  // namespace fp4moe::report
