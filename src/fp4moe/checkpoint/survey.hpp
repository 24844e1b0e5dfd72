// The experts of a store, found without reading a weight: tensor names are parsed and
// grouped into layers, each layer's parts and types name its dialect, the configuration must agree,
// and every tensor's shape is checked. Nothing is guessed: what contradicts itself is a problem
// that names both facts. All problems are collected; Checkpoint::open reports the first, lint all.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/config.hpp"
#include "fp4moe/checkpoint/dialect.hpp"
#include "fp4moe/checkpoint/expert_name.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::checkpoint {

// The experts' tensors of one layer, as named.
struct NamedTensor {
  ExpertName name{};
  const tensor::StoredTensor* tensor = nullptr;
};
struct NamedLayer {
  NameFamily family = NameFamily::hugging_face;
  std::string_view prefix{};  // into the store's names
  std::uint64_t index = 0;
  std::vector<NamedTensor> tensors{};
};

// The dialect that a layer's names and types show. Exactly one of row and `other` is set unless
// `why` is.
struct DialectVerdict {
  const DialectRow* row = nullptr;
  std::string other{};    // what it is instead: "BF16", "FP8", "INT4 (AWQ or GPTQ)"
  std::string fact{};     // "tensors .weight_packed U8, .weight_scale F8_E4M3"
  bool is_float = false;  // `other` is unquantized
  std::string why_id{};   // a contradiction or ambiguity within the names and types
  std::string why{};
};
DialectVerdict classify(const NamedLayer& layer, const ModelFacts& facts);

struct Survey {
  ModelFacts facts{};
  const DialectRow* row = nullptr;  // null: not recognized, `problems` says why
  std::string evidence{};
  std::vector<LayerTensors> layers{};  // complete ones, and broken ones with null places
  std::vector<OtherLayer> others{};
  std::vector<const tensor::StoredTensor*> extras{};  // experts' tensors of no known use
  std::vector<Error> problems{};                      // the most fundamental first
  std::uint64_t more_problems = 0;                    // beyond kMaxProblems
  static constexpr std::size_t kMaxProblems = 10'000;

  void add(Error problem) {
    if (problems.size() < kMaxProblems) {
      problems.push_back(std::move(problem));
    } else {
      ++more_problems;
    }
  }
};

Survey survey(const tensor::Store& store);

// The error of an experts' tensor that changes numbers and is not applied.
Error unread_part(const DialectRow& row, std::string_view part);

// Fills in a layer of dialect `row`; adds what is wrong to `into`.
LayerTensors build_layer(const NamedLayer& named, const DialectRow& row, const tensor::Store& store,
                         Survey& into);

}  // namespace fp4moe::checkpoint
