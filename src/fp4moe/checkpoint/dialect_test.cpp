#include "fp4moe/checkpoint/dialect.hpp"

#include <set>

#include <gtest/gtest.h>

namespace fp4moe::checkpoint {
namespace dialect_test {

TEST(Dialect, NamesGoThereAndBack) {
  for (const DialectRow& row : dialects()) {
    EXPECT_EQ(name(row.dialect), row.name);
    EXPECT_EQ(dialect_from_name(row.name), row.dialect);
    EXPECT_NE(find_row(row.dialect, row.format), nullptr);
  }
  EXPECT_EQ(dialect_from_name("fp16"), std::nullopt);
  EXPECT_EQ(find_row(Dialect::gpt_oss, WeightFormat::nvfp4), nullptr);
}

TEST(Dialect, EveryNvfp4RowHasAGlobalScaleAndNoMxfp4RowHas) {
  for (const DialectRow& row : dialects()) {
    const bool nvfp4 = row.format == WeightFormat::nvfp4;
    EXPECT_EQ(row.global_scale != GlobalScale::none, nvfp4) << row.name;
    EXPECT_EQ(!row.parts.global_scale.empty(), nvfp4) << row.name;
    EXPECT_EQ(row.scales_inside(), row.dialect == Dialect::gguf);
  }
}

TEST(Dialect, SpellsTensorNamesAsCheckpointsDo) {
  const auto stem = [](Dialect dialect, WeightFormat format, Projection projection) {
    const DialectRow& row = *find_row(dialect, format);
    return projection_stem(row, layer_prefix(row, 3), 7, projection) + std::string(row.parts.codes);
  };
  constexpr WeightFormat kMx = WeightFormat::mxfp4, kNv = WeightFormat::nvfp4;
  EXPECT_EQ(stem(Dialect::gpt_oss, kMx, Projection::up),
            "model.layers.3.mlp.experts.gate_up_proj_blocks");
  EXPECT_EQ(stem(Dialect::openai, kMx, Projection::down), "block.3.mlp.mlp2_weight.blocks");
  EXPECT_EQ(stem(Dialect::modelopt, kNv, Projection::gate),
            "model.layers.3.mlp.experts.7.gate_proj.weight");
  EXPECT_EQ(stem(Dialect::compressed_tensors, kMx, Projection::up),
            "model.layers.3.mlp.experts.7.up_proj.weight_packed");
  EXPECT_EQ(stem(Dialect::deepseek_v4, kMx, Projection::down), "layers.3.ffn.experts.7.w2.weight");
  EXPECT_EQ(stem(Dialect::gguf, kNv, Projection::gate), "blk.3.ffn_gate_exps.weight");
}

}  // namespace dialect_test
}  // namespace fp4moe::checkpoint
