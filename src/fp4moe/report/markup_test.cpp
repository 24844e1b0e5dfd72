#include "fp4moe/report/markup.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "fp4moe/report/records.hpp"
#include "fp4moe/report/sections.hpp"

namespace fp4moe::report::markup_test {
namespace {

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::size_t count(const std::string& text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

TEST(Markup, TextsCannotBecomeMarkup) {
  EXPECT_EQ(escaped("<script>\"a\" & 'b'"), "&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39;");
  const std::string shown = badge("bad", "<b>");
  EXPECT_FALSE(has(shown, "<b>"));
  EXPECT_FALSE(has(histograms(std::vector<HistogramSeries>{{"<g>", 0, {1}}}, "<l>"), "<g>"));
}

TEST(Markup, NumbersAreGroupedByThousands) {
  EXPECT_EQ(grouped(7), "7");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(1234567), "1,234,567");
}

TEST(Markup, AHistogramHasAPanelForEachSeriesAndABarForEachCount) {
  const std::string figure =
      histograms(std::vector<HistogramSeries>{{"gate", -3, {1, 0, 2}}, {"up", -2, {5}}}, "scales");
  EXPECT_EQ(count(figure, "<path class=\"bar\""), 2u);
  EXPECT_EQ(count(figure, "M"), 3u);
  EXPECT_TRUE(has(figure, "max 5"));
}

TEST(Markup, AHeatMapLeavesOutWhatIsMissingAndGivesTheEndsTheirColors) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const std::string figure =
      heat_map({.name = "up", .rows = {"0"}, .values = {{0, none, 1}}, .low = 0, .high = 1});
  EXPECT_TRUE(has(figure, "class=\"h0\" d=\"M0 0h1v1h-1z\""));
  EXPECT_TRUE(has(figure, "class=\"h8\" d=\"M2 0h1v1h-1z\""));
  EXPECT_FALSE(has(figure, "M1 0h1"));
}

TEST(Markup, EmptyFiguresAreDrawnOrLeftOutWithoutHarm) {
  EXPECT_TRUE(has(histograms({}, "none"), "<svg"));
  EXPECT_TRUE(has(heat_map({.name = "none"}), "<svg"));
  EXPECT_TRUE(has(bars({}, 0, "none"), "<svg"));
  EXPECT_EQ(dots({}, {}, "none", "layer"), "");
}

TEST(Markup, ABarBeyondTheLimitReachesFarther) {
  const std::vector<Bar> rows{{.label = "A", .value_text = "2 GiB", .value = 2, .kind = "bad"}};
  const std::string figure = bars(rows, 1, "memory");
  EXPECT_TRUE(has(figure, "class=\"limit\""));
  EXPECT_TRUE(has(figure, "class=\"bad\""));
}

// JSON has null for what is not finite.
TEST(Numerics, ABackendThatOverflowsHasARow) {
  const auto layer = [](const Json& error) {
    return Json{{"layer", 0},
                {"a", {{"policy", "p"}, {"numerics", "n"}}},
                {"difference", {{"rel_error", error}, {"rms_error", error}, {"cosine", error}}},
                {"allowed", {{"rel_error", 0.25}}}};
  };
  Json layers = Json::array();
  for (const Json& error : {Json(0.5), Json(), Json(0.125)}) layers.push_back(layer(error));
  Json all = Json::array();
  all.push_back(
      {{"backend", "B"},
       {"diff", {{"command", "c"}, {"result", {{"within_numerics", false}, {"layers", layers}}}}}});
  const std::string section = numerics_section({{"numerics", all}});
  EXPECT_EQ(count(section, ">nan<"), 3u) << section;
  EXPECT_TRUE(has(section, "outside"));
}

TEST(Records, PeersAreDrawnForTheModelAlone) {
  const auto record = parse_json(R"({"date": "today", "h": {"device": "H200", "peers":
      {"marlin_us": "Marlin"}, "models": {"m": {"points":
      [{"tokens": 1, "fp4moe_us": 2.5, "marlin_us": 5}, {"tokens": 2, "fp4moe_us": 3}]}}}})");
  ASSERT_TRUE(record);
  EXPECT_TRUE(is_peers_record(*record));
  EXPECT_TRUE(check_record(*record));
  const auto plots = peers_plots(*record, "m");
  ASSERT_EQ(plots.size(), 1u);
  ASSERT_EQ(plots[0].series.size(), 2u);
  EXPECT_EQ(plots[0].series[0].points.size(), 2u);
  EXPECT_EQ(plots[0].series[1].name, "Marlin");
  EXPECT_TRUE(peers_plots(*record, "other").empty());
}

TEST(Records, SomethingElseIsRefused) {
  const auto why = check_record(Json{{"answer", 42}});
  ASSERT_FALSE(why);
  EXPECT_EQ(why.why().id, "plot.report");
}

TEST(Records, AModelIsFoundByItsSizes) {
  EXPECT_EQ(model_of_sizes(32, 2880, 2880), "gpt-oss-20b");
  EXPECT_EQ(model_of_sizes(3, 5, 7), "");
}

}  // namespace
}  // namespace fp4moe::report::markup_test
