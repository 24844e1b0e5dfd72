#include "fp4moe/runtime/run.hpp"

#include <array>
#include <memory>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/synth/synth_adapter.hpp"
#include "support/converted_folder.hpp"
#include "support/files.hpp"
#include "support/ranks.hpp"

namespace fp4moe::runtime {
namespace run_test {

using moe::exchange::Communicator;
using tensor::testing::read_text;
using tensor::testing::TemporaryFolder;
using tensor::testing::write_text;

// A rank's model, and the folders of its adapters.
struct Asked {
  const Model& model;
  std::vector<std::string> adapters{};
};

// Why two ranks do not agree; none: they do.
std::optional<Error> disagreement(const Asked& first, const Asked& other) {
  std::optional<Error> why;
  const auto input = seeded_input(2, first.model.hidden(0), 1);
  EXPECT_TRUE(input);
  constexpr std::array<std::size_t, 1> kLayers{0};
  moe::exchange::testing::run_ranks(2, {}, [&](std::unique_ptr<Communicator> mine) {
    const Asked& asked = mine->rank() == 0 ? first : other;
    RunOptions options;
    options.adapters = asked.adapters;
    const auto done = agree_on_request(*mine, asked.model, kLayers, *input, options);
    if (!done && mine->rank() == 0) why = done.why();
  });
  return why;
}

class AgreeOnRequest : public ::testing::Test {
 protected:
  void SetUp() override {
    convert::testing::make_checkpoint(folder_ / "a", checkpoint::WeightFormat::nvfp4);
    convert::testing::make_checkpoint(folder_ / "b", checkpoint::WeightFormat::nvfp4);
  }
  Model open(std::string_view name) const {
    Result<Model> model = Model::open(folder_ / name);
    EXPECT_TRUE(model) << text(model.why());
    return *std::move(model);
  }

  TemporaryFolder folder_{};
};

TEST_F(AgreeOnRequest, ModelsOfTheSameNamesAndShapesAreComparedByTheirBytes) {
  EXPECT_FALSE(disagreement({open("a")}, {open("b")}));
  const std::string file = folder_ / "b/model.safetensors";
  std::uint64_t at = 0;
  {
    const auto store = tensor::Store::open(folder_ / "b");
    ASSERT_TRUE(store) << text(store.why());
    ASSERT_LE(store->tensors().size(), 64u);  // of these every one is sampled
    at = store->tensors().back().entry.begin;
  }
  std::string bytes = read_text(file);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  write_text(file, bytes);

  const auto why = disagreement({open("a")}, {open("b")});
  ASSERT_TRUE(why);
  EXPECT_EQ(why->id, "comm.disagree");
  EXPECT_TRUE(why->found.starts_with("tensors ")) << why->found;
}

// A byte that no sample of a tensor's beginning holds.
TEST_F(AgreeOnRequest, RoutersAreComparedWhole) {
  const std::string file = folder_ / "b/model.safetensors";
  std::uint64_t at = 0;
  {
    const auto store = tensor::Store::open(folder_ / "b");
    ASSERT_TRUE(store) << text(store.why());
    const tensor::StoredTensor* router = store->find("model.layers.0.mlp.gate.weight");
    ASSERT_NE(router, nullptr);
    at = router->entry.begin + router->entry.bytes - 1;
  }
  std::string bytes = read_text(file);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  write_text(file, bytes);
  const auto why = disagreement({open("a")}, {open("b")});
  ASSERT_TRUE(why);
  EXPECT_EQ(why->id, "comm.disagree");
}

TEST_F(AgreeOnRequest, AdaptersAreComparedByWhatTheyHold) {
  const auto checkpoint = checkpoint::Checkpoint::open(folder_ / "a");
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  const auto make = [&](std::string_view name, std::uint64_t seed) {
    const auto made = checkpoint::synth_adapter(checkpoint::adapter_targets(*checkpoint),
                                                {.rank = 4, .seed = seed}, folder_ / name);
    EXPECT_TRUE(made) << text(made.why());
    return folder_ / name;
  };
  const Model model = open("a");
  const std::string one = make("one", 1), same = make("same", 1), other = make("other", 2);
  EXPECT_FALSE(disagreement({model, {one}}, {model, {same}}));

  const std::string config = same + "/adapter_config.json";
  std::string scaled = read_text(config);
  const std::size_t alpha = scaled.find("16");
  ASSERT_NE(alpha, std::string::npos) << scaled;
  write_text(config, scaled.replace(alpha, 2, "24"));
  for (const std::vector<std::string>& theirs :
       {std::vector<std::string>{other}, {same}, {}, {one, one}, {other, one}}) {
    const auto why = disagreement({model, {one, other}}, {model, theirs});
    ASSERT_TRUE(why) << theirs.size();
    EXPECT_EQ(why->id, "comm.disagree");
    EXPECT_TRUE(why->found.starts_with("adapters ")) << why->found;
  }
  EXPECT_TRUE(disagreement({model, {one}}, {model, {same}}));
  EXPECT_TRUE(disagreement({model, {one}}, {model, {other}}));
}

}  // namespace run_test
}  // namespace fp4moe::runtime
