#include "fp4moe/cli/layout_places.hpp"

#include <set>

#include <gtest/gtest.h>

#include "fp4moe/backends/layouts.hpp"
#include "support/command_line.hpp"
#include "support/sanitized.hpp"

namespace fp4moe::cli {
namespace layout_places_test {

using testing::has;
using testing::run;

std::uint64_t offset_of(const Json& part, std::size_t row, std::size_t col) {
  return part["begin"].get<std::uint64_t>() + part["row_offsets"][row].get<std::uint64_t>() +
         part["column_offsets"][col].get<std::uint64_t>();
}

TEST(LayoutPlaces, EveryElementHasAPlaceOfItsOwn) {
  std::size_t number = 0;
  for (const layout::Layout& layout : backends::layouts())
    for (const char* text : {"w13:256x256", "w2:256x256"}) {
      if (!is_taken(number++, 5)) continue;
      const Result<Json> places = places_json(layout, *read_matrix(text));
      ASSERT_TRUE(places) << layout.id << " " << places.why().message;
      for (const char* name : {"codes", "scales"}) {
        const Json& part = (*places)[name];
        std::set<std::uint64_t> seen;
        const auto rows = part["rows"].get<std::size_t>(),
                   cols = part["columns"].get<std::size_t>();
        for (std::size_t row = 0; row < rows; ++row)
          for (std::size_t col = 0; col < cols; ++col) seen.insert(offset_of(part, row, col));
        EXPECT_EQ(seen.size(), rows * cols) << layout.id << " " << name;
        const std::uint64_t offsets =
            part["bytes"].get<std::uint64_t>() * (part["element"].string() == "nibble" ? 2 : 1);
        EXPECT_LT(*seen.rbegin(), offsets) << layout.id << " " << name;
      }
    }
}

TEST(LayoutPlaces, AreThoseOfTheDrawing) {
  const auto answer =
      parse_json(run({"layouts", "marlin.mxfp4", "--places", "64x128", "--json"}).out);
  ASSERT_TRUE(answer);
  const Json& codes = answer->at("layouts")[0]["places"]["codes"];
  // The first bytes: 0:0 0:8 8:0 8:8 0:1.
  EXPECT_EQ(offset_of(codes, 0, 8), 1u);
  EXPECT_EQ(offset_of(codes, 8, 0), 2u);
  EXPECT_EQ(offset_of(codes, 0, 1), 4u);
}

TEST(LayoutPlaces, SaysWhatDoesNotFitAndWhatIsNoMatrix) {
  const auto answer =
      parse_json(run({"layouts", "marlin.mxfp4", "--places", "w2:3x5", "--json"}).out);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->at("layouts")[0]["places"]["error"]["id"], Json("layout.size"));
  for (const std::string text : {"w13:3x4", "w3:4x4", "4", "4x", "0x4", "4x5000"}) {
    const auto refused = run({"layouts", "--json", "--places", text});
    EXPECT_EQ(refused.status, 2) << text;
    EXPECT_TRUE(has(refused.err, "[layout.matrix]")) << text;
  }
}

}  // namespace layout_places_test
}  // namespace fp4moe::cli
