// Small checkpoints as other tools write them, and the way through another dialect and back.
#pragma once
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/edit/transcode.hpp"
#include "support/tiny_model.hpp"

namespace fp4moe::checkpoint::testing::producers {

using Tensors = std::vector<FileTensor>;

inline constexpr WeightFormat kMx = WeightFormat::mxfp4, kNv = WeightFormat::nvfp4;

inline Model small(WeightFormat format) {
  return {.format = format, .experts = 2, .hidden = 64, .intermediate = 128};
}

inline std::string config_of(std::string_view model_type, std::string_view quantization) {
  return R"({"model_type": ")" + std::string(model_type) + R"(", "quantization_config": )" +
         std::string(quantization) + "}";
}

inline constexpr std::string_view kQuarkMxfp4 =
    R"({"quant_method": "quark", "global_quant_config": {"weight":
        {"dtype": "fp4", "group_size": 32, "qscheme": "per_group", "scale_format": "e8m0", "scale_type": "float"}}})";

// Transcodes to another dialect and back: the same tensors, byte for byte.
inline void expect_back(const std::string& source, Dialect through, const std::string& work) {
  const auto first = Checkpoint::open(source);
  ASSERT_TRUE(first) << text(first.why());
  const std::string there = work + (through == Dialect::gguf ? ".gguf" : "");
  const auto result = transcode(*first, through, there);
  ASSERT_TRUE(result) << text(result.why());
  const auto second = Checkpoint::open(there);
  ASSERT_TRUE(second) << text(second.why());
  const auto again = transcode(*second, first->dialect().dialect, work + "-back");
  ASSERT_TRUE(again) << text(again.why());
  const auto last = Checkpoint::open(work + "-back");
  ASSERT_TRUE(last) << text(last.why());
  EXPECT_EQ(first->store().tensors().size(), last->store().tensors().size());
  for (const tensor::StoredTensor& tensor : first->store().tensors()) {
    const tensor::StoredTensor* other = last->store().find(tensor.entry.name);
    ASSERT_NE(other, nullptr) << tensor.entry.name << " through " << name(through);
    EXPECT_EQ(tensor.entry.dtype, other->entry.dtype) << tensor.entry.name;
    EXPECT_EQ(tensor.entry.shape, other->entry.shape) << tensor.entry.name;
    const auto a = first->store().bytes(tensor), b = last->store().bytes(*other);
    ASSERT_EQ(a.size(), b.size());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size()), 0) << tensor.entry.name;
  }
}

}  // namespace fp4moe::checkpoint::testing::producers
