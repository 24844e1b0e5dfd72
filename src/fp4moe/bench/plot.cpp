#include "fp4moe/bench/plot.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

namespace fp4moe::bench {
namespace {

constexpr double kPageWidth = 960, kPlotLeft = 74, kPlotTop = 40, kPlotWidth = 480,
                 kPlotHeight = 360, kPageHeight = 460;
constexpr double kLegendLeft = kPlotLeft + kPlotWidth + 18, kLegendStep = 19;
constexpr std::size_t kMaxSeries = 16;

// Colors that differ for most eyes, for light and for dark backgrounds.
struct Color {
  std::string_view light, dark;
};
constexpr Color kColors[] = {{"#0b62a4", "#58a6ff"}, {"#c4450c", "#ff9b5e"}, {"#1a7f37", "#56d364"},
                             {"#8250df", "#c297ff"}, {"#9a6700", "#e3b341"}, {"#a40e57", "#ff7eb6"},
                             {"#1b7c83", "#5bd1d7"}, {"#57606a", "#b1bac4"}};

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '"')
      result += "&quot;";
    else
      result += byte < 0x20 || byte > 0x7E ? '?' : c;
  }
  return result;
}

// 1, 2 and 5 times powers of ten.
std::vector<double> ticks(double low, double high) {
  std::vector<double> result;
  for (int power = static_cast<int>(std::floor(std::log10(low))); std::pow(10.0, power) <= high;
       ++power)
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double value = digit * std::pow(10.0, power);
      if (value >= low * 0.999 && value <= high * 1.001) result.push_back(value);
    }
  return result;
}

// Powers of two, which numbers of tokens are, thinned out to at most nine.
std::vector<double> doublings(double low, double high) {
  std::vector<double> result;
  const int first = static_cast<int>(std::ceil(std::log2(low) - 1e-9));
  const int last = static_cast<int>(std::floor(std::log2(high) + 1e-9));
  const int step = std::max(1, (last - first + 8) / 8);
  for (int power = first; power <= last; power += step) result.push_back(std::ldexp(1.0, power));
  return result;
}

std::string short_number(double value) {
  if (value >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:g}", value);
}

std::string line_of(const PlotArea& area, std::span<const PlotPoint> points, bool is_floor,
                    std::size_t color) {
  std::string result =
      fmt::format("<polyline class=\"line c{}{}\" points=\"", color, is_floor ? " floor" : "");
  for (std::size_t i = 0; i < points.size(); ++i)
    result +=
        fmt::format("{}{:.1f},{:.1f}", i == 0 ? "" : " ", area.x(points[i].x), area.y(points[i].y));
  return result + "\"/>\n";
}

std::string style() {
  std::string result =
      "<style>\n"
      "text { font: 12px system-ui, sans-serif; fill: #1f2328; }\n"
      ".title { font-size: 15px; font-weight: 600; }\n"
      ".grid { stroke: #d0d7de; stroke-width: 1; }\n"
      ".frame { fill: none; stroke: #6e7781; }\n"
      ".line { fill: none; stroke-width: 2; }\n"
      ".floor { stroke-dasharray: 5 4; stroke-width: 1.4; }\n";
  for (std::size_t i = 0; i < std::size(kColors); ++i)
    result +=
        fmt::format(".c{0} {{ stroke: {1}; }}\n.d{0} {{ fill: {1}; }}\n", i, kColors[i].light);
  result +=
      "@media (prefers-color-scheme: dark) {\n"
      "text { fill: #e6edf3; }\n"
      ".grid { stroke: #30363d; }\n"
      ".frame { stroke: #8b949e; }\n";
  for (std::size_t i = 0; i < std::size(kColors); ++i)
    result += fmt::format(".c{0} {{ stroke: {1}; }}\n.d{0} {{ fill: {1}; }}\n", i, kColors[i].dark);
  return result + "}\n</style>\n";
}

std::string axes(const Plot& plot, const PlotArea& area) {
  const double right = area.left + area.width, bottom = area.top + area.height;
  std::string result;
  for (const double value : doublings(area.x_low, area.x_high))
    result += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\"/>\n"
        "<text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\">{4:g}</text>\n",
        area.x(value), area.top, bottom, bottom + 17, value);
  for (const double value : ticks(area.y_low, area.y_high))
    result += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\"/>\n"
        "<text x=\"{3:.1f}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        area.left, area.y(value), right, area.left - 7, area.y(value) + 4, short_number(value));
  result += fmt::format(
      "<rect class=\"frame\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
      area.left, area.top, area.width, area.height);
  result += fmt::format("<text class=\"title\" x=\"{:.1f}\" y=\"24\">{}</text>\n", area.left,
                        escaped(plot.title));
  result += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                        area.left + area.width / 2, bottom + 40, escaped(plot.x_label));
  const double middle = area.top + area.height / 2;
  return result + fmt::format(
                      "<text x=\"18\" y=\"{0:.1f}\" text-anchor=\"middle\" "
                      "transform=\"rotate(-90 18 {0:.1f})\">{1}</text>\n",
                      middle, escaped(plot.y_label));
}

std::string drawn(const PlotSeries& series, const PlotArea& area, std::size_t number) {
  const std::size_t color = number % std::size(kColors);
  std::string result;
  if (!series.floor.empty()) result += line_of(area, series.floor, true, color);
  result += line_of(area, series.points, false, color);
  for (const PlotPoint& point : series.points)
    result += fmt::format(
        "<circle class=\"d{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.2\"><title>{}: {:g}, "
        "{:g}</title></circle>\n",
        color, area.x(point.x), area.y(point.y), escaped(series.name), point.x, point.y);
  const double y = kPlotTop + 10 + static_cast<double>(number) * kLegendStep;
  return result + fmt::format(
                      "<line class=\"line c{0}\" x1=\"{1:.1f}\" y1=\"{2:.1f}\" x2=\"{3:.1f}\" "
                      "y2=\"{2:.1f}\"/>\n<text x=\"{4:.1f}\" y=\"{5:.1f}\">{6}</text>\n",
                      color, kLegendLeft, y, kLegendLeft + 22, kLegendLeft + 28, y + 4,
                      escaped(series.name));
}

// The range of values, in any unit; beyond it axes would have thousands of ticks.
constexpr double kMinValue = 1e-9, kMaxValue = 1e15;

bool is_drawable(const PlotPoint& point) {
  return point.x >= kMinValue && point.x <= kMaxValue && point.y >= kMinValue &&
         point.y <= kMaxValue;
}

}  // namespace

double PlotArea::x(double value) const {
  return left + width * (std::log(value / x_low) / std::log(x_high / x_low));
}
double PlotArea::y(double value) const {
  return top + height * (1 - std::log(value / y_low) / std::log(y_high / y_low));
}

PlotArea plot_area(const Plot& plot) {
  PlotArea area{.left = kPlotLeft, .top = kPlotTop, .width = kPlotWidth, .height = kPlotHeight};
  area.x_low = area.y_low = HUGE_VAL;
  area.x_high = area.y_high = 0;
  for (const PlotSeries& series : plot.series)
    for (const auto* points : {&series.points, &series.floor})
      for (const PlotPoint& point : *points) {
        area.x_low = std::min(area.x_low, point.x);
        area.x_high = std::max(area.x_high, point.x);
        area.y_low = std::min(area.y_low, point.y);
        area.y_high = std::max(area.y_high, point.y);
      }
  // A margin, so that a single point has an extent, too.
  area.x_low /= 1.2;
  area.x_high *= 1.2;
  area.y_low /= 1.4;
  area.y_high *= 1.4;
  return area;
}

Result<std::string> svg(const Plot& plot) {
  if (plot.series.size() > kMaxSeries)
    return usage("plot.series", "too many series for one plot")
        .expects(fmt::format("at most {}", kMaxSeries), fmt::format("{}", plot.series.size()))
        .try_this("plot fewer reports at a time");
  std::size_t count = 0;
  for (const PlotSeries& series : plot.series) {
    count += series.points.size();
    for (const auto* points : {&series.points, &series.floor})
      for (const PlotPoint& point : *points)
        if (!is_drawable(point))
          return invalid("plot.values", "values are not positive")
              .at(series.name)
              .expects(fmt::format("{:g} to {:g}", kMinValue, kMaxValue),
                       fmt::format("{:g} at {:g}", point.y, point.x));
  }
  if (count == 0)
    return invalid("plot.empty", "there is nothing to plot").expects("at least one point", "none");
  const PlotArea area = plot_area(plot);
  std::string result = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" role=\"img\">\n<title>{2}</title>\n",
      kPageWidth, kPageHeight, escaped(plot.title));
  result += style();
  result += axes(plot, area);
  for (std::size_t i = 0; i < plot.series.size(); ++i) result += drawn(plot.series[i], area, i);
  return result + "</svg>\n";
}

}  // namespace fp4moe::bench
