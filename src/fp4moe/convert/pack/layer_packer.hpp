// One layer's experts into a backend's layout and back, one expert at a time, into memory that
// belongs to the caller. A pure function of the source: the same bytes at the same offsets, any
// number of times, in any order, from any number of threads (a reload is the same calls again).
//
//   Result<LayerPacker> packer = LayerPacker::make(layout, problem);
//   for each expert: packer->note(e, view);            // only when packer->needs_all_experts()
//   for each expert: packer->pack(e, view, targets);   // any thread
//   packer->pack_scalars(targets);                     // last: small tensors of all experts
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/checkpoint/moe_shape.hpp"
#include "fp4moe/convert/pack/pack_matrix.hpp"
#include "fp4moe/convert/pack/scalars.hpp"
#include "fp4moe/convert/pack/scale_tables.hpp"
#include "fp4moe/layout/layout.hpp"
#include "fp4moe/tensor/tensor.hpp"

namespace fp4moe::convert {

struct Problem {
  std::uint64_t experts = 0;  // on this rank
  layout::Sizes real{};       // of the checkpoint on this rank
  layout::Sizes padded{};     // what the backend computes with; >= real
  checkpoint::RowOrder order = checkpoint::RowOrder::interleaved;  // w13 in the checkpoint
  bool has_bias = false;  // tensor-parallel ranks above 0 write zeros for w2's
  tensor::DType bias_type = tensor::DType::bf16;    // in the checkpoint
  tensor::DType params_type = tensor::DType::bf16;  // bf16 or f16: the type of global scales
  std::uint64_t global_experts = 0;  // of all ranks, for shared input scales; 0: `experts`
};

// A tensor of the converted layer: [experts, ...], or a small one that pack_scalars fills.
struct PackedTensorSpec {
  std::string name{};  // "w13", "w13_scale", "g1_alphas", ...
  tensor::DType dtype = tensor::DType::u8;
  tensor::Shape shape{};           // dense, row-major, as stored
  layout::Shape kernel{};          // as the kernel sees it
  std::uint64_t bytes = 0;         // of the whole tensor
  std::uint64_t expert_bytes = 0;  // 0: filled by pack_scalars
};

class LayerPacker {
 public:
  // Errors: layout.size (a size the layout cannot take, and the one that would do), layout.params.
  static Result<LayerPacker> make(const layout::Layout& layout, const Problem& problem);

  const layout::Layout& layout() const { return layout_; }
  const Problem& problem() const { return problem_; }
  std::span<const PackedTensorSpec> tensors() const { return tensors_; }
  std::uint64_t expert_bytes() const;  // of all tensors
  // True when scale bytes depend on the scales of all experts: note() each of them first.
  bool needs_all_experts() const;

  // Notes what later steps must know of expert number `position` (0 ... experts - 1): global and
  // input scales, extremes of block scales. pack() takes notes too; from several threads only for
  // different experts.
  Result<Done> note(std::size_t position, const checkpoint::ExpertView& view);
  // For layouts that share input scales among all experts of all ranks.
  void set_all_input_scales(InputScales scales);

  // Expert `position` into targets[t], tensors()[t].expert_bytes bytes each (empty for scalar
  // tensors). Errors: scale.range, scale.negative, layout.position, layout.memory.
  Result<Done> pack(std::size_t position, const checkpoint::ExpertView& view,
                    std::span<const std::span<std::byte>> targets, PackPath path = PackPath::fast);
  // The scalar tensors, whole; targets as above with `bytes` bytes, empty for the others. Errors:
  // scale.input (an input scale is missing, zero or not finite).
  Result<Done> pack_scalars(std::span<const std::span<std::byte>> targets) const;

  // Back to canonical rows: sources[t] as in pack(). `to` has rows for codes and scales; biases go
  // to bias13 (rows in the checkpoint's order) and bias2, in the checkpoint's type. What a layout
  // cannot keep is named by losses().
  struct ExpertTarget {
    checkpoint::ExpertBuffers buffers{};
    std::span<std::byte> bias13{}, bias2{};
  };
  Result<Done> unpack(std::size_t position, std::span<const std::span<const std::byte>> sources,
                      const ExpertTarget& to, PackPath path = PackPath::fast) const;

  // The data that unpack needs beside the tensors (common exponents, the scalars of the source), as
  // JSON for the manifest; and taking it back.
  Json record() const;
  Result<Done> restore(const Json& record);

  // Sentences on what cannot be undone for this layout and the experts noted; empty: nothing.
  std::vector<std::string> losses() const;
  // Sentences on what the kernel will compute otherwise than the checkpoint says.
  std::vector<std::string> warnings() const;

  // The maps of a tensor's elements: of codes, of scales, of both where they share a tensor; none
  // for the others.
  std::vector<const layout::IndexMap*> maps(std::string_view tensor) const {
    const bool both = layout_.one_record;
    if (tensor == "w13" && both) return {&*codes13_, &*scales13_};
    if (tensor == "w2" && both) return {&*codes2_, &*scales2_};
    if (tensor == "w13") return {&*codes13_};
    if (tensor == "w2") return {&*codes2_};
    if (tensor == "w13_scale") return {&*scales13_};
    if (tensor == "w2_scale") return {&*scales2_};
    return {};
  }

  // Scalars of an expert as noted or restored.
  const ExpertScalars& scalars(std::size_t position) const { return facts_[position].scalars; }

 private:
  struct Facts {
    ExpertScalars scalars{};
    ScaleExtremes w13{}, w2{};
    std::uint64_t zeroed_blocks = 0;  // blocks of scale 0 that had codes
    bool is_noted = false;
    bool bias_rounded = false;
  };
  struct Matrix;
  struct Tables;

  explicit LayerPacker(layout::Layout layout) : layout_(layout) {}

  Result<Tables> tables(std::size_t position) const;
  Result<Done> add_tensors();
  Result<Done> check(std::size_t position, const checkpoint::ExpertView& view) const;
  bool pack_biases(const checkpoint::ExpertView& view,
                   std::span<const std::span<std::byte>> targets) const;
  void unpack_biases(std::span<const std::span<const std::byte>> sources,
                     const ExpertTarget& to) const;
  std::uint64_t bias_row(unsigned which, std::uint64_t i) const;
  void find_stored_rows();
  ScalarProblem scalar_problem() const;
  bool any_scale_becomes(std::uint8_t byte, std::uint8_t ScaleExtremes::*extreme) const;

  layout::Layout layout_;
  Problem problem_{};
  std::vector<PackedTensorSpec> tensors_{};
  std::optional<layout::IndexMap> codes13_{}, codes2_{}, scales13_{}, scales2_{};
  std::vector<std::uint64_t> rows_[3]{};  // of the stored matrix, for rows of gate, up and down
  std::vector<Facts> facts_{};
  std::optional<InputScales> all_inputs_{};
};

}  // namespace fp4moe::convert
