// Adapters' folders written by hand, and the change that PEFT defines for them, summed in double.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/random.hpp"
#include "fp4moe/checkpoint/lora/adapter.hpp"
#include "fp4moe/checkpoint/lora/lora_adapter.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"
#include "support/tiny_model.hpp"

namespace fp4moe::checkpoint::testing {

using tensor::testing::TemporaryFolder;
using tensor::testing::write_text;

inline constexpr std::uint64_t kExperts = 3, kHidden = 64, kInner = 96, kRank = 4;
inline const std::string kRoot = "base_model.model.";
inline const std::string kPrefix = "model.layers.5.mlp.";

inline AdapterTarget target_of(RowOrder order = RowOrder::interleaved) {
  return {.index = 5,
          .prefix = kPrefix,
          .shape = {.experts = kExperts, .hidden = kHidden, .intermediate = kInner, .order = order},
          .is_gpt_oss = order == RowOrder::interleaved};
}

// A tensor whose numbers follow from its name and place; exact in 16 bits.
struct TestFactor {
  tensor::Shape shape{};
  std::uint64_t seed = 0;
  double at(std::uint64_t i) const {
    SplitMix64 random(seed + i * 77);
    return static_cast<double>(static_cast<std::int64_t>(random.next() % 65) - 32) / 32.0;
  }
};

inline Bytes bytes_of(const TestFactor& factor, DType dtype) {
  Bytes bytes;
  const std::uint64_t count = *tensor::element_count(factor.shape);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(factor.at(i));
    const std::uint16_t half =
        dtype == DType::f16 ? formats::F16::encode(value) : formats::Bf16::encode(value);
    const auto* from = dtype == DType::f32 ? reinterpret_cast<const std::byte*>(&value)
                                           : reinterpret_cast<const std::byte*>(&half);
    bytes.insert(bytes.end(), from, from + (dtype == DType::f32 ? 4 : 2));
  }
  return bytes;
}

// An adapter's folder by hand.
struct Files {
  TemporaryFolder folder{};
  Json config{{"peft_type", "LORA"},
              {"r", kRank},
              {"lora_alpha", 8},
              {"bias", "none"},
              {"target_modules", {"gate_proj"}}};
  std::map<std::string, TestFactor> factors{};
  std::map<std::string, DType> types{};

  TestFactor& add(const std::string& name, tensor::Shape shape) {
    TestFactor& result = factors[kRoot + name];
    result = {std::move(shape), factors.size() * 1000};
    return result;
  }
  void pair(const std::string& module, tensor::Shape a, tensor::Shape b) {
    add(module + ".lora_A.weight", std::move(a));
    add(module + ".lora_B.weight", std::move(b));
  }
  const TestFactor& a(const std::string& module) const {
    return factors.at(kRoot + module + ".lora_A.weight");
  }
  const TestFactor& b(const std::string& module) const {
    return factors.at(kRoot + module + ".lora_B.weight");
  }
  void write() const {
    std::vector<FileTensor> tensors;
    for (const auto& [name, factor] : factors) {
      const DType dtype = types.contains(name) ? types.at(name) : DType::bf16;
      tensors.push_back({name, dtype, factor.shape, bytes_of(factor, dtype)});
    }
    write_safetensors(folder / "adapter_model.safetensors", tensors);
    write_text(folder / "adapter_config.json", config.dump());
  }
  Result<Adapter> open(const AdapterTarget& target = target_of()) const {
    write();
    return Adapter::open(folder.path(), {target});
  }
};

inline constexpr Projection kEach[] = {Projection::gate, Projection::up, Projection::down};

// (expert, projection, output, input) -> the change, before it is scaled.
using Change = std::function<double(std::uint64_t, Projection, std::uint64_t, std::uint64_t)>;

inline double change_by(const LoraAdapter& adapter, std::size_t position, Projection which,
                        std::uint64_t row, std::uint64_t column) {
  const LoraPair& pair = adapter.at(which, position);
  if (pair.empty()) return 0;
  double sum = 0;
  for (std::uint64_t k = 0; k < pair.a.rows; ++k)
    sum += static_cast<double>(pair.b.data[row * pair.b.columns + k]) *
           static_cast<double>(pair.a.data[k * pair.a.columns + column]);
  return sum;
}

inline void expect_change(const Adapter& adapter, const Change& expected, double scale) {
  const auto loaded = LoraAdapter::load(adapter, 0, {});
  ASSERT_TRUE(loaded) << text(loaded.why());
  const MoeShape& shape = adapter.targets()[0].shape;
  for (std::uint64_t e = 0; e < shape.experts; ++e)
    for (const Projection which : kEach) {
      if (which == Projection::gate && !shape.gated()) continue;
      const bool down = which == Projection::down;
      for (std::uint64_t n = 0; n < (down ? shape.hidden : shape.intermediate); n += 7)
        for (std::uint64_t c = 0; c < (down ? shape.intermediate : shape.hidden); c += 5)
          ASSERT_EQ(change_by(*loaded, e, which, n, c), scale * expected(e, which, n, c))
              << "expert " << e << " " << static_cast<int>(which) << " " << n << " " << c;
    }
}

}  // namespace fp4moe::checkpoint::testing
