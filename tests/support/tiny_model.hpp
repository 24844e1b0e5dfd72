// Tiny checkpoints written by hand for the tests of this module, independent of the writer: the
// values of every code, scale and bias follow from their place, so that a test can recompute them.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/dialect.hpp"
#include "fp4moe/checkpoint/moe_shape.hpp"
#include "fp4moe/tensor/files/gguf.hpp"
#include "fp4moe/tensor/files/safetensors.hpp"
#include "support/files.hpp"

namespace fp4moe::checkpoint::testing {

using tensor::DType;
using tensor::Shape;
using Bytes = std::vector<std::byte>;

struct FileTensor {
  std::string name{};
  DType dtype = DType::u8;
  Shape shape{};
  Bytes bytes{};
};

inline void write_safetensors(const std::string& path, const std::vector<FileTensor>& tensors) {
  std::vector<tensor::TensorSpec> specs;
  for (const FileTensor& tensor : tensors)
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  auto writer = tensor::SafetensorsWriter::create(path, specs);
  ASSERT_TRUE(writer) << text(writer.why());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto done = writer->write(i, 0, tensors[i].bytes);
    ASSERT_TRUE(done) << text(done.why());
  }
  const auto done = writer->finish();
  ASSERT_TRUE(done) << text(done.why());
}

inline void write_gguf(const std::string& path, const std::vector<FileTensor>& tensors,
                       const std::vector<tensor::GgufField>& fields) {
  std::vector<tensor::TensorSpec> specs;
  for (const FileTensor& tensor : tensors)
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  auto writer = tensor::GgufWriter::create(path, fields, specs);
  ASSERT_TRUE(writer) << text(writer.why());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto done = writer->write(i, 0, tensors[i].bytes);
    ASSERT_TRUE(done) << text(done.why());
  }
  const auto done = writer->finish();
  ASSERT_TRUE(done) << text(done.why());
}

inline Bytes f32(std::initializer_list<float> values) {
  Bytes bytes(values.size() * 4);
  std::size_t at = 0;
  for (const float value : values) {
    std::memcpy(bytes.data() + at, &value, 4);
    at += 4;
  }
  return bytes;
}

inline void append(Bytes& to, const Bytes& from) { to.insert(to.end(), from.begin(), from.end()); }

// The model behind the files.
struct Model {
  WeightFormat format = WeightFormat::mxfp4;
  std::uint64_t experts = 3, hidden = 128, intermediate = 192;
  bool gated = true, bias = false, input_scale = false;

  std::uint64_t block() const { return block_size(format); }
  std::uint64_t rows(Projection which) const {
    return which == Projection::down ? hidden : intermediate;
  }
  std::uint64_t k(Projection which) const {
    return which == Projection::down ? intermediate : hidden;
  }
  static std::uint64_t mix(std::uint64_t e, Projection which, std::uint64_t row,
                           std::uint64_t column) {
    std::uint64_t x = ((e * 3 + static_cast<std::uint64_t>(which)) * 4096 + row) * 4096 + column;
    x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15u;
    return x ^ (x >> 29);
  }
  std::uint8_t code(std::uint64_t e, Projection which, std::uint64_t row, std::uint64_t k) const {
    return static_cast<std::uint8_t>(mix(e, which, row, k) & 15);
  }
  std::byte scale(std::uint64_t e, Projection which, std::uint64_t row, std::uint64_t b) const {
    const std::uint64_t x = mix(e, which, row, b + 2048);
    return static_cast<std::byte>(format == WeightFormat::mxfp4 ? 110 + x % 20 : 0x20 + x % 0x50);
  }
  float global(std::uint64_t e, Projection which) const {
    // Powers of two survive reciprocals.
    return std::ldexp(0x1p-13f, static_cast<int>(e * 2 + (which == Projection::down ? 1 : 0)));
  }
  float input(std::uint64_t e, Projection which) const {
    return std::ldexp(0x1p-9f, static_cast<int>(e * 2 + (which == Projection::down ? 1 : 0)));
  }
  float bias_value(std::uint64_t e, Projection which, std::uint64_t row) const {
    return static_cast<float>(mix(e, which, row, 4095) % 256) - 128.0f;  // exact in bfloat16
  }

  Bytes code_row(std::uint64_t e, Projection which, std::uint64_t row) const {
    Bytes bytes(k(which) / 2);
    for (std::uint64_t j = 0; j < bytes.size(); ++j) {
      bytes[j] = static_cast<std::byte>(code(e, which, row, 2 * j) |
                                        (code(e, which, row, 2 * j + 1) << 4));
    }
    return bytes;
  }
  Bytes scale_row(std::uint64_t e, Projection which, std::uint64_t row) const {
    Bytes bytes(k(which) / block());
    for (std::uint64_t b = 0; b < bytes.size(); ++b) bytes[b] = scale(e, which, row, b);
    return bytes;
  }
  Bytes bias_bytes(std::uint64_t e, Projection which, std::uint64_t row) const {
    const float value = bias_value(e, which, row);
    Bytes bytes(4);
    std::memcpy(bytes.data(), &value, 4);
    return {bytes[2], bytes[3]};
  }
  // GGUF blocks of a row, element by element.
  Bytes gguf_row(std::uint64_t e, Projection which, std::uint64_t row) const {
    Bytes bytes;
    const std::uint64_t half = block() / 2, groups = format == WeightFormat::mxfp4 ? 1 : 4;
    for (std::uint64_t first = 0; first < k(which) / block(); first += groups) {
      for (std::uint64_t g = 0; g < groups; ++g) bytes.push_back(scale(e, which, row, first + g));
      for (std::uint64_t g = 0; g < groups; ++g) {
        const std::uint64_t begin = (first + g) * block();
        for (std::uint64_t j = 0; j < half; ++j) {
          bytes.push_back(static_cast<std::byte>(code(e, which, row, begin + j) |
                                                 (code(e, which, row, begin + j + half) << 4)));
        }
      }
    }
    return bytes;
  }
};

using RowBytes = Bytes (Model::*)(std::uint64_t, Projection, std::uint64_t) const;

inline Bytes matrix(const Model& model, RowBytes row, std::uint64_t e, Projection which) {
  Bytes bytes;
  for (std::uint64_t r = 0; r < model.rows(which); ++r) append(bytes, (model.*row)(e, which, r));
  return bytes;
}

// gate0 up0 gate1 up1 ... of all experts, or down of all experts.
inline Bytes fused(const Model& model, RowBytes row, bool down) {
  Bytes bytes;
  for (std::uint64_t e = 0; e < model.experts; ++e) {
    if (down) {
      append(bytes, matrix(model, row, e, Projection::down));
      continue;
    }
    for (std::uint64_t r = 0; r < model.intermediate; ++r) {
      append(bytes, (model.*row)(e, Projection::gate, r));
      append(bytes, (model.*row)(e, Projection::up, r));
    }
  }
  return bytes;
}

inline const DialectRow& row_for(Dialect dialect, WeightFormat format, Grouping grouping) {
  for (const DialectRow& row : dialects()) {
    if (row.dialect == dialect && row.format == format && row.grouping == grouping) return row;
  }
  std::abort();
}

// Whether names and types alone tell a dialect, and tensors_of writes it. producers_test.cpp has the
// others.
inline bool is_told_by_names(const DialectRow& row) {
  const bool joined = row.grouping == Grouping::per_expert && row.joins_gate_up();
  const bool modelopt_mxfp4 = row.dialect == Dialect::modelopt && row.format == WeightFormat::mxfp4;
  return !row.is_transposed && !joined && !modelopt_mxfp4;
}

inline std::vector<FileTensor> fused_tensors(const Model& model, const DialectRow& row,
                                             const std::string& prefix) {
  std::vector<FileTensor> tensors;
  const bool quark = row.dialect == Dialect::quark;
  for (const bool down : {false, true}) {
    const Projection which = down ? Projection::down : Projection::gate;
    const std::string stem = projection_stem(row, prefix, 0, which);
    const std::uint64_t rows = down ? model.hidden : 2 * model.intermediate;
    const std::uint64_t k = model.k(which);
    const Shape codes =
        quark ? Shape{model.experts, rows, k / 2} : Shape{model.experts, rows, k / 32, 16};
    tensors.push_back({stem + std::string(row.parts.codes), DType::u8, codes,
                       fused(model, &Model::code_row, down)});
    tensors.push_back({stem + std::string(row.parts.scales), row.scales_dtype,
                       Shape{model.experts, rows, k / 32}, fused(model, &Model::scale_row, down)});
    if (model.bias) {
      tensors.push_back({stem + std::string(row.parts.bias), DType::bf16,
                         Shape{model.experts, rows}, fused(model, &Model::bias_bytes, down)});
    }
  }
  return tensors;
}

inline std::vector<Projection> projections(const Model& model) {
  if (model.gated) return {Projection::gate, Projection::up, Projection::down};
  return {Projection::up, Projection::down};
}

inline std::vector<FileTensor> per_expert_tensors(const Model& model, const DialectRow& row,
                                                  const std::string& prefix) {
  std::vector<FileTensor> tensors;
  const bool divides = row.global_scale == GlobalScale::divides;
  for (std::uint64_t e = 0; e < model.experts; ++e) {
    for (const Projection which : projections(model)) {
      const std::string stem = projection_stem(row, prefix, e, which);
      const std::uint64_t rows = model.rows(which), k = model.k(which);
      const auto add = [&](std::string_view part, DType dtype, Shape shape, Bytes bytes) {
        tensors.push_back({stem + std::string(part), dtype, std::move(shape), std::move(bytes)});
      };
      add(row.parts.codes, DType::u8, {rows, k / 2}, matrix(model, &Model::code_row, e, which));
      add(row.parts.scales, row.scales_dtype, {rows, k / model.block()},
          matrix(model, &Model::scale_row, e, which));
      if (row.global_scale != GlobalScale::none) {
        const float global = model.global(e, which);
        add(row.parts.global_scale, DType::f32, divides ? Shape{1} : Shape{},
            f32({divides ? 1.0f / global : global}));
      }
      if (model.input_scale) {
        const float input = model.input(e, which);
        add(row.parts.input_scale, DType::f32, divides ? Shape{1} : Shape{},
            f32({divides ? 1.0f / input : input}));
      }
      if (model.bias) {
        add(row.parts.bias, DType::bf16, {rows}, matrix(model, &Model::bias_bytes, e, which));
      }
    }
  }
  return tensors;
}

inline std::vector<FileTensor> gguf_tensors(const Model& model, const std::string& prefix,
                                            bool merged = false) {
  std::vector<FileTensor> tensors;
  const bool mxfp4 = model.format == WeightFormat::mxfp4;
  const auto add_all = [&](const std::string& stem, const std::vector<Projection>& parts) {
    Bytes codes, bias, global, input;
    for (std::uint64_t e = 0; e < model.experts; ++e) {
      for (const Projection which : parts) {
        append(codes, matrix(model, &Model::gguf_row, e, which));
        append(bias, matrix(model, &Model::bias_bytes, e, which));
      }
      append(global, f32({model.global(e, parts[0])}));
      append(input, f32({model.input(e, parts[0])}));
    }
    const std::uint64_t rows = model.rows(parts[0]) * parts.size(), k = model.k(parts[0]);
    tensors.push_back({stem + ".weight", mxfp4 ? DType::gguf_mxfp4 : DType::gguf_nvfp4,
                       Shape{model.experts, rows, k}, codes});
    if (!mxfp4) tensors.push_back({stem + ".scale", DType::f32, Shape{model.experts}, global});
    if (!mxfp4 && model.input_scale) {
      tensors.push_back({stem + ".input_scale", DType::f32, Shape{model.experts}, input});
    }
    if (model.bias) {
      tensors.push_back({stem + ".bias", DType::bf16, Shape{model.experts, rows}, bias});
    }
  };
  if (merged) {
    add_all(prefix + "ffn_gate_up_exps", {Projection::gate, Projection::up});
  } else {
    if (model.gated) add_all(prefix + "ffn_gate_exps", {Projection::gate});
    add_all(prefix + "ffn_up_exps", {Projection::up});
  }
  add_all(prefix + "ffn_down_exps", {Projection::down});
  return tensors;
}

inline std::vector<FileTensor> tensors_of(const Model& model, const DialectRow& row,
                                          std::uint64_t layer = 0) {
  const std::string prefix = layer_prefix(row, layer);
  if (row.grouping == Grouping::per_expert) return per_expert_tensors(model, row, prefix);
  if (row.grouping == Grouping::fused) return fused_tensors(model, row, prefix);
  return gguf_tensors(model, prefix);
}

// A checkpoint of one layer; returns the path to open.
inline std::string write_model(const tensor::testing::TemporaryFolder& folder, const Model& model,
                               const DialectRow& row) {
  if (row.grouping != Grouping::stacked) {
    write_safetensors(folder / "model.safetensors", tensors_of(model, row));
    return folder.path();
  }
  const tensor::GgufField architecture{"general.architecture", tensor::GgufType::string,
                                       std::string("qwen3moe")};
  write_gguf(folder / "model.gguf", tensors_of(model, row), {architecture});
  return folder / "model.gguf";
}

// The first tensor of that name, to be changed.
inline FileTensor& find_tensor(std::vector<FileTensor>& tensors, std::string_view name) {
  for (FileTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  std::abort();
}

inline void erase_tensor(std::vector<FileTensor>& tensors, std::string_view name) {
  std::erase_if(tensors, [name](const FileTensor& tensor) { return tensor.name == name; });
}

}  // namespace fp4moe::checkpoint::testing
