#include "fp4moe/checkpoint/synth/synth_adapter.hpp"

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/json.hpp"
#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"
#include "fp4moe/tensor/files/atomic_file.hpp"
#include "fp4moe/tensor/files/safetensors.hpp"

namespace fp4moe::checkpoint {
namespace {

// Factors to be written; `rms` is that of its uniform numbers.
struct SynthFactor {
  tensor::TensorSpec spec{};
  double rms = 0;
};

class AdapterPlanner {
 public:
  explicit AdapterPlanner(const SynthAdapterOptions& options) : options_(options) {
    const auto rank = static_cast<double>(options.rank);
    scale_ = options.alpha / (options.rslora ? std::sqrt(rank) : rank);
  }

  void add_layer(const AdapterTarget& target) {
    const std::uint64_t hidden = target.shape.hidden, inner = target.shape.intermediate;
    const bool gated = target.shape.gated();
    // GGUF and OpenAI have names of their own, which PEFT never sees.
    const bool is_peft = target.prefix.find("layers.") != std::string::npos;
    const std::string experts =
        fmt::format("base_model.model.{}experts",
                    is_peft ? target.prefix : fmt::format("model.layers.{}.mlp.", target.index));
    if (options_.form == AdapterForm::wrapped || options_.form == AdapterForm::swapped) {
      add_folded(experts + ".base_layer", target, {hidden, gated ? 2 * inner : inner});
      add_folded(experts, target, {inner, hidden});
      return;
    }
    const std::uint64_t copies =
        options_.form == AdapterForm::per_expert ? target.shape.experts : 1;
    for (std::uint64_t e = 0; e < copies; ++e) {
      const std::string stem =
          options_.form == AdapterForm::per_expert ? fmt::format("{}.{}", experts, e) : experts;
      if (gated) add_module(stem + ".gate_proj", target, {hidden, inner}, Shared::a);
      add_module(stem + ".up_proj", target, {hidden, inner}, Shared::a);
      add_module(stem + ".down_proj", target, {inner, hidden}, Shared::b);
    }
  }

  const std::vector<SynthFactor>& factors() const { return factors_; }

 private:
  struct Extent {
    std::uint64_t inputs, outputs;
  };
  enum class Shared : std::uint8_t { a, b };

  void add(std::string name, tensor::Shape shape, double rms) {
    factors_.push_back({{std::move(name), options_.dtype, std::move(shape)}, rms});
  }
  // rms(B A) = sqrt(rank) rms(B) rms(A)
  double rms_a(Extent extent) const { return 1 / std::sqrt(static_cast<double>(extent.inputs)); }
  double rms_b(Extent extent) const {
    return options_.change /
           (scale_ * rms_a(extent) * std::sqrt(static_cast<double>(options_.rank)));
  }

  void add_folded(const std::string& stem, const AdapterTarget& target, Extent extent) {
    const std::uint64_t ranks = options_.rank * target.shape.experts;
    const bool swapped = options_.form == AdapterForm::swapped;
    const std::uint64_t of_a = swapped ? extent.outputs : extent.inputs;
    const std::uint64_t of_b = swapped ? extent.inputs : extent.outputs;
    add(stem + ".lora_A.weight", {ranks, of_a}, rms_a(extent));
    add(stem + ".lora_B.weight", {of_b, ranks}, rms_b(extent));
  }

  void add_module(const std::string& stem, const AdapterTarget& target, Extent extent,
                  Shared shared) {
    tensor::Shape a{options_.rank, extent.inputs}, b{extent.outputs, options_.rank};
    if (options_.form != AdapterForm::per_expert) {
      const bool shares = options_.form == AdapterForm::shared;
      const std::uint64_t experts = target.shape.experts;
      a.insert(a.begin(), shares && shared == Shared::a ? 1 : experts);
      b.insert(b.begin(), shares && shared == Shared::b ? 1 : experts);
    }
    add(stem + ".lora_A.weight", a, rms_a(extent));
    add(stem + ".lora_B.weight", b, rms_b(extent));
  }

  const SynthAdapterOptions& options_;
  double scale_ = 1;
  std::vector<SynthFactor> factors_{};
};

// Uniform numbers in the adapter's type.
std::vector<std::byte> uniform_numbers(const SynthFactor& factor, std::uint64_t seed) {
  const tensor::DType dtype = factor.spec.dtype;
  const std::uint64_t width = tensor::row(dtype).block_bytes;
  const std::uint64_t count = *tensor::element_count(factor.spec.shape);
  const auto reach = static_cast<float>(factor.rms * std::sqrt(3.0));
  std::vector<std::byte> bytes(count * width);
  SplitMix64 random(seed);
  for (std::uint64_t i = 0; i < count; ++i) {
    const float value = (2 * random.unit() - 1) * reach;
    const std::uint16_t half =
        dtype == tensor::DType::bf16 ? formats::Bf16::encode(value) : formats::F16::encode(value);
    if (width == 4) {
      std::memcpy(bytes.data() + i * 4, &value, 4);
    } else {
      std::memcpy(bytes.data() + i * 2, &half, 2);
    }
  }
  return bytes;
}

Json adapter_document(const SynthAdapterOptions& options) {
  const bool wrapped = options.form == AdapterForm::wrapped || options.form == AdapterForm::swapped;
  Json document{
      {"peft_type", "LORA"},
      {"base_model_name_or_path", ""},
      {"bias", "none"},
      {"lora_alpha", options.alpha},
      {"lora_dropout", 0.0},
      {"modules_to_save", nullptr},
      {"r", options.rank},
      {"rank_pattern", Json::object()},
      {"alpha_pattern", Json::object()},
      {"target_modules", wrapped ? Json::array() : Json{"gate_proj", "up_proj", "down_proj"}},
      {"target_parameters",
       wrapped ? Json{"mlp.experts.gate_up_proj", "mlp.experts.down_proj"} : Json(nullptr)},
      {"task_type", "CAUSAL_LM"},
      {"use_dora", false},
      {"use_rslora", options.rslora}};
  return document;
}

}  // namespace

std::optional<AdapterForm> adapter_form_from_name(std::string_view name) {
  for (const AdapterFormRow& row : kAdapterForms)
    if (row.name == name) return row.form;
  return std::nullopt;
}

Result<SynthAdapterReport> synth_adapter(std::span<const AdapterTarget> targets,
                                         const SynthAdapterOptions& options,
                                         const std::string& out) {
  if (options.rank == 0 || options.rank > kMaxLoraRank)
    return usage("synth.adapter", "there is no such rank")
        .expects(fmt::format("1 to {}", kMaxLoraRank), std::to_string(options.rank));
  if (targets.empty()) return usage("synth.adapter", "the model has no MoE layer to adapt");
  AdapterPlanner planner(options);
  for (const AdapterTarget& target : targets) planner.add_layer(target);
  std::vector<tensor::TensorSpec> specs;
  SynthAdapterReport report{.layers = targets.size(), .tensors = planner.factors().size()};
  for (const SynthFactor& factor : planner.factors()) {
    const std::optional<std::uint64_t> bytes =
        tensor::byte_count(factor.spec.dtype, factor.spec.shape);
    const std::optional<std::uint64_t> total =
        bytes ? checked_add(report.bytes, *bytes) : std::nullopt;
    if (!total) return usage("synth.adapter", "the adapter's size overflows").at(factor.spec.name);
    report.bytes = *total;
    specs.push_back(factor.spec);
  }
  Result<tensor::AtomicFolder> folder = tensor::AtomicFolder::create(out);
  if (!folder) return folder.why();
  Result<tensor::SafetensorsWriter> writer = tensor::SafetensorsWriter::create(
      folder->staging() + "/adapter_model.safetensors", specs, {{"format", "pt"}});
  if (!writer) return folder->explain(writer.why());
  SplitMix64 seeds(options.seed);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (Result<Done> go_on = check_interrupt(); !go_on) return go_on.why();
    const std::vector<std::byte> bytes = uniform_numbers(planner.factors()[i], seeds.next());
    if (Result<Done> done = writer->write(i, 0, bytes); !done) return folder->explain(done.why());
  }
  if (Result<Done> done = writer->finish(); !done) return folder->explain(done.why());
  const std::string text = adapter_document(options).dump(2) + "\n";
  if (Result<Done> done = tensor::write_file(folder->staging() + "/adapter_config.json",
                                             std::as_bytes(std::span(text.data(), text.size())));
      !done)
    return folder->explain(done.why());
  if (Result<Done> done = folder->commit(); !done) return done.why();
  return report;
}

}  // namespace fp4moe::checkpoint
