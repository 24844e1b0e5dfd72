// What the tests of the C API share: a tiny model, and rows over vectors.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/convert/test_folder.hpp"
#include "fp4moe/fp4moe.h"

namespace fp4moe::capi::testing {

constexpr std::uint64_t kExperts = 6, kHidden = 128, kIntermediate = 96, kLayers = 2;

// gpt-oss in small, made once.
inline const std::string& model_path() {
  static const tensor::testing::TemporaryFolder kFolder;
  static const std::string kPath = [] {
    const std::string path = kFolder.path() + "/model";
    convert::testing::make_checkpoint(path, weights::WeightFormat::mxfp4,
                                      {kExperts, kHidden, kIntermediate, kLayers});
    return path;
  }();
  return kPath;
}

inline fp4moe_model* open_model() {
  fp4moe_model* model = nullptr;
  EXPECT_EQ(fp4moe_model_open(model_path().c_str(), &model), FP4MOE_OK) << fp4moe_last_error();
  return model;
}

inline fp4moe_layer_options layer_options() {
  fp4moe_layer_options options{};
  options.size = sizeof options;
  options.device = "cpu";
  options.threads = 1;
  return options;
}

// A layer that is ready, of a model that is closed already.
inline fp4moe_layer* ready_layer(const fp4moe_layer_options& options = layer_options()) {
  fp4moe_model* model = open_model();
  fp4moe_layer* layer = nullptr;
  EXPECT_EQ(fp4moe_layer_create(model, 0, &options, &layer), FP4MOE_OK) << fp4moe_last_error();
  fp4moe_model_close(model);
  EXPECT_EQ(fp4moe_layer_load(layer), FP4MOE_OK) << fp4moe_last_error();
  EXPECT_EQ(fp4moe_layer_process(layer), FP4MOE_OK) << fp4moe_last_error();
  return layer;
}

inline fp4moe_rows rows_of(const std::vector<float>& values, std::uint64_t columns) {
  return {sizeof(fp4moe_rows), values.data(), FP4MOE_F32, values.size() / columns, columns, 0};
}
inline fp4moe_output output_of(std::vector<float>& values, std::uint64_t columns) {
  return {sizeof(fp4moe_output), values.data(), FP4MOE_F32, values.size() / columns, columns, 0};
}

// A string of the library's, taken over.
inline std::string take(char* text) {
  std::string taken = text == nullptr ? "" : text;
  fp4moe_free_string(text);
  return taken;
}

}  // namespace fp4moe::capi::testing
