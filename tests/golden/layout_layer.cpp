#include "golden/layout_layer.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/backends/triton/maps.hpp"
#include "fp4moe/base/checked.hpp"
#include "golden/fields.hpp"
#include "golden/layout_compare.hpp"
#include "golden/layout_experts.hpp"
#include "golden/layouts.hpp"

namespace fp4moe::golden {
namespace {

using checkpoint::Projection;
using convert::LayerPacker;
using convert::PackedTensorSpec;
using convert::PackPath;
using layout::IndexMap;

using Bytes = std::vector<std::byte>;

struct TritonName {
  std::string_view triton, map;
};
// What Triton calls the layouts of its tensors.
constexpr TritonName kTritonNames[] = {
    {"StridedLayout", "triton_strided"},           {"HopperMXValueLayout", "hopper_value"},
    {"HopperMXScaleLayout", "hopper_scale"},       {"BlackwellMXValueLayout", "blackwell_value"},
    {"BlackwellMXScaleLayout", "blackwell_scale"}, {"CDNA4MXScaleLayout", "cdna4_scale"},
};

std::string_view triton_name(std::string_view map) {
  const auto* found = std::ranges::find(kTritonNames, map, &TritonName::map);
  return found == std::end(kTritonNames) ? map : found->triton;
}

// vLLM fills the columns of Hopper's scales up to more than Triton does, before Triton sees them.
std::uint64_t filled_up(const layout::Map& map, std::uint64_t cols) {
  const layout::Map own = backends::triton::hopper_scale(8);
  return map.name == own.name && map.pad_cols > own.pad_cols ? round_up(cols, map.pad_cols) : cols;
}

// The storages of all tensors of a layer.
struct Storage {
  std::vector<Bytes> tensors{};

  explicit Storage(std::span<const PackedTensorSpec> list) {
    // Not zero, so that what nobody writes is seen.
    for (const PackedTensorSpec& one : list) tensors.emplace_back(one.bytes, std::byte{0xA5});
  }
  // The part of one expert, or (expert: nothing) the scalars.
  template <class Byte>
  std::vector<std::span<Byte>> parts(std::span<const PackedTensorSpec> list,
                                     std::optional<std::uint64_t> expert) {
    std::vector<std::span<Byte>> result;
    for (std::size_t t = 0; t < list.size(); ++t) {
      const std::uint64_t each = list[t].expert_bytes;
      if (expert && each != 0)
        result.push_back(std::span<Byte>(tensors[t]).subspan(*expert * each, each));
      else
        result.push_back(expert || each != 0 ? std::span<Byte>() : std::span<Byte>(tensors[t]));
    }
    return result;
  }
};

// Which row of the checkpoint lies in row `row` of a matrix.
std::string row_name(const LayerCase& layer, bool is_w13, std::uint64_t row) {
  const convert::Problem& problem = layer.problem;
  const std::uint64_t place = layer.layout.has_shuffled_rows ? layout::unshuffled_row(row) : row;
  if (!is_w13) return place < problem.real.hidden ? fmt::format("down row {}", place) : "padding";
  const bool gated = problem.order != checkpoint::RowOrder::single;
  const bool turns = problem.order == checkpoint::RowOrder::interleaved;
  for (std::uint64_t i = 0; i < problem.real.intermediate; ++i) {
    if (!gated && place == i) return fmt::format("up row {}", i);
    for (const unsigned which : {0u, 1u})
      if (gated &&
          place == layout::w13_row(layer.layout, problem.real, problem.padded, turns, which, i))
        return fmt::format("{} row {}", which == 0 ? "gate" : "up", i);
  }
  return "padding";
}

class LayerCheck {
 public:
  LayerCheck(const LayerCase& layer, LayerPacker packer)
      : layer_(layer),
        packer_(std::move(packer)),
        experts_(layer),
        by_map_(packer_.tensors()),
        by_kernels_(packer_.tensors()) {}

  Outcome run() {
    if (const Result<Done> packed = pack_all(); !packed) return refused(layer_.given, packed.why());
    for (std::size_t t = 0; t < packer_.tensors().size(); ++t)
      if (auto mismatch = compare_bytes("the fast path differs from the map", by_map_.tensors[t],
                                        result(t, by_kernels_)))
        return mismatch;
    if (Outcome outcome = check_outputs(); !outcome || *outcome) return outcome;
    if (Outcome outcome = check_exponents(); !outcome || *outcome) return outcome;
    return check_way_back();
  }

 private:
  Result<Done> pack_all() {
    const std::span<const PackedTensorSpec> list = packer_.tensors();
    const convert::Problem& problem = layer_.problem;
    for (std::uint64_t e = 0; e < problem.experts; ++e)
      if (Result<Done> noted = packer_.note(e, experts_.view(e)); !noted) return noted;
    if (problem.global_experts != problem.experts)
      packer_.set_all_input_scales(experts_.input_scales());
    for (const auto& [path, storage] :
         {std::pair{PackPath::map, &by_map_}, std::pair{PackPath::fast, &by_kernels_}}) {
      for (std::uint64_t e = 0; e < problem.experts; ++e)
        if (Result<Done> packed =
                packer_.pack(e, experts_.view(e), storage->parts<std::byte>(list, e), path);
            !packed)
          return packed;
      if (Result<Done> packed = packer_.pack_scalars(storage->parts<std::byte>(list, std::nullopt));
          !packed)
        return packed;
    }
    return Done{};
  }

  MadeTensor result(std::size_t t, const Storage& storage) const {
    const PackedTensorSpec& one = packer_.tensors()[t];
    const bool is_w13 = one.name.starts_with("w13");
    MadeTensor found{.name = one.name,
                     .dtype = one.dtype,
                     .shape = one.kernel,
                     .expert_bytes = one.expert_bytes,
                     .bytes = storage.tensors[t]};
    const std::vector<const IndexMap*> maps = packer_.maps(one.name);
    if (maps.size() != 1) return found;
    found.map = maps.front();
    found.row_name = [this, is_w13](std::uint64_t row) { return row_name(layer_, is_w13, row); };
    if (!layer_.names_layouts) return found;
    found.layout = triton_name(found.map->map().name);
    const layout::Sizes size = layer_.problem.real;
    std::uint64_t cols = is_w13 ? size.hidden : size.intermediate;
    if (one.name.ends_with("_scale"))
      cols = filled_up(found.map->map(), cols / formats::block_size(layer_.layout.format));
    found.logical = {layer_.problem.experts, cols, is_w13 ? 2 * size.intermediate : size.hidden};
    return found;
  }

  Outcome check_outputs() const {
    for (const LayoutOutput& output : layer_.given.outputs) {
      const std::span<const PackedTensorSpec> list = packer_.tensors();
      const auto found = std::ranges::find(list, our_name(output.name), &PackedTensorSpec::name);
      if (found == list.end())
        return malformed("outputs", fmt::format("tensors of layout {}", layer_.layout.id),
                         "\"" + output.name + "\"");
      const auto t = static_cast<std::size_t>(found - list.begin());
      if (auto mismatch = compare(output, result(t, by_map_))) return mismatch;
    }
    return std::optional<Mismatch>();
  }

  // Marlin's common exponents of NVFP4 scales.
  Outcome check_exponents() const {
    const auto told = layer_.given.params->find("scale_factor_log2");
    if (told == layer_.given.params->end()) return std::optional<Mismatch>();
    if (!told->is_object()) return malformed("scale_factor_log2", "an object", told->type_name());
    const Json record = packer_.record();
    for (const auto& [matrix, exponent] : told->items()) {
      const auto ours = record.find(matrix + "_exponent");
      if (ours == record.end() || *ours != exponent)
        return std::optional<Mismatch>({fmt::format("the common exponent of {} differs", matrix),
                                        exponent.dump(),
                                        ours == record.end() ? "none" : ours->dump()});
    }
    return std::optional<Mismatch>();
  }

  // Unpacks with nothing but the storage and the record, as a reader of a converted folder does.
  Outcome check_way_back() {
    Result<LayerPacker> reader = LayerPacker::make(layer_.layout, layer_.problem);
    if (!reader) return reader.why();
    if (const Result<Done> restored = reader->restore(packer_.record()); !restored)
      return std::optional<Mismatch>(
          {"the packer does not take back its own record", "", text(restored.why())});
    for (const PackPath path : {PackPath::map, PackPath::fast}) {
      if (path == PackPath::map && packer_.expert_bytes() > kMaxBytesBackByMap) continue;
      for (std::uint64_t e = 0; e < layer_.problem.experts; ++e)
        if (auto mismatch = check_expert_back(*reader, e, path)) return mismatch;
    }
    return std::optional<Mismatch>();
  }

  // One expert's part of every input that unpacking gives back.
  struct Part {
    std::string_view name;
    bool is_lossy = false;  // where the layout loses something, it may be in here
    Bytes bytes{};
  };

  std::optional<Mismatch> check_expert_back(const LayerPacker& reader, std::uint64_t expert,
                                            PackPath path) {
    std::array<Part, 6> parts{{{"w13"},
                               {"w13_scale", true},
                               {"w2"},
                               {"w2_scale", true},
                               {"w13_bias", true},
                               {"w2_bias", true}}};
    for (Part& part : parts)
      if (const LayoutInput* input = experts_.find(part.name))
        part.bytes.assign(input->bytes.size() / layer_.problem.experts, std::byte{0xA5});
    LayerPacker::ExpertTarget to{.bias13 = parts[4].bytes, .bias2 = parts[5].bytes};
    to.buffers.gate = buffers(Projection::gate, parts[0].bytes, parts[1].bytes);
    to.buffers.up = buffers(Projection::up, parts[0].bytes, parts[1].bytes);
    to.buffers.down = buffers(Projection::down, parts[2].bytes, parts[3].bytes);
    const auto sources = by_map_.parts<const std::byte>(packer_.tensors(), expert);
    if (const Result<Done> unpacked = reader.unpack(expert, sources, to, path); !unpacked)
      return Mismatch{"unpacking fails", "the input", text(unpacked.why())};
    const bool is_exact = packer_.losses().empty();
    for (const Part& part : parts) {
      if (part.bytes.empty() || (part.is_lossy && !is_exact)) continue;
      const std::span<const std::byte> input =
          std::span(experts_.find(part.name)->bytes)
              .subspan(expert * part.bytes.size(), part.bytes.size());
      const auto at =
          static_cast<std::uint64_t>(std::ranges::mismatch(input, part.bytes).in1 - input.begin());
      if (at == input.size()) continue;
      const std::uint64_t row_bytes = experts_.find(part.name)->shape.back();
      return Mismatch{
          fmt::format("unpacking by the {} does not give the input back: tensor {}, expert {}, row "
                      "{}, byte {}",
                      path == PackPath::map ? "map" : "fast path", part.name, expert,
                      at / row_bytes, at % row_bytes),
          fmt::format("{:#04x}", std::to_integer<unsigned>(input[at])),
          fmt::format("{:#04x}", std::to_integer<unsigned>(part.bytes[at]))};
    }
    return std::nullopt;
  }

  checkpoint::ProjectionBuffers buffers(Projection which, Bytes& codes, Bytes& scales) const {
    const LayoutExperts::RowPattern at = experts_.place(which);
    if (at.count == 0) return {};
    const auto rows = [&](std::string_view suffix, Bytes& bytes) {
      const std::uint64_t row = experts_.find(fmt::format("{}{}", at.matrix, suffix))->shape[2];
      return checkpoint::RowsBuffer{bytes.data() + at.first * row, at.step * row};
    };
    return {.codes = rows("", codes), .scales = rows("_scale", scales)};
  }

  const LayerCase& layer_;
  LayerPacker packer_;
  LayoutExperts experts_;
  Storage by_map_, by_kernels_;
};

Error too_large(const convert::Problem& problem) {
  return invalid("golden.size", "the case is too large to be run")
      .expects(fmt::format("at most {} bytes", kMaxCaseBytes),
               fmt::format("{} experts of {} x {}", problem.experts, problem.padded.hidden,
                           problem.padded.intermediate));
}

}  // namespace

Outcome check_layer(const LayerCase& layer) {
  const convert::Problem& problem = layer.problem;
  const std::uint64_t factors[] = {problem.experts, problem.padded.hidden,
                                   problem.padded.intermediate};
  const std::optional<std::uint64_t> codes = checked_product(factors);
  if (!codes || *codes > 2 * kMaxCaseBytes) return too_large(problem);
  Result<LayerPacker> packer = LayerPacker::make(layer.layout, problem);
  if (!packer) return refused(layer.given, packer.why());
  if (layer.given.expects_refusal) return not_refused();
  std::uint64_t total = 0;
  for (const PackedTensorSpec& one : packer->tensors())
    total = checked_add(total, one.bytes).value_or(~std::uint64_t{0});
  if (total > kMaxCaseBytes) return too_large(problem);
  return LayerCheck(layer, std::move(*packer)).run();
}

}  // namespace fp4moe::golden
