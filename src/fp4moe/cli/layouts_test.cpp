#include "fp4moe/backends/layouts.hpp"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "fp4moe/cli/layout_pages.hpp"
#include "support/command_line.hpp"

namespace fp4moe::cli {
namespace {

using testing::has;
using testing::run;

TEST(Layouts, PagesInTheDocumentationAreUpToDate) {
  for (const LayoutPage& page : layout_pages()) {
    std::ifstream file(std::string(FP4MOE_TESTDATA) + "/../docs/layouts/" + page.file);
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_EQ(text.str(), page.text)
        << page.file << " is stale: fp4moe layouts --markdown docs/layouts";
  }
}

TEST(Layouts, ListsEveryGeneration) {
  const auto listed = run({"layouts"});
  ASSERT_EQ(listed.status, 0);
  for (const layout::Layout& layout : backends::layouts()) {
    EXPECT_TRUE(has(listed.out, std::string(layout.id)));
    EXPECT_TRUE(has(listed.out, std::string(layout.generation)));
  }
  EXPECT_EQ(parse_json(run({"layouts", "--json"}).out)->at("layouts").size(),
            backends::layouts().size());
}

TEST(Layouts, DrawsOneFromItsMap) {
  const auto drawn = run({"layouts", "marlin.mxfp4"});
  ASSERT_EQ(drawn.status, 0);
  // Word 0 holds k 0, 8 of rows 0 and 8, then k 1, 9.
  EXPECT_TRUE(has(drawn.out, "0 |    0:0   0:8    8:0   8:8    0:1   0:9    8:1   8:9"));
  EXPECT_TRUE(has(drawn.out, "2*(n/8%2)"));
}

TEST(Layouts, NamesTheLayoutsWhenThereIsNoneOfThatName) {
  const auto refused = run({"layouts", "zzzz"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_TRUE(has(refused.err, "layout.unknown"));
  EXPECT_TRUE(has(refused.err, "aiter.mxfp4"));
  EXPECT_TRUE(has(refused.err, "`fp4moe layouts` lists them"));
  EXPECT_TRUE(has(run({"layouts", "marln.mxfp4"}).err, "did you mean marlin.mxfp4?"));
  EXPECT_TRUE(has(run({"layouts", "marlin"}).err, "did you mean marlin.mxfp4?"));
}

}  // namespace
}  // namespace fp4moe::cli
