// Adapters that must be refused: what cannot be read, patterns, corrupted folders.
#include <fmt/format.h>

#include "fp4moe/checkpoint/lora/adapter.hpp"
#include "fp4moe/checkpoint/lora/adapter_name.hpp"
#include "support/tiny_adapter.hpp"

namespace fp4moe::checkpoint {
namespace adapter_refusals_test {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of this test alone

struct Refusal {
  const char* id;
  std::function<void(Files&)> spoil;
};

TEST(Adapter, RefusesWhatItCannotReadAndSaysWhy) {
  const std::string good = kPrefix + "experts.0.up_proj";
  const auto with = [](const char* key, Json value) {
    return [key, value](Files& files) { files.config[key] = value; };
  };
  const auto pair = [](const std::string& module, tensor::Shape a, tensor::Shape b) {
    return [=](Files& files) { files.pair(kPrefix + module, a, b); };
  };
  const Refusal refusals[] = {
      {"adapter.type", with("peft_type", "IA3")},
      {"adapter.config", [](Files& files) { files.config.erase("peft_type"); }},
      {"adapter.config", [](Files& files) { files.config.erase("r"); }},
      {"adapter.config", [](Files& files) { files.config.erase("lora_alpha"); }},
      {"adapter.config", [](Files& files) { files.config = Json::array(); }},
      {"adapter.config", with("r", 0)},
      {"adapter.config", with("r", -4)},
      {"adapter.config", with("r", 4.5)},
      {"adapter.config", with("r", 18446744073709551615u)},
      {"adapter.config", with("lora_alpha", "8")},
      {"adapter.config", with("lora_alpha", 1e39)},
      {"adapter.config", with("use_rslora", 1)},
      {"adapter.config", with("rank_pattern", Json::array({1}))},
      {"adapter.config", with("rank_pattern", {{"up_proj", 0}})},
      {"adapter.config", with("alpha_pattern", {{"up_proj", "x"}})},
      {"adapter.config", with("target_parameters", "experts")},
      {"adapter.config", with("target_parameters", Json::array({1}))},
      {"adapter.config", with("target_modules", 7)},
      {"adapter.config", with("modules_to_save", "lm_head")},
      {"adapter.config", with("modules_to_save", Json::array({1}))},
      {"adapter.pattern", with("rank_pattern", {{"(up|down)_proj", 8}})},
      {"adapter.unsupported", with("use_dora", true)},
      {"adapter.unsupported", with("bias", "lora_only")},
      {"adapter.unsupported", with("lora_bias", true)},
      {"adapter.unsupported", with("layer_replication", Json::array({Json::array({0, 2})}))},
      {"adapter.unsupported", with("modules_to_save", Json::array({"lm_head", "mlp.experts"}))},
      {"adapter.name",
       [](Files& files) { files.add(kPrefix + "experts.0.up_proj.weight", {2, 2}); }},
      {"adapter.name",
       [](Files& files) {
         files.add(kPrefix + "experts.0.up_proj.lora_magnitude_vector", {kInner});
       }},
      {"adapter.name", pair("experts.0.norm", {kRank, kHidden}, {kInner, kRank})},
      {"adapter.name", pair("experts.base_layer.w1", {kRank, kHidden}, {kInner, kRank})},
      {"adapter.pair",
       [](Files& files) {
         files.add(kPrefix + "experts.1.up_proj.lora_A.weight", {kRank, kHidden});
       }},
      {"adapter.pair",
       [](Files& files) {
         files.add(kPrefix + "experts.1.up_proj.lora_B.weight", {kInner, kRank});
       }},
      {"adapter.duplicate",
       [&](Files& files) {
         files.factors[good + ".lora_A.weight"] = {{kRank, kHidden}, 1};  // without the root
       }},
      {"adapter.duplicate",
       pair("experts.gate_up_proj", {kExperts, kRank, kHidden}, {kExperts, 2 * kInner, kRank})},
      {"adapter.duplicate",
       [](Files& files) {
         files.pair("other.layers.5.mlp.experts.1.up_proj", {kRank, kHidden}, {kInner, kRank});
       }},
      {"adapter.layer",
       [](Files& files) {
         files.pair("model.layers.6.mlp.experts.0.up_proj", {kRank, kHidden}, {kInner, kRank});
       }},
      {"adapter.expert", pair("experts.3.up_proj", {kRank, kHidden}, {kInner, kRank})},
      {"adapter.shape", pair("experts.1.up_proj", {kRank, kHidden + 1}, {kInner, kRank})},
      {"adapter.shape", pair("experts.1.up_proj", {kRank, kHidden}, {kInner - 1, kRank})},
      {"adapter.shape", pair("experts.1.up_proj", {kRank, kHidden, 1}, {kInner, kRank})},
      {"adapter.shape", pair("experts.1.up_proj", {kRank}, {kInner, kRank})},
      {"adapter.shape", pair("experts.down_proj", {2, kRank, kInner}, {kExperts, kHidden, kRank})},
      {"adapter.shape", pair("experts", {kRank * kExperts, 5}, {kHidden, kRank * kExperts})},
      {"adapter.rank", pair("experts.1.up_proj", {kRank + 1, kHidden}, {kInner, kRank + 1})},
      {"adapter.rank", pair("experts.1.up_proj", {kRank, kHidden}, {kInner, kRank + 1})},
      {"adapter.rank", pair("experts", {kRank, kHidden}, {2 * kInner, kRank})},
      {"adapter.dtype",
       [&](Files& files) {
         files.factors[kRoot + good + ".lora_A.weight"].shape = {kRank, kHidden / 2};
         files.types[kRoot + good + ".lora_A.weight"] = DType::f32;
         files.write();
         std::string file =
             tensor::testing::read_text(files.folder / "adapter_model.safetensors");
         file.replace(file.find("F32"), 3, "I32");
         write_text(files.folder / "adapter_model.safetensors", file);
       }},
  };
  for (const Refusal& refusal : refusals) {
    Files files;
    files.pair(good, {kRank, kHidden}, {kInner, kRank});
    refusal.spoil(files);
    if (std::string_view(refusal.id) != "adapter.dtype") files.write();
    write_text(files.folder / "adapter_config.json", files.config.dump());
    const auto adapter = Adapter::open(files.folder.path(), {target_of()});
    ASSERT_FALSE(adapter) << refusal.id << " " << files.config.dump();
    EXPECT_EQ(adapter.why().id, refusal.id) << text(adapter.why());
    EXPECT_FALSE(adapter.why().expected.empty()) << text(adapter.why());
    EXPECT_FALSE(adapter.why().found.empty()) << text(adapter.why());
  }
}

TEST(Adapter, RefusesGatesWithoutAGateAndFoldersThatAreNone) {
  Files files;
  files.pair(kPrefix + "experts.0.gate_proj", {kRank, kHidden}, {kInner, kRank});
  const auto adapter = files.open(target_of(RowOrder::single));
  ASSERT_FALSE(adapter);
  EXPECT_EQ(adapter.why().id, "adapter.no_gate");
  const TemporaryFolder empty;
  EXPECT_EQ(Adapter::open(empty.path(), {target_of()}).why().id, "adapter.missing");
  write_text(empty / "adapter_config.json", "{}");
  write_text(empty / "adapter_model.bin", "");
  const auto pickled = Adapter::open(empty.path(), {target_of()});
  EXPECT_EQ(pickled.why().id, "adapter.missing");
  EXPECT_NE(pickled.why().remedy.find("safe_serialization"), std::string::npos);
}

TEST(Adapter, PatternsMatchAsPeftsRegularExpressionsDo) {
  const std::string name = "model.layers.12.mlp.experts.7.up_proj";
  for (const char* pattern :
       {"up_proj", "experts.7.up_proj", "7.up_proj", "layers\\.12.mlp.experts.\\d+.up_proj",
        "[0-9]*.up_proj", ".*up_proj", "^model.layers.1?2.*proj", "model.*"})
    EXPECT_TRUE(lora_pattern_matches(pattern, name)) << pattern;
  for (const char* pattern : {"p_proj", "up_pro", "^up_proj", "experts.\\d.7", "up_projj?x", ""})
    EXPECT_FALSE(lora_pattern_matches(pattern, name)) << pattern;
  for (const char* pattern : {"(a)", "a|b", "[ab]", "a{2}", "*a", "a\\w", "a$"})
    EXPECT_FALSE(is_lora_pattern(pattern)) << pattern;
  // Patterns that make backtracking machines slow.
  std::string slow;
  for (int i = 0; i < 200; ++i) slow += "a*";
  EXPECT_FALSE(lora_pattern_matches(slow + "b", std::string(2000, 'a')));
}

// Whatever happens to the bytes, an answer comes back, and numbers are only read from the file.
TEST(Adapter, CorruptedFoldersAreRefusedOrRead) {
  Files files;
  constexpr std::uint64_t kRanks = kRank * kExperts;
  files.pair(kPrefix + "experts.base_layer", {kRanks, kHidden}, {2 * kInner, kRanks});
  files.pair(kPrefix + "experts.1.w2", {kRank, kInner}, {kHidden, kRank});
  files.write();
  const std::string tensors =
      tensor::testing::read_text(files.folder / "adapter_model.safetensors");
  const std::string config = tensor::testing::read_text(files.folder / "adapter_config.json");
  const std::size_t header =
      8 + static_cast<unsigned char>(tensors[0]) + 256u * static_cast<unsigned char>(tensors[1]);
  SplitMix64 random(11);
  std::size_t refused = 0;
  for (int round = 0; round < 300; ++round) {
    std::string spoilt_tensors = tensors, spoilt_config = config;
    std::string& spoilt = round % 3 == 0 ? spoilt_config : spoilt_tensors;
    const std::size_t reach = round % 3 == 0 ? config.size() : header;
    for (std::uint64_t i = 0; i <= random.next() % 3; ++i) {
      const char replacement = random.next() % 2 == 0 ? static_cast<char>('0' + random.next() % 10)
                                                      : static_cast<char>(random.next());
      spoilt[random.next() % reach] = replacement;
    }
    if (round % 10 == 9) spoilt.resize(random.next() % spoilt.size());
    write_text(files.folder / "adapter_model.safetensors", spoilt_tensors);
    write_text(files.folder / "adapter_config.json", spoilt_config);
    const auto adapter = Adapter::open(files.folder.path(), {target_of()});
    if (!adapter) {
      ++refused;
      EXPECT_FALSE(adapter.why().id.empty());
      continue;
    }
    const auto loaded = LoraAdapter::load(*adapter, 0, {});
    EXPECT_TRUE(loaded || !loaded.why().id.empty());
  }
  EXPECT_GT(refused, 150u);
}

}  // namespace adapter_refusals_test
}  // namespace fp4moe::checkpoint
