#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/scale_scan.hpp"
#include "fp4moe/checkpoint/write/expert_layout.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "support/tiny_model.hpp"

namespace fp4moe::checkpoint {
namespace expert_reader_test {

using namespace testing;  // NOLINT: the test's own words
using tensor::testing::TemporaryFolder;

Bytes to_bytes(std::span<const std::byte> view) { return {view.begin(), view.end()}; }

Bytes part_of(const Bytes& row, std::uint64_t begin, std::uint64_t end) {
  return {row.begin() + static_cast<std::ptrdiff_t>(begin),
          row.begin() + static_cast<std::ptrdiff_t>(end)};
}

// Every byte of a view against the model.
void expect_model(const ExpertView& view, const Model& model, std::uint64_t expert, Range range,
                  bool first_rank) {
  for (const Projection which : projections(model)) {
    const ProjectionView& got = view.at(which);
    const bool down = which == Projection::down;
    const std::uint64_t rows = down ? model.hidden : range.size();
    const Range columns = down ? range : Range{0, model.hidden};
    ASSERT_EQ(got.codes.rows, rows);
    ASSERT_EQ(got.scales.rows, rows);
    for (std::uint64_t row = 0; row < rows; ++row) {
      const std::uint64_t source = down ? row : range.begin + row;
      ASSERT_EQ(to_bytes(got.codes.row(row)),
                part_of(model.code_row(expert, which, source), columns.begin / 2, columns.end / 2))
          << "expert " << expert << " projection " << int(which) << " row " << row;
      ASSERT_EQ(to_bytes(got.scales.row(row)),
                part_of(model.scale_row(expert, which, source), columns.begin / model.block(),
                        columns.end / model.block()));
    }
    if (model.bias && (!down || first_rank)) {
      ASSERT_EQ(got.bias.size, rows);
      for (std::uint64_t row = 0; row < rows; ++row) {
        std::uint16_t code = 0;
        std::memcpy(&code, got.bias.data + row * got.bias.stride, 2);
        EXPECT_EQ(formats::Bf16::decode(code),
                  model.bias_value(expert, which, down ? row : range.begin + row));
      }
    } else {
      EXPECT_EQ(got.bias.size, 0u);
    }
    const bool nvfp4 = model.format == WeightFormat::nvfp4;
    EXPECT_EQ(got.global_scale, nvfp4 ? model.global(expert, which) : 1.0f);
    EXPECT_EQ(got.input_scale.has_value(), model.input_scale);
    if (got.input_scale) {
      EXPECT_EQ(*got.input_scale, model.input(expert, which));
    }
  }
}

class EveryDialect : public ::testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    if (!is_told_by_names(row())) GTEST_SKIP() << "needs a configuration";
  }
  const DialectRow& row() const { return dialects()[GetParam()]; }
  Model model() const {
    Model model{.format = row().format};
    model.bias = !row().parts.bias.empty();
    model.input_scale = row().grouping != Grouping::fused && !row().parts.input_scale.empty();
    return model;
  }
};

TEST_P(EveryDialect, ReadsBackEveryByte) {
  const TemporaryFolder folder;
  const auto checkpoint = Checkpoint::open(write_model(folder, model(), row()));
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  EXPECT_EQ(&checkpoint->dialect(), &row()) << checkpoint->evidence();
  ASSERT_EQ(checkpoint->layers().size(), 1u);
  const MoeShape& shape = checkpoint->layers()[0].shape;
  EXPECT_EQ(shape.experts, 3u);
  EXPECT_EQ(shape.hidden, 128u);
  EXPECT_EQ(shape.intermediate, 192u);
  EXPECT_EQ(shape.order,
            row().grouping == Grouping::fused ? RowOrder::interleaved : RowOrder::halves);
  EXPECT_EQ(shape.has_bias, model().bias);
  EXPECT_EQ(shape.has_input_scale, model().input_scale);
  ExpertReader reader(*checkpoint, {});
  for (const std::uint64_t expert : {0u, 2u, 1u}) {
    const auto view = reader.read(0, expert);
    ASSERT_TRUE(view) << text(view.why());
    expect_model(*view, model(), expert, {0, 192}, true);
    reader.release();
  }
}

TEST_P(EveryDialect, CutsAtBlockBorders) {
  const TemporaryFolder folder;
  const auto checkpoint = Checkpoint::open(write_model(folder, model(), row()));
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  for (const std::uint64_t size : {2u, 3u, 6u}) {
    std::uint64_t end = 0;
    for (std::uint64_t rank = 0; rank < size; ++rank) {
      ExpertReader reader(*checkpoint, {.tensor_parallel = {rank, size}});
      const auto view = reader.read(0, 1);
      ASSERT_TRUE(view) << text(view.why());
      const Range range{end, end + view->shape.intermediate};
      end = range.end;
      EXPECT_EQ(range.size(), 192 / size);
      expect_model(*view, model(), 1, range, rank == 0);
    }
    EXPECT_EQ(end, 192u);
  }
}

TEST_P(EveryDialect, NamesThePlaceOfANanScale) {
  const TemporaryFolder folder;
  auto tensors = tensors_of(model(), row());
  const bool gguf = row().scales_inside();
  // Expert 1 (or its matrix), up, row 5, block 2.
  const std::string name = projection_stem(row(), layer_prefix(row(), 0), 1, Projection::up) +
                           std::string(gguf ? row().parts.codes : row().parts.scales);
  const std::uint64_t blocks = 128 / block_size(row().format);
  std::uint64_t tensor_row = 5;
  if (row().grouping == Grouping::fused) tensor_row = 1 * 384 + 2 * 5 + 1;
  if (row().grouping == Grouping::stacked) tensor_row = 1 * 192 + 5;
  std::uint64_t at = tensor_row * blocks + 2;
  if (gguf) at = row().format == WeightFormat::mxfp4 ? at * 17 : (tensor_row * blocks) / 4 * 36 + 2;
  find_tensor(tensors, name).bytes[at] =
      static_cast<std::byte>(gguf ? (blocks == 4 ? 0xFF : 0x7F) : 0xFF);
  std::string path = folder.path();
  if (gguf) {
    path = folder / "model.gguf";
    write_gguf(path, tensors, {});
  } else {
    write_safetensors(folder / "model.safetensors", tensors);
  }
  const auto checkpoint = Checkpoint::open(path);
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  ExpertReader reader(*checkpoint, {});
  EXPECT_TRUE(reader.read(0, 0));
  const auto view = reader.read(0, 1);
  ASSERT_FALSE(view);
  EXPECT_EQ(view.why().id, "scale.nan");
  EXPECT_NE(view.why().found.find("expert 1, up row 5, block 2"), std::string::npos)
      << view.why().found;
  // A rank that does not hold the row is not disturbed.
  ExpertReader other(*checkpoint, {.tensor_parallel = {1, 2}});
  EXPECT_TRUE(other.read(0, 1));
}

INSTANTIATE_TEST_SUITE_P(Dialects, EveryDialect,
                         ::testing::Range(std::size_t{0}, dialects().size()));

TEST(ExpertReader, ReadsModelsWithoutAGate) {
  const Model model{.format = WeightFormat::nvfp4, .gated = false};
  for (const Dialect dialect : {Dialect::modelopt, Dialect::compressed_tensors, Dialect::gguf}) {
    const TemporaryFolder folder;
    const auto checkpoint =
        Checkpoint::open(write_model(folder, model, *find_row(dialect, model.format)));
    ASSERT_TRUE(checkpoint) << text(checkpoint.why());
    EXPECT_EQ(checkpoint->layers()[0].shape.order, RowOrder::single);
    ExpertReader reader(*checkpoint, {.tensor_parallel = {1, 2}});
    const auto view = reader.read(0, 2);
    ASSERT_TRUE(view) << text(view.why());
    EXPECT_EQ(view->gate.codes.rows, 0u);
    expect_model(*view, model, 2, {96, 192}, false);
  }
}

TEST(ExpertReader, UnpacksGgufToWhereADialectStoresIt) {
  for (const DialectRow& target : dialects()) {
    if (target.needs_unpacking()) continue;
    for (const bool gated : {true, false}) {
      if (!gated && target.joins_gate_up()) continue;
      const Model model{.format = target.format, .gated = gated};
      const TemporaryFolder folder;
      const auto checkpoint =
          Checkpoint::open(write_model(folder, model, *find_row(Dialect::gguf, model.format)));
      ASSERT_TRUE(checkpoint) << text(checkpoint.why());
      const ExpertLayout layout = expert_layout(target, checkpoint->layers()[0].shape, DType::bf16);
      Bytes copied(layout.bytes()), unpacked(layout.bytes());
      const ExpertBuffers buffers = buffers_in(layout, unpacked);
      ExpertReader reader(*checkpoint, {});

      const auto apart = reader.read(0, 1);
      ASSERT_TRUE(apart) << text(apart.why());
      ASSERT_TRUE(lay_out_expert(layout, {*apart}, copied));
      const auto in_place = reader.read(0, 1, &buffers);
      ASSERT_TRUE(in_place) << text(in_place.why());
      expect_model(*in_place, model, 1, {0, 192}, true);
      for (const checkpoint::Run& run : layout.runs) {
        if (run.part == Part::codes || run.part == Part::scales) {
          EXPECT_FALSE(stored_bytes(layout, run, {*in_place}).empty()) << target.name;
        }
      }
      ASSERT_TRUE(lay_out_expert(layout, {*in_place}, unpacked));
      EXPECT_EQ(unpacked, copied) << target.name;

      // A slice does not lie as the layout says: it goes to the reader's own memory.
      const Bytes before = unpacked;
      ExpertReader half(*checkpoint, {.tensor_parallel = {1, 2}});
      const auto slice = half.read(0, 1, &buffers);
      ASSERT_TRUE(slice) << text(slice.why());
      expect_model(*slice, model, 1, {96, 192}, false);
      EXPECT_EQ(unpacked, before);
    }
  }
}

TEST(ExpertReader, ReadsMergedGateAndUpOfGguf) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const Model model{.format = format, .bias = true, .input_scale = format == WeightFormat::nvfp4};
    const TemporaryFolder folder;
    write_gguf(folder / "model.gguf", gguf_tensors(model, "blk.0.", true), {});
    const auto checkpoint = Checkpoint::open(folder / "model.gguf");
    ASSERT_TRUE(checkpoint) << text(checkpoint.why());
    EXPECT_EQ(checkpoint->layers()[0].shape.order, RowOrder::halves);
    ExpertReader reader(*checkpoint, {.tensor_parallel = {1, 3}});
    const auto view = reader.read(0, 2);
    ASSERT_TRUE(view) << text(view.why());
    expect_model(*view, model, 2, {64, 128}, false);
  }
}

TEST(ExpertReader, AcceptsFourBitTypesForCodesAndScales) {
  const Model model;
  const DialectRow& row = *find_row(Dialect::quark, WeightFormat::mxfp4);
  auto tensors = tensors_of(model, row);
  for (FileTensor& tensor : tensors) {
    if (tensor.name.ends_with(".weight")) {
      tensor.dtype = DType::f4;
      tensor.shape[1] *= 2;
    } else {
      tensor.dtype = DType::f8_e8m0;
    }
  }
  const TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", tensors);
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  ExpertReader reader(*checkpoint, {});
  const auto view = reader.read(0, 1);
  ASSERT_TRUE(view) << text(view.why());
  expect_model(*view, model, 1, {0, 192}, true);
}

TEST(ExpertReader, GivesOnlyTheRanksExperts) {
  const TemporaryFolder folder;
  const Model model;
  const auto checkpoint =
      Checkpoint::open(write_model(folder, model, *find_row(Dialect::gpt_oss, model.format)));
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  ExpertReader reader(*checkpoint, {.expert_parallel = {1, 2}});
  EXPECT_TRUE(reader.read(0, 2));
  EXPECT_EQ(reader.read(0, 1).why().id, "slice.expert");
  EXPECT_EQ(reader.read(0, 3).why().id, "slice.expert");
  EXPECT_EQ(reader.read(1, 2).why().id, "slice.layer");
  ExpertReader outside(*checkpoint, {.expert_parallel = {2, 2}});
  EXPECT_EQ(outside.read(0, 0).why().id, "slice.expert");
}

TEST(ExpertReader, RefusesRanksWithoutRowsAndUnevenSplits) {
  const Model model;
  const TemporaryFolder fused, apart;
  const auto gpt_oss =
      Checkpoint::open(write_model(fused, model, *find_row(Dialect::gpt_oss, model.format)));
  ASSERT_TRUE(gpt_oss);
  ExpertReader empty(*gpt_oss, {.tensor_parallel = {3, 4}});  // 6 blocks: 2, 2, 2, none
  EXPECT_EQ(empty.read(0, 0).why().id, "slice.empty");
  const auto quark =
      Checkpoint::open(write_model(apart, model, *find_row(Dialect::quark, model.format)));
  ASSERT_TRUE(quark);
  ExpertReader uneven(*quark, {.tensor_parallel = {0, 4}});
  EXPECT_EQ(uneven.read(0, 0).why().id, "slice.uneven");
}

TEST(ExpertReader, CutsGptOssByItsOwnRuleHoweverItIsStored) {
  const Model model;
  const TemporaryFolder folder;
  const auto path = write_model(folder, model, *find_row(Dialect::quark, model.format));
  tensor::testing::write_text(folder / "config.json", R"({"model_type": "gpt_oss"})");
  const auto checkpoint = Checkpoint::open(path);
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  ExpertReader reader(*checkpoint, {.tensor_parallel = {1, 4}});
  const auto view = reader.read(0, 0);
  ASSERT_TRUE(view) << text(view.why());
  expect_model(*view, model, 0, {64, 128}, false);
}

TEST(ExpertReader, RefusesGlobalScalesThatScaleNothing) {
  const Model model{.format = WeightFormat::nvfp4};
  for (const Dialect dialect : {Dialect::modelopt, Dialect::compressed_tensors}) {
    const DialectRow& row = *find_row(dialect, WeightFormat::nvfp4);
    for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      const TemporaryFolder folder;
      auto tensors = tensors_of(model, row);
      find_tensor(tensors,
                  "model.layers.0.mlp.experts.2.down_proj" + std::string(row.parts.global_scale))
          .bytes = f32({bad});
      write_safetensors(folder / "model.safetensors", tensors);
      const auto checkpoint = Checkpoint::open(folder.path());
      ASSERT_TRUE(checkpoint) << text(checkpoint.why());
      ExpertReader reader(*checkpoint, {});
      EXPECT_TRUE(reader.read(0, 1));
      EXPECT_EQ(reader.read(0, 2).why().id, "scale.global") << bad;
    }
  }
}

TEST(ExpertReader, RefusesSignedScalesInGguf) {
  const Model model{.format = WeightFormat::nvfp4};
  const TemporaryFolder folder;
  auto tensors = gguf_tensors(model, "blk.0.");
  find_tensor(tensors, "blk.0.ffn_up_exps.weight").bytes[36 * 7 + 3] = std::byte{0xB8};
  write_gguf(folder / "model.gguf", tensors, {});
  const auto checkpoint = Checkpoint::open(folder / "model.gguf");
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  ExpertReader reader(*checkpoint, {});
  const auto view = reader.read(0, 0);
  ASSERT_FALSE(view);
  EXPECT_EQ(view.why().id, "scale.negative");
  EXPECT_NE(view.why().found.find("expert 0, up row 3, block 7"), std::string::npos)
      << view.why().found;
  EXPECT_TRUE(reader.read(0, 1));
}

// Pages of the file that are in this process's memory, from the kernel's own books.
std::size_t resident_bytes(const std::string& path) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool ours = false;
  while (std::getline(maps, line)) {
    if (line.find('-') != std::string::npos && line.find(" r") != std::string::npos) {
      ours = line.find(path) != std::string::npos;
    } else if (ours && line.starts_with("Rss:")) {
      return std::stoull(line.substr(4)) * 1024;
    }
  }
  return 0;
}

TEST(ExpertReader, TouchesOnlyTheBytesOfItsSliceAndLetsThemGo) {
  const std::uint64_t experts = 6, hidden = 4096, intermediate = 2048;  // 12.75 MiB each
  std::vector<tensor::TensorSpec> specs;
  const std::string stem = "model.layers.0.mlp.experts.";
  const auto add = [&](const std::string& name, std::uint64_t rows, std::uint64_t k) {
    specs.push_back({stem + name + "_blocks", DType::u8, {experts, rows, k / 32, 16}});
    specs.push_back({stem + name + "_scales", DType::u8, {experts, rows, k / 32}});
  };
  add("gate_up_proj", 2 * intermediate, hidden);
  add("down_proj", hidden, intermediate);
  const TemporaryFolder folder;
  const std::string path = folder / "model.safetensors";
  auto writer = tensor::SafetensorsWriter::create(path, specs);
  ASSERT_TRUE(writer);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const Bytes zeros(*tensor::byte_count(specs[i].dtype, specs[i].shape));
    ASSERT_TRUE(writer->write(i, 0, zeros));
  }
  ASSERT_TRUE(writer->finish());
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  const std::uint64_t file = std::filesystem::file_size(path);
  ExpertReader reader(*checkpoint, {});
  std::size_t peak = 0;
  unsigned sum = 0;
  for (std::uint64_t expert = 0; expert < experts; ++expert) {
    const auto view = reader.read(0, expert);
    ASSERT_TRUE(view);
    for (const Projection which : {Projection::gate, Projection::up, Projection::down}) {
      const RowsView& codes = view->at(which).codes;
      for (std::uint64_t row = 0; row < codes.rows; ++row) {
        for (const std::byte byte : codes.row(row)) sum += std::to_integer<unsigned>(byte);
      }
    }
    peak = std::max(peak, resident_bytes(path));
    reader.release();
  }
  EXPECT_EQ(sum, 0u);
  // An expert with its scales, and what the kernel maps around the edges of its four spans: up to
  // a huge page each.
  constexpr std::size_t kEdge = std::size_t{2} << 20;
  const std::size_t expert_bytes = file / experts;
  EXPECT_GE(peak, expert_bytes / 2);
  EXPECT_LE(peak, expert_bytes + 8 * kEdge);
  EXPECT_LE(resident_bytes(path), kEdge);

  // A quarter of the rows: the rest of w13's bytes are never touched.
  ExpertReader quarter(*checkpoint, {.tensor_parallel = {3, 4}});
  const auto view = quarter.read(0, 3);
  ASSERT_TRUE(view);
  const std::size_t before = resident_bytes(path);
  for (std::uint64_t row = 0; row < view->gate.codes.rows; ++row) {
    for (const std::byte byte : view->gate.codes.row(row)) sum += std::to_integer<unsigned>(byte);
  }
  EXPECT_EQ(sum, 0u);
  EXPECT_LE(resident_bytes(path) - before, intermediate * hidden / 4 + 2 * kEdge);
}

TEST(ScaleScan, FindsWhatALoopFinds) {
  for (std::size_t size = 0; size < 100; ++size) {
    for (std::size_t at = 0; at < size; ++at) {
      for (unsigned value = 0; value < 256; ++value) {
        std::vector<std::byte> bytes(size, std::byte{0x3C});
        bytes[at] = static_cast<std::byte>(value);
        EXPECT_EQ(find_nan_scale(WeightFormat::mxfp4, bytes), value == 255 ? at : kNoScale);
        EXPECT_EQ(find_nan_scale(WeightFormat::nvfp4, bytes),
                  (value & 0x7F) == 0x7F ? at : kNoScale);
        EXPECT_EQ(find_negative_scale(bytes), value >= 128 ? at : kNoScale);
        EXPECT_EQ(find_nan_or_negative_scale(bytes), value >= 127 ? at : kNoScale);
      }
    }
  }
}

}  // namespace expert_reader_test
}  // namespace fp4moe::checkpoint
