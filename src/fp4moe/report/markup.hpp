// Texts, tables and figures of a report: HTML and inline SVG. Every text of a file or a user goes
// through escaped().
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fp4moe::report {

// Printable, and no markup.
std::string escaped(std::string_view text);

// "1,234,567"
std::string grouped(std::uint64_t number);

// A cell is markup already. Numbers are set flush right.
struct Column {
  std::string_view title;
  bool is_number = false;
};
std::string table(std::span<const Column> columns,
                  const std::vector<std::vector<std::string>>& rows);

// A colored word: kind is "good", "bad", "warn" or "plain".
std::string badge(std::string_view kind, std::string_view text);

// Bars of counts over consecutive integers, one panel for each series, on one scale.
struct HistogramSeries {
  std::string name{};
  int first = 0;
  std::vector<std::uint64_t> counts{};
};
std::string histograms(std::span<const HistogramSeries> series, std::string_view label);

// The same of one series, as small as a line of text.
std::string spark(const HistogramSeries& series, int low, int high);

// A colored cell for each value; NaN: there is none.
struct HeatMap {
  std::string name{};                       // of the figure
  std::string row_label{}, column_label{};  // of the axes
  std::vector<std::string> rows{};          // their names
  std::vector<std::vector<double>> values{};
  double low = 0, high = 1;  // values at the ends of the colors
};
inline constexpr std::size_t kHeatLevels = 9;
std::string heat_map(const HeatMap& map);
std::string heat_legend(double low, double high, std::string_view label);

// Horizontal bars. `limit` is drawn as a line across all of them; 0: none.
struct Bar {
  std::string label{}, value_text{};
  double value = 0;
  std::string_view kind = "plain";  // as of badge()
};
std::string bars(std::span<const Bar> rows, double limit, std::string_view limit_text);

// Points over a sequence of names, on a logarithmic axis, one color for each series.
struct DotSeries {
  std::string name{};
  std::vector<double> values{};  // one for each name
  double allowed = 0;            // a dashed line; 0: none
};
std::string dots(std::span<const std::string> names, std::span<const DotSeries> series,
                 std::string_view label, std::string_view name_label);

}  // namespace fp4moe::report
