// A checkpoint of two tiny layers, and `fp4moe run` over it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/tensor/files/store.hpp"
#include "support/command_line.hpp"
#include "support/files.hpp"

namespace fp4moe::cli::testing {

class RunFixture : public ::testing::Test {
 public:
  static constexpr std::uint64_t kHidden = 96;

 protected:
  static void SetUpTestSuite() {
    folder_ = new tensor::testing::TemporaryFolder;
    const Outcome result = run({"synth", "--model", "gpt-oss-20b", "--experts", "4", "--hidden",
                                "96", "--intermediate", "64", "--layers", "2", "-o", source()});
    ASSERT_EQ(result.status, 0) << result.err;
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string source() { return *folder_ / "source"; }
  static std::string file(std::string_view name) { return *folder_ / name; }

  static Outcome run_with(std::vector<std::string> words) {
    words.insert(words.begin(), {"run", source()});
    return run(words);
  }
  static Json layer_of(const Outcome& outcome) {
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const Result<Json> json = parse_json(outcome.out);
    return json ? (*json)["layers"][0] : Json();
  }
  // What the words leave in a file.
  static std::string output_of(std::vector<std::string> words) {
    const std::string out = file("out.safetensors");
    words.insert(words.end(), {"-o", out});
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const Result<tensor::Store> store = tensor::Store::open(out);
    const tensor::StoredTensor* found = store ? store->find("output") : nullptr;
    EXPECT_NE(found, nullptr);
    if (found == nullptr) return {};
    const auto bytes = store->bytes(*found);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  static void refused(const Outcome& outcome, int status, std::string_view words) {
    EXPECT_EQ(outcome.status, status) << outcome.out << outcome.err;
    EXPECT_TRUE(has(outcome.err, words)) << outcome.err;
  }

  static inline tensor::testing::TemporaryFolder* folder_ = nullptr;
};

}  // namespace fp4moe::cli::testing
