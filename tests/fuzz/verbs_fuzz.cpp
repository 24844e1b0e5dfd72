// Whole commands on files: a sound checkpoint, a few bytes of it changed, then lint, convert, verify,
// unconvert and transcode.
//
//   byte 0   which checkpoint     byte 1   which layout or dialect to make
//   then changes of six bytes: which file, where (2: a share of its first bytes), what, two operands
//
// Whatever the bytes: each command ends with an error in words or keeps its promise. A conversion
// that succeeds is verified without findings and gives back the same files, and nothing half done
// stays in the folder.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "choices.hpp"
#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/checkpoint/edit/transcode.hpp"
#include "fp4moe/checkpoint/lint/lint.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "fp4moe/convert/folder/convert_folder.hpp"
#include "fp4moe/convert/folder/unconvert.hpp"
#include "fp4moe/convert/folder/verify.hpp"
#include "fuzz.hpp"
#include "support/temporary_folder.hpp"

namespace fp4moe {
namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;  // name, content

constexpr std::size_t kNear = 4096;  // headers are at the front
constexpr std::size_t kMaxChanges = 8;

struct Kind {
  const char* model;
  checkpoint::Dialect dialect;
  checkpoint::WeightFormat format;
  std::uint64_t shards;
};
constexpr auto kMxfp4 = checkpoint::WeightFormat::mxfp4, kNvfp4 = checkpoint::WeightFormat::nvfp4;
constexpr std::array kKinds{
    Kind{"gpt-oss-20b", checkpoint::Dialect::gpt_oss, kMxfp4, 1},
    Kind{"gpt-oss-20b", checkpoint::Dialect::quark, kMxfp4, 2},
    Kind{"gpt-oss-20b", checkpoint::Dialect::gguf, kMxfp4, 1},
    Kind{"gpt-oss-20b", checkpoint::Dialect::openai, kMxfp4, 1},
    Kind{"qwen3-30b-a3b", checkpoint::Dialect::modelopt, kNvfp4, 2},
    Kind{"qwen3-30b-a3b", checkpoint::Dialect::compressed_tensors, kNvfp4, 1},
    Kind{"qwen3-30b-a3b", checkpoint::Dialect::gguf, kNvfp4, 1},
};

Files read_files(const std::string& folder) {
  Files files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename().string()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

const Files& sound(std::size_t kind) {
  static std::array<Files, kKinds.size()> all;
  if (!all[kind].empty()) return all[kind];
  const testing::TemporaryFolder folder;
  const bool is_gguf = kKinds[kind].dialect == checkpoint::Dialect::gguf;
  if (is_gguf) fs::create_directory(folder / "in");
  const auto result = checkpoint::synth({.model = kKinds[kind].model,
                                         .dialect = kKinds[kind].dialect,
                                         .format = kKinds[kind].format,
                                         .experts = 2,
                                         .hidden = 64,
                                         .intermediate = 64,
                                         .shards = kKinds[kind].shards},
                                        is_gguf ? folder / "in/model.gguf" : folder / "in");
  fuzz::require(static_cast<bool>(result));
  return all[kind] = read_files(folder / "in");
}

void change(Files& files, fuzz::Choices& choices) {
  const auto file = std::next(files.begin(), choices.byte() % static_cast<int>(files.size()));
  std::string& text = file->second;
  const std::size_t at = choices.below(static_cast<std::uint32_t>(std::min(text.size(), kNear)));
  const std::uint8_t what = choices.byte(), a = choices.byte(), b = choices.byte();
  switch (what % 6) {
    case 0:
      if (!text.empty()) text[at] = static_cast<char>(a);
      break;
    case 1:
      text.insert(at, b % 8 + 1u, static_cast<char>(a));
      break;
    case 2:
      text.erase(at, b % 8 + 1u);
      break;
    case 3:
      text.resize(text.size() * a / 256);
      break;
    case 4:
      text.append(std::size_t{a} * 256 + b, '\0');
      break;
    default:
      if (a % 8 == 7 && files.size() > 1) files.erase(file);
  }
}

void write_files(const Files& files, const std::string& folder) {
  fs::create_directory(folder);
  for (const auto& [name, content] : files)
    std::ofstream(folder + "/" + name, std::ios::binary) << content;
}

void convert_and_back(const checkpoint::Checkpoint& checkpoint, const std::string& source,
                      const testing::TemporaryFolder& folder, std::uint8_t which) {
  const auto layouts = backends::layouts();
  const convert::Recipe recipe{.layout = &layouts[which % layouts.size()],
                               .sizing = {.hidden = 256, .intermediate = 256}};
  auto plan = convert::plan_folder(checkpoint, source, recipe);
  if (!plan) return fuzz::require_words(plan.why());
  const auto converted = convert::convert_folder(checkpoint, *std::move(plan), folder / "out");
  if (!converted) return fuzz::require_words(converted.why());
  const auto report = convert::verify_folder(folder / "out", {.deep = true});
  fuzz::require(report && report->findings.empty());
  const std::vector<std::string> folders{folder / "out"};
  const auto back = convert::unconvert(folders, folder / "back", {.accept_losses = true});
  if (!back) return fuzz::require_words(back.why());
  if (!back->is_exact) return fuzz::require(!converted->losses.empty());
  for (const auto& [name, content] : read_files(source))
    if (name.ends_with(".safetensors") || name.ends_with(".gguf"))
      fuzz::require(testing::read_text(folder / ("back/" + name)) == content);
}

void transcode(const checkpoint::Checkpoint& checkpoint, const testing::TemporaryFolder& folder,
               std::uint8_t which) {
  const auto target = kKinds[which % kKinds.size()].dialect;
  const auto done = checkpoint::transcode(checkpoint, target, folder / "other");
  if (!done) return fuzz::require_words(done.why());
  fuzz::require(static_cast<bool>(checkpoint::Checkpoint::open(folder / "other")));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Choices choices(data, size);
  Files files = sound(choices.byte() % kKinds.size());
  const std::uint8_t which = choices.byte();
  for (std::size_t i = 0; i < kMaxChanges && !choices.is_over() && !files.empty(); ++i)
    change(files, choices);
  const testing::TemporaryFolder folder;
  const std::string source = folder / "in";
  write_files(files, source);
  checkpoint::lint(source, {.deep = true});
  const auto checkpoint = checkpoint::Checkpoint::open(source);
  if (!checkpoint) {
    fuzz::require_words(checkpoint.why());
  } else {
    convert_and_back(*checkpoint, source, folder, which);
    transcode(*checkpoint, folder, which);
  }
  for (const std::string& name : folder.names()) fuzz::require(!name.starts_with('.'));
  return 0;
}

}  // namespace fp4moe
