#include "fp4moe/checkpoint/edit/transcode.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <ostream>

#include <gtest/gtest.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "fp4moe/checkpoint/write/copy_checkpoint.hpp"
#include "support/files.hpp"

namespace fp4moe::checkpoint {
namespace transcode_test {

using tensor::testing::TemporaryFolder;

// Small models with sizes of an odd number of blocks.
struct Model {
  const char* name;
  std::uint64_t experts, hidden, intermediate;
};
constexpr Model kGptOss{"gpt-oss-20b", 5, 96, 160};
constexpr Model kQwen{"qwen3-30b-a3b", 4, 320, 192};
constexpr Model kNemotron{"nemotron-3-nano", 3, 192, 64};
constexpr Model kMixtral{"mixtral-8x7b", 3, 96, 64};
constexpr Model kDeepseek{"deepseek-v3", 3, 64, 128};

struct Trip {
  Model model;
  WeightFormat format;
  Dialect from, through;
  Grouping grouping = Grouping::per_expert;
  std::uint64_t shards = 1;

  friend std::ostream& operator<<(std::ostream& out, const Trip& trip) {
    return out << trip.model.name << " " << name(trip.format) << " " << name(trip.from) << " > "
               << name(trip.through) << " > " << name(trip.from);
  }
};

SynthOptions options_of(const Model& model, WeightFormat format, Dialect dialect) {
  return {.model = model.name,
          .dialect = dialect,
          .format = format,
          .layers = 2,
          .experts = model.experts,
          .hidden = model.hidden,
          .intermediate = model.intermediate,
          .seed = 7};
}

void make(const SynthOptions& options, const std::string& out) {
  const Result<SynthReport> result = synth(options, out);
  ASSERT_TRUE(result) << text(result.why());
}

TranscodeReport convert(const std::string& from, Dialect to, const std::string& out,
                        const TranscodeOptions& options = {.threads = 2}) {
  const Result<Checkpoint> source = Checkpoint::open(from);
  EXPECT_TRUE(source) << (source ? "" : text(source.why()));
  if (!source) return {};
  const Result<TranscodeReport> report = transcode(*source, to, out, options);
  EXPECT_TRUE(report) << (report ? "" : text(report.why()));
  return report ? *report : TranscodeReport{};
}

Error refusal(const std::string& from, Dialect to, const std::string& out) {
  const Result<Checkpoint> source = Checkpoint::open(from);
  EXPECT_TRUE(source) << (source ? "" : text(source.why()));
  if (!source) return {};
  const Result<TranscodeReport> report = transcode(*source, to, out);
  EXPECT_FALSE(report);
  return report ? Error{} : report.why();
}

// Every tensor of `a` is in `b` with the same type, shape and bytes, and the other way round.
void expect_same_tensors(const std::string& a, const std::string& b) {
  const Result<tensor::Store> first = tensor::Store::open(a), second = tensor::Store::open(b);
  ASSERT_TRUE(first) << text(first.why());
  ASSERT_TRUE(second) << text(second.why());
  EXPECT_EQ(first->tensors().size(), second->tensors().size());
  for (const tensor::StoredTensor& one : first->tensors()) {
    const tensor::StoredTensor* other = second->find(one.entry.name);
    ASSERT_NE(other, nullptr) << one.entry.name;
    EXPECT_EQ(one.entry.dtype, other->entry.dtype) << one.entry.name;
    EXPECT_EQ(one.entry.shape, other->entry.shape) << one.entry.name;
    const auto x = first->bytes(one), y = second->bytes(*other);
    ASSERT_EQ(x.size(), y.size()) << one.entry.name;
    EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size()), 0) << one.entry.name;
  }
}

class RoundTrip : public ::testing::TestWithParam<Trip> {};

TEST_P(RoundTrip, ThereAndBackGivesTheSameTensorsAndConfiguration) {
  const Trip& trip = GetParam();
  const TemporaryFolder folder;
  SynthOptions options = options_of(trip.model, trip.format, trip.from);
  options.shards = trip.shards;
  if (trip.from == Dialect::quark) options.grouping = trip.grouping;
  ASSERT_NO_FATAL_FAILURE(make(options, folder / "a"));

  const TranscodeReport report = convert(folder / "a", trip.through, folder / "b");
  convert(folder / "b", trip.from, folder / "c");

  EXPECT_EQ(report.from, name(trip.from));
  EXPECT_EQ(report.to, name(trip.through));
  EXPECT_EQ(report.layers, 2u);
  EXPECT_EQ(report.experts, 2 * trip.model.experts);
  expect_same_tensors(folder / "a", folder / "c");
  if (trip.from != Dialect::gguf) {
    const Result<Json> before = read_json_file(folder / "a/config.json");
    const Result<Json> after = read_json_file(folder / "c/config.json");
    ASSERT_TRUE(before && after);
    for (const auto& [key, value] : before->items()) {
      EXPECT_TRUE(after->contains(key)) << key;
      if (after->contains(key)) {
        EXPECT_EQ((*after)[key], value) << key;
      }
    }
  }
}

std::vector<Trip> all_trips() {
  constexpr Dialect kMx[] = {Dialect::gpt_oss, Dialect::openai, Dialect::compressed_tensors,
                             Dialect::quark, Dialect::gguf};
  constexpr Dialect kNv[] = {Dialect::modelopt, Dialect::compressed_tensors, Dialect::gguf};
  std::vector<Trip> trips;
  for (const Dialect from : kMx)
    for (const Dialect through : kMx) {
      if (from == through) continue;
      trips.push_back({kGptOss, WeightFormat::mxfp4, from, through, Grouping::fused});
      if (from == Dialect::quark)
        trips.push_back({kGptOss, WeightFormat::mxfp4, from, through, Grouping::per_expert, 3});
      const bool named = from != Dialect::openai && through != Dialect::openai;
      if (named) trips.push_back({kMixtral, WeightFormat::mxfp4, from, through});
    }
  for (const Dialect from : kNv)
    for (const Dialect through : kNv) {
      if (from == through) continue;
      for (const Model& model : {kQwen, kNemotron, kDeepseek})
        trips.push_back({model, WeightFormat::nvfp4, from, through});
    }
  return trips;
}

INSTANTIATE_TEST_SUITE_P(EveryPair, RoundTrip, ::testing::ValuesIn(all_trips()));

TEST(Transcode, EveryDialectOfOneSeedHoldsTheSameWeights) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make(options_of(kGptOss, WeightFormat::mxfp4, Dialect::gguf),
                               folder / std::string(name(Dialect::gguf))));
  for (const Dialect dialect : {Dialect::openai, Dialect::compressed_tensors}) {
    const std::string own = folder / std::string(name(dialect));
    ASSERT_NO_FATAL_FAILURE(make(options_of(kGptOss, WeightFormat::mxfp4, dialect), own));
    convert(own, Dialect::gpt_oss, own + "-back");
  }
  ASSERT_NO_FATAL_FAILURE(
      make(options_of(kGptOss, WeightFormat::mxfp4, Dialect::gpt_oss), folder / "own"));

  expect_same_tensors(folder / "own", folder / "openai-back");
  expect_same_tensors(folder / "own", folder / "compressed-tensors-back");
  // A GGUF file has its vectors in float32, and does not say what they were elsewhere.
  convert(folder / "own", Dialect::gguf, folder / "own.gguf");
  expect_same_tensors(folder / "own.gguf", folder / std::string(name(Dialect::gguf)));
}

TEST(Transcode, ThreadsDoNotChangeAByte) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(
      make(options_of(kQwen, WeightFormat::nvfp4, Dialect::modelopt), folder / "a"));

  convert(folder / "a", Dialect::gguf, folder / "one.gguf", {.threads = 1});
  convert(folder / "a", Dialect::gguf, folder / "many.gguf", {.threads = 7});

  EXPECT_EQ(tensor::testing::read_text(folder / "one.gguf"),
            tensor::testing::read_text(folder / "many.gguf"));
}

TEST(Transcode, AChainOfDialectsStillComesHome) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(
      make(options_of(kQwen, WeightFormat::nvfp4, Dialect::compressed_tensors), folder / "a"));

  convert(folder / "a", Dialect::modelopt, folder / "b");
  convert(folder / "b", Dialect::gguf, folder / "c.gguf");
  convert(folder / "c.gguf", Dialect::compressed_tensors, folder / "d");

  expect_same_tensors(folder / "a", folder / "d");
}

TEST(Transcode, ReciprocalsThatCannotBeUndoneAreRecordedAndCounted) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(
      make(options_of(kQwen, WeightFormat::nvfp4, Dialect::modelopt), folder / "a"));

  const TranscodeReport report = convert(folder / "a", Dialect::compressed_tensors, folder / "b");

  const Result<tensor::Store> store = tensor::Store::open(folder / "b");
  ASSERT_TRUE(store);
  const Result<ExactScales> records = read_exact_scales(*store);
  ASSERT_TRUE(records);
  EXPECT_EQ(records->size(), report.exact_scales);
  EXPECT_GT(report.exact_scales, 0u);
  EXPECT_LT(report.exact_scales, 2u * 4 * 6);
  for (const auto& [tensor, bits] : *records) {
    ASSERT_NE(store->find(tensor), nullptr) << tensor;
    std::uint32_t stored = 0;
    std::memcpy(&stored, store->bytes(*store->find(tensor)).data(), 4);
    EXPECT_EQ(reciprocal_bits(bits), stored);
    EXPECT_NE(reciprocal_bits(stored), bits);
  }
}

TEST(Transcode, ShardsAreNoLargerThanAsked) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(
      make(options_of(kGptOss, WeightFormat::mxfp4, Dialect::gpt_oss), folder / "a"));

  const TranscodeReport report = convert(folder / "a", Dialect::compressed_tensors, folder / "b",
                                         {.threads = 2, .max_shard_bytes = 60'000});

  EXPECT_GT(report.shards, 3u);
  EXPECT_TRUE(std::filesystem::exists(folder / "b/model.safetensors.index.json"));
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "b"))
    if (entry.path().extension() == ".safetensors") ++files;
  EXPECT_EQ(files, report.shards);
  convert(folder / "b", Dialect::gpt_oss, folder / "c");
  expect_same_tensors(folder / "a", folder / "c");
}

TEST(Transcode, SmallFilesOfTheFolderComeAlong) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(
      make(options_of(kGptOss, WeightFormat::mxfp4, Dialect::gpt_oss), folder / "a"));
  tensor::testing::write_text(folder / "a/tokenizer.json", "{\"version\": 1}");
  tensor::testing::write_text(folder / "a/chat_template.jinja", "hello");

  convert(folder / "a", Dialect::quark, folder / "b");

  EXPECT_EQ(tensor::testing::read_text(folder / "b/tokenizer.json"), "{\"version\": 1}");
  EXPECT_EQ(tensor::testing::read_text(folder / "b/chat_template.jinja"), "hello");
}

// What llama.cpp wants of a file: vectors in float32, a tokenizer or none that is said to be none.
TEST(Transcode, GgufHasVectorsInFloat32AndTheWayBackHasThemAsTheyWere) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(
      make(options_of(kQwen, WeightFormat::nvfp4, Dialect::modelopt), folder / "a"));
  const std::string changed = "model.layers.0.input_layernorm.weight";

  convert(folder / "a", Dialect::gguf, folder / "b.gguf");
  convert(folder / "b.gguf", Dialect::modelopt, folder / "c");

  const Result<tensor::Store> gguf = tensor::Store::open(folder / "b.gguf");
  ASSERT_TRUE(gguf);
  std::size_t vectors = 0;
  for (const tensor::StoredTensor& tensor : gguf->tensors())
    if (tensor.entry.shape.size() == 1) {
      EXPECT_EQ(tensor.entry.dtype, tensor::DType::f32) << tensor.entry.name;
      ++vectors;
    }
  EXPECT_GT(vectors, 3u);
  expect_same_tensors(folder / "a", folder / "c");
  // A number that BF16 has not keeps its type.
  std::vector<std::byte> norm(kQwen.hidden * 4);
  const float third = 1.0f / 3;
  for (std::size_t i = 0; i < norm.size(); i += 4) std::memcpy(&norm[i], &third, 4);
  CheckpointEdits edits;
  edits.put.push_back({{"blk.0.attn_norm.weight", tensor::DType::f32, {kQwen.hidden}}, norm});
  ASSERT_TRUE(copy_checkpoint(*gguf, folder / "d.gguf", edits));
  convert(folder / "d.gguf", Dialect::modelopt, folder / "e");
  const Result<tensor::Store> back = tensor::Store::open(folder / "e");
  ASSERT_TRUE(back);
  EXPECT_EQ(back->find(changed)->entry.dtype, tensor::DType::f32);
  EXPECT_EQ(std::memcmp(back->bytes(*back->find(changed)).data(), norm.data(), norm.size()), 0);
}

std::string field_text(const tensor::Store& store, std::string_view key) {
  for (const tensor::GgufField& field : store.gguf_fields())
    if (const auto* value = std::get_if<std::string>(&field.value); value && field.key == key)
      return *value;
  return {};
}

TEST(Transcode, GgufCarriesTheTokenizerAndTheWayBackSaysThatItIsLost) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(
      make(options_of(kGptOss, WeightFormat::mxfp4, Dialect::gpt_oss), folder / "gpt"));
  const TranscodeReport bare = convert(folder / "gpt", Dialect::gguf, folder / "bare.gguf");
  ASSERT_EQ(bare.notes.size(), 1u);
  EXPECT_NE(bare.notes[0].find("there is no tokenizer.json"), std::string::npos) << bare.notes[0];
  const Result<tensor::Store> without = tensor::Store::open(folder / "bare.gguf");
  ASSERT_TRUE(without);
  EXPECT_EQ(field_text(*without, "tokenizer.ggml.model"), "none");
  EXPECT_TRUE(convert(folder / "bare.gguf", Dialect::gpt_oss, folder / "again").notes.empty());

  tensor::testing::write_text(folder / "gpt/tokenizer.json", R"({"model": {"type": "BPE",
      "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}, "decoder": {"type": "ByteLevel"},
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}})");
  tensor::testing::write_text(folder / "gpt/chat_template.jinja", "{{ hello }}");
  EXPECT_TRUE(convert(folder / "gpt", Dialect::gguf, folder / "b.gguf").notes.empty());
  const Result<tensor::Store> gguf = tensor::Store::open(folder / "b.gguf");
  ASSERT_TRUE(gguf);
  EXPECT_EQ(field_text(*gguf, "tokenizer.ggml.pre"), "gpt-2");
  EXPECT_EQ(field_text(*gguf, "tokenizer.chat_template"), "{{ hello }}");
  EXPECT_EQ(field_text(*gguf, "general.name"), "gpt");
  const tensor::StoredTensor* embedding = gguf->find("token_embd.weight");
  for (const tensor::GgufField& field : gguf->gguf_fields())
    if (field.key == "tokenizer.ggml.tokens") {
      EXPECT_EQ(std::get<std::vector<std::string>>(field.value).size(), embedding->entry.shape[0]);
    }
  const TranscodeReport back = convert(folder / "b.gguf", Dialect::gpt_oss, folder / "c");
  ASSERT_EQ(back.notes.size(), 1u);
  EXPECT_NE(back.notes[0].find("tokenizer"), std::string::npos);

  tensor::testing::write_text(folder / "gpt/tokenizer.json", R"({"model": )");
  const Error damaged = refusal(folder / "gpt", Dialect::gguf, folder / "d.gguf");
  EXPECT_EQ(damaged.id, "vocabulary.malformed");
  EXPECT_NE(damaged.path.find("tokenizer.json"), std::string::npos);
  EXPECT_FALSE(damaged.remedy.empty());
  EXPECT_FALSE(std::filesystem::exists(folder / "d.gguf"));
}

TEST(Transcode, SaysWhenLlamaCppWillNotKnowSomeTensors) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(
      make(options_of(kNemotron, WeightFormat::nvfp4, Dialect::modelopt), folder / "a"));
  const Result<tensor::Store> store = tensor::Store::open(folder / "a");
  ASSERT_TRUE(store);
  CheckpointEdits edits;
  edits.put.push_back(
      {{"backbone.layers.0.mixer.A_log", tensor::DType::bf16, {8}}, std::vector<std::byte>(16)});
  ASSERT_TRUE(copy_checkpoint(*store, folder / "b", edits));

  const TranscodeReport report = convert(folder / "b", Dialect::gguf, folder / "c.gguf");

  EXPECT_TRUE(std::ranges::any_of(report.notes, [](const std::string& note) {
    return note.find("backbone.layers.0.mixer.A_log") != std::string::npos;
  }));
}

TEST(Transcode, QuantizedModulesOutsideTheExpertsAreTranslatedToo) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(
      make(options_of(kQwen, WeightFormat::nvfp4, Dialect::modelopt), folder / "a"));
  const Result<tensor::Store> store = tensor::Store::open(folder / "a");
  ASSERT_TRUE(store);
  const std::string stem = "model.layers.0.self_attn.q_proj";
  const float scale = 3e-4f;
  std::vector<std::byte> scalar(4);
  std::memcpy(scalar.data(), &scale, 4);
  CheckpointEdits edits;
  edits.put.push_back(
      {{stem + ".weight", tensor::DType::u8, {8, 32}}, std::vector<std::byte>(256)});
  edits.put.push_back({{stem + ".weight_scale", tensor::DType::f8_e4m3, {8, 4}},
                       std::vector<std::byte>(32, std::byte{0x38})});
  edits.put.push_back({{stem + ".weight_scale_2", tensor::DType::f32, {}}, scalar});
  edits.put.push_back({{stem + ".input_scale", tensor::DType::f32, {}}, scalar});
  ASSERT_TRUE(copy_checkpoint(*store, folder / "b", edits));

  convert(folder / "b", Dialect::compressed_tensors, folder / "c");
  convert(folder / "c", Dialect::modelopt, folder / "d");

  const Result<tensor::Store> there = tensor::Store::open(folder / "c");
  ASSERT_TRUE(there);
  EXPECT_NE(there->find(stem + ".weight_packed"), nullptr);
  const tensor::StoredTensor* global = there->find(stem + ".weight_global_scale");
  ASSERT_NE(global, nullptr);
  float stored = 0;
  std::memcpy(&stored, there->bytes(*global).data(), 4);
  EXPECT_EQ(stored, 1.0f / scale);
  expect_same_tensors(folder / "b", folder / "d");
  convert(folder / "b", Dialect::gguf, folder / "e.gguf");
  convert(folder / "e.gguf", Dialect::modelopt, folder / "f");
  expect_same_tensors(folder / "b", folder / "f");
}

TEST(Transcode, RefusesWhatWouldChangeValuesBeforeWritingAnything) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(
      make(options_of(kQwen, WeightFormat::nvfp4, Dialect::modelopt), folder / "nv"));
  ASSERT_NO_FATAL_FAILURE(
      make(options_of({"qwen3-30b-a3b", 2, 96, 48}, WeightFormat::nvfp4, Dialect::modelopt),
           folder / "odd"));
  ASSERT_NO_FATAL_FAILURE(make(
      options_of(kNemotron, WeightFormat::mxfp4, Dialect::compressed_tensors), folder / "no-gate"));
  ASSERT_NO_FATAL_FAILURE(
      make(options_of({"deepseek-v4-flash", 2, 64, 64}, WeightFormat::mxfp4, Dialect::deepseek_v4),
           folder / "v4"));

  const Error format = refusal(folder / "nv", Dialect::gpt_oss, folder / "x");
  EXPECT_EQ(format.id, "transcode.format");
  EXPECT_NE(format.expected.find("compressed-tensors"), std::string::npos);
  const Error blocks = refusal(folder / "odd", Dialect::gguf, folder / "x");
  EXPECT_EQ(blocks.id, "transcode.gguf_blocks");
  EXPECT_NE(blocks.remedy.find("compressed-tensors"), std::string::npos);
  EXPECT_EQ(refusal(folder / "no-gate", Dialect::gpt_oss, folder / "x").id, "transcode.no_gate");
  EXPECT_EQ(refusal(folder / "v4", Dialect::quark, folder / "x").id, "transcode.pair");
  EXPECT_EQ(refusal(folder / "nv", Dialect::deepseek_v4, folder / "x").id, "transcode.format");
  EXPECT_EQ(refusal(folder / "no-gate", Dialect::deepseek_v4, folder / "x").id, "transcode.pair");
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
}

TEST(Transcode, RefusesNegativeScalesForGgufAndLeavesNothing) {
  const TemporaryFolder folder;
  SynthOptions options = options_of(kQwen, WeightFormat::nvfp4, Dialect::modelopt);
  options.defect = "negative-scale";
  ASSERT_NO_FATAL_FAILURE(make(options, folder / "a"));

  EXPECT_EQ(refusal(folder / "a", Dialect::gguf, folder / "b.gguf").id, "transcode.negative_scale");

  EXPECT_EQ(folder.names(), std::vector<std::string>{"a"});
}

TEST(Transcode, RefusesAnExpertWithoutInputScaleAmongOthersThatHaveOne) {
  const TemporaryFolder folder;
  SynthOptions options = options_of(kQwen, WeightFormat::nvfp4, Dialect::modelopt);
  options.defect = "missing-input-scale";
  ASSERT_NO_FATAL_FAILURE(make(options, folder / "a"));

  const Error why = refusal(folder / "a", Dialect::compressed_tensors, folder / "b");

  EXPECT_EQ(why.id, "transcode.input_scale");
  EXPECT_FALSE(std::filesystem::exists(folder / "b"));
}

TEST(Transcode, StopsBetweenExpertsWhenAskedAndLeavesNothing) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(
      make(options_of(kGptOss, WeightFormat::mxfp4, Dialect::gpt_oss), folder / "a"));
  const Result<Checkpoint> source = Checkpoint::open(folder / "a");
  ASSERT_TRUE(source);
  const InterruptGuard guard;

  const Result<TranscodeReport> report =
      transcode(*source, Dialect::quark, folder / "b",
                {.threads = 1, .progress = [](std::uint64_t) { request_interrupt(); }});

  ASSERT_FALSE(report);
  EXPECT_EQ(report.why().code, ErrorCode::interrupted);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a"});
}

TEST(Transcode, RefusesAnExistingTarget) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(
      make(options_of(kGptOss, WeightFormat::mxfp4, Dialect::gpt_oss), folder / "a"));
  tensor::testing::write_text(folder / "b.gguf", "mine");

  EXPECT_EQ(refusal(folder / "a", Dialect::quark, folder / "a").id, "folder.exists");
  EXPECT_EQ(refusal(folder / "a", Dialect::gguf, folder / "b.gguf").id, "write.exists");
  EXPECT_EQ(tensor::testing::read_text(folder / "b.gguf"), "mine");
}

TEST(Transcode, RefusesRecordsThatAreNotWhatWeWrite) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(
      make(options_of(kQwen, WeightFormat::nvfp4, Dialect::gguf), folder / "a.gguf"));
  const Result<tensor::Store> store = tensor::Store::open(folder / "a.gguf");
  ASSERT_TRUE(store);
  std::vector<tensor::GgufField> fields(store->gguf_fields().begin(), store->gguf_fields().end());
  std::vector<tensor::TensorSpec> specs;
  for (const tensor::StoredTensor& t : store->tensors())
    specs.push_back({t.entry.name, t.entry.dtype, t.entry.shape});
  const auto with = [&](const char* key, const char* value, const std::string& out) {
    std::vector<tensor::GgufField> changed;
    for (const tensor::GgufField& field : fields)
      if (field.key != key) changed.push_back(field);
    changed.push_back({key, tensor::GgufType::string, std::string(value)});
    Result<tensor::GgufWriter> writer = tensor::GgufWriter::create(out, changed, specs);
    ASSERT_TRUE(writer);
    for (std::size_t i = 0; i < specs.size(); ++i)
      ASSERT_TRUE(writer->write(i, 0, store->bytes(*store->find(specs[i].name))));
    ASSERT_TRUE(writer->finish());
  };
  with("fp4moe.exact_scales", "{\"x\": \"12\"}", folder / "records.gguf");
  with("fp4moe.origin", "{\"prefix\": \"no hole\"}", folder / "origin.gguf");
  with("fp4moe.origin", "[]", folder / "list.gguf");

  EXPECT_EQ(refusal(folder / "records.gguf", Dialect::modelopt, folder / "x").id,
            "write.exact_scales");
  EXPECT_EQ(refusal(folder / "origin.gguf", Dialect::modelopt, folder / "x").id,
            "transcode.origin");
  EXPECT_EQ(refusal(folder / "list.gguf", Dialect::modelopt, folder / "x").id, "transcode.origin");
}

// Infinity, as Python writes it, would become null; a configuration that cannot be read, nothing.
TEST(Transcode, WritesNoConfigurationThatHasLostNumbers) {
  const TemporaryFolder folder;
  make(options_of(kQwen, WeightFormat::nvfp4, Dialect::modelopt), folder / "a");
  std::string text = tensor::testing::read_text(folder / "a/config.json");
  text.replace(text.find('{'), 1, "{\"time_step_limit\": [0.0, Infinity],");
  tensor::testing::write_text(folder / "a/config.json", text);
  for (const Dialect to : {Dialect::compressed_tensors, Dialect::modelopt})
    EXPECT_EQ(refusal(folder / "a", to, folder / "b").id, "config.python_numbers");
  EXPECT_FALSE(std::filesystem::exists(folder / "b"));
  convert(folder / "a", Dialect::gguf, folder / "b.gguf");  // takes some values of it alone
}

}  // namespace transcode_test
}  // namespace fp4moe::checkpoint
