// A checkpoint whose experts are not quantized yet: bfloat16, float16 or float32, in one of four
// forms.
//
//   per expert          experts.7.gate_proj.weight [intermediate, hidden], ...
//   fused               experts.gate_up_proj [experts, 2 * intermediate, hidden], gates first
//   fused, transposed   experts.gate_up_proj [experts, hidden, 2 * intermediate]: gpt-oss (gate and
//                       up columns interleaved) and Llama 4 (gates first)
//
// Fused forms are told apart by the shapes of gate_up_proj and down_proj together, which never fit
// both, and the order of columns by the model type. What cannot be told is refused.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/moe_shape.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::checkpoint {

// The position of an expert's matrix [rows, k] in its tensor: element [r, c] is at
// `first + r * row_step + c * column_step`, counted in elements.
struct PlainMatrix {
  const tensor::StoredTensor* tensor = nullptr;
  const tensor::StoredTensor* bias = nullptr;  // null: none
  std::uint64_t rows = 0, k = 0;
  std::uint64_t first = 0, row_step = 0, column_step = 0;
  std::uint64_t bias_first = 0, bias_step = 0;

  bool is_dense() const { return column_step == 1 && row_step == k; }
};

enum class PlainForm : std::uint8_t { per_expert, fused, transposed };

struct PlainLayer {
  std::uint64_t index = 0;
  std::string prefix{};
  PlainForm form = PlainForm::per_expert;
  MoeShape shape{};                                    // the format is not yet chosen
  bool numbered_names = false;                         // w1, w3, w2
  std::vector<const tensor::StoredTensor*> tensors{};  // all of the experts'
  // Per-expert form: tensors by expert; otherwise one entry each.
  std::vector<const tensor::StoredTensor*> gate{}, up{}, down{};
  const tensor::StoredTensor* w13_bias = nullptr;
  const tensor::StoredTensor* w2_bias = nullptr;
  std::vector<const tensor::StoredTensor*> gate_bias{}, up_bias{}, down_bias{};

  PlainMatrix matrix(Projection which, std::uint64_t expert) const;
};

class PlainCheckpoint {
 public:
  // Errors: quantize.no_experts, quantize.already, quantize.form, quantize.missing,
  // quantize.shape, quantize.dtype, and those of files and configuration.
  static Result<PlainCheckpoint> open(const std::string& path);

  const tensor::Store& store() const { return *store_; }
  const Json& config() const { return *config_; }
  const std::string& model_type() const { return model_type_; }
  std::uint64_t top_k() const { return top_k_; }
  std::span<const PlainLayer> layers() const { return layers_; }

 private:
  std::unique_ptr<tensor::Store> store_{};
  std::unique_ptr<Json> config_{};
  std::string model_type_{};
  std::uint64_t top_k_ = 0;
  std::vector<PlainLayer> layers_{};
};

// Copies rows [begin, end) of a matrix into dense rows of the tensor's own element type.
void gather_rows(const tensor::Store& store, const PlainMatrix& matrix, std::uint64_t begin,
                 std::uint64_t end, std::span<std::byte> out);

}  // namespace fp4moe::checkpoint
