// The figures of a report. Colors are classes of the page's style, so that they follow light, dark
// and print.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include <fmt/format.h>

#include "fp4moe/report/markup.hpp"

namespace fp4moe::report {
namespace {

constexpr double kFigureWidth = 960;

std::string svg_open(double width, double height, std::string_view label) {
  return fmt::format(
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\" "
      "style=\"max-width:{:.0f}px\">\n",
      width, height, escaped(label), width);
}

std::string svg_text(double x, double y, std::string_view anchor, std::string_view text,
                     std::string_view kind = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                     anchor, kind.empty() ? "" : fmt::format(" class=\"{}\"", kind), escaped(text));
}

std::string svg_line(double x1, double y1, double x2, double y2, std::string_view kind) {
  return fmt::format(
      "<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kind, x1,
      y1, x2, y2);
}

struct Bins {
  int low = 0, high = 0;  // the first and the last
  std::uint64_t max = 1;
  int count() const { return high - low + 1; }
};

Bins bins_of(std::span<const HistogramSeries> series) {
  Bins bins{.low = INT32_MAX, .high = INT32_MIN};
  for (const HistogramSeries& each : series) {
    if (each.counts.empty()) continue;
    bins.low = std::min(bins.low, each.first);
    bins.high = std::max(bins.high, each.first + static_cast<int>(each.counts.size()) - 1);
    bins.max = std::max(bins.max, std::ranges::max(each.counts));
  }
  if (bins.low > bins.high) bins.low = bins.high = 0;
  return bins;
}

// Bars as one path, from `bottom` upwards.
std::string bar_path(const HistogramSeries& series, int low, double left, double step,
                     double bottom, double height, std::uint64_t max, std::string_view kind) {
  std::string path = fmt::format("<path class=\"{}\" d=\"", kind);
  const double gap = step > 4 ? 1 : 0;
  for (std::size_t i = 0; i < series.counts.size(); ++i) {
    if (series.counts[i] == 0) continue;
    // A value other than zero stays visible.
    const double h =
        std::max(0.8, height * static_cast<double>(series.counts[i]) / static_cast<double>(max));
    path += fmt::format("M{:.1f} {:.1f}v{:.1f}h{:.1f}v{:.1f}z",
                        left + (series.first - low + static_cast<int>(i)) * step + gap / 2, bottom,
                        -h, step - gap, h);
  }
  return path + "\"/>\n";
}

// The step of about `wanted` round numbers in a range of integers.
int tick_step(int count, int wanted) {
  int step = 1;
  for (const int factor : {2, 5, 10, 20, 50, 100})
    if (count / step > wanted) step = factor;
  return step;
}

std::string short_count(std::uint64_t count) {
  const auto value = static_cast<double>(count);
  if (value >= 1e9) return fmt::format("{:.3g} G", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.3g} M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.3g} k", value / 1e3);
  return grouped(count);
}

}  // namespace

std::string histograms(std::span<const HistogramSeries> series, std::string_view label) {
  constexpr double kGap = 26, kTop = 26, kHeight = 130, kLeft = 4;
  const Bins bins = bins_of(series);
  const auto panels = static_cast<double>(std::max<std::size_t>(series.size(), 1));
  const double width = (kFigureWidth - 2 * kLeft - (panels - 1) * kGap) / panels;
  const double step = std::min(width / bins.count(), 40.0);
  const double bottom = kTop + kHeight;
  std::string result = svg_open(kFigureWidth, bottom + 40, label);
  for (std::size_t i = 0; i < series.size(); ++i) {
    const double left = kLeft + static_cast<double>(i) * (width + kGap);
    const double used = step * bins.count();
    result += svg_text(left, 14, "start", series[i].name, "strong");
    result += bar_path(series[i], bins.low, left, step, bottom, kHeight, bins.max, "bar");
    result += svg_line(left, bottom, left + used, bottom, "axis");
    const int ticks = tick_step(bins.count(), static_cast<int>(used / 34));
    for (int bin = bins.low; bin <= bins.high; ++bin)
      if (bin % ticks == 0)
        result += svg_text(left + (bin - bins.low + 0.5) * step, bottom + 15, "middle",
                           std::to_string(bin));
    std::uint64_t max = 0;
    for (const std::uint64_t count : series[i].counts) max = std::max(max, count);
    result += svg_text(left + used, 14, "end", "max " + short_count(max));
  }
  result += svg_text(kLeft, bottom + 34, "start", label);
  return result + "</svg>\n";
}

std::string spark(const HistogramSeries& series, int low, int high) {
  constexpr double kWidth = 120, kHeight = 20;
  std::uint64_t max = 1;
  for (const std::uint64_t count : series.counts) max = std::max(max, count);
  const double step = kWidth / std::max(1, high - low + 1);
  return fmt::format("<svg class=\"spark\" viewBox=\"0 0 {0} {1}\" aria-hidden=\"true\">", kWidth,
                     kHeight) +
         bar_path(series, low, 0, step, kHeight, kHeight, max, "bar") + "</svg>";
}

std::string heat_map(const HeatMap& map) {
  constexpr double kLeft = 46, kTop = 24, kRight = 4, kMaxCell = 22;
  std::size_t columns = 1;
  for (const auto& row : map.values) columns = std::max(columns, row.size());
  const double step_x =
      std::min((kFigureWidth - kLeft - kRight) / static_cast<double>(columns), kMaxCell);
  const double step_y = std::clamp(step_x, 6.0, 14.0);
  const auto rows = static_cast<double>(map.values.size());
  std::array<std::string, kHeatLevels> paths;
  for (std::size_t r = 0; r < map.values.size(); ++r)
    for (std::size_t c = 0; c < map.values[r].size(); ++c) {
      const double value = map.values[r][c];
      if (std::isnan(value)) continue;
      const double share = map.high > map.low ? (value - map.low) / (map.high - map.low) : 0.5;
      const auto level = static_cast<std::size_t>(std::clamp(
          share * static_cast<double>(kHeatLevels), 0.0, static_cast<double>(kHeatLevels - 1)));
      paths[level] += fmt::format("M{} {}h1v1h-1z", c, r);
    }
  const double height = kTop + rows * step_y + 22;
  std::string result = svg_open(kFigureWidth, height, map.name);
  result += svg_text(kLeft, 14, "start", map.name, "strong");
  result += fmt::format("<g transform=\"translate({:.1f} {:.1f}) scale({:.4f} {:.4f})\">\n", kLeft,
                        kTop, step_x, step_y);
  result += fmt::format("<rect class=\"none\" width=\"{}\" height=\"{}\"/>\n", columns,
                        map.values.size());
  for (std::size_t level = 0; level < paths.size(); ++level)
    if (!paths[level].empty())
      result += fmt::format("<path class=\"h{}\" d=\"{}\"/>\n", level, paths[level]);
  result += "</g>\n";
  const int row_step =
      tick_step(static_cast<int>(map.rows.size()), static_cast<int>(rows * step_y / 12));
  for (std::size_t r = 0; r < map.rows.size(); r += static_cast<std::size_t>(row_step))
    result +=
        svg_text(kLeft - 6, kTop + (static_cast<double>(r) + 0.5) * step_y + 4, "end", map.rows[r]);
  const int column_step = tick_step(static_cast<int>(columns),
                                    static_cast<int>(static_cast<double>(columns) * step_x / 30));
  for (std::size_t c = 0; c < columns; c += static_cast<std::size_t>(column_step))
    result += svg_text(kLeft + (static_cast<double>(c) + 0.5) * step_x, kTop + rows * step_y + 14,
                       "middle", std::to_string(c));
  result += svg_text(0, 14, "start", map.row_label);
  return result + "</svg>\n";
}

std::string heat_legend(double low, double high, std::string_view label) {
  constexpr double kBox = 26;
  std::string result = svg_open(kFigureWidth, 30, label);
  result += svg_text(46, 20, "start", fmt::format("{:.2f}", low));
  for (std::size_t level = 0; level < kHeatLevels; ++level)
    result += fmt::format("<rect class=\"h{}\" x=\"{:.1f}\" y=\"8\" width=\"{}\" height=\"15\"/>\n",
                          level, 86 + static_cast<double>(level) * kBox, kBox);
  const double end = 86 + static_cast<double>(kHeatLevels) * kBox;
  result += svg_text(end + 8, 20, "start", fmt::format("{:.2f}", high));
  result += svg_text(end + 56, 20, "start", label);
  return result + "</svg>\n";
}

std::string bars(std::span<const Bar> rows, double limit, std::string_view limit_text) {
  constexpr double kLeft = 250, kRight = 190, kStep = 24, kTop = 20;
  double max = limit;
  for (const Bar& row : rows) max = std::max(max, row.value);
  if (max <= 0) max = 1;
  const double width = kFigureWidth - kLeft - kRight;
  const auto x = [&](double value) { return kLeft + width * value / max; };
  const double bottom = kTop + kStep * static_cast<double>(rows.size());
  std::string result = svg_open(kFigureWidth, bottom + 6, limit_text);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double y = kTop + kStep * static_cast<double>(i);
    result += svg_text(kLeft - 8, y + 16, "end", rows[i].label);
    result += fmt::format(
        "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
        "rx=\"2\"/>\n",
        rows[i].kind, kLeft, y + 3, std::max(1.0, x(rows[i].value) - kLeft), kStep - 7);
    result += svg_text(x(rows[i].value) + 6, y + 16, "start", rows[i].value_text);
  }
  if (limit > 0) {
    result += svg_line(x(limit), kTop - 4, x(limit), bottom, "limit");
    result += svg_text(x(limit), 12, "end", limit_text);
  }
  return result + "</svg>\n";
}

std::string dots(std::span<const std::string> names, std::span<const DotSeries> series,
                 std::string_view label, std::string_view name_label) {
  constexpr double kLeft = 70, kTop = 30, kHeight = 190, kRight = 280;
  double low = 1e300, high = 0;
  for (const DotSeries& each : series) {
    for (const double value : each.values)
      if (value > 0) low = std::min(low, value), high = std::max(high, value);
    if (each.allowed > 0) high = std::max(high, each.allowed);
  }
  if (high <= 0) return {};
  const double floor10 = std::floor(std::log10(std::min(low, high) * 0.999));
  const double ceil10 = std::max(std::ceil(std::log10(high)), floor10 + 1);
  const double width = kFigureWidth - kLeft - kRight, bottom = kTop + kHeight;
  const auto y = [&](double value) {
    return bottom - kHeight * (std::log10(value) - floor10) / (ceil10 - floor10);
  };
  const double step = width / static_cast<double>(std::max<std::size_t>(names.size(), 1));
  std::string result = svg_open(kFigureWidth, bottom + 40, label);
  result += svg_text(kLeft, 14, "start", label, "strong");
  for (int power = static_cast<int>(floor10); power <= static_cast<int>(ceil10); ++power) {
    const double at = y(std::pow(10.0, power));
    result += svg_line(kLeft, at, kLeft + width, at, "grid");
    result += svg_text(kLeft - 8, at + 4, "end", fmt::format("1e{}", power));
  }
  for (std::size_t s = 0; s < series.size(); ++s) {
    const std::size_t color = s % 8;
    for (std::size_t i = 0; i < series[s].values.size(); ++i)
      if (series[s].values[i] > 0)
        result +=
            fmt::format("<circle class=\"d{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/>\n", color,
                        kLeft + (static_cast<double>(i) + 0.5) * step, y(series[s].values[i]));
    if (series[s].allowed > 0)
      result += svg_line(kLeft, y(series[s].allowed), kLeft + width, y(series[s].allowed),
                         fmt::format("s{} dash", color));
    const double at = kTop + 10 + 20 * static_cast<double>(s);
    result += fmt::format("<circle class=\"d{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>\n", color,
                          kLeft + width + 18, at - 4);
    result += svg_text(kLeft + width + 30, at, "start", series[s].name);
  }
  const int ticks = tick_step(static_cast<int>(names.size()), static_cast<int>(width / 34));
  for (std::size_t i = 0; i < names.size(); i += static_cast<std::size_t>(ticks))
    result +=
        svg_text(kLeft + (static_cast<double>(i) + 0.5) * step, bottom + 16, "middle", names[i]);
  result += svg_text(kLeft, bottom + 34, "start", name_label);
  return result + "</svg>\n";
}

}  // namespace fp4moe::report
