#include "fp4moe/cli/options.hpp"

#include <CLI/CLI.hpp>
#include <gtest/gtest.h>

namespace fp4moe::cli {
namespace {

// Parses `line` with one app; true when it was accepted.
bool accepts(CLI::App& app, const std::string& line) {
  try {
    app.parse(line);
    return true;
  } catch (const CLI::ParseError&) {
    return false;
  }
}

TEST(Options, FillTheVariablesAndLeaveOthersAlone) {
  CLI::App app;
  std::string path, model = "small";
  std::uint64_t layers = 7, experts = 3;
  std::optional<std::uint64_t> threads, unset;
  std::optional<double> seconds;
  bool deep = false, verbose = false;
  add_option(app, "PATH", path, "").required();
  add_option(app, "--model", model, "");
  add_option(app, "--layers", layers, "");
  add_option(app, "--experts", experts, "");
  add_option(app, "--threads", threads, "");
  add_option(app, "--unset", unset, "");
  add_option(app, "--seconds", seconds, "");
  add_flag(app, "--deep", deep, "");
  add_flag(app, "--verbose", verbose, "");

  ASSERT_TRUE(accepts(app, "here --layers 2 --threads 4 --seconds 0.5 --deep"));

  EXPECT_EQ(path, "here");
  EXPECT_EQ(model, "small");
  EXPECT_EQ(layers, 2u);
  EXPECT_EQ(experts, 3u);
  EXPECT_EQ(threads, 4u);
  EXPECT_FALSE(unset);
  EXPECT_EQ(seconds, 0.5);
  EXPECT_TRUE(deep);
  EXPECT_FALSE(verbose);
}

TEST(Options, RefuseWhatTheirDemandsExclude) {
  CLI::App app;
  std::string format, folder;
  std::uint64_t threads = 0;
  std::optional<double> seconds;
  add_option(app, "--format", format, "").one_of({"mxfp4", "nvfp4"});
  add_option(app, "--threads", threads, "").between(std::uint64_t{1}, std::uint64_t{8});
  add_option(app, "--seconds", seconds, "").between(0.5, 2.0);
  add_option(app, "--folder", folder, "").existing_folder();

  EXPECT_TRUE(accepts(app, "--format nvfp4 --threads 8 --seconds 2 --folder /"));
  EXPECT_FALSE(accepts(app, "--format fp8"));
  EXPECT_FALSE(accepts(app, "--threads 0"));
  EXPECT_FALSE(accepts(app, "--threads 9"));
  EXPECT_FALSE(accepts(app, "--threads -1"));
  EXPECT_FALSE(accepts(app, "--threads many"));
  EXPECT_FALSE(accepts(app, "--seconds 2.1"));
  EXPECT_FALSE(accepts(app, "--folder /does/not/exist"));
}

TEST(Options, RequireWhatIsRequired) {
  CLI::App app;
  std::string path;
  add_option(app, "PATH", path, "").required();

  EXPECT_FALSE(accepts(app, ""));
  EXPECT_TRUE(accepts(app, "here"));
}

TEST(Options, TakeSizesInBytesWithUnits) {
  CLI::App app;
  std::uint64_t bytes = 1;
  add_option(app, "--size", bytes, "").in_bytes("5GB");

  EXPECT_NE(app.help().find("5GB"), std::string::npos);
  ASSERT_TRUE(accepts(app, ""));
  EXPECT_EQ(bytes, 1u);
  ASSERT_TRUE(accepts(app, "--size 5GB"));
  EXPECT_EQ(bytes, 5'000'000'000u);
  ASSERT_TRUE(accepts(app, "--size 2KiB"));
  EXPECT_EQ(bytes, 2048u);
  EXPECT_FALSE(accepts(app, "--size 5parsecs"));
}

TEST(Options, SplitListsAtCommas) {
  CLI::App app;
  std::vector<std::string> policies;
  add_option(app, "--fix", policies, "").separated_by_commas("POLICY");

  EXPECT_NE(app.help().find("POLICY,..."), std::string::npos);
  ASSERT_TRUE(accepts(app, "--fix one,two"));
  EXPECT_EQ(policies, (std::vector<std::string>{"one", "two"}));
}

TEST(Options, ShowTheirDefault) {
  CLI::App app;
  std::string model = "gpt-oss-20b";
  add_option(app, "--model", model, "").show_default();

  EXPECT_NE(app.help().find("gpt-oss-20b"), std::string::npos);
}

TEST(Options, AskOneQuestionThatTheCommandsOptionsMayFollow) {
  CLI::App app;
  int asked = 0;
  std::uint64_t threads = 0;
  add_question(app, "first", "", [&asked] { asked = 1; });
  add_question(app, "second", "", [&asked] { asked = 2; });
  add_option(app, "--threads", threads, "");

  EXPECT_FALSE(accepts(app, ""));
  ASSERT_TRUE(accepts(app, "second --threads 3"));
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(threads, 3u);
}

}  // namespace
}  // namespace fp4moe::cli
