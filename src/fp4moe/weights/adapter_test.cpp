// Adapters of every form against PEFT's own definition of the change, summed in double; slices;
// everything that must be refused.
#include "fp4moe/weights/adapter.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"
#include "fp4moe/weights/adapter_name.hpp"
#include "fp4moe/weights/lora_adapter.hpp"
#include "fp4moe/weights/synth_adapter.hpp"
#include "fp4moe/weights/test_checkpoint.hpp"

namespace fp4moe::weights {
namespace {

using tensor::DType;
using tensor::testing::TemporaryFolder;
using tensor::testing::write_text;
using testing::Bytes;
using testing::FileTensor;
using testing::write_safetensors;

constexpr std::uint64_t kExperts = 3, kHidden = 64, kInner = 96, kRank = 4;
const std::string kRoot = "base_model.model.";
const std::string kPrefix = "model.layers.5.mlp.";

AdapterTarget target_of(RowOrder order = RowOrder::interleaved) {
  return {.index = 5,
          .prefix = kPrefix,
          .shape = {.experts = kExperts, .hidden = kHidden, .intermediate = kInner, .order = order},
          .is_gpt_oss = order == RowOrder::interleaved};
}

// A tensor whose numbers follow from its name and place; exact in 16 bits.
struct TestFactor {
  tensor::Shape shape{};
  std::uint64_t seed = 0;
  double at(std::uint64_t i) const {
    SplitMix64 random(seed + i * 77);
    return static_cast<double>(static_cast<std::int64_t>(random.next() % 65) - 32) / 32.0;
  }
};

Bytes bytes_of(const TestFactor& factor, DType dtype) {
  Bytes bytes;
  const std::uint64_t count = *tensor::element_count(factor.shape);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(factor.at(i));
    const std::uint16_t half =
        dtype == DType::f16 ? formats::F16::encode(value) : formats::Bf16::encode(value);
    const auto* from = dtype == DType::f32 ? reinterpret_cast<const std::byte*>(&value)
                                           : reinterpret_cast<const std::byte*>(&half);
    bytes.insert(bytes.end(), from, from + (dtype == DType::f32 ? 4 : 2));
  }
  return bytes;
}

// An adapter's folder by hand.
struct Files {
  TemporaryFolder folder{};
  Json config{{"peft_type", "LORA"},
              {"r", kRank},
              {"lora_alpha", 8},
              {"bias", "none"},
              {"target_modules", {"gate_proj"}}};
  std::map<std::string, TestFactor> factors{};
  std::map<std::string, DType> types{};

  TestFactor& add(const std::string& name, tensor::Shape shape) {
    TestFactor& made = factors[kRoot + name];
    made = {std::move(shape), factors.size() * 1000};
    return made;
  }
  void pair(const std::string& module, tensor::Shape a, tensor::Shape b) {
    add(module + ".lora_A.weight", std::move(a));
    add(module + ".lora_B.weight", std::move(b));
  }
  const TestFactor& a(const std::string& module) const {
    return factors.at(kRoot + module + ".lora_A.weight");
  }
  const TestFactor& b(const std::string& module) const {
    return factors.at(kRoot + module + ".lora_B.weight");
  }
  void write() const {
    std::vector<FileTensor> tensors;
    for (const auto& [name, factor] : factors) {
      const DType dtype = types.contains(name) ? types.at(name) : DType::bf16;
      tensors.push_back({name, dtype, factor.shape, bytes_of(factor, dtype)});
    }
    write_safetensors(folder / "adapter_model.safetensors", tensors);
    write_text(folder / "adapter_config.json", config.dump());
  }
  Result<Adapter> open(const AdapterTarget& target = target_of()) const {
    write();
    return Adapter::open(folder.path(), {target});
  }
};

constexpr Projection kEach[] = {Projection::gate, Projection::up, Projection::down};

// (expert, projection, output, input) -> the change, before it is scaled.
using Change = std::function<double(std::uint64_t, Projection, std::uint64_t, std::uint64_t)>;

double change_by(const LoraAdapter& adapter, std::size_t position, Projection which,
                 std::uint64_t row, std::uint64_t column) {
  const LoraPair& pair = adapter.at(which, position);
  if (pair.empty()) return 0;
  double sum = 0;
  for (std::uint64_t k = 0; k < pair.a.rows; ++k)
    sum += static_cast<double>(pair.b.data[row * pair.b.columns + k]) *
           static_cast<double>(pair.a.data[k * pair.a.columns + column]);
  return sum;
}

void expect_change(const Adapter& adapter, const Change& expected, double scale) {
  const auto loaded = LoraAdapter::load(adapter, 0, {});
  ASSERT_TRUE(loaded) << text(loaded.why());
  const MoeShape& shape = adapter.targets()[0].shape;
  for (std::uint64_t e = 0; e < shape.experts; ++e)
    for (const Projection which : kEach) {
      if (which == Projection::gate && !shape.gated()) continue;
      const bool down = which == Projection::down;
      for (std::uint64_t n = 0; n < (down ? shape.hidden : shape.intermediate); n += 7)
        for (std::uint64_t c = 0; c < (down ? shape.intermediate : shape.hidden); c += 5)
          ASSERT_EQ(change_by(*loaded, e, which, n, c), scale * expected(e, which, n, c))
              << "expert " << e << " " << static_cast<int>(which) << " " << n << " " << c;
    }
}

TEST(Adapter, ReadsAModuleForEachExpertInThreeTypes) {
  for (const auto& words :
       {std::array{"gate_proj", "up_proj", "down_proj"}, std::array{"w1", "w3", "w2"}}) {
    Files files;
    for (std::uint64_t e = 0; e < kExperts; ++e) {
      const std::string stem = fmt::format("{}experts.{}.", kPrefix, e);
      files.pair(stem + words[0], {kRank, kHidden}, {kInner, kRank});
      files.pair(stem + words[1], {kRank, kHidden}, {kInner, kRank});
      files.pair(stem + words[2], {kRank, kInner}, {kHidden, kRank});
      files.types[kRoot + stem + words[0] + ".lora_A.weight"] = DType::f32;
      files.types[kRoot + stem + words[1] + ".lora_B.weight"] = DType::f16;
    }
    const auto adapter = files.open();
    ASSERT_TRUE(adapter) << text(adapter.why());
    expect_change(
        *adapter,
        [&](std::uint64_t e, Projection which, std::uint64_t n, std::uint64_t c) {
          const std::string module =
              fmt::format("{}experts.{}.{}", kPrefix, e, words[static_cast<std::size_t>(which)]);
          const TestFactor &a = files.a(module), &b = files.b(module);
          double sum = 0;
          for (std::uint64_t k = 0; k < kRank; ++k)
            sum += b.at(n * kRank + k) * a.at(k * a.shape[1] + c);
          return sum;
        },
        2);
  }
}

// torch.einsum("o r e, e r i -> e o i", B.reshape(out, r, E), A.reshape(E, r, in)) for a weight
// [E, out, in], and "-> e i o" for [E, in, out].
double folded(const TestFactor& a, const TestFactor& b, std::uint64_t e, std::uint64_t o,
              std::uint64_t i) {
  double sum = 0;
  for (std::uint64_t k = 0; k < kRank; ++k)
    sum += b.at((o * kRank + k) * kExperts + e) * a.at((e * kRank + k) * a.shape[1] + i);
  return sum;
}

void check_wrapped(bool swapped, RowOrder order) {
  SCOPED_TRACE(fmt::format("swapped {} {}", swapped, name(order)));
  Files files;
  const std::string outer = kPrefix + "experts", inner = outer + ".base_layer";
  constexpr std::uint64_t kRanks = kRank * kExperts;
  if (swapped) {
    files.pair(inner, {kRanks, 2 * kInner}, {kHidden, kRanks});
    files.pair(outer, {kRanks, kHidden}, {kInner, kRanks});
  } else {
    files.pair(inner, {kRanks, kHidden}, {2 * kInner, kRanks});
    files.pair(outer, {kRanks, kInner}, {kHidden, kRanks});
  }
  const auto adapter = files.open(target_of(order));
  ASSERT_TRUE(adapter) << text(adapter.why());
  expect_change(
      *adapter,
      [&](std::uint64_t e, Projection which, std::uint64_t n, std::uint64_t c) {
        const bool down = which == Projection::down;
        const std::string& module = down ? outer : inner;
        std::uint64_t row = n;
        if (!down && order == RowOrder::interleaved) row = 2 * n + (which == Projection::up);
        if (!down && order == RowOrder::halves) row = n + (which == Projection::up ? kInner : 0);
        return swapped ? folded(files.a(module), files.b(module), e, c, row)
                       : folded(files.a(module), files.b(module), e, row, c);
      },
      2);
}

TEST(Adapter, UnfoldsWrappedParametersAsPeftDoes) {
  for (const bool swapped : {false, true})
    for (const RowOrder order : {RowOrder::interleaved, RowOrder::halves})
      check_wrapped(swapped, order);
}

TEST(Adapter, ASquareDownMatrixFollowsItsGateAndUp) {
  // gpt-oss: hidden and intermediate sizes are equal, so that only gate_up shows the order.
  for (const bool swapped : {false, true}) {
    Files files;
    AdapterTarget target = target_of();
    target.shape.intermediate = kHidden;
    const std::string outer = kPrefix + "experts";
    constexpr std::uint64_t kRanks = kRank * kExperts;
    if (swapped) {
      files.pair(outer + ".base_layer", {kRanks, 2 * kHidden}, {kHidden, kRanks});
    } else {
      files.pair(outer + ".base_layer", {kRanks, kHidden}, {2 * kHidden, kRanks});
    }
    files.pair(outer, {kRanks, kHidden}, {kHidden, kRanks});
    const auto adapter = files.open(target);
    ASSERT_TRUE(adapter) << text(adapter.why());
    const LowRankPlace& down = adapter->place(0, Projection::down, 1);
    EXPECT_TRUE(down.a.tensor->entry.name.ends_with(swapped ? "lora_B.weight" : "lora_A.weight"));
  }
}

TEST(Adapter, WithoutAGateTheWrappersNestingDecides) {
  Files files;
  AdapterTarget target = target_of(RowOrder::single);
  constexpr std::uint64_t kRanks = kRank * kExperts;
  files.pair(kPrefix + "experts.base_layer", {kRanks, kHidden}, {kInner, kRanks});
  files.pair(kPrefix + "experts", {kRanks, kInner}, {kHidden, kRanks});
  const auto adapter = files.open(target);
  ASSERT_TRUE(adapter) << text(adapter.why());
  EXPECT_NE(adapter->place(0, Projection::up, 2).a.tensor->entry.name.find("base_layer"),
            std::string::npos);
  EXPECT_EQ(adapter->place(0, Projection::down, 2).a.columns, kInner);

  Files alone;
  alone.config["target_parameters"] = {"experts.down_proj"};
  alone.pair(kPrefix + "experts", {kRanks, kInner}, {kHidden, kRanks});
  const auto one = alone.open(target);
  ASSERT_TRUE(one) << text(one.why());
  EXPECT_TRUE(one->place(0, Projection::up, 0).empty());
  EXPECT_FALSE(one->place(0, Projection::down, 0).empty());
}

TEST(Adapter, ReadsStackedTensorsAndFactorsThatAllExpertsShare) {
  for (const std::uint64_t common : {std::uint64_t{1}, kExperts}) {
    Files files;
    const std::string w13 = kPrefix + "experts.gate_up_proj", w2 = kPrefix + "experts.w2";
    files.pair(w13, {common, kRank, kHidden}, {kExperts, 2 * kInner, kRank});
    files.pair(w2, {kExperts, kRank, kInner}, {common, kHidden, kRank});
    const auto adapter = files.open();
    ASSERT_TRUE(adapter) << text(adapter.why());
    expect_change(
        *adapter,
        [&](std::uint64_t e, Projection which, std::uint64_t n, std::uint64_t c) {
          const bool down = which == Projection::down;
          const TestFactor &a = files.a(down ? w2 : w13), &b = files.b(down ? w2 : w13);
          const std::uint64_t row = down ? n : 2 * n + (which == Projection::up);
          double sum = 0;
          for (std::uint64_t k = 0; k < kRank; ++k)
            sum += b.at(((b.shape[0] == 1 ? 0 : e) * b.shape[1] + row) * kRank + k) *
                   a.at(((a.shape[0] == 1 ? 0 : e) * kRank + k) * a.shape[2] + c);
          return sum;
        },
        2);
    const auto loaded = LoraAdapter::load(*adapter, 0, {});
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->at(Projection::gate, 0).a.data, loaded->at(Projection::up, 0).a.data);
    EXPECT_EQ(loaded->at(Projection::down, 0).b.data == loaded->at(Projection::down, 2).b.data,
              common == 1);
  }
}

TEST(Adapter, ReadsLinearModulesInListsAndPartsOfALayer) {
  Files files;
  files.pair(kPrefix + "experts.gate_up_projs.1", {kRank, kHidden}, {2 * kInner, kRank});
  files.pair("model.layers.5.self_attn.q_proj", {kRank, 8}, {8, kRank});
  const auto adapter = files.open();
  ASSERT_TRUE(adapter) << text(adapter.why());
  EXPECT_FALSE(adapter->touches(0, 0));
  EXPECT_TRUE(adapter->touches(0, 1));
  EXPECT_EQ(adapter->place(0, Projection::up, 1).b.first, kRank);  // rows take turns
  EXPECT_TRUE(adapter->place(0, Projection::down, 1).empty());
  ASSERT_EQ(adapter->other_modules().size(), 1u);
  EXPECT_EQ(adapter->other_modules()[0], "model.layers.5.self_attn.q_proj");
}

TEST(Adapter, ScalesByAlphaAndRankOncePerModule) {
  Files files;
  const std::string gate = kPrefix + "experts.0.gate_proj", up = kPrefix + "experts.0.up_proj";
  files.pair(gate, {kRank, kHidden}, {kInner, kRank});
  files.pair(up, {16, kHidden}, {kInner, 16});
  files.config["rank_pattern"] = {{"experts.\\d+.up_proj", 16}};
  files.config["alpha_pattern"] = {{"up_proj", 32}, {"gate", 99}};
  auto adapter = files.open();
  ASSERT_TRUE(adapter) << text(adapter.why());
  EXPECT_EQ(adapter->place(0, Projection::gate, 0).scale, 2.0f);
  EXPECT_EQ(adapter->place(0, Projection::up, 0).scale, 2.0f);
  files.config["use_rslora"] = true;
  adapter = files.open();
  ASSERT_TRUE(adapter) << text(adapter.why());
  EXPECT_EQ(adapter->place(0, Projection::gate, 0).scale, 4.0f);
  EXPECT_EQ(adapter->place(0, Projection::up, 0).scale, 8.0f);
}

TEST(Adapter, FindsLayersByPrefixThenByNumber) {
  Files files;
  files.pair("language_model.model.layers.5.mlp.experts.0.up_proj", {kRank, kHidden},
             {kInner, kRank});
  EXPECT_TRUE(files.open());
  files.write();
  AdapterTarget other = target_of();
  other.prefix = "mtp.layers.5.mlp.";
  const auto two = Adapter::open(files.folder.path(), {target_of(), other});
  ASSERT_FALSE(two);
  EXPECT_EQ(two.why().id, "adapter.layer");
  other.prefix = "language_model.model.layers.5.mlp.";
  const auto exact = Adapter::open(files.folder.path(), {target_of(), other});
  ASSERT_TRUE(exact) << text(exact.why());
  EXPECT_FALSE(exact->touches(0));
  EXPECT_TRUE(exact->touches(1));
}

// Slices put together give the whole.
void check_slices(const Adapter& adapter, std::uint64_t tensor_ranks, std::uint64_t expert_ranks,
                  bool fully_sharded) {
  SCOPED_TRACE(fmt::format("tp {} ep {} {}", tensor_ranks, expert_ranks, fully_sharded));
  const auto whole = LoraAdapter::load(adapter, 0, {});
  ASSERT_TRUE(whole);
  const AdapterTarget& target = adapter.targets()[0];
  std::vector<std::uint64_t> seen;
  for (std::uint64_t ep = 0; ep < expert_ranks; ++ep) {
    std::uint64_t row = 0;
    for (std::uint64_t tp = 0; tp < tensor_ranks; ++tp) {
      const LoraCut cut{.slice = {.tensor_parallel = {tp, tensor_ranks},
                                  .expert_parallel = {ep, expert_ranks},
                                  .placement = Placement::round_robin},
                        .fully_sharded = fully_sharded};
      const auto part = LoraAdapter::load(adapter, 0, cut);
      ASSERT_TRUE(part) << text(part.why());
      std::uint64_t rows = 0;
      for (std::size_t i = 0; i < part->experts().size(); ++i) {
        if (tp == 0) seen.push_back(part->experts()[i]);
        const std::uint64_t e = part->experts()[i];
        const LoraPair &w1 = part->at(Projection::gate, i), &w2 = part->at(Projection::down, i);
        const LoraPair &all1 = whole->at(Projection::gate, e),
                       &all2 = whole->at(Projection::down, e);
        rows = w1.b.rows;
        for (std::uint64_t j = 0; j < rows * kRank; ++j)
          ASSERT_EQ(w1.b.data[j], all1.b.data[row * kRank + j]);
        ASSERT_EQ(w2.a.columns, rows);
        for (std::uint64_t k = 0; k < kRank; ++k)
          for (std::uint64_t c = 0; c < rows; ++c)
            ASSERT_EQ(w2.a.data[k * rows + c],
                      all2.a.data[k * target.shape.intermediate + row + c]);
        const std::uint64_t share = fully_sharded ? tensor_ranks : 1;
        ASSERT_EQ(w1.a.rows, kRank / share);
        ASSERT_EQ(w2.b.rows, kHidden / share);
        const std::uint64_t shift = fully_sharded ? tp : 0;
        EXPECT_EQ(w1.a.data[0], all1.a.data[shift * w1.a.rows * kHidden]);
        EXPECT_EQ(w2.b.data[0], all2.b.data[shift * w2.b.rows * kRank]);
      }
      row += rows;
    }
    EXPECT_EQ(row, target.shape.intermediate);
  }
  std::ranges::sort(seen);
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{0, 1, 2}));
}

TEST(LoraAdapter, SlicesReassembleToTheWhole) {
  Files files;
  constexpr std::uint64_t kRanks = kRank * kExperts;
  files.pair(kPrefix + "experts.base_layer", {kRanks, kHidden}, {2 * kInner, kRanks});
  files.pair(kPrefix + "experts", {kRanks, kInner}, {kHidden, kRanks});
  const auto adapter = files.open();  // 3 blocks of 32: 2 + 1 on two ranks
  ASSERT_TRUE(adapter) << text(adapter.why());
  check_slices(*adapter, 1, 2, false);
  check_slices(*adapter, 2, 1, false);
  check_slices(*adapter, 3, 2, false);
  check_slices(*adapter, 2, 2, true);
  const auto empty = LoraAdapter::load(*adapter, 0, {.slice = {.tensor_parallel = {3, 4}}});
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.why().id, "slice.empty");
  const auto uneven =
      LoraAdapter::load(*adapter, 0, {.slice = {.tensor_parallel = {0, 3}}, .fully_sharded = true});
  ASSERT_FALSE(uneven);
  EXPECT_EQ(uneven.why().id, "adapter.sharding");
}

TEST(LoraAdapter, RefusesNumbersThatAreNotFinite) {
  Files files;
  files.pair(kPrefix + "experts.0.up_proj", {kRank, kHidden}, {kInner, kRank});
  files.config["lora_alpha"] = 1e38;
  files.config["r"] = kRank;
  files.write();
  std::string bytes = tensor::testing::read_text(files.folder / "adapter_model.safetensors");
  bytes[bytes.size() - 1] = static_cast<char>(0x7F);  // the last bfloat16 becomes NaN
  bytes[bytes.size() - 2] = static_cast<char>(0xFF);
  write_text(files.folder / "adapter_model.safetensors", bytes);
  const auto adapter = Adapter::open(files.folder.path(), {target_of()});
  ASSERT_TRUE(adapter) << text(adapter.why());
  const auto loaded = LoraAdapter::load(*adapter, 0, {});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.why().id, "adapter.not_finite");
  EXPECT_FALSE(loaded.why().tensor.empty());
}

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

TEST(SynthAdapter, EveryFormOpensWithTheChangeAskedFor) {
  for (const AdapterFormRow& row : kAdapterForms)
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      SCOPED_TRACE(fmt::format("{} {}", row.name, tensor::name(dtype)));
      const TemporaryFolder folder;
      const SynthAdapterOptions options{
          .form = row.form, .rank = 6, .rslora = true, .dtype = dtype, .change = 0.01};
      const std::vector<AdapterTarget> targets{target_of()};
      const auto made = synth_adapter(targets, options, folder / "adapter");
      ASSERT_TRUE(made) << text(made.why());
      const auto adapter = Adapter::open(folder / "adapter", targets);
      ASSERT_TRUE(adapter) << text(adapter.why());
      const auto loaded = LoraAdapter::load(*adapter, 0, {});
      ASSERT_TRUE(loaded);
      for (const Projection which : kEach) {
        double squared = 0;
        for (std::uint64_t n = 0; n < 64; ++n)
          for (std::uint64_t c = 0; c < 64; ++c)
            squared += std::pow(change_by(*loaded, 1, which, n, c), 2);
        EXPECT_NEAR(std::sqrt(squared / 4096), 0.01, 0.004);
      }
    }
  const TemporaryFolder folder;
  const std::vector<AdapterTarget> targets{target_of()};
  EXPECT_EQ(synth_adapter(targets, {.rank = 0}, folder / "x").why().id, "synth.adapter");
  EXPECT_EQ(synth_adapter({}, {}, folder / "x").why().id, "synth.adapter");
  EXPECT_TRUE(folder.names().empty());
  EXPECT_EQ(adapter_form_from_name("shared"), AdapterForm::shared);
  EXPECT_FALSE(adapter_form_from_name("x"));
}

}  // namespace
}  // namespace fp4moe::weights
