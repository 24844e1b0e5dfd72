// Whole commands on a converted folder whose manifest was changed and given the right checksum, as
// somebody would who wants to deceive: verify, run's opening, unconvert.
//
//   byte 0   which folder
//   then changes of the manifest: the way down to a value (a byte for each level), what becomes of it
//
// Whatever the bytes: each command ends with an error in words, and nothing is written outside the
// output.
#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "choices.hpp"
#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "fp4moe/convert/folder/convert_folder.hpp"
#include "fp4moe/convert/folder/unconvert.hpp"
#include "fp4moe/convert/folder/verify.hpp"
#include "fuzz.hpp"
#include "sealed.hpp"
#include "support/temporary_folder.hpp"

namespace fp4moe {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxChanges = 4;
constexpr std::array kLayouts{"as_loaded.mxfp4", "marlin.mxfp4", "cpu_native.mxfp4"};

// One sound checkpoint, and what it is in every layout; made once.
struct Sound {
  testing::TemporaryFolder folder{};
  std::array<std::string, kLayouts.size()> manifests{};

  Sound() {
    fuzz::require(static_cast<bool>(checkpoint::synth(
        {.model = "gpt-oss-20b", .experts = 2, .hidden = 64, .intermediate = 64}, folder / "in")));
    const auto source = checkpoint::Checkpoint::open(folder / "in");
    fuzz::require(static_cast<bool>(source));
    for (std::size_t i = 0; i < kLayouts.size(); ++i) {
      const auto layout = backends::require_layout(kLayouts[i], {});
      fuzz::require(static_cast<bool>(layout));
      auto plan = convert::plan_folder(*source, folder / "in", {.layout = *layout});
      fuzz::require(static_cast<bool>(plan));
      const std::string out = folder / kLayouts[i];
      fuzz::require(static_cast<bool>(convert::convert_folder(*source, *std::move(plan), out)));
      manifests[i] = testing::read_text(out + "/fp4moe.json");
    }
  }
};

Json replacement(fuzz::Choices& choices) {
  static const std::vector<Json> kValues{nullptr,
                                         true,
                                         0,
                                         1,
                                         -1,
                                         2,
                                         3,
                                         64,
                                         65,
                                         4096,
                                         1u << 31,
                                         ~std::uint64_t{0},
                                         0.5,
                                         1e300,
                                         "",
                                         "..",
                                         "../in/config.json",
                                         "/etc/hostname",
                                         "fp4moe.json",
                                         "config.json",
                                         "linear",
                                         "1/2",
                                         "0/0",
                                         "as_loaded.mxfp4",
                                         "marlin.nvfp4",
                                         "U8",
                                         "F32",
                                         Json::array(),
                                         Json::object(),
                                         std::string(300, 'x'),
                                         "\x1b[0m",
                                         "e27a97f327c2969a8b0700262ea6b7e5"};
  return kValues[choices.byte() % kValues.size()];
}

void change(Json& manifest, fuzz::Choices& choices) {
  Json* place = &manifest;
  while (place->is_structured() && !place->empty()) {
    const std::size_t which = choices.byte() % place->size();
    Json& inner = place->is_array() ? (*place)[which] : place->items()[which].value;
    if (inner.is_structured() && !inner.empty() && !choices.one_in(8)) {
      place = &inner;
      continue;
    }
    switch (choices.byte() % 5) {
      case 0:
        if (place->is_array())
          place->erase(which);
        else
          place->erase(std::string(place->items()[which].key));
        return;
      case 1:
        if (place->is_array()) return place->push_back(Json(inner));
        place->items()[which].key += "_";
        return;
      case 2:  // a value from elsewhere, of the same kind
        inner = Json((*place).front().is_structured() ? inner : place->front());
        return;
      default:
        inner = replacement(choices);
        return;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Sound kSound;
  fuzz::Choices choices(data, size);
  const std::size_t which = choices.byte() % kLayouts.size();
  auto manifest = parse_json(kSound.manifests[which]);
  fuzz::require(static_cast<bool>(manifest));
  for (std::size_t i = 0; i < kMaxChanges && !choices.is_over(); ++i) change(*manifest, choices);
  const auto text = fuzz::sealed(manifest->dump(1) + "\n", 1, "\n");
  if (!text) return 0;

  // The files themselves are links to the sound ones.
  const testing::TemporaryFolder folder;
  const std::string converted = folder / "converted";
  fs::create_directory(converted);
  for (const auto& entry : fs::directory_iterator(kSound.folder / kLayouts[which]))
    if (entry.path().filename() != "fp4moe.json")
      fs::create_hard_link(entry.path(), converted + "/" + entry.path().filename().string());
  testing::write_text(converted + "/fp4moe.json", *text);

  const auto report = convert::verify_folder(converted, {.deep = true});
  if (!report) fuzz::require_words(report.why());
  const std::vector<std::string> folders{converted};
  const auto back = convert::unconvert(folders, folder / "back", {.accept_losses = true});
  if (!back) fuzz::require_words(back.why());
  fuzz::require(static_cast<bool>(back) == fs::exists(folder / "back"));
  for (const std::string& name : folder.names())
    fuzz::require(name == "converted" || name == "back");
  return 0;
}

}  // namespace fp4moe
