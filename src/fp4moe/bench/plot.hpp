// Plots of measurements as SVG: two logarithmic axes, one color per series, a floor as a dashed
// line of the same color. Colors and text follow the reader's light or dark background.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"

namespace fp4moe::bench {

struct PlotPoint {
  double x = 0, y = 0;  // positive
};

struct PlotSeries {
  std::string name{};
  std::vector<PlotPoint> points{};  // in the order of x
  std::vector<PlotPoint> floor{};   // empty: none
};

struct Plot {
  std::string title{}, x_label{}, y_label{};
  std::vector<PlotSeries> series{};
};

// The positions of the axes, for callers that look points up.
struct PlotArea {
  double left = 0, top = 0, width = 0, height = 0;
  double x_low = 1, x_high = 1, y_low = 1, y_high = 1;  // values at the edges

  double x(double value) const;
  double y(double value) const;  // grows downwards
};
// The area of a plot with points: `svg` draws in it.
PlotArea plot_area(const Plot& plot);

// Errors: plot.empty (no point), plot.values (not positive, or beyond 1e15), plot.series (too many
// to tell apart).
Result<std::string> svg(const Plot& plot);

// Time per layer against tokens, of reports of `bench layer`: one series for each model, format,
// kernel, number of threads and routing. Errors: plot.report (another kind of document).
Result<Plot> layer_plot(std::span<const Json> reports);

}  // namespace fp4moe::bench
