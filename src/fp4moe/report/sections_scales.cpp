// Block scales: histograms of the whole, a map of layers and experts, the experts that differ most.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/phrase.hpp"
#include "fp4moe/report/markup.hpp"
#include "fp4moe/report/scale_statistics.hpp"
#include "fp4moe/report/sections.hpp"

namespace fp4moe::report {
namespace {

constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

HistogramSeries series_of(std::string name, const Json& histogram) {
  HistogramSeries series{.name = std::move(name)};
  if (!histogram.contains("counts")) return series;
  series.first = histogram.at("first_bin").get<int>();
  series.counts = histogram.at("counts").get<std::vector<std::uint64_t>>();
  return series;
}

std::string power_of_two(double exponent) { return fmt::format("2<sup>{:.2f}</sup>", exponent); }

std::string whole_figure(const Json& scales) {
  std::vector<HistogramSeries> all;
  for (const auto& [name, histogram] : scales.at("projections").items())
    all.push_back(series_of(name, histogram));
  return histograms(all, "blocks by power of two of their scale, times the global scale");
}

std::string whole_table(const Json& scales) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, histogram] : scales.at("projections").items()) {
    const auto count = [&](std::string_view key) {
      return grouped(histogram.value<std::uint64_t>(key, 0));
    };
    std::vector<std::string> row{name, count("blocks"), count("zeros"), count("negative")};
    if (histogram.contains("least")) {
      row.push_back(fmt::format("{:.3g}", histogram.at("least").get<double>()));
      row.push_back(power_of_two(histogram.at("mean_log2").get<double>()));
      row.push_back(fmt::format("{:.3g}", histogram.at("largest").get<double>()));
      row.push_back(fmt::format("{:.3g}", 6 * histogram.at("largest").get<double>()));
    }
    rows.push_back(std::move(row));
  }
  constexpr Column kColumns[] = {
      {"projection"},  {"blocks", true}, {"zero", true},    {"negative", true},
      {"least", true}, {"mean", true},   {"largest", true}, {"largest weight possible", true}};
  return table(kColumns, rows);
}

// An expert's mean; NaN where it has none.
double mean_of(const Json& expert, const std::string& projection) {
  const auto found = expert.find(projection);
  if (found == expert.end() || !found->contains("mean_log2")) return kNoValue;
  return found->at("mean_log2").get<double>();
}

struct Extremes {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double value) {
    if (!std::isnan(value)) low = std::min(low, value), high = std::max(high, value);
  }
};

std::string map_figures(const Json& scales, std::span<const std::string> projections) {
  Extremes of_all;
  std::vector<HeatMap> maps;
  for (const std::string& projection : projections) {
    HeatMap& map = maps.emplace_back(HeatMap{.name = projection, .row_label = "layer"});
    for (const Json& layer : scales.at("layers")) {
      map.rows.push_back(std::to_string(layer.at("layer").get<std::uint64_t>()));
      std::vector<double>& values = map.values.emplace_back();
      for (const Json& expert : layer.at("experts")) {
        values.push_back(mean_of(expert, projection));
        of_all.add(values.back());
      }
    }
  }
  if (of_all.low > of_all.high) return "";
  // At least a factor of two across the colors, so that noise does not look like a difference.
  const double missing = std::max(0.0, 1 - (of_all.high - of_all.low)) / 2;
  of_all.low -= missing;
  of_all.high += missing;
  std::string result = "<h3>Mean of every expert</h3>\n" +
                       heat_legend(of_all.low, of_all.high, "mean of log2 scale; experts across");
  for (HeatMap& map : maps) {
    map.low = of_all.low;
    map.high = of_all.high;
    result += heat_map(map);
  }
  return result;
}

struct Outlier {
  std::uint64_t layer = 0, expert = 0;
  std::string projection{};
  double mean = 0, others = 0;
  double distance() const { return std::abs(mean - others); }
};

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// The experts whose means are farthest from the median of their layer.
std::vector<Outlier> outliers_of(const Json& scales, std::span<const std::string> projections) {
  constexpr std::size_t kMaxOutliers = 10;
  std::vector<Outlier> all;
  for (const std::string& projection : projections)
    for (const Json& layer : scales.at("layers")) {
      std::vector<double> means;
      for (const Json& expert : layer.at("experts"))
        if (const double mean = mean_of(expert, projection); !std::isnan(mean))
          means.push_back(mean);
      if (means.empty()) continue;
      const double median = median_of(means);
      for (const Json& expert : layer.at("experts"))
        if (const double mean = mean_of(expert, projection); !std::isnan(mean))
          all.push_back({.layer = layer.at("layer").get<std::uint64_t>(),
                         .expert = expert.at("expert").get<std::uint64_t>(),
                         .projection = projection,
                         .mean = mean,
                         .others = median});
    }
  std::ranges::stable_sort(all, {}, [](const Outlier& each) { return -each.distance(); });
  if (all.size() > kMaxOutliers) all.resize(kMaxOutliers);
  return all;
}

std::string outliers_table(const Json& scales, std::span<const std::string> projections) {
  std::vector<std::vector<std::string>> rows;
  for (const Outlier& each : outliers_of(scales, projections))
    rows.push_back({std::to_string(each.layer), std::to_string(each.expert), each.projection,
                    power_of_two(each.mean), power_of_two(each.others),
                    fmt::format("{:.2f} x", std::exp2(each.mean - each.others))});
  if (rows.empty()) return "";
  constexpr Column kColumns[] = {{"layer", true},      {"expert", true},          {"projection"},
                                 {"mean scale", true}, {"median of layer", true}, {"ratio", true}};
  return "<h3>Experts farthest from their layer's median</h3>\n" + table(kColumns, rows);
}

std::string layers_table(const Json& scales, std::span<const std::string> projections) {
  Extremes range;
  for (const auto& [name, histogram] : scales.at("projections").items()) {
    const HistogramSeries series = series_of(name, histogram);
    if (series.counts.empty()) continue;
    range.add(series.first);
    range.add(series.first + static_cast<double>(series.counts.size()) - 1);
  }
  if (range.low > range.high) return "";
  std::vector<std::vector<std::string>> rows;
  for (const Json& layer : scales.at("layers")) {
    std::vector<std::string> row{std::to_string(layer.at("layer").get<std::uint64_t>())};
    for (const std::string& projection : projections) {
      const Json& all = layer.at("projections");
      if (!all.contains(projection) || !all.at(projection).contains("counts")) {
        row.insert(row.end(), 2, "");
        continue;
      }
      const Json& histogram = all.at(projection);
      row.push_back(spark(series_of("", histogram), static_cast<int>(range.low),
                          static_cast<int>(range.high)));
      row.push_back(power_of_two(std::log2(histogram.at("least").get<double>())) + " &hellip; " +
                    power_of_two(std::log2(histogram.at("largest").get<double>())));
    }
    rows.push_back(std::move(row));
  }
  std::vector<Column> columns{{"layer", true}};
  for (const std::string& projection : projections) {
    columns.push_back({projection});
    columns.push_back({"least to largest"});
  }
  return "<h3>Layers</h3>\n" + table(columns, rows);
}

std::string unread_experts(const Json& scales) {
  constexpr std::size_t kMaxShown = 5;
  std::string result;
  std::size_t count = 0;
  for (const Json& layer : scales.at("layers"))
    for (const Json& expert : layer.at("experts"))
      if (expert.contains("error") && ++count <= kMaxShown) result += failure(expert.at("error"));
  if (count == 0) return "";
  return fmt::format("<p>{} cannot be read and {} left out{}.</p>\n", counted(count, "expert"),
                     count == 1 ? "is" : "are",
                     count > kMaxShown ? fmt::format("; the first {}", kMaxShown) : "") +
         result;
}

}  // namespace

std::string scales_section(const Json& facts) {
  const Json& scales = facts.at("scales");
  if (scales.contains("error")) return failure(scales.at("error"));
  std::vector<std::string> projections;
  for (const auto& [name, histogram] : scales.at("projections").items())
    projections.push_back(name);
  if (projections.empty()) return unread_experts(scales) + "<p>There are no block scales.</p>\n";
  return soft(
             "A weight is its FP4 code (at most 6) times its block's scale times the matrix's "
             "global "
             "scale.") +
         unread_experts(scales) + whole_figure(scales) + whole_table(scales) +
         map_figures(scales, projections) + outliers_table(scales, projections) +
         layers_table(scales, projections);
}

}  // namespace fp4moe::report
