#include "fp4moe/convert/convert_folder.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/convert/test_folder.hpp"
#include "fp4moe/convert/unconvert.hpp"
#include "fp4moe/convert/verify.hpp"

namespace fp4moe::convert {
namespace {

using testing::convert;
using testing::expect_same_files;
using testing::make_checkpoint;
using testing::recipe_of;
using testing::TemporaryFolder;

TEST(ConvertFolder, RoundTripsThroughEveryLayout) {
  const TemporaryFolder folder;
  for (const auto format : {weights::WeightFormat::mxfp4, weights::WeightFormat::nvfp4})
    make_checkpoint(folder / formats::name(format), format);
  for (const layout::Layout& layout : backends::layouts()) {
    SCOPED_TRACE(layout_text(layout.id, layout.generation));
    const std::string source = folder / formats::name(layout.format);
    Recipe recipe{.layout = &layout, .sizing = {.hidden = 256, .intermediate = 256}};
    const auto converted = convert(source, folder / "out", recipe, {.options = {.threads = 2}});
    EXPECT_TRUE(converted) << text(converted.why());
    if (!converted) continue;
    for (const std::string& loss : converted->losses) std::printf("%s: %s\n", layout_text(layout.id, layout.generation).c_str(), loss.c_str());

    const auto verified = verify_folder(folder / "out", {.threads = 2, .deep = true});
    EXPECT_TRUE(verified) << text(verified.why());
    if (verified)
      for (const Error& finding : verified->findings) ADD_FAILURE() << text(finding);

    const std::vector<std::string> folders{folder / "out"};
    const auto back = unconvert(folders, folder / "back", {.threads = 2});
    EXPECT_TRUE(back) << text(back.why());
    if (back) expect_same_files(source, folder / "back");
    std::filesystem::remove_all(folder / "out");
    std::filesystem::remove_all(folder / "back");
  }
}

}  // namespace
}  // namespace fp4moe::convert
