// A model as planning sees it: the shape of its MoE layers, how many there are, and the
// words with which a backend is selected. Taken from the table of models or from a checkpoint.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/config.hpp"
#include "fp4moe/checkpoint/models.hpp"
#include "fp4moe/checkpoint/moe_shape.hpp"
#include "fp4moe/checkpoint/slice.hpp"
#include "fp4moe/oracle/request.hpp"
#include "fp4moe/oracle/vllm/buffers.hpp"

namespace fp4moe::checkpoint {
class Checkpoint;
}

namespace fp4moe::plan {

struct Model {
  std::string name{};
  std::string family{};          // its model_type; empty: not known
  checkpoint::MoeShape shape{};  // of one MoE layer
  std::uint64_t layers = 0;      // MoE layers
  checkpoint::SplitRule rule = checkpoint::SplitRule::equal;
  oracle::BufferNames names = oracle::BufferNames::modelopt;
  oracle::Layer layer{};  // of one rank without parallelism
  // If Quark quantized the experts to MXFP4: what it says of their input.
  std::optional<checkpoint::ExpertInput> quark_input{};
  // The configuration's word for an activation that no engine has; `layer` then has a guess.
  std::string unread_activation{};
  std::vector<std::string> notes{};
};

// Which of vLLM's entries such a model goes through: gpt-oss's, which Quark's method asks, too, or
// that of all other MXFP4 models.
backends::Entry entry_of(const Model& model);

// The layer as that entry is asked about it: Quark's method says how the input is quantized.
oracle::Layer layer_for(const Model& model, oracle::PolicyDate policy_date);

Model model_from_row(const checkpoint::ModelRow& row,
                     std::optional<checkpoint::WeightFormat> format);

// A layer of which nothing but its sizes is known; its activation and routing are the defaults.
Model model_of_shape(const checkpoint::MoeShape& shape, checkpoint::SplitRule rule,
                     std::optional<std::uint64_t> top_k);

// The model of a checkpoint's configuration and a layer of this shape; `rule` is how its
// intermediate size is cut. Unknown families are noted.
Model model_of_layer(const checkpoint::ModelConfig& config, const checkpoint::MoeShape& shape,
                     checkpoint::SplitRule rule);

// Reads headers only. Errors: those of Checkpoint::open, and plan.shapes when its MoE layers have
// different shapes.
Result<Model> model_from_checkpoint(const std::string& path);
// The same of one that is open already; `path` is what it was opened by.
Result<Model> model_from_checkpoint(const checkpoint::Checkpoint& checkpoint,
                                    const std::string& path);

// From a config.json alone, which says less than tensors do: a known family tells whether there are
// a gate and biases. `format` stands in where the file names none. Errors: those of parse_config,
// plan.path (code failed) where there is no file, and with code no_backend plan.no_moe (a model
// without routed experts) and plan.not_fp4 (quantized to something else, or not at all).
Result<Model> model_from_config(const std::string& path,
                                std::optional<checkpoint::WeightFormat> format);

// The model at `path`: a checkpoint, or a config.json without tensors. Errors: those of both.
Result<Model> model_from_path(const std::string& path,
                              std::optional<checkpoint::WeightFormat> format);

}  // namespace fp4moe::plan
