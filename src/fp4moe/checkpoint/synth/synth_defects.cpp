// Known defects of real checkpoints, planted into a sound one. Each is what one row below says;
// lint must find it.
#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>

#include "fp4moe/base/folder_names.hpp"
#include "fp4moe/checkpoint/synth/synth_plan.hpp"
#include "fp4moe/checkpoint/write/copy_checkpoint.hpp"
#include "fp4moe/checkpoint/write/quant_config.hpp"
#include "fp4moe/checkpoint/write/tensor_names.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::checkpoint {
namespace {

// clang-format off
constexpr std::array<SynthDefect, 14> kDefects{{
    {"nan-scale",               "one block scale of expert 0 is NaN"},
    {"zero-scale",              "one block scale of expert 0 is 0 (NVFP4)"},
    {"negative-scale",          "one block scale of expert 0 is negative (NVFP4)"},
    {"zero-global-scale",       "the global scale of expert 0's first projection is 0 (NVFP4)"},
    {"infinite-global-scale",   "the global scale of expert 0's first projection is infinite (NVFP4)"},
    {"inverted-global-scale",   "the global scale of expert 0's first projection is its reciprocal (NVFP4)"},
    {"mismatched-global-scale", "gate and up of expert 0 have different global scales (NVFP4)"},
    {"missing-input-scale",     "the last expert has no input scales (NVFP4)"},
    {"missing-expert",          "the last expert's tensors are not there"},
    {"missing-tensor",          "the scales of one projection are not there"},
    {"wrong-shape",             "one scale tensor has its last two sizes swapped"},
    {"wrong-dtype",             "one scale tensor claims signed bytes"},
    {"truncated-shard",         "the last shard ends in the middle"},
    {"bad-index",               "the index names a shard that is not there"},
}};
// clang-format on

using Bytes = std::vector<std::byte>;

class Planter {
 public:
  Planter(const SynthPlan& plan, const tensor::Store& store)
      : store_(store),
        layout_(expert_layout(
            row_of(plan), plan.shape,
            plan.row->dialect == Dialect::gguf ? tensor::DType::f32 : tensor::DType::bf16)),
        prefix_(layer_prefix(name_family(plan.row->dialect) == NameFamily::hugging_face
                                 ? plan.model->prefix
                                 : plan.row->prefix,
                             plan.blocks[0])) {}

  Result<CheckpointEdits> edits(std::string_view defect) {
    CheckpointEdits edits;
    const std::uint64_t last = layout_.shape.experts - 1;
    if (defect == "missing-expert" || defect == "missing-input-scale") {
      const bool all = defect == "missing-expert";
      for (const Run& run : layout_.runs) {
        if (!all && run.part != Part::input_scale) continue;
        const std::string name = run_tensor(layout_, run, prefix_, last).name;
        if (per_expert()) {
          edits.remove.push_back(name);
        } else {
          edits.put.push_back(one_expert_less(name));
        }
      }
    } else if (defect == "missing-tensor") {
      if (const Run* run = first(scale_part()))
        edits.remove.push_back(run_tensor(layout_, *run, prefix_, 0).name);
    } else if (defect == "wrong-shape" || defect == "wrong-dtype") {
      if (const Run* run = first(scale_part())) {
        NewTensor changed = load(run_tensor(layout_, *run, prefix_, 0).name);
        tensor::Shape& shape = changed.spec.shape;
        if (defect == "wrong-dtype") {
          changed.spec.dtype = tensor::DType::i8;
        } else {
          std::swap(shape[shape.size() - 2], shape[shape.size() - 1]);
        }
        edits.put.push_back(std::move(changed));
      }
    } else {
      edits.put = changed_values(defect);
    }
    if (edits.put.empty() && edits.remove.empty())
      return usage("synth.defect", "this checkpoint cannot have the defect")
          .at(defect)
          .expects("a dialect that stores what the defect breaks", std::string(layout_.row.name));
    return edits;
  }

 private:
  static DialectRow row_of(const SynthPlan& plan) {
    DialectRow row = *plan.row;
    if (row.grouping == Grouping::per_expert && !row.joins_gate_up())
      row.projections = plan.model->projections;
    return row;
  }
  bool per_expert() const { return layout_.row.grouping == Grouping::per_expert; }
  // GGUF keeps the scales inside the codes.
  Part scale_part() const { return layout_.row.scales_inside() ? Part::codes : Part::scales; }

  const Run* first(Part part, std::optional<Matrix> matrix = {}) const {
    const auto found = std::ranges::find_if(layout_.runs, [&](const Run& run) {
      return run.part == part && (!matrix || run.matrix == *matrix);
    });
    return found == layout_.runs.end() ? nullptr : &*found;
  }

  NewTensor load(const std::string& name) const {
    const tensor::StoredTensor& tensor = *store_.find(name);
    const std::span<const std::byte> bytes = store_.bytes(tensor);
    return {{name, tensor.entry.dtype, tensor.entry.shape}, Bytes(bytes.begin(), bytes.end())};
  }

  NewTensor one_expert_less(const std::string& name) const {
    NewTensor tensor = load(name);
    const std::uint64_t experts = tensor.spec.shape[0];
    tensor.bytes.resize(tensor.bytes.size() / experts * (experts - 1));
    tensor.spec.shape[0] = experts - 1;
    return tensor;
  }

  std::vector<NewTensor> changed_values(std::string_view defect) const {
    const bool is_nvfp4 = layout_.shape.format == WeightFormat::nvfp4;
    const auto in = [&](Part part, std::optional<Matrix> matrix, auto change) {
      std::vector<NewTensor> changed;
      const Run* run = first(part, matrix);
      if (run == nullptr) return changed;
      changed.push_back(load(run_tensor(layout_, *run, prefix_, 0).name));
      change(changed.back().bytes);
      return changed;
    };
    const auto scale = [&](int bits) {
      return in(scale_part(), {}, [bits](Bytes& bytes) { bytes[0] = std::byte(bits); });
    };
    const auto global = [&](std::optional<Matrix> matrix, auto change) {
      return in(Part::global_scale, matrix, [&](Bytes& bytes) {
        float value = 0;
        std::memcpy(&value, bytes.data(), sizeof value);
        value = change(value);
        std::memcpy(bytes.data(), &value, sizeof value);
      });
    };
    if (defect == "nan-scale") return scale(is_nvfp4 ? 0x7F : 0xFF);
    if (!is_nvfp4) return {};
    if (defect == "zero-scale") return scale(0);
    if (defect == "negative-scale") return scale(0xB8);
    if (defect == "zero-global-scale") return global({}, [](float) { return 0.0f; });
    if (defect == "infinite-global-scale")
      return global({}, [](float) { return std::numeric_limits<float>::infinity(); });
    if (defect == "inverted-global-scale") return global({}, [](float v) { return 1.0f / v; });
    if (defect == "mismatched-global-scale" && layout_.shape.gated())
      return global(Matrix::up, [](float v) { return v * 1.5f; });
    return {};
  }

  const tensor::Store& store_;
  ExpertLayout layout_;
  std::string prefix_;
};

// The defects of files rather than of tensors are made in a finished copy.
Result<Done> break_files(std::string_view defect, const std::string& out) {
  namespace fs = std::filesystem;
  std::error_code code;
  if (defect == "bad-index") {
    const std::string path = out + "/model.safetensors.index.json";
    Result<Json> index = read_json_file(path);
    if (!index)
      return usage("synth.defect", "this checkpoint has no index to break")
          .at(defect)
          .try_this("ask for two shards or more");
    Json& map = (*index)["weight_map"];
    if (map.empty()) return usage("synth.defect", "the index names no tensors").at(defect);
    map.begin().value() = "model-99999-of-99999.safetensors";
    const std::string text = index->dump(2);
    return tensor::write_file(path, std::as_bytes(std::span(text.data(), text.size())));
  }
  std::string last;
  if (fs::is_directory(out, code)) {
    std::vector<std::string> names;
    add_names_in(out, names);
    for (const std::string& name : names)
      if (name.ends_with(".safetensors") || name.ends_with(".gguf")) last = out + "/" + name;
  } else {
    last = out;
  }
  const std::uintmax_t size = fs::file_size(last, code);
  if (!code) fs::resize_file(last, size - size / 3, code);
  if (code)
    return system_error("synth.truncate", "cannot shorten the shard", code.value()).in(last);
  return Done{};
}

}  // namespace

std::span<const SynthDefect> synth_defects() { return kDefects; }

Result<Done> plant_defect(const SynthPlan& plan, const SynthOptions& options,
                          const std::string& whole, const std::string& out) {
  if (plan.row == nullptr)
    return usage("synth.defect", "an unquantized checkpoint has no scales to break")
        .at(options.defect);
  const Result<tensor::Store> store = tensor::Store::open(whole);
  if (!store) return store.why();
  const bool breaks_files = options.defect == "truncated-shard" || options.defect == "bad-index";
  CheckpointEdits edits;
  if (!breaks_files) {
    Result<CheckpointEdits> result = Planter(plan, *store).edits(options.defect);
    if (!result) return result.why();
    edits = *std::move(result);
  }
  std::uint64_t total = 0;
  for (const tensor::StoredTensor& tensor : store->tensors()) total += tensor.entry.bytes;
  const CopyOptions copy{.threads = options.threads,
                         .max_shard_bytes = (total + options.shards - 1) / options.shards};
  if (Result<Done> done = copy_checkpoint(*store, out, edits, copy); !done) return done;
  return breaks_files ? break_files(options.defect, out) : Done{};
}

}  // namespace fp4moe::checkpoint
