// What the tests of the C API share: a tiny model, and rows over vectors.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/fp4moe.h"
#include "fp4moe/tensor/files/store.hpp"
#include "support/converted_folder.hpp"

namespace fp4moe::capi::testing {

constexpr std::uint64_t kExperts = 6, kHidden = 128, kIntermediate = 96, kLayers = 2;

// gpt-oss in small, made once.
inline const std::string& model_path() {
  static const tensor::testing::TemporaryFolder kFolder;
  static const std::string kPath = [] {
    const std::string path = kFolder.path() + "/model";
    convert::testing::make_checkpoint(path, checkpoint::WeightFormat::mxfp4,
                                      {kExperts, kHidden, kIntermediate, kLayers});
    return path;
  }();
  return kPath;
}
// Qwen3 in small.
inline const std::string& nvfp4_path() {
  static const tensor::testing::TemporaryFolder kFolder;
  static const std::string kPath = [] {
    const std::string path = kFolder.path() + "/model";
    convert::testing::make_checkpoint(path, checkpoint::WeightFormat::nvfp4,
                                      {kExperts, kHidden, kIntermediate, kLayers});
    return path;
  }();
  return kPath;
}

inline fp4moe_model* open_model(const std::string& path = model_path()) {
  fp4moe_model* model = nullptr;
  EXPECT_EQ(fp4moe_model_open(path.c_str(), &model), FP4MOE_OK) << fp4moe_last_error();
  return model;
}

// The same model's tensors, read into memory by the caller.
struct ReadTensors {
  ReadTensors() {
    const auto store = tensor::Store::open(model_path());
    EXPECT_TRUE(store) << text(store.why());
    for (const tensor::StoredTensor& tensor : store->tensors()) {
      const auto bytes = store->bytes(tensor);
      entries.push_back(tensor.entry);
      dtypes.emplace_back(tensor::name(tensor.entry.dtype));
      memory.emplace_back(bytes.begin(), bytes.end());
    }
    config = tensor::testing::read_text(model_path() + "/config.json");
    for (std::size_t i = 0; i < entries.size(); ++i)
      all.push_back({sizeof(fp4moe_tensor), entries[i].name.c_str(), dtypes[i].c_str(),
                     entries[i].shape.data(), entries[i].shape.size(), memory[i].data(),
                     memory[i].size()});
  }
  fp4moe_tensors tensors() const {
    return {sizeof(fp4moe_tensors), all.data(), all.size(), config.c_str(), nullptr};
  }

  std::vector<tensor::TensorEntry> entries{};
  std::vector<std::string> dtypes{};
  std::vector<std::vector<std::byte>> memory{};
  std::string config{};
  std::vector<fp4moe_tensor> all{};
};

inline fp4moe_layer_options layer_options() {
  fp4moe_layer_options options{};
  options.size = sizeof options;
  options.device = "cpu";
  options.threads = 1;
  return options;
}

// A layer that is ready, of a model that is closed already.
inline fp4moe_layer* ready_layer(const fp4moe_layer_options& options = layer_options(),
                                 const std::string& path = model_path()) {
  fp4moe_model* model = open_model(path);
  fp4moe_layer* layer = nullptr;
  EXPECT_EQ(fp4moe_layer_create(model, 0, &options, &layer), FP4MOE_OK) << fp4moe_last_error();
  fp4moe_model_close(model);
  EXPECT_EQ(fp4moe_layer_load(layer), FP4MOE_OK) << fp4moe_last_error();
  EXPECT_EQ(fp4moe_layer_process(layer), FP4MOE_OK) << fp4moe_last_error();
  return layer;
}

inline std::vector<float> seeded(std::uint64_t count, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = 2.0f * random.unit() - 1.0f;
  return values;
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
