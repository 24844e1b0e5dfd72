// What tests of conversion share: small checkpoints, converted; folders compared byte by byte.
#pragma once
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "fp4moe/convert/folder/convert_folder.hpp"
#include "support/files.hpp"

namespace fp4moe::convert::testing {

using tensor::testing::TemporaryFolder;

struct Shape {
  std::uint64_t experts = 3, hidden = 128, intermediate = 128, layers = 1;
};

// gpt-oss with biases for MXFP4, Qwen3 with input scales for NVFP4, unless told otherwise.
inline void make_checkpoint(const std::string& out, checkpoint::WeightFormat format,
                            Shape shape = {}, std::optional<checkpoint::Dialect> dialect = {}) {
  const bool mxfp4 = format == checkpoint::WeightFormat::mxfp4;
  const auto created = checkpoint::synth({.model = mxfp4 ? "gpt-oss-20b" : "qwen3-30b-a3b",
                                          .dialect = dialect,
                                          .format = format,
                                          .layers = shape.layers,
                                          .experts = shape.experts,
                                          .hidden = shape.hidden,
                                          .intermediate = shape.intermediate},
                                         out);
  ASSERT_TRUE(created) << text(created.why());
}

// One of each format, made once.
inline constexpr Shape kTinyShape{.experts = 6, .hidden = 128, .intermediate = 96};
inline const checkpoint::Checkpoint& tiny_checkpoint(checkpoint::WeightFormat format) {
  static const TemporaryFolder kFolder;
  static const auto kBoth = [] {
    std::vector<checkpoint::Checkpoint> created;
    for (const auto each : {checkpoint::WeightFormat::mxfp4, checkpoint::WeightFormat::nvfp4}) {
      const std::string path = kFolder.path() + "/" + std::string(formats::name(each));
      make_checkpoint(path, each, kTinyShape);
      auto opened = checkpoint::Checkpoint::open(path);
      EXPECT_TRUE(opened) << text(opened.why());
      created.push_back(std::move(*opened));
    }
    return created;
  }();
  return kBoth[format == checkpoint::WeightFormat::mxfp4 ? 0 : 1];
}

inline Recipe recipe_of(std::string_view layout, std::string_view generation = {}) {
  const auto found = backends::require_layout(layout, generation);
  EXPECT_TRUE(found) << text(found.why());
  return {.layout = found ? *found : nullptr};
}

struct FolderConvertOptions {
  ConvertOptions options{};
  FolderOptions folder{};
};

inline Result<ConvertReport> convert(const std::string& from, const std::string& to,
                                     const Recipe& recipe,
                                     const FolderConvertOptions& options = {}) {
  const Result<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::open(from);
  if (!checkpoint) return checkpoint.why();
  Result<FolderPlan> plan = plan_folder(*checkpoint, from, recipe, options.folder);
  if (!plan) return plan.why();
  return convert_folder(*checkpoint, *std::move(plan), to, options.options);
}

inline std::string id_of(const Result<ConvertReport>& result) {
  return result ? "ok" : result.why().id;
}

// Every file with its bytes, hidden ones too.
inline std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      files[std::filesystem::relative(entry.path(), folder).string()] =
          tensor::testing::read_text(entry.path().string());
  return files;
}

inline void expect_same_files(const std::string& expected, const std::string& found) {
  const auto left = files_of(expected), right = files_of(found);
  for (const auto& [name, bytes] : left) {
    const auto at = right.find(name);
    if (at == right.end()) {
      ADD_FAILURE() << name << " is missing in " << found;
    } else if (at->second != bytes) {
      const auto where = std::ranges::mismatch(bytes, at->second).in1 - bytes.begin();
      ADD_FAILURE() << name << " differs at byte " << where << ": " << bytes.size() << " and "
                    << at->second.size() << " bytes";
    }
  }
  for (const auto& [name, bytes] : right) EXPECT_TRUE(left.contains(name)) << name << " is new";
}

}  // namespace fp4moe::convert::testing
