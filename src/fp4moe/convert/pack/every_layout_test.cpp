// Every layout of every backend: one layer in, and the same bits back, for each order of a
// checkpoint's rows, over the map and over the fast path.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/base/random.hpp"
#include "fp4moe/convert/pack/layer_packer.hpp"
#include "support/sanitized.hpp"

namespace fp4moe::convert {
namespace every_layout_test {

using checkpoint::RowOrder;
using formats::WeightFormat;
using layout::Layout;

using Bytes = std::vector<std::byte>;

// Random codes, scales and biases of one expert, dense and in the checkpoint's order of rows.
struct Expert {
  Bytes w13{}, w13_scale{}, w2{}, w2_scale{}, w13_bias{}, w2_bias{};

  std::array<Bytes*, 6> parts() { return {&w13, &w13_scale, &w2, &w2_scale, &w13_bias, &w2_bias}; }
};

struct Layer {
  WeightFormat format{};
  Problem problem{};

  std::uint64_t block() const { return formats::block_size(format); }
  std::uint64_t halves() const { return problem.order == RowOrder::single ? 1 : 2; }
  std::uint64_t rows13() const { return halves() * problem.real.intermediate; }

  Expert buffers() const {
    const std::uint64_t hidden = problem.real.hidden, intermediate = problem.real.intermediate;
    const std::uint64_t bias = problem.has_bias ? 2 : 0;
    return {Bytes(rows13() * hidden / 2),     Bytes(rows13() * hidden / block()),
            Bytes(hidden * intermediate / 2), Bytes(hidden * intermediate / block()),
            Bytes(rows13() * bias),           Bytes(hidden * bias)};
  }
  // Scales in a range that every rule keeps: positive, not tiny, no NaN.
  Expert random(std::uint64_t seed) const {
    Expert result = buffers();
    SplitMix64 stream(seed);
    for (Bytes* part : result.parts()) {
      const bool is_scale = part == &result.w13_scale || part == &result.w2_scale;
      for (std::byte& byte : *part) {
        const std::uint64_t value = stream.next();
        byte = static_cast<std::byte>(
            is_scale ? (format == WeightFormat::nvfp4 ? 0x50 + value % 0x20 : 110 + value % 30)
                     : value);
      }
    }
    // Finite BF16 numbers.
    for (Bytes* part : {&result.w13_bias, &result.w2_bias})
      for (std::size_t i = 1; i < part->size(); i += 2) (*part)[i] &= std::byte{0xBF};
    return result;
  }

  struct RowPattern {
    std::uint64_t first = 0, step = 1;
  };
  RowPattern row_pattern(bool is_up) const {
    if (problem.order == RowOrder::interleaved) return {is_up ? 1u : 0u, 2};
    if (problem.order == RowOrder::halves) return {is_up ? problem.real.intermediate : 0, 1};
    return {};
  }

  checkpoint::ProjectionView view(const Bytes& codes, const Bytes& scales, const Bytes& bias,
                                  std::uint64_t rows, std::uint64_t k, RowPattern at,
                                  float global) const {
    const auto rows_of = [&](const Bytes& bytes, std::uint64_t row_bytes) {
      return checkpoint::RowsView{bytes.data() + at.first * row_bytes, rows, row_bytes,
                                  at.step * row_bytes};
    };
    checkpoint::ProjectionView result{.codes = rows_of(codes, k / 2),
                                      .scales = rows_of(scales, k / block())};
    if (format == WeightFormat::nvfp4) {
      result.global_scale = global;
      result.input_scale = 2 * global;
    }
    if (problem.has_bias)
      result.bias = {bias.data() + 2 * at.first, rows, 2 * at.step, tensor::DType::bf16};
    return result;
  }

  checkpoint::ExpertView view(const Expert& from) const {
    const layout::Sizes real = problem.real;
    checkpoint::ExpertView result{.shape = {.format = format,
                                            .experts = problem.experts,
                                            .hidden = real.hidden,
                                            .intermediate = real.intermediate,
                                            .order = problem.order,
                                            .has_bias = problem.has_bias,
                                            .has_input_scale = format == WeightFormat::nvfp4}};
    const auto w13 = [&](bool is_up) {
      return view(from.w13, from.w13_scale, from.w13_bias, real.intermediate, real.hidden,
                  row_pattern(is_up), 0.25f);
    };
    if (problem.order != RowOrder::single) result.gate = w13(false);
    result.up = w13(true);
    result.down =
        view(from.w2, from.w2_scale, from.w2_bias, real.hidden, real.intermediate, {}, 0.5f);
    return result;
  }

  LayerPacker::ExpertTarget target(Expert& to) const {
    const auto buffers_of = [&](Bytes& codes, Bytes& scales, std::uint64_t k, RowPattern at) {
      const auto rows = [&](Bytes& bytes, std::uint64_t row_bytes) {
        return checkpoint::RowsBuffer{bytes.data() + at.first * row_bytes, at.step * row_bytes};
      };
      return checkpoint::ProjectionBuffers{rows(codes, k / 2), rows(scales, k / block())};
    };
    LayerPacker::ExpertTarget result{.bias13 = to.w13_bias, .bias2 = to.w2_bias};
    if (problem.order != RowOrder::single)
      result.buffers.gate =
          buffers_of(to.w13, to.w13_scale, problem.real.hidden, row_pattern(false));
    result.buffers.up = buffers_of(to.w13, to.w13_scale, problem.real.hidden, row_pattern(true));
    result.buffers.down = buffers_of(to.w2, to.w2_scale, problem.real.intermediate, {});
    return result;
  }
};

// All tensors of a packed layer, filled with something that is not padding.
struct Storage {
  std::vector<Bytes> tensors{};

  explicit Storage(const LayerPacker& packer) {
    for (const PackedTensorSpec& one : packer.tensors())
      tensors.emplace_back(one.bytes, std::byte{0xA5});
  }
  template <class Byte>
  std::vector<std::span<Byte>> expert(const LayerPacker& packer, std::uint64_t e) {
    std::vector<std::span<Byte>> result;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const std::uint64_t each = packer.tensors()[t].expert_bytes;
      result.push_back(std::span<Byte>(tensors[t]).subspan(e * each, each));
    }
    return result;
  }
  std::vector<std::span<std::byte>> scalars(const LayerPacker& packer) {
    std::vector<std::span<std::byte>> result;
    for (std::size_t t = 0; t < tensors.size(); ++t)
      result.push_back(packer.tensors()[t].expert_bytes == 0 ? std::span(tensors[t])
                                                             : std::span<std::byte>());
    return result;
  }
};

Result<Done> pack_all(LayerPacker& packer, const Layer& layer, const std::vector<Expert>& experts,
                      Storage& storage, PackPath path) {
  for (std::size_t e = 0; e < experts.size(); ++e)
    if (Result<Done> noted = packer.note(e, layer.view(experts[e])); !noted) return noted;
  for (std::size_t e = 0; e < experts.size(); ++e)
    if (Result<Done> packed =
            packer.pack(e, layer.view(experts[e]), storage.expert<std::byte>(packer, e), path);
        !packed)
      return packed;
  return packer.pack_scalars(storage.scalars(packer));
}

// The rows of a padded matrix in which rows of the checkpoint lie.
std::vector<bool> used_rows(const Layer& layer, const Layout& row, bool is_w13,
                            std::uint64_t rows) {
  const Problem& problem = layer.problem;
  const bool is_interleaved = problem.order == RowOrder::interleaved;
  std::vector<bool> used(rows);
  const auto use = [&](std::uint64_t at) {
    used[row.has_shuffled_rows ? layout::shuffled_row(at) : at] = true;
  };
  if (!is_w13)
    for (std::uint64_t i = 0; i < problem.real.hidden; ++i) use(i);
  else if (problem.order == RowOrder::single)
    for (std::uint64_t i = 0; i < problem.real.intermediate; ++i) use(i);
  else
    for (std::uint64_t i = 0; i < problem.real.intermediate; ++i)
      for (const unsigned which : {0u, 1u})
        use(layout::w13_row(row, problem.real, problem.padded, is_interleaved, which, i));
  return used;
}

// Offsets that hold no element of the checkpoint hold the map's padding.
void expect_padding(const Layer& layer, const LayerPacker& packer, const Bytes& storage,
                    std::string_view tensor) {
  if (packer.layout().one_record) return;  // both parts in one tensor; the map's own tests see them
  const bool is_w13 = tensor.starts_with("w13"), is_scale = tensor.ends_with("_scale");
  const std::uint64_t k = is_w13 ? layer.problem.real.hidden : layer.problem.real.intermediate;
  for (const layout::IndexMap* map : packer.maps(tensor)) {
    const bool is_bytes = map->map().element == layout::Element::byte;
    const std::uint64_t cols = is_scale ? k / layer.block() : is_bytes ? k / 2 : k;
    const layout::Extent padded = map->padded();
    const std::vector<bool> used = used_rows(layer, packer.layout(), is_w13, padded.rows);
    std::uint64_t wrong = 0;
    for (std::uint64_t row = 0; row < padded.rows; ++row)
      for (std::uint64_t col = used[row] ? cols : 0; col < padded.cols; ++col)
        wrong += map->get(storage, map->offset({row, col})) != map->map().padding ? 1 : 0;
    EXPECT_EQ(wrong, 0u) << tensor << ": padding that holds something";
  }
}

std::string label(const Layout& row, const Problem& problem) {
  return std::string(row.id) + " " + std::string(row.generation) + ", rows " +
         std::string(name(problem.order)) + ", " + std::to_string(problem.real.hidden) + " x " +
         std::to_string(problem.real.intermediate) + " in " +
         std::to_string(problem.padded.hidden) + " x " +
         std::to_string(problem.padded.intermediate);
}

void expect_round_trip(const Layout& row, const Layer& layer) {
  SCOPED_TRACE(label(row, layer.problem));
  Result<LayerPacker> packer = LayerPacker::make(row, layer.problem);
  ASSERT_TRUE(packer) << text(packer.why());
  std::vector<Expert> experts;
  for (std::uint64_t e = 0; e < layer.problem.experts; ++e) experts.push_back(layer.random(3 + e));
  Storage by_map(*packer), by_kernels(*packer), again(*packer);
  for (const auto& [path, storage] :
       {std::pair{PackPath::map, &by_map}, std::pair{PackPath::fast, &by_kernels},
        std::pair{PackPath::fast, &again}}) {
    const Result<Done> packed = pack_all(*packer, layer, experts, *storage, path);
    ASSERT_TRUE(packed) << text(packed.why());
  }
  for (std::size_t t = 0; t < by_map.tensors.size(); ++t) {
    const std::string& tensor = packer->tensors()[t].name;
    EXPECT_EQ(by_map.tensors[t], by_kernels.tensors[t]) << tensor << ": the paths disagree";
    EXPECT_EQ(again.tensors[t], by_kernels.tensors[t]) << tensor << ": not the same bytes again";
    expect_padding(layer, *packer, by_map.tensors[t], tensor);
  }
  const bool is_exact = packer->losses().empty();
  EXPECT_EQ(is_exact, !row.has_no_negative_zero);

  Result<LayerPacker> reader = LayerPacker::make(row, layer.problem);
  ASSERT_TRUE(reader);
  const Result<Done> restored = reader->restore(packer->record());
  ASSERT_TRUE(restored) << text(restored.why());
  for (const PackPath path : {PackPath::map, PackPath::fast})
    for (std::size_t e = 0; e < experts.size(); ++e) {
      Expert back = layer.buffers();
      const Result<Done> unpacked = reader->unpack(
          e, by_kernels.expert<const std::byte>(*packer, e), layer.target(back), path);
      ASSERT_TRUE(unpacked) << text(unpacked.why());
      const auto parts = back.parts(), wanted = experts[e].parts();
      for (std::size_t part = 0; part < parts.size(); ++part) {
        const bool is_codes = part == 0 || part == 2;
        if (is_codes && row.has_no_negative_zero) continue;
        EXPECT_EQ(*parts[part], *wanted[part]) << "part " << part << " of expert " << e;
      }
    }
}

Layer layer_of(const Layout& row, RowOrder order, layout::Sizes real, layout::Sizes padded) {
  return {.format = row.format,
          .problem = {.experts = 2,
                      .real = real,
                      .padded = padded,
                      .order = order,
                      .has_bias = row.format == WeightFormat::mxfp4}};
}

// Sizes that every layout takes; then a checkpoint that a backend rounds up to them.
TEST(EveryLayout, GivesBackWhatItTookFromEveryOrderOfRows) {
  std::size_t number = 0;
  for (const Layout& row : backends::layouts())
    for (const RowOrder order : {RowOrder::interleaved, RowOrder::halves, RowOrder::single})
      for (const layout::Sizes real : {layout::Sizes{256, 256}, layout::Sizes{192, 160}})
        if (is_taken(number++, 5)) expect_round_trip(row, layer_of(row, order, real, {256, 256}));
}

TEST(EveryLayout, RefusesSizesByNamingTheOneThatWouldDo) {
  std::size_t refused = 0;
  for (const Layout& row : backends::layouts()) {
    const layout::Sizes odd{96, 32};
    const Result<LayerPacker> packer =
        LayerPacker::make(row, layer_of(row, RowOrder::halves, odd, odd).problem);
    if (packer) continue;
    ++refused;
    EXPECT_EQ(packer.why().id, "layout.size") << row.id;
    EXPECT_NE(packer.why().expected.find("multiple of"), std::string::npos) << row.id;
    EXPECT_FALSE(packer.why().remedy.empty()) << row.id;
  }
  EXPECT_GT(refused, 5u);
}

}  // namespace every_layout_test
}  // namespace fp4moe::convert
