#include "fp4moe/convert/folder/convert_folder.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/convert/folder/unconvert.hpp"
#include "fp4moe/convert/folder/verify.hpp"
#include "support/converted_folder.hpp"
#include "support/limits.hpp"
#include "support/tiny_model.hpp"

namespace fp4moe::convert {
namespace convert_folder_test {

namespace fs = std::filesystem;
using checkpoint::Dialect;
using checkpoint::WeightFormat;
using testing::convert;
using testing::expect_same_files;
using testing::id_of;
using testing::make_checkpoint;
using testing::recipe_of;
using testing::TemporaryFolder;

void expect_sound(const std::string& folder) {
  const auto verified = verify_folder(folder, {.threads = 2, .deep = true});
  ASSERT_TRUE(verified) << text(verified.why());
  for (const Error& finding : verified->findings) ADD_FAILURE() << text(finding);
}

void expect_back(const std::vector<std::string>& folders, const std::string& source,
                 const std::string& back) {
  const auto restored = unconvert(folders, back, {.threads = 2});
  ASSERT_TRUE(restored) << text(restored.why());
  EXPECT_TRUE(restored->is_exact);
  EXPECT_TRUE(restored->losses.empty());
  expect_same_files(source, back);
  fs::remove_all(back);
}

TEST(ConvertFolder, GivesBackTheSourceByteForByteFromEveryLayout) {
  const TemporaryFolder folder;
  for (const auto format : {WeightFormat::mxfp4, WeightFormat::nvfp4})
    make_checkpoint(folder / formats::name(format), format);
  for (const layout::Layout& layout : backends::layouts()) {
    SCOPED_TRACE(layout_text(layout.id, layout.generation));
    const std::string source = folder / formats::name(layout.format), out = folder / "out";
    const Recipe recipe{.layout = &layout, .sizing = {.hidden = 256, .intermediate = 256}};

    const auto converted = convert(source, out, recipe, {.options = {.threads = 2}});

    ASSERT_TRUE(converted) << text(converted.why());
    expect_sound(out);
    if (layout.has_no_negative_zero) {
      const std::vector<std::string> folders{out};
      EXPECT_EQ(unconvert(folders, folder / "back").why().id, "unconvert.losses");
      const auto taken = unconvert(folders, folder / "back", {.accept_losses = true});
      ASSERT_TRUE(taken) << text(taken.why());
      EXPECT_FALSE(taken->is_exact);
      EXPECT_EQ(taken->losses, converted->losses);
      fs::remove_all(folder / "back");
    } else {
      expect_back({out}, source, folder / "back");
    }
    fs::remove_all(out);
  }
}

TEST(ConvertFolder, GivesBackTheFilesOfEveryDialect) {
  struct Row {
    Dialect dialect;
    WeightFormat format;
    const char* model;
    const char* layout;
  };
  const Row rows[] = {
      {Dialect::openai, WeightFormat::mxfp4, "gpt-oss-20b", "marlin.mxfp4"},
      {Dialect::gguf, WeightFormat::mxfp4, "gpt-oss-20b", "triton.mxfp4"},
      {Dialect::quark, WeightFormat::mxfp4, "gpt-oss-20b", "aiter.mxfp4"},
      {Dialect::compressed_tensors, WeightFormat::mxfp4, "qwen3-30b-a3b", "marlin.mxfp4"},
      {Dialect::compressed_tensors, WeightFormat::nvfp4, "qwen3-30b-a3b",
       "flashinfer_trtllm.nvfp4"},
      {Dialect::gguf, WeightFormat::nvfp4, "qwen3-30b-a3b", "marlin.nvfp4"},
      {Dialect::modelopt, WeightFormat::nvfp4, "nemotron-3-nano", "marlin.nvfp4"},
      {Dialect::deepseek_v4, WeightFormat::mxfp4, "deepseek-v4-flash", "marlin.mxfp4"},
  };
  const TemporaryFolder folder;
  for (const Row& row : rows) {
    SCOPED_TRACE(std::string(checkpoint::name(row.dialect)) + " of " + row.model);
    const auto result = checkpoint::synth({.model = row.model,
                                           .dialect = row.dialect,
                                           .format = row.format,
                                           .layers = 2,
                                           .experts = 2,
                                           .hidden = 128,
                                           .intermediate = 256,
                                           .shards = 3},
                                          folder / "source");
    ASSERT_TRUE(result) << text(result.why());
    Recipe recipe = recipe_of(row.layout);
    recipe.sizing = {.hidden = 256, .intermediate = 256};
    const auto converted = convert(folder / "source", folder / "out", recipe);
    ASSERT_TRUE(converted) << text(converted.why());
    expect_sound(folder / "out");
    expect_back({folder / "out"}, folder / "source", folder / "back");
    fs::remove_all(folder / "source");
    fs::remove_all(folder / "out");
  }
}

// Sharded by tensors and by experts at once.
TEST(ConvertFolder, GivesBackTheSourceFromAllRanksAndNotFromSome) {
  for (const auto& [format, layout] : {std::pair{WeightFormat::mxfp4, "marlin.mxfp4"},
                                       std::pair{WeightFormat::nvfp4, "native_sm90.nvfp4"}}) {
    const TemporaryFolder folder;
    make_checkpoint(folder / "source", format, {.experts = 5, .intermediate = 192});
    std::vector<std::string> ranks;
    for (std::uint64_t tp = 0; tp < 2; ++tp)
      for (std::uint64_t ep = 0; ep < 3; ++ep) {
        Recipe recipe = recipe_of(layout);
        recipe.sizing = {.hidden = 128, .intermediate = 128};
        recipe.slice = {.tensor_parallel = {tp, 2},
                        .expert_parallel = {ep, 3},
                        .placement = checkpoint::Placement::round_robin};
        ranks.push_back(folder / fmt::format("rank-{}-{}", tp, ep));
        const auto converted = convert(folder / "source", ranks.back(), recipe);
        ASSERT_TRUE(converted) << text(converted.why());
        expect_sound(ranks.back());
      }
    expect_back(ranks, folder / "source", folder / "back");

    const std::vector<std::string> some(ranks.begin() + 1, ranks.end());
    const Error missing = unconvert(some, folder / "back").why();
    EXPECT_EQ(missing.id, "unconvert.ranks");
    EXPECT_NE(missing.found.find("tp 0/2, ep 0/3 is missing"), std::string::npos) << missing.found;
    const std::vector<std::string> twice{ranks[0], ranks[0]};
    EXPECT_EQ(unconvert(twice, folder / "back").why().id, "unconvert.ranks");
    make_checkpoint(folder / "other", format, {.experts = 5, .hidden = 256, .intermediate = 192});
    ASSERT_TRUE(convert(folder / "other", folder / "stranger",
                        {.layout = recipe_of(layout).layout, .sizing = {.intermediate = 256}}));
    const std::vector<std::string> mixed{ranks[0], folder / "stranger"};
    EXPECT_EQ(unconvert(mixed, folder / "back").why().id, "unconvert.ranks");
    EXPECT_EQ(unconvert({}, folder / "back").why().id, "unconvert.ranks");
    EXPECT_FALSE(fs::exists(folder / "back"));
  }
}

// One scale for all experts of all ranks: a rank's part has the whole layer's.
TEST(ConvertFolder, TakesSharedInputScalesFromTheExpertsOfAllRanks) {
  const TemporaryFolder folder;
  make_checkpoint(folder / "source", WeightFormat::nvfp4, {.experts = 4});
  Recipe recipe = recipe_of("flashinfer_trtllm.nvfp4");
  recipe.sizing = {.hidden = 256, .intermediate = 256};
  ASSERT_TRUE(convert(folder / "source", folder / "whole", recipe));
  const ConvertedFolder whole = *ConvertedFolder::open(folder / "whole");
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    recipe.slice.expert_parallel = {rank, 2};
    const std::string out = folder / fmt::format("rank-{}", rank);
    ASSERT_TRUE(convert(folder / "source", out, recipe));
    const ConvertedFolder part = *ConvertedFolder::open(out);
    const auto all = whole.layer(0), own = part.layer(0);
    ASSERT_EQ(all.size(), own.size());
    for (std::size_t t = 0; t < all.size(); ++t) {
      const auto bytes = own[t].view.bytes;
      const std::size_t share = all[t].view.bytes.size() / 2;
      const bool is_shared = all[t].view.bytes.size() == bytes.size();
      const auto expected =
          is_shared ? all[t].view.bytes : all[t].view.bytes.subspan(rank * share, share);
      EXPECT_TRUE(std::ranges::equal(bytes, expected)) << all[t].name << " of rank " << rank;
    }
  }
}

TEST(ConvertFolder, GivesTheSameBytesWithAnyNumberOfThreads) {
  const TemporaryFolder folder;
  make_checkpoint(folder / "source", WeightFormat::nvfp4, {.experts = 7, .layers = 2});
  for (const std::size_t threads : {1, 3, 16})
    ASSERT_TRUE(convert(folder / "source", folder / std::to_string(threads),
                        recipe_of("marlin.nvfp4"), {.options = {.threads = threads}}));
  expect_same_files(folder / "1", folder / "3");
  expect_same_files(folder / "1", folder / "16");
}

// Stops after a part of the bytes, as Ctrl-C would.
Result<ConvertReport> stop_after(std::uint64_t bytes, const std::string& from,
                                 const std::string& to, const Recipe& recipe, bool resume) {
  const InterruptGuard guard;
  std::atomic<std::uint64_t> done{0};
  ConvertOptions options{.threads = 2, .resume = resume};
  options.progress = [&](std::uint64_t more) {
    if (done.fetch_add(more) + more >= bytes) request_interrupt();
  };
  return convert(from, to, recipe, {.options = options});
}

TEST(ConvertFolder, GoesOnAfterAnInterruptAndGivesTheSameBytes) {
  const TemporaryFolder folder;
  make_checkpoint(folder / "source", WeightFormat::mxfp4, {.layers = 4});
  const Recipe recipe = recipe_of("marlin.mxfp4");
  const auto whole = convert(folder / "source", folder / "whole", recipe);
  ASSERT_TRUE(whole) << text(whole.why());
  const std::uint64_t all = whole->expert_bytes + whole->other_bytes;
  for (const std::uint64_t share : {1, 3, 5, 7, 8}) {
    bool resume = false;
    for (std::uint64_t stop = share; stop < 9; stop += 3, resume = true) {
      const auto stopped =
          stop_after(all * stop / 9, folder / "source", folder / "out", recipe, resume);
      ASSERT_FALSE(stopped);
      EXPECT_EQ(stopped.why().code, ErrorCode::interrupted);
      EXPECT_FALSE(fs::exists(folder / "out"));
    }
    const auto done =
        convert(folder / "source", folder / "out", recipe, {.options = {.resume = true}});
    ASSERT_TRUE(done) << text(done.why());
    if (share > 4) {
      EXPECT_GT(done->resumed_files, 0u);
    }
    expect_same_files(folder / "whole", folder / "out");
    EXPECT_FALSE(fs::exists(folder / ".out.partial"));
    fs::remove_all(folder / "out");
  }
}

class Resume : public ::testing::Test {
 protected:
  void SetUp() override {
    make_checkpoint(folder_ / "source", WeightFormat::mxfp4, {.layers = 3});
    const auto plan =
        plan_folder(*checkpoint::Checkpoint::open(folder_ / "source"), folder_ / "source", recipe_);
    ASSERT_TRUE(plan);
    // In the last of three layers.
    const std::uint64_t max = plan->other_bytes + plan->expert_bytes * 3 / 4;
    const auto stopped = stop_after(max, folder_ / "source", folder_ / "out", recipe_, false);
    ASSERT_FALSE(stopped);
    EXPECT_NE(stopped.why().remedy.find("--resume"), std::string::npos) << stopped.why().remedy;
    ASSERT_TRUE(fs::exists(folder_ / ".out.partial/fp4moe-journal.json"));
  }
  Result<ConvertReport> resume(const Recipe& recipe, bool experts_only = false) {
    return convert(folder_ / "source", folder_ / "out", recipe,
                   {.options = {.resume = true}, .folder = {.experts_only = experts_only}});
  }

  TemporaryFolder folder_{};
  Recipe recipe_ = recipe_of("marlin.mxfp4");
};

TEST_F(Resume, RefusesOtherOptionsNamingWhatDiffers) {
  const auto other = resume(recipe_of("as_loaded.mxfp4"));
  EXPECT_EQ(id_of(other), "convert.resume");
  EXPECT_EQ(other.why().message, "what was begun had another layout");
  EXPECT_EQ(other.why().expected, "\"marlin.mxfp4\"");
  Recipe sliced = recipe_;
  sliced.slice.expert_parallel = {1, 2};
  EXPECT_EQ(resume(sliced).why().message, "what was begun had another ep");
  Recipe padded = recipe_;
  padded.sizing.hidden = 256;
  EXPECT_EQ(resume(padded).why().message, "what was begun had another padded sizes");
  EXPECT_EQ(resume(recipe_, true).why().message, "what was begun had another experts_only");
  EXPECT_TRUE(fs::exists(folder_ / ".out.partial/fp4moe-journal.json"));
  EXPECT_TRUE(resume(recipe_));
}

TEST_F(Resume, RefusesASourceThatChangedMeanwhile) {
  const std::string file = folder_ / "source/model.safetensors";
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(5));
  const auto changed = resume(recipe_);
  EXPECT_EQ(id_of(changed), "convert.resume");
  EXPECT_EQ(changed.why().message, "what was begun had another source file");
}

TEST_F(Resume, BeginsAnewWithoutTheOptionOrWithoutAJournal) {
  const auto anew = convert(folder_ / "source", folder_ / "out", recipe_);
  ASSERT_TRUE(anew);
  EXPECT_EQ(anew->resumed_files, 0u);
  const auto second =
      convert(folder_ / "source", folder_ / "again", recipe_, {.options = {.resume = true}});
  ASSERT_TRUE(second) << text(second.why());
  EXPECT_EQ(second->resumed_files, 0u);
  expect_same_files(folder_ / "out", folder_ / "again");
}

TEST_F(Resume, MakesFilesAnewThatAreNotWhatTheJournalSays) {
  const std::string file = folder_ / ".out.partial/experts-00000.safetensors";
  ASSERT_TRUE(fs::exists(file));
  fs::resize_file(file, 100);
  ASSERT_TRUE(resume(recipe_));
  expect_sound(folder_ / "out");
}

// One byte in the middle of a file becomes another.
void damage(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(path) / 2);
  file.seekg(middle);
  const int byte = file.get();
  file.seekp(middle);
  file.put(static_cast<char>(byte ^ 1));
}

TEST_F(Resume, ChecksFinishedFilesAndMakesDamagedOnesAgain) {
  ASSERT_TRUE(convert(folder_ / "source", folder_ / "whole", recipe_));
  for (const char* name : {"experts-00000", "source", "others-00001"})
    damage(folder_ / ".out.partial/" + name + ".safetensors");
  const auto resumed = resume(recipe_);
  ASSERT_TRUE(resumed) << text(resumed.why());
  EXPECT_EQ(resumed->damaged_files, 3u);
  EXPECT_EQ(resumed->resumed_files, 1u);
  expect_same_files(folder_ / "whole", folder_ / "out");
}

TEST_F(Resume, RefusesAJournalInWhichAnythingChanged) {
  const std::string path = folder_ / ".out.partial/fp4moe-journal.json";
  std::string journal = tensor::testing::read_text(path);
  const std::size_t at = journal.find("\"content_xxh3_128\":\"");
  ASSERT_NE(at, std::string::npos);
  char& digit = journal[at + 20];
  digit = digit == '0' ? '1' : '0';
  tensor::testing::write_text(path, journal);
  EXPECT_EQ(id_of(resume(recipe_)), "converted.manifest");
}

TEST_F(Resume, IsNotHeldUpByAPipeInTheJournalsPlace) {
  const std::string path = folder_ / ".out.partial/fp4moe-journal.json";
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const auto resumed = resume(recipe_);
  ASSERT_TRUE(resumed) << text(resumed.why());
  EXPECT_EQ(resumed->resumed_files, 0u);
}

TEST_F(Resume, RefusesADamagedJournalOfTheSameConversion) {
  const std::string path = folder_ / ".out.partial/fp4moe-journal.json";
  std::string journal = tensor::testing::read_text(path);
  const std::size_t at = journal.find("\"header_bytes\":");
  ASSERT_NE(at, std::string::npos);
  journal.replace(at, 16, "\"header_bytes\":-");
  tensor::testing::write_text(path, journal);
  EXPECT_EQ(id_of(resume(recipe_)), "converted.manifest");
}

// A GGUF file with so many bytes behind its last tensor, none of them on the disk.
void make_sparse(const std::string& path, std::uint64_t tail) {
  ASSERT_TRUE(checkpoint::synth({.model = "gpt-oss-20b",
                                 .dialect = Dialect::gguf,
                                 .experts = 2,
                                 .hidden = 64,
                                 .intermediate = 64},
                                path));
  fs::resize_file(path, fs::file_size(path) + tail);
}

TEST(ConvertFolder, StaysWithinItsMemoryWhateverLiesOutsideTensors) {
  if (!fp4moe::testing::has_own_memory()) GTEST_SKIP() << "a sanitizer keeps freed memory";
  constexpr std::uint64_t kTail = 120 << 20;
  const TemporaryFolder folder;
  make_sparse(folder / "a.gguf", kTail);
  const int status = fp4moe::testing::status_in_child([&] {
    const std::uint64_t before = fp4moe::testing::peak_bytes();
    const auto checkpoint = checkpoint::Checkpoint::open(folder / "a.gguf");
    if (!checkpoint) return 1;
    auto plan = plan_folder(*checkpoint, folder / "a.gguf", recipe_of("as_loaded.mxfp4"));
    if (!plan || plan->kept_bytes < kTail) return 2;
    const std::uint64_t allowed = memory_of(*plan, 1);
    if (!convert_folder(*checkpoint, *std::move(plan), folder / "out")) return 3;
    return fp4moe::testing::peak_bytes() - before <= allowed ? 0 : 4;
  });
  EXPECT_EQ(status, 0);
  const std::vector<std::string> out{folder / "out"};
  ASSERT_TRUE(unconvert(out, folder / "back"));
  EXPECT_TRUE(tensor::testing::read_text(folder / "a.gguf") ==
              tensor::testing::read_text(folder / "back/a.gguf"));
}

// A GGUF file whose metadata hold a list of so many zeros and one of so many empty strings.
void make_lists(const std::string& path, std::uint64_t zeros, std::uint64_t strings) {
  const TemporaryFolder folder;
  make_sparse(folder / "a.gguf", 0);
  const auto store = tensor::Store::open(folder / "a.gguf");
  ASSERT_TRUE(store) << text(store.why());
  std::vector<tensor::GgufField> fields(store->gguf_fields().begin(), store->gguf_fields().end());
  fields.push_back({"zeros", tensor::GgufType::u8, std::vector<std::uint64_t>(zeros)});
  fields.push_back({"strings", tensor::GgufType::string, std::vector<std::string>(strings)});
  std::vector<checkpoint::testing::FileTensor> tensors;
  for (const tensor::StoredTensor& tensor : store->tensors()) {
    const auto bytes = store->bytes(tensor);
    tensors.push_back(
        {tensor.entry.name, tensor.entry.dtype, tensor.entry.shape, {bytes.begin(), bytes.end()}});
  }
  checkpoint::testing::write_gguf(path, tensors, fields);
}

// 0 if a conversion in a process of its own takes no more memory than its plan says, of which
// `counted` is for headers and documents.
int status_within_its_memory(const std::string& source, const std::string& out,
                             std::uint64_t counted) {
  return fp4moe::testing::status_in_child([&] {
    const std::uint64_t before = fp4moe::testing::peak_bytes();
    const auto checkpoint = checkpoint::Checkpoint::open(source);
    if (!checkpoint) return 1;
    auto plan = plan_folder(*checkpoint, source, recipe_of("as_loaded.mxfp4"));
    if (!plan || plan->header_bytes < counted) return 2;
    const std::uint64_t allowed = memory_of(*plan, 1);
    if (threads_within(*plan, 1, allowed - counted).why().id != "convert.memory") return 3;
    if (!convert_folder(*checkpoint, *std::move(plan), out)) return 4;
    return fp4moe::testing::peak_bytes() - before <= allowed ? 0 : 5;
  });
}

TEST(ConvertFolder, CountsWhatAGgufHeaderSays) {
  if (!fp4moe::testing::has_own_memory()) GTEST_SKIP() << "a sanitizer keeps freed memory";
  constexpr std::uint64_t kHalf = tensor::kMaxGgufElements / 2;
  const TemporaryFolder folder;
  const int made = fp4moe::testing::status_in_child([&] {
    make_lists(folder / "a.gguf", kHalf, kHalf - 1000);
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  ASSERT_EQ(made, 0);
  EXPECT_EQ(status_within_its_memory(folder / "a.gguf", folder / "out", 70 << 20), 0);
}

// Names of 40 KB, metadata of 16 MB, and a configuration of 2 MB.
void make_long_words(const std::string& path) {
  const TemporaryFolder folder;
  make_checkpoint(folder / "a", WeightFormat::mxfp4);
  const auto store = tensor::Store::open(folder / "a");
  ASSERT_TRUE(store) << text(store.why());
  std::vector<tensor::TensorSpec> specs;
  for (const tensor::StoredTensor& tensor : store->tensors())
    specs.push_back({tensor.entry.name, tensor.entry.dtype, tensor.entry.shape});
  const std::string name(40'000, 'x');
  for (int i = 0; i < 400; ++i) specs.push_back({name + std::to_string(i), tensor::DType::u8, {0}});
  fs::create_directory(path);
  auto writer = tensor::SafetensorsWriter::create(path + "/model.safetensors", specs,
                                                  {{"note", std::string(16'000'000, 'x')}});
  ASSERT_TRUE(writer) << text(writer.why());
  for (std::size_t i = 0; i < store->tensors().size(); ++i)
    ASSERT_TRUE(writer->write(i, 0, store->bytes(store->tensors()[i])));
  ASSERT_TRUE(writer->finish());
  std::string config = tensor::testing::read_text(folder / "a/config.json");
  std::string zeros = "\"zeros\": [0";
  for (int i = 0; i < 1'000'000; ++i) zeros += ",0";
  config.insert(config.find('{') + 1, zeros + "],");
  tensor::testing::write_text(path + "/config.json", config);
}

TEST(ConvertFolder, CountsWhatASafetensorsHeaderAndDocumentsSay) {
  if (!fp4moe::testing::has_own_memory()) GTEST_SKIP() << "a sanitizer keeps freed memory";
  const TemporaryFolder folder;
  const int made = fp4moe::testing::status_in_child([&] {
    make_long_words(folder / "a");
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  ASSERT_EQ(made, 0);
  EXPECT_EQ(status_within_its_memory(folder / "a", folder / "out", 200 << 20), 0);
}

TEST(ConvertFolder, CountsWhatItKeepsOfEveryTensor) {
  const TemporaryFolder folder;
  make_checkpoint(folder / "source", WeightFormat::mxfp4);
  const auto checkpoint = checkpoint::Checkpoint::open(folder / "source");
  ASSERT_TRUE(checkpoint);
  auto plan = plan_folder(*checkpoint, folder / "source", recipe_of("marlin.mxfp4"));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->source_tensors, checkpoint->store().tensors().size());
  const std::uint64_t few = memory_of(*plan, 2);
  plan->source_tensors = 232'768;  // 800 bytes each were measured
  EXPECT_EQ(memory_of(*plan, 2), few + 200'000 * 1024);
  EXPECT_EQ(threads_within(*plan, 2, few).why().id, "convert.memory");
  EXPECT_EQ(*threads_within(*plan, 2, memory_of(*plan, 2)), 2u);
}

TEST(ConvertFolder, RefusesAFileThatIsMostlyNoTensor) {
  const TemporaryFolder folder;
  make_sparse(folder / "a.gguf", std::uint64_t{1} << 30);
  const auto converted = convert(folder / "a.gguf", folder / "out", recipe_of("as_loaded.mxfp4"));
  EXPECT_EQ(id_of(converted), "convert.frame");
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(ConvertFolder, NoticesASourceThatChangesUnderIt) {
  const TemporaryFolder folder;
  make_checkpoint(folder / "source", WeightFormat::mxfp4);
  ConvertOptions options;
  options.progress = [&](std::uint64_t) {
    std::fstream file(folder / "source/model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end).put('x');
  };

  const auto converted =
      convert(folder / "source", folder / "out", recipe_of("marlin.mxfp4"), {.options = options});

  EXPECT_EQ(id_of(converted), "convert.source_changed");
  EXPECT_EQ(converted.why().code, ErrorCode::invalid_input);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"source"});
}

TEST(ConvertFolder, RefusesDamagedScalesAndLeavesNothing) {
  const TemporaryFolder folder;
  const auto result = checkpoint::synth(
      {.experts = 2, .hidden = 128, .intermediate = 128, .defect = "nan-scale"}, folder / "source");
  ASSERT_TRUE(result) << text(result.why());

  const auto converted = convert(folder / "source", folder / "out", recipe_of("marlin.mxfp4"));

  EXPECT_EQ(id_of(converted), "scale.nan");
  EXPECT_EQ(converted.why().code, ErrorCode::invalid_input);
  EXPECT_NE(converted.why().tensor.find("scales"), std::string::npos);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"source"});
}

TEST(ConvertFolder, RefusesWhatCannotBe) {
  const TemporaryFolder folder;
  make_checkpoint(folder / "source", WeightFormat::mxfp4, {.intermediate = 160});
  const auto refuse = [&](const Recipe& recipe, const ConvertOptions& options = {}) {
    const auto result = convert(folder / "source", folder / "out", recipe, {.options = options});
    return result ? usage("ok", "") : result.why();
  };
  EXPECT_EQ(refuse(recipe_of("marlin.nvfp4")).id, "layout.format");
  const Error size = refuse(recipe_of("flashinfer_trtllm.mxfp4"));
  EXPECT_EQ(size.id, "layout.size");
  EXPECT_FALSE(size.remedy.empty());
  Recipe small = recipe_of("marlin.mxfp4");
  small.sizing.hidden = 64;
  EXPECT_EQ(refuse(small).id, "convert.padding");
  small.sizing = {.intermediate = 96};
  EXPECT_EQ(refuse(small).id, "convert.padding");
  Recipe sliced = recipe_of("as_loaded.mxfp4");
  sliced.slice.tensor_parallel = {5, 6};
  EXPECT_EQ(refuse(sliced).id, "slice.empty");
  sliced.slice = {.expert_parallel = {3, 4}};
  EXPECT_EQ(refuse(sliced).id, "slice.experts");
  const Error memory = refuse(recipe_of("as_loaded.mxfp4"), {.max_memory = 1 << 20});
  EXPECT_EQ(memory.id, "convert.memory");
  EXPECT_EQ(memory.code, ErrorCode::exhausted);
  fs::create_directory(folder / "out");
  tensor::testing::write_text(folder / "out/file", "mine");
  EXPECT_EQ(refuse(recipe_of("as_loaded.mxfp4")).id, "folder.exists");
  EXPECT_EQ(folder.names().size(), 2u);

  const auto result = checkpoint::synth({.model = "qwen3-30b-a3b",
                                         .format = WeightFormat::nvfp4,
                                         .experts = 2,
                                         .hidden = 128,
                                         .intermediate = 128,
                                         .with_input_scales = false},
                                        folder / "weight-only");
  ASSERT_TRUE(result) << text(result.why());
  EXPECT_EQ(id_of(convert(folder / "weight-only", folder / "x", recipe_of("vllm_cutlass.nvfp4"))),
            "scale.input");
}

TEST(ConvertFolder, UsesAsManyThreadsAsMemoryAllows) {
  const TemporaryFolder folder;
  make_checkpoint(folder / "source", WeightFormat::mxfp4, {.experts = 8});
  const auto checkpoint = checkpoint::Checkpoint::open(folder / "source");
  const auto plan = plan_folder(*checkpoint, folder / "source", recipe_of("marlin.mxfp4"));
  ASSERT_TRUE(plan);
  EXPECT_EQ(*threads_within(*plan, 16, 0), 16u);
  EXPECT_EQ(*threads_within(*plan, 16, memory_of(*plan, 5)), 5u);
  EXPECT_EQ(*threads_within(*plan, 16, memory_of(*plan, 6) - 1), 5u);
  EXPECT_EQ(*threads_within(*plan, 2, memory_of(*plan, 5)), 2u);
  EXPECT_EQ(threads_within(*plan, 1, memory_of(*plan, 1) - 1).why().id, "convert.memory");
}

TEST(ConvertFolder, CanLeaveTheOtherTensorsOut) {
  const TemporaryFolder folder;
  make_checkpoint(folder / "source", WeightFormat::nvfp4);
  const auto converted = convert(folder / "source", folder / "out", recipe_of("marlin.nvfp4"),
                                 {.folder = {.experts_only = true}});
  ASSERT_TRUE(converted) << text(converted.why());
  EXPECT_FALSE(fs::exists(folder / "out/others-00001.safetensors"));
  expect_sound(folder / "out");
  const std::vector<std::string> folders{folder / "out"};
  EXPECT_EQ(unconvert(folders, folder / "back").why().id, "unconvert.experts_only");
}

TEST(ConvertFolder, NoticesAFullDiskAndKeepsNothing) {
  const TemporaryFolder folder;
  make_checkpoint(folder / "source", WeightFormat::mxfp4);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 14, 1 << 14};
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto converted = convert(folder / "source", folder / "out", recipe_of("marlin.mxfp4"),
                                   {.folder = {.experts_only = true}});
    _exit(!converted && converted.why().id == "file.disk_full" &&
                  converted.why().code == ErrorCode::exhausted
              ? 0
              : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_FALSE(fs::exists(folder / "out"));
  // The kept headers were finished before the disk was full.
  ASSERT_TRUE(convert(folder / "source", folder / "out", recipe_of("marlin.mxfp4"),
                      {.options = {.resume = true}, .folder = {.experts_only = true}}));
  EXPECT_FALSE(fs::exists(folder / ".out.partial"));
}

}  // namespace convert_folder_test
}  // namespace fp4moe::convert
