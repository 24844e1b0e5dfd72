// The same checkpoint from files and from memory: equal layers, bit for bit, in every dialect; a
// layer follows tensors that change in place.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/edit/transcode.hpp"
#include "fp4moe/runtime/run.hpp"
#include "support/converted_folder.hpp"
#include "support/tiny_layer.hpp"

namespace fp4moe::runtime {
namespace memory_model_test {

using checkpoint::Dialect;
using convert::testing::make_checkpoint;
using formats::WeightFormat;
using moe::testing::TestTokens;
using tensor::DType;
using tensor::testing::read_text;
using tensor::testing::TemporaryFolder;

constexpr std::uint64_t kExperts = 4, kHidden = 128, kIntermediate = 96;

// Copies of a checkpoint's tensors, each in memory of its own exact size.
struct Copies {
  std::vector<std::pair<tensor::TensorEntry, std::vector<std::byte>>> tensors{};
  std::vector<tensor::Document> documents{};

  explicit Copies(const std::string& folder) {
    const auto store = tensor::Store::open(folder);
    EXPECT_TRUE(store) << text(store.why());
    for (const tensor::StoredTensor& tensor : store->tensors()) {
      const auto bytes = store->bytes(tensor);
      tensors.insert(tensors.begin(), {tensor.entry, {bytes.begin(), bytes.end()}});
    }
    for (const char* name : {"config.json", "hf_quant_config.json"})
      if (std::filesystem::exists(folder + "/" + name))
        documents.push_back({name, read_text(folder + "/" + name)});
  }

  Result<checkpoint::Checkpoint> checkpoint() const {
    std::vector<tensor::MemoryTensor> given;
    for (const auto& [entry, bytes] : tensors)
      given.push_back({entry.name, entry.dtype, entry.shape, bytes});
    Result<tensor::Store> store = tensor::Store::of(std::move(given), documents);
    if (!store) return store.why();
    return checkpoint::Checkpoint::of(*std::move(store));
  }
  Result<Model> model() const {
    Result<checkpoint::Checkpoint> result = checkpoint();
    if (!result) return result.why();
    return Model::of(*std::move(result));
  }
  // Codes of the experts' down projections; any byte is two of them.
  std::vector<std::span<std::byte>> down_codes() {
    std::vector<std::span<std::byte>> found;
    for (auto& [entry, bytes] : tensors)
      if (entry.dtype == DType::u8 && entry.name.find("down_proj") != std::string::npos &&
          entry.name.find("scales") == std::string::npos)
        found.emplace_back(bytes);
    EXPECT_FALSE(found.empty());
    return found;
  }
};

Result<MoeLayer> ready(const Model& model, LayerOptions options) {
  options.threads = 1;
  Result<MoeLayer> layer = model.layer(0, std::move(options));
  if (!layer) return layer;
  if (const auto done = layer->load(); !done) return done.why();
  if (const auto done = layer->process(); !done) return done.why();
  return layer;
}

std::vector<double> apply(MoeLayer& layer, const TestTokens& tokens) {
  std::vector<double> out(tokens.tokens * kHidden);
  const auto done = layer.apply(
      tokens.routed(), moe::dense_rows(std::span(out), DType::f64, tokens.tokens, kHidden));
  EXPECT_TRUE(done) << text(done.why());
  return out;
}

void expect_equal_weights(const MoeLayer& a, const MoeLayer& b) {
  ASSERT_EQ(a.weights().tensors().size(), b.weights().tensors().size());
  for (std::size_t t = 0; t < a.weights().tensors().size(); ++t)
    EXPECT_TRUE(std::ranges::equal(a.weights().tensors()[t], b.weights().tensors()[t])) << t;
}

class MemoryModel : public ::testing::TestWithParam<std::pair<Dialect, WeightFormat>> {
 protected:
  std::string files() const { return folder_ / "checkpoint"; }
  void SetUp() override {
    make_checkpoint(files(), GetParam().second,
                    {.experts = kExperts, .hidden = kHidden, .intermediate = kIntermediate},
                    GetParam().first);
  }
  TemporaryFolder folder_{};
};

TEST_P(MemoryModel, GivesTheLayersOfTheFilesAndReadsNoFile) {
  const Copies copies(files());
  const auto from_files = Model::open(files());
  ASSERT_TRUE(from_files) << text(from_files.why());
  for (const char* backend : {"MARLIN", "CPU"}) {
    auto expected = ready(*from_files, {.backend_request = {.backend = backend}});
    ASSERT_TRUE(expected) << text(expected.why());
    const std::string moved = folder_ / "moved";
    std::filesystem::rename(files(), moved);  // there is nothing to read any more
    const auto model = copies.model();
    ASSERT_TRUE(model) << text(model.why());
    EXPECT_EQ(model->path(), "");
    EXPECT_EQ(model->layers(), from_files->layers());
    EXPECT_EQ(model->facts(0)->prefix, from_files->facts(0)->prefix);
    EXPECT_EQ(model->facts(0)->router.method, from_files->facts(0)->router.method);
    auto layer = ready(*model, {.backend_request = {.backend = backend}});
    ASSERT_TRUE(layer) << text(layer.why());
    expect_equal_weights(*layer, *expected);
    const TestTokens tokens(5, kHidden, 2, kExperts, 7);
    EXPECT_EQ(apply(*layer, tokens), apply(*expected, tokens)) << backend;
    const auto a = load_router(*model->facts(0), model->finder());
    const auto b = load_router(*from_files->facts(0), from_files->finder());
    ASSERT_TRUE(a && b);
    EXPECT_EQ(a->weight, b->weight);
    std::filesystem::rename(moved, files());
  }
}

TEST_P(MemoryModel, LayersAreCutForRanksAndUsedWhereTheyLie) {
  const Copies copies(files());
  const auto model = copies.model();
  const auto from_files = Model::open(files());
  ASSERT_TRUE(model && from_files);
  const checkpoint::Slice slice{.tensor_parallel = {1, 2}, .expert_parallel = {0, 2}};
  auto mine = ready(*model, {.slice = slice});
  auto theirs = ready(*from_files, {.slice = slice});
  ASSERT_TRUE(mine && theirs);
  expect_equal_weights(*mine, *theirs);
  auto mapped =
      ready(*model, {.backend_request = {.backend = "CPU"}, .weights = moe::WeightsHome::mapped});
  auto packed = ready(*model, {.backend_request = {.backend = "CPU"}});
  ASSERT_TRUE(mapped && packed);
  EXPECT_TRUE(mapped->weights().tensors().empty()) << "it has memory of its own";
  const TestTokens tokens(3, kHidden, 2, kExperts, 8);
  EXPECT_EQ(apply(*mapped, tokens), apply(*packed, tokens));
}

TEST_P(MemoryModel, FollowsTensorsThatChangeInPlace) {
  Copies copies(files());
  const auto model = copies.model();
  ASSERT_TRUE(model);
  auto layer = ready(*model, {});
  ASSERT_TRUE(layer);
  const TestTokens tokens(4, kHidden, 2, kExperts, 9);
  const std::vector<double> before = apply(*layer, tokens);
  const std::byte* address = layer->weights().tensors()[0].data();
  for (const std::span<std::byte> codes : copies.down_codes())
    for (std::byte& byte : codes) byte ^= std::byte{0x11};
  EXPECT_EQ(apply(*layer, tokens), before) << "the layer has weights of its own";
  ASSERT_TRUE(layer->load());
  ASSERT_TRUE(layer->process());
  EXPECT_EQ(layer->weights().tensors()[0].data(), address);
  EXPECT_NE(apply(*layer, tokens), before);
  auto fresh = ready(*model, {});
  ASSERT_TRUE(fresh);
  EXPECT_EQ(apply(*layer, tokens), apply(*fresh, tokens));
}

INSTANTIATE_TEST_SUITE_P(Dialects, MemoryModel,
                         ::testing::Values(std::pair(Dialect::gpt_oss, WeightFormat::mxfp4),
                                           std::pair(Dialect::modelopt, WeightFormat::nvfp4),
                                           std::pair(Dialect::compressed_tensors,
                                                     WeightFormat::nvfp4)),
                         [](const auto& each) {
                           std::string result(checkpoint::name(each.param.first));
                           std::erase_if(result, [](char c) { return c == '-'; });
                           return result;
                         });

TEST(MemoryModelErrors, AreThoseOfFiles) {
  const TemporaryFolder folder;
  make_checkpoint(folder / "c", WeightFormat::mxfp4,
                  {.experts = kExperts, .hidden = kHidden, .intermediate = kIntermediate});
  const auto id_of = [](const Copies& copies) {
    const auto model = copies.model();
    return model ? std::string("ok") : model.why().id;
  };
  Copies copies(folder / "c");
  const Copies whole = copies;
  copies.documents = {{"config.json", "{"}};
  EXPECT_EQ(copies.checkpoint().why().path, "config.json");
  copies.documents = {{"config.json", R"({"model_type": 5})"}};
  EXPECT_EQ(id_of(copies), "config.type");
  copies.documents = {{"config.json", R"({"quantization_config": {"quant_method": "modelopt",
                                          "quant_algo": "NVFP4"}})"}};
  EXPECT_EQ(id_of(copies), "dialect.contradiction");
  EXPECT_EQ(copies.checkpoint().why().path, "config.json");
  copies.documents.clear();
  const auto silent = copies.model();
  ASSERT_TRUE(silent) << text(silent.why());
  EXPECT_EQ(silent->facts(0).why().id, "facts.top_k");
  copies = whole;
  std::erase_if(copies.tensors, [](const auto& each) {
    return each.first.name.find("down_proj_scales") != std::string::npos;
  });
  EXPECT_EQ(id_of(copies), "tensor.missing");
  copies = whole;
  std::erase_if(copies.tensors, [](const auto& each) {
    return each.first.name.find("experts") != std::string::npos;
  });
  EXPECT_EQ(id_of(copies), "dialect.unknown");
}

TEST(MemoryModelErrors, SayThatThereAreNoFilesToCopy) {
  const TemporaryFolder folder;
  make_checkpoint(folder / "c", WeightFormat::mxfp4,
                  {.experts = kExperts, .hidden = kHidden, .intermediate = kIntermediate});
  const Copies copies(folder / "c");
  const auto checkpoint = copies.checkpoint();
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  EXPECT_EQ(convert::plan_folder(*checkpoint, "", convert::testing::recipe_of("cpu_native.mxfp4"))
                .why()
                .id,
            "store.memory");
  EXPECT_EQ(checkpoint::transcode(*checkpoint, Dialect::quark, folder / "out", {}).why().id,
            "store.memory");
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

}  // namespace memory_model_test
}  // namespace fp4moe::runtime
