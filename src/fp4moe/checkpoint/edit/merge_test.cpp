// Merging against the plain definition (dequantize, add B A, quantize, each by the slow functions),
// in every dialect; what must not change; what must be refused.
#include "fp4moe/checkpoint/edit/merge.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/checkpoint/edit/merge_expert.hpp"
#include "fp4moe/checkpoint/lora/lora_adapter.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "fp4moe/checkpoint/synth/synth_adapter.hpp"
#include "support/tiny_model.hpp"

namespace fp4moe::checkpoint {
namespace merge_test {

using tensor::testing::read_text;
using tensor::testing::TemporaryFolder;
using tensor::testing::write_text;

constexpr Projection kEach[] = {Projection::gate, Projection::up, Projection::down};
constexpr std::uint64_t kExperts = 3, kHidden = 128, kInner = 192;

struct Case {
  const char* model;
  Dialect dialect;
  WeightFormat format;
  std::optional<Grouping> grouping;
  AdapterForm form;
};

const Case kCases[] = {
    {"gpt-oss-20b", Dialect::gpt_oss, WeightFormat::mxfp4, {}, AdapterForm::wrapped},
    {"gpt-oss-20b", Dialect::openai, WeightFormat::mxfp4, {}, AdapterForm::swapped},
    {"gpt-oss-20b", Dialect::quark, WeightFormat::mxfp4, Grouping::fused, AdapterForm::shared},
    {"gpt-oss-20b", Dialect::gguf, WeightFormat::mxfp4, {}, AdapterForm::wrapped},
    {"qwen3-30b-a3b", Dialect::quark, WeightFormat::mxfp4, Grouping::per_expert,
     AdapterForm::per_expert},
    {"qwen3-30b-a3b", Dialect::compressed_tensors, WeightFormat::mxfp4, {}, AdapterForm::stacked},
    {"qwen3-30b-a3b", Dialect::compressed_tensors, WeightFormat::nvfp4, {}, AdapterForm::wrapped},
    {"qwen3-30b-a3b", Dialect::modelopt, WeightFormat::nvfp4, {}, AdapterForm::per_expert},
    {"qwen3-30b-a3b", Dialect::gguf, WeightFormat::nvfp4, {}, AdapterForm::shared},
    {"deepseek-v4-flash", Dialect::deepseek_v4, WeightFormat::mxfp4, {}, AdapterForm::stacked},
    {"nemotron-3-nano", Dialect::modelopt, WeightFormat::nvfp4, {}, AdapterForm::wrapped},
};

std::string title(const Case& one) {
  return fmt::format("{} {} {} {}", one.model, name(one.dialect), name(one.format), name(one.form));
}

Result<SynthReport> make(const Case& one, const std::string& out) {
  return synth({.model = one.model,
                .dialect = one.dialect,
                .format = one.format,
                .grouping = one.grouping,
                .layers = 2,
                .experts = kExperts,
                .hidden = kHidden,
                .intermediate = kInner,
                .shards = 2},
               out);
}

// A checkpoint and an adapter for some of its layers.
struct Scene {
  TemporaryFolder folder{};
  std::optional<Checkpoint> source{};
  std::optional<Adapter> adapter{};

  void make_source(const Case& one) {
    const auto result = make(one, folder / "source");
    ASSERT_TRUE(result) << text(result.why());
    Result<Checkpoint> opened = Checkpoint::open(folder / "source");
    ASSERT_TRUE(opened) << text(opened.why());
    source.emplace(*std::move(opened));
  }
  void make_adapter(const SynthAdapterOptions& options, std::size_t layers) {
    const std::vector<AdapterTarget> targets = adapter_targets(*source);
    const auto result =
        synth_adapter(std::span(targets).first(layers), options, folder / "adapter");
    ASSERT_TRUE(result) << text(result.why());
    open_adapter();
  }
  void open_adapter() {
    Result<Adapter> opened = Adapter::open(folder / "adapter", adapter_targets(*source));
    ASSERT_TRUE(opened) << text(opened.why());
    adapter.emplace(*std::move(opened));
  }
};

using Numbers = std::vector<float>;

struct Blocks {
  std::vector<std::uint8_t> codes{}, scales{};
};

Blocks bytes_of(const ProjectionView& view) {
  Blocks all;
  for (std::uint64_t row = 0; row < view.codes.rows; ++row) {
    for (const std::byte b : view.codes.row(row))
      all.codes.push_back(std::to_integer<std::uint8_t>(b));
    for (const std::byte b : view.scales.row(row))
      all.scales.push_back(std::to_integer<std::uint8_t>(b));
  }
  return all;
}

struct Global {
  bool divides = false;
  float multiplier = 1, divisor = 1;
};

Numbers dequantized(const Blocks& blocks, WeightFormat format, const Global& global) {
  const std::size_t size = block_size(format);
  Numbers values(blocks.scales.size() * size);
  for (std::size_t b = 0; b < blocks.scales.size(); ++b) {
    const std::span<const std::uint8_t> codes(blocks.codes.data() + b * size / 2, size / 2);
    const std::span<float> out(values.data() + b * size, size);
    if (format == WeightFormat::mxfp4) {
      formats::dequantize_mxfp4(blocks.scales[b], codes, out);
    } else if (global.divides) {
      formats::dequantize_nvfp4(blocks.scales[b], global.divisor, codes, out);
    } else {
      formats::dequantize_nvfp4_by_multiplier(blocks.scales[b], global.multiplier, codes, out);
    }
  }
  return values;
}

Blocks quantized(const Numbers& values, WeightFormat format, float divisor,
                 const MergeOptions& options) {
  const std::size_t size = block_size(format);
  Blocks blocks;
  blocks.scales.resize(values.size() / size);
  blocks.codes.resize(values.size() / 2);
  for (std::size_t b = 0; b < blocks.scales.size(); ++b) {
    const std::span<const float> x(values.data() + b * size, size);
    const std::span<std::uint8_t> codes(blocks.codes.data() + b * size / 2, size / 2);
    if (format == WeightFormat::mxfp4) {
      formats::quantize_mxfp4(options.mxfp4_rule, x, blocks.scales[b], codes);
    } else {
      formats::quantize_nvfp4({options.nvfp4_rule, divisor}, x, blocks.scales[b], codes);
    }
  }
  return blocks;
}

float largest(const Numbers& values) {
  float max = 0;
  for (const float value : values) max = std::max(max, std::fabs(value));
  return max;
}

// The adapter's change of a matrix, rank by rank in float32.
void add_change(const LoraPair& pair, Numbers& values) {
  for (std::uint64_t n = 0; n < pair.b.rows; ++n)
    for (std::uint64_t c = 0; c < pair.a.columns; ++c) {
      float sum = 0;
      for (std::uint64_t k = 0; k < pair.a.rows; ++k)
        sum += pair.b.data[n * pair.b.columns + k] * pair.a.data[k * pair.a.columns + c];
      values[n * pair.a.columns + c] += sum;
    }
}

struct Checked {
  std::uint64_t raised = 0;
  double squared = 0, squared_error = 0;
};

// One expert of the merged checkpoint against the definition.
void check_expert(const Scene& scene, const Checkpoint& merged, const LoraAdapter& lora,
                  std::size_t layer, std::uint64_t expert, const MergeOptions& options,
                  Checked& checked) {
  ExpertReader before(*scene.source, {}), after(merged, {});
  const auto from = before.read(layer, expert), to = after.read(layer, expert);
  ASSERT_TRUE(from && to);
  const LayerTensors& place = scene.source->layers()[layer];
  const WeightFormat format = place.shape.format;
  const auto scales = ScaleSource::open(*scene.source);
  const auto divisors = scales->scales(place, expert, GlobalScale::divides);
  ASSERT_TRUE(divisors);
  Numbers exact[3];
  Global global[3];
  bool over[3] = {};
  for (const Projection which : kEach) {
    if (which == Projection::gate && !place.shape.gated()) continue;
    const auto i = static_cast<std::size_t>(which);
    global[i] = {.divides = place.row->global_scale == GlobalScale::divides,
                 .multiplier = from->at(which).global_scale};
    const auto bits = divisors->at(i == 0   ? Matrix::gate
                                   : i == 1 ? Matrix::up
                                            : Matrix::down)
                          .global;
    if (bits) global[i].divisor = std::bit_cast<float>(*bits);
    exact[i] = dequantized(bytes_of(from->at(which)), format, global[i]);
    add_change(lora.at(which, expert), exact[i]);
    over[i] = format == WeightFormat::nvfp4 && static_cast<double>(largest(exact[i])) >
                                                   2688.0 / static_cast<double>(global[i].divisor);
  }
  // Gate and up have one global scale in these checkpoints.
  float most13 = 0;
  for (const int i : {0, 1})
    if (over[i]) most13 = std::max(most13, largest(exact[i]));
  if (over[0] || over[1]) over[0] = over[1] = true;
  for (const Projection which : kEach) {
    if (which == Projection::gate && !place.shape.gated()) continue;
    const auto i = static_cast<std::size_t>(which);
    SCOPED_TRACE(fmt::format("layer {} expert {} matrix {}", layer, expert, i));
    if (over[i]) {
      ++checked.raised;
      global[i].divisor = formats::nvfp4_global_scale(i == 2 ? largest(exact[2]) : most13);
      global[i].multiplier = 1.0f / global[i].divisor;
    }
    const Blocks expected = quantized(exact[i], format, global[i].divisor, options);
    const Blocks got = bytes_of(to->at(which));
    EXPECT_EQ(got.scales, expected.scales);
    EXPECT_EQ(got.codes, expected.codes);
    if (!global[i].divides) {
      EXPECT_EQ(to->at(which).global_scale, global[i].multiplier);
    }
    const Numbers stored = dequantized(got, format, global[i]);
    for (std::size_t n = 0; n < stored.size(); ++n) {
      checked.squared += std::pow(static_cast<double>(exact[i][n]), 2);
      checked.squared_error += std::pow(static_cast<double>(stored[n]) - exact[i][n], 2);
    }
    EXPECT_EQ(to->at(which).bias.size, from->at(which).bias.size);
    EXPECT_EQ(to->at(which).input_scale, from->at(which).input_scale);
  }
}

// Every tensor is there with its type and shape; only the experts' of merged layers may differ.
void check_others(const tensor::Store& before, const tensor::Store& after,
                  const std::string& changed_prefix, std::size_t& same) {
  ASSERT_EQ(before.tensors().size(), after.tensors().size());
  for (const tensor::StoredTensor& tensor : before.tensors()) {
    const tensor::StoredTensor* now = after.find(tensor.entry.name);
    ASSERT_NE(now, nullptr) << tensor.entry.name;
    EXPECT_EQ(now->entry.dtype, tensor.entry.dtype);
    EXPECT_EQ(now->entry.shape, tensor.entry.shape);
    const auto was = before.bytes(tensor), is = after.bytes(*now);
    if (std::ranges::equal(was, is)) {
      ++same;
    } else {
      EXPECT_TRUE(tensor.entry.name.starts_with(changed_prefix)) << tensor.entry.name;
    }
  }
}

void check_case(const Case& one, const SynthAdapterOptions& adapter, const MergeOptions& options,
                bool raises) {
  SCOPED_TRACE(title(one));
  Scene scene;
  ASSERT_NO_FATAL_FAILURE(scene.make_source(one));
  ASSERT_NO_FATAL_FAILURE(scene.make_adapter(adapter, 1));
  const auto report = merge(*scene.source, *scene.adapter, scene.folder / "merged", options);
  ASSERT_TRUE(report) << text(report.why());
  const auto merged = Checkpoint::open(scene.folder / "merged");
  ASSERT_TRUE(merged) << text(merged.why());
  EXPECT_EQ(&merged->dialect(), &scene.source->dialect());
  const auto lora = LoraAdapter::load(*scene.adapter, 0, {});
  ASSERT_TRUE(lora);
  Checked checked;
  for (std::uint64_t e = 0; e < kExperts; ++e)
    check_expert(scene, *merged, *lora, 0, e, options, checked);
  std::size_t same = 0;
  check_others(scene.source->store(), merged->store(), scene.source->layers()[0].prefix, same);
  EXPECT_GT(same, 8u);
  ASSERT_EQ(report->layers.size(), 1u);
  EXPECT_EQ(report->experts, kExperts);
  EXPECT_EQ(report->all_experts, 2 * kExperts);
  EXPECT_EQ(report->raised, checked.raised);
  EXPECT_EQ(checked.raised != 0, raises);
  const double rms = std::sqrt(checked.squared_error / checked.squared);
  EXPECT_NEAR(report->error.rounding, rms, rms * 1e-6);
  EXPECT_NEAR(report->layers[0].error.rounding, rms, rms * 1e-6);
  EXPECT_GT(report->error.change, 0);
  if (one.dialect != Dialect::gguf) {
    EXPECT_EQ(read_text(scene.folder / "merged/config.json"),
              read_text(scene.folder / "source/config.json"));
  }
}

TEST(Merge, EqualsTheDefinitionInEveryDialect) {
  for (const Case& one : kCases)
    check_case(one, {.form = one.form, .rank = 5, .change = 0.05}, {.threads = 2}, false);
}

TEST(Merge, TakesTheRuleItIsGiven) {
  check_case(kCases[0], {.form = AdapterForm::wrapped, .rank = 8},
             {.mxfp4_rule = formats::Mxfp4Rule::ceil6_rne}, false);
  check_case(kCases[7], {.form = AdapterForm::wrapped, .rank = 1},
             {.nvfp4_rule = formats::Nvfp4Rule::flashinfer_exact}, false);
}

TEST(Merge, GlobalScalesGrowWhereTheyMustAndGateAndUpKeepOne) {
  for (const std::size_t i : {6, 7, 8, 10})
    check_case(kCases[i], {.form = kCases[i].form, .rank = 4, .change = 3.0}, {}, true);
}

TEST(Merge, OnlyTheMatricesTheAdapterNamesChange) {
  Scene scene;
  ASSERT_NO_FATAL_FAILURE(scene.make_source(kCases[7]));  // modelopt, a tensor per expert
  ASSERT_NO_FATAL_FAILURE(scene.make_adapter({.rank = 2}, 2));
  // Of all factors keep those of layer 1, expert 2, up; give another expert zeros.
  const auto all = tensor::Store::open(scene.folder / "adapter/adapter_model.safetensors");
  ASSERT_TRUE(all);
  std::vector<testing::FileTensor> kept;
  for (const tensor::StoredTensor& tensor : all->tensors()) {
    const bool wanted = tensor.entry.name.find(".1.mlp.experts.2.up_proj.") != std::string::npos;
    const bool zero = tensor.entry.name.find(".1.mlp.experts.0.down_proj.") != std::string::npos;
    if (!wanted && !zero) continue;
    const auto bytes = all->bytes(tensor);
    kept.push_back(
        {tensor.entry.name, tensor.entry.dtype, tensor.entry.shape, {bytes.begin(), bytes.end()}});
    if (zero && tensor.entry.name.ends_with("lora_B.weight"))
      std::ranges::fill(kept.back().bytes, std::byte{0});
  }
  ASSERT_EQ(kept.size(), 4u);
  std::filesystem::remove(scene.folder / "adapter/adapter_model.safetensors");
  testing::write_safetensors(scene.folder / "adapter/adapter_model.safetensors", kept);
  ASSERT_NO_FATAL_FAILURE(scene.open_adapter());
  const auto report = merge(*scene.source, *scene.adapter, scene.folder / "merged", {});
  ASSERT_TRUE(report) << text(report.why());
  EXPECT_EQ(report->experts, 1u);  // the zeros change nothing
  const auto merged = tensor::Store::open(scene.folder / "merged");
  ASSERT_TRUE(merged);
  std::size_t same = 0;
  const std::string only = scene.source->layers()[1].prefix + "experts.2.up_proj.";
  check_others(scene.source->store(), *merged, only, same);
  EXPECT_EQ(same, merged->tensors().size() - 2);  // codes and scales; the global scale stays
}

TEST(Merge, ThreadsDoNotChangeTheBytes) {
  Scene scene;
  ASSERT_NO_FATAL_FAILURE(scene.make_source(kCases[0]));
  ASSERT_NO_FATAL_FAILURE(scene.make_adapter({.form = AdapterForm::wrapped}, 2));
  std::uint64_t progress = 0;
  const auto one = merge(*scene.source, *scene.adapter, scene.folder / "one",
                         {.progress = [&](std::uint64_t bytes) { progress += bytes; }});
  const auto four = merge(*scene.source, *scene.adapter, scene.folder / "four", {.threads = 4});
  ASSERT_TRUE(one && four);
  EXPECT_EQ(progress, one->changed_bytes + one->copied_bytes);
  EXPECT_EQ(one->error.rounding, four->error.rounding);
  EXPECT_EQ(read_text(scene.folder / "one/model.safetensors"),
            read_text(scene.folder / "four/model.safetensors"));
}

TEST(Merge, RowsAreAddedInOneOrderForEveryRank) {
  SplitMix64 random(3);
  for (std::size_t rank = 1; rank < 11; ++rank) {
    constexpr std::size_t kColumns = 37;
    Numbers a(rank * kColumns), b(rank), fast(kColumns), slow(kColumns);
    for (Numbers* all : {&a, &b}) std::ranges::generate(*all, [&] { return random.unit() - 0.5f; });
    add_low_rank_row(b, a.data(), fast);
    for (std::size_t c = 0; c < kColumns; ++c)
      for (std::size_t k = 0; k < rank; ++k) slow[c] += b[k] * a[k * kColumns + c];
    EXPECT_EQ(fast, slow);
  }
}

TEST(Merge, RefusesAndLeavesNothingBehind) {
  Scene scene;
  ASSERT_NO_FATAL_FAILURE(scene.make_source(kCases[7]));
  ASSERT_NO_FATAL_FAILURE(scene.make_adapter({.rank = 2}, 1));
  const std::string out = scene.folder / "merged";
  const auto refused = [&](const MergeOptions& options) {
    const auto report = merge(*scene.source, *scene.adapter, out, options);
    EXPECT_FALSE(report);
    EXPECT_EQ(scene.folder.names().size(), 2u);  // source and adapter
    return report ? std::string() : report.why().id;
  };
  EXPECT_EQ(refused({.nvfp4_rule = formats::Nvfp4Rule::no_global}), "merge.rule");
  EXPECT_EQ(refused({.max_memory = 1}), "merge.memory");

  // A number that is not finite, met while files are being written.
  const std::string path = scene.folder / "adapter/adapter_model.safetensors";
  const std::string whole = read_text(path);
  std::string spoilt = whole;
  spoilt[spoilt.size() - 1] = static_cast<char>(0x7F);
  spoilt[spoilt.size() - 2] = static_cast<char>(0xC0);
  write_text(path, spoilt);
  ASSERT_NO_FATAL_FAILURE(scene.open_adapter());
  EXPECT_EQ(refused({}), "adapter.not_finite");
  write_text(path, whole);

  // Numbers that are finite one by one, and not in sum.
  const std::string config = scene.folder / "adapter/adapter_config.json";
  Json document = *read_json_file(config);
  document["lora_alpha"] = 1e6;
  write_text(config, document.dump());
  {
    const auto all = tensor::Store::open(path);
    ASSERT_TRUE(all);
    spoilt = whole;
    for (const tensor::StoredTensor& tensor : all->tensors())
      for (std::uint64_t i = 0; i < tensor.entry.bytes; i += 2)
        if (tensor.entry.name.ends_with("lora_A.weight"))
          spoilt.replace(tensor.entry.begin + i, 2, "\x7F\x7F");
  }
  write_text(path, spoilt);
  ASSERT_NO_FATAL_FAILURE(scene.open_adapter());
  EXPECT_EQ(refused({}), "merge.not_finite");
  write_text(path, whole);

  std::filesystem::create_directory(out);
  write_text(out + "/file", "x");
  document["lora_alpha"] = 4;
  write_text(config, document.dump());
  ASSERT_NO_FATAL_FAILURE(scene.open_adapter());
  const auto exists = merge(*scene.source, *scene.adapter, out, {});
  ASSERT_FALSE(exists);
  EXPECT_EQ(exists.why().id, "folder.exists");
}

TEST(Merge, SaysWhenRoundingLosesTheChange) {
  Scene scene;
  ASSERT_NO_FATAL_FAILURE(scene.make_source(kCases[0]));
  ASSERT_NO_FATAL_FAILURE(scene.make_adapter({.form = AdapterForm::wrapped, .change = 1e-6}, 1));
  const auto report = merge(*scene.source, *scene.adapter, scene.folder / "merged", {});
  ASSERT_TRUE(report) << text(report.why());
  EXPECT_NEAR(report->error.rounding / report->error.change, 1, 1e-3);
  ASSERT_EQ(report->notes.size(), 1u);
  EXPECT_NE(report->notes[0].find("unmerged"), std::string::npos);
}

TEST(Merge, AnInterruptedRunLeavesNothingBehind) {
  Scene scene;
  ASSERT_NO_FATAL_FAILURE(scene.make_source(kCases[0]));
  ASSERT_NO_FATAL_FAILURE(scene.make_adapter({.form = AdapterForm::wrapped}, 1));
  const InterruptGuard guard;
  const auto report = merge(*scene.source, *scene.adapter, scene.folder / "merged",
                            {.progress = [](std::uint64_t) { request_interrupt(); }});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.why().code, ErrorCode::interrupted);
  EXPECT_EQ(scene.folder.names().size(), 2u);
}

TEST(Merge, RefusesAdaptersOfOtherModulesUnlessTold) {
  Scene scene;
  ASSERT_NO_FATAL_FAILURE(scene.make_source(kCases[0]));
  ASSERT_NO_FATAL_FAILURE(scene.make_adapter({.form = AdapterForm::wrapped}, 1));
  const std::string path = scene.folder / "adapter/adapter_model.safetensors";
  const auto all = tensor::Store::open(path);
  ASSERT_TRUE(all);
  std::vector<testing::FileTensor> tensors;
  for (const tensor::StoredTensor& tensor : all->tensors()) {
    const auto bytes = all->bytes(tensor);
    tensors.push_back(
        {tensor.entry.name, tensor.entry.dtype, tensor.entry.shape, {bytes.begin(), bytes.end()}});
  }
  std::vector<testing::FileTensor> attention;
  for (const char* factor : {"A", "B"})
    attention.push_back(
        {fmt::format("base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight", factor),
         tensor::DType::bf16,
         {8, 8},
         testing::Bytes(128)});
  const auto rewrite = [&](const std::vector<testing::FileTensor>& what) {
    std::filesystem::remove(path);
    testing::write_safetensors(path, what);
    scene.open_adapter();
  };
  rewrite(attention);
  auto report = plan_merge(*scene.source, *scene.adapter, {});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.why().id, "merge.nothing");
  tensors.insert(tensors.end(), attention.begin(), attention.end());
  rewrite(tensors);
  report = plan_merge(*scene.source, *scene.adapter, {});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.why().id, "merge.other_modules");
  report = merge(*scene.source, *scene.adapter, scene.folder / "merged", {.experts_only = true});
  ASSERT_TRUE(report) << text(report.why());
  ASSERT_FALSE(report->notes.empty());
  EXPECT_NE(report->notes[0].find("1 module outside"), std::string::npos);
}

}  // namespace merge_test
}  // namespace fp4moe::checkpoint
