#include "fp4moe/cli/options.hpp"

#include <gtest/gtest.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/parse.hpp"

namespace fp4moe::cli {
namespace {

// Whether the words of `line` are accepted.
bool accepts(const OptionSet& set, const std::string& line) {
  std::vector<std::string> words{"fp4moe"};
  for (const std::string_view word : split(line, ' '))
    if (!word.empty()) words.emplace_back(word);
  std::vector<const char*> pointers;
  for (const std::string& word : words) pointers.push_back(word.c_str());
  return static_cast<bool>(parse(set, pointers));
}

// Why they are not.
Error refusal(const OptionSet& set, const std::vector<const char*>& words) {
  std::vector<const char*> line{"fp4moe"};
  line.insert(line.end(), words.begin(), words.end());
  const auto parsed = parse(set, line);
  return parsed ? usage("accepted", "") : parsed.why();
}

std::string help_of(const OptionSet& set) {
  const char* const words[] = {"fp4moe", "--help"};
  const auto shown = parse(set, words);
  return shown ? shown->value_or("") : text(shown.why());
}

TEST(Options, FillTheVariablesAndLeaveOthersAlone) {
  OptionSet set;
  std::string path, model = "small";
  std::uint64_t layers = 7, experts = 3;
  std::optional<std::uint64_t> threads, unset;
  std::optional<double> seconds;
  bool deep = false, verbose = false;
  set.add("PATH", path, "").required();
  set.add("--model", model, "");
  set.add("--layers", layers, "");
  set.add("--experts", experts, "");
  set.add("--threads", threads, "");
  set.add("--unset", unset, "");
  set.add("--seconds", seconds, "");
  set.add("--deep", deep, "");
  set.add("--verbose", verbose, "");

  ASSERT_TRUE(accepts(set, "here --layers 2 --threads 4 --seconds 0.5 --deep"));

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
  OptionSet set;
  std::string format, folder;
  std::uint64_t threads = 0;
  std::optional<double> seconds;
  set.add("--format", format, "").one_of({"mxfp4", "nvfp4"});
  set.add("--threads", threads, "").between(std::uint64_t{1}, std::uint64_t{8});
  set.add("--seconds", seconds, "").between(0.5, 2.0);
  set.add("--folder", folder, "").existing_folder();

  EXPECT_TRUE(accepts(set, "--format nvfp4 --threads 8 --seconds 2 --folder /"));
  EXPECT_FALSE(accepts(set, "--format fp8"));
  EXPECT_FALSE(accepts(set, "--threads 0"));
  EXPECT_FALSE(accepts(set, "--threads 9"));
  EXPECT_FALSE(accepts(set, "--threads -1"));
  EXPECT_FALSE(accepts(set, "--threads many"));
  EXPECT_FALSE(accepts(set, "--seconds 2.1"));
  EXPECT_FALSE(accepts(set, "--folder /does/not/exist"));
}

TEST(Options, RequireWhatIsRequired) {
  OptionSet set;
  std::string path;
  set.add("PATH", path, "").required();

  EXPECT_FALSE(accepts(set, ""));
  EXPECT_TRUE(accepts(set, "here"));
}

TEST(Options, TakeSizesInBytesWithUnits) {
  OptionSet set;
  std::uint64_t bytes = 1;
  set.add("--size", bytes, "").in_bytes("5GB");

  EXPECT_NE(help_of(set).find("5GB"), std::string::npos);
  ASSERT_TRUE(accepts(set, ""));
  EXPECT_EQ(bytes, 1u);
  ASSERT_TRUE(accepts(set, "--size 5GB"));
  EXPECT_EQ(bytes, 5'000'000'000u);
  ASSERT_TRUE(accepts(set, "--size 2KiB"));
  EXPECT_EQ(bytes, 2048u);
  EXPECT_FALSE(accepts(set, "--size 5parsecs"));
}

TEST(Options, SplitListsAtCommas) {
  OptionSet set;
  std::vector<std::string> policies;
  set.add("--fix", policies, "").separated_by_commas("POLICY");

  EXPECT_NE(help_of(set).find("POLICY,..."), std::string::npos);
  ASSERT_TRUE(accepts(set, "--fix one,two"));
  EXPECT_EQ(policies, (std::vector<std::string>{"one", "two"}));
  ASSERT_TRUE(accepts(set, "--fix three --fix four"));  // in place of what was there
  EXPECT_EQ(policies, (std::vector<std::string>{"three", "four"}));
  EXPECT_FALSE(accepts(set, "--fix one,,two"));
}

TEST(Options, ShowTheirDefault) {
  OptionSet set;
  std::string model = "gpt-oss-20b";
  set.add("--model", model, "").show_default();

  EXPECT_NE(help_of(set).find("gpt-oss-20b"), std::string::npos);
}

TEST(Options, TakeOneSubcommandThatTheCommandsOptionsMayFollow) {
  OptionSet program;
  OptionSet& set = program.add_subcommand("bench", "");
  int asked = 0;
  std::uint64_t threads = 0;
  set.add_subcommand("first", "", [&asked] { asked = 1; });
  set.add_subcommand("second", "", [&asked] { asked = 2; });
  set.add("--threads", threads, "");

  EXPECT_FALSE(accepts(program, "bench"));
  ASSERT_TRUE(accepts(program, "bench second --threads 3"));
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(threads, 3u);
}

TEST(Options, TakeValuesInEveryForm) {
  OptionSet set;
  std::string out, path, placement;
  std::vector<std::string> libraries;
  bool verbose = false, json = false;
  set.add("PATH", path, "");
  set.add("-o,--out", out, "");
  set.add("-v,--verbose", verbose, "");
  set.add("-j,--json", json, "");
  set.add("--lib", libraries, "").separated_by_commas("NAME");
  set.add("--placement", placement, "").one_of({"linear", "round-robin"});

  ASSERT_TRUE(accepts(set, "-oOUT -vj --lib -aiter,+b12x --lib=c --placement Round_Robin -- --x"));
  EXPECT_EQ(out, "OUT");
  EXPECT_TRUE(verbose && json);
  EXPECT_EQ(libraries, (std::vector<std::string>{"-aiter", "+b12x", "c"}));
  EXPECT_EQ(placement, "round-robin");  // as the choice is spelled
  EXPECT_EQ(path, "--x");
  ASSERT_TRUE(accepts(set, "--out=a=b"));
  EXPECT_EQ(out, "a=b");
}

TEST(Options, MayMeanANumberWithoutOne) {
  OptionSet set;
  std::optional<std::uint64_t> ep;
  std::string path;
  set.add("--ep", ep, "").or_alone("0");
  set.add("PATH", path, "");

  ASSERT_TRUE(accepts(set, "--ep 8"));
  EXPECT_EQ(ep, 8u);
  ASSERT_TRUE(accepts(set, "--ep here"));
  EXPECT_EQ(ep, 0u);
  EXPECT_EQ(path, "here");
  EXPECT_EQ(refusal(set, {"--ep=x"}).id, "command.value");
}

TEST(Options, SayWhatIsWrongWithALine) {
  OptionSet program;
  OptionSet& set = program.add_subcommand("explain", "");
  std::string device, path;
  std::uint64_t threads = 0;
  bool json = false;
  set.add("--device", device, "");
  set.add("--threads", threads, "").between(std::uint64_t{1}, std::uint64_t{8});
  set.add("--json", json, "");
  set.add("PATH", path, "A checkpoint").required();

  const Error unknown = refusal(program, {"explain", "--devise", "h100"});
  EXPECT_EQ(unknown.id, "command.option");
  EXPECT_EQ(unknown.found, "'--devise'");
  EXPECT_EQ(unknown.remedy, "did you mean --device?");
  EXPECT_EQ(refusal(program, {"explain", "--zzzzzz"}).remedy, "see fp4moe help explain");
  EXPECT_EQ(refusal(program, {"explane"}).remedy, "did you mean explain?");
  EXPECT_EQ(refusal(program, {}).id, "command.words");
  const Error negative = refusal(program, {"explain", "p", "--threads", "-1"});
  EXPECT_EQ(negative.id, "command.value");
  EXPECT_EQ(negative.expected, "a whole number from 1 to 8");
  EXPECT_EQ(negative.found, "'-1'");
  EXPECT_EQ(refusal(program, {"explain", "p", "--threads", "99"}).id, "command.value");
  EXPECT_EQ(refusal(program, {"explain", "p", "--device"}).message, "--device needs a value");
  EXPECT_EQ(refusal(program, {"explain", "p", "--device", "--json"}).message,
            "--device needs a value");
  EXPECT_EQ(refusal(program, {"explain", "p", "--device", "a", "--device", "b"}).message,
            "--device is given twice");
  EXPECT_EQ(refusal(program, {"explain", "p", "--json=no"}).id, "command.value");
  EXPECT_EQ(refusal(program, {"explain"}).message, "PATH is missing");
  EXPECT_EQ(refusal(program, {"explain", "p", "q"}).found, "'q'");
  EXPECT_EQ(refusal(program, {"explain", "p", "-x"}).id, "command.option");
}

TEST(Options, AreShownUnderTheirHeadingsWithinTheColumns) {
  OptionSet program{.name = "fp4moe"};
  OptionSet& set = program.add_subcommand("explain", "Say which backend a layer gets");
  std::string device, path;
  bool on = false, off = false;
  set.add("PATH", path, "A checkpoint");
  set.group = "Device";
  set.add("--device", device, "This machine or a part that is described by its name in a list");
  set.group = "Layer";
  set.add("--gated", on, "The layer has a gate");
  set.add("--no-gated", off, "not: The layer has a gate");
  const char* const words[] = {"fp4moe", "explain", "--help"};

  const auto shown = parse(program, words, "", 50);
  ASSERT_TRUE(shown && *shown);
  EXPECT_EQ(**shown,
            "Say which backend a layer gets\n"
            "\n"
            "Usage: fp4moe explain [PATH] [OPTIONS]\n"
            "\n"
            "Arguments\n"
            "  PATH  A checkpoint\n"
            "\n"
            "Device\n"
            "  --device NAME  This machine or a part that is\n"
            "                 described by its name in a list\n"
            "\n"
            "Layer\n"
            "  --gated, --no-gated  The layer has a gate\n");
}

TEST(Options, KnowTheirNames) {
  std::string out, path;
  OptionSet set;
  const Option& option = set.add("-o,--out", out, "");
  const Option& argument = set.add("PATH", path, "");

  EXPECT_EQ(option.name(), "out");
  EXPECT_EQ(option.spellings(), (std::vector<std::string>{"-o", "--out"}));
  EXPECT_FALSE(option.is_positional());
  EXPECT_EQ(argument.name(), "PATH");
  EXPECT_TRUE(argument.is_positional());
}

}  // namespace
}  // namespace fp4moe::cli
