#include "fp4moe/checkpoint/quant_claim.hpp"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/checkpoint.hpp"
#include "support/files.hpp"
#include "support/producers.hpp"
#include "support/tiny_model.hpp"

namespace fp4moe::checkpoint {
namespace quant_claim_test {

using namespace testing;             // NOLINT: the test's own words
using namespace testing::producers;  // NOLINT
using tensor::testing::TemporaryFolder;
using tensor::testing::write_text;

Result<Checkpoint> open(const TemporaryFolder& folder, const Tensors& tensors,
                        std::string_view config) {
  write_safetensors(folder / "model.safetensors", tensors);
  write_text(folder / "config.json", config);
  return Checkpoint::open(folder.path());
}

Error refused(const Tensors& tensors, std::string_view config) {
  const TemporaryFolder folder;
  const auto checkpoint = open(folder, tensors, config);
  EXPECT_FALSE(checkpoint);
  return checkpoint ? Error{} : checkpoint.why();
}

// Quark's global MXFP4 with `more` beside it.
std::string quark_with(std::string_view more) {
  return config_of("qwen3_moe", R"({"quant_method": "quark", "global_quant_config": {"weight":
      {"dtype": "fp4", "group_size": 32, "scale_format": "e8m0"}}, )" +
                                    std::string(more) + "}");
}
constexpr std::string_view kE5m3 =
    R"({"weight": {"dtype": "fp4", "group_size": 32, "scale_format": "e5m3"}})";

// Two groups of NVFP4, of blocks of 32 and of 16.
std::string compressed_groups(std::string_view targets_of_32, std::string_view targets_of_16,
                              bool is_16_first = false) {
  const auto group = [](std::string_view name, std::string_view targets, std::string_view size) {
    return R"(")" + std::string(name) + R"(": {"targets": [")" + std::string(targets) +
           R"("], "weights": {"group_size": )" + std::string(size) + "}}";
  };
  const std::string a = group("a", targets_of_32, "32"), b = group("b", targets_of_16, "16");
  return config_of("qwen3_moe", R"({"quant_method": "compressed-tensors",
      "format": "nvfp4-pack-quantized", "config_groups": {)" +
                                    (is_16_first ? b + ", " + a : a + ", " + b) + "}}");
}

TEST(QuantClaim, AnotherKindOfFp4InSomeModulesIsRefused) {
  const Tensors quark = tensors_of(small(kMx), *find_row(Dialect::quark, kMx));
  const auto layers = [](std::string_view pattern) {
    return quark_with(R"("layer_quant_config": {")" + std::string(pattern) + R"(": )" +
                      std::string(kE5m3) + "}");
  };
  for (const std::string_view pattern : {"*up_proj", "*gate_proj", "*down_proj", "*experts.1.*",
                                         "model.layers.0.mlp.experts.1.up_proj"}) {
    const Error why = refused(quark, layers(pattern));
    EXPECT_EQ(why.id, "dialect.unsupported") << pattern;
    EXPECT_NE(why.message.find("e5m3"), std::string::npos) << why.message;
  }
  // A set of characters is not read: it may name the experts.
  const Error set = refused(quark, layers("*experts.[01].*"));
  EXPECT_EQ(set.id, "dialect.unsupported");
  EXPECT_NE(set.message.find("\"*experts.[01].*\" is not understood"), std::string::npos)
      << set.message;

  const Tensors compressed = tensors_of(small(kNv), *find_row(Dialect::compressed_tensors, kNv));
  for (const std::string_view target :
       {"re:.*up_proj$", R"(re:.*experts\\.1\\..*)", "torch.nn.Linear"}) {
    const Error why = refused(compressed, compressed_groups(target, "Linear"));
    EXPECT_EQ(why.id, "dialect.unsupported") << target;
    EXPECT_NE(why.message.find("32 elements instead of 16"), std::string::npos) << why.message;
  }
  // A class is not the experts' because it comes first.
  EXPECT_EQ(refused(compressed, compressed_groups("Linear", "Conv2d", true)).id,
            "dialect.unsupported");
}

TEST(QuantClaim, APatternThatIsNotUnderstoodMayNameTheExperts) {
  constexpr std::string_view kLookBehind = "re:(?<!x).*experts.*";
  const Tensors tensors = tensors_of(small(kNv), *find_row(Dialect::compressed_tensors, kNv));
  for (const std::string_view others : {"Linear", "re:.*self_attn.*"}) {
    const Error why = refused(tensors, compressed_groups(kLookBehind, others));
    EXPECT_EQ(why.id, "dialect.unsupported") << others;
    EXPECT_NE(why.message.find("\"re:(?<!x).*experts.*\" is not understood"), std::string::npos)
        << why.message;
  }
  // The pattern of a group that is read decides nothing: the tensors show the format. A group before
  // it does.
  const TemporaryFolder folder;
  for (const std::string& read : {compressed_groups("re:.*self_attn.*", kLookBehind),
                                  compressed_groups(kLookBehind, "re:.*experts.*", true)}) {
    const auto checkpoint = open(folder, tensors, read);
    EXPECT_TRUE(checkpoint) << text(checkpoint.why());
  }
  EXPECT_EQ(refused(tensors, config_of("qwen3_moe", R"({"quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized", "transform_config": {"config_groups": {"u": {
                "apply": [{"targets": ["re:(?<!x).*"], "location": "input"}]}}}})"))
                .id,
            "dialect.unsupported");
}

TEST(QuantClaim, QuarkGivesASchemeToAClassOfModules) {
  const Tensors tensors = tensors_of(small(kMx), *find_row(Dialect::quark, kMx));
  const std::string e8m0 =
      R"({"weight": {"dtype": "fp4", "group_size": 32, "scale_format": "e8m0"}})";
  const auto config = [](std::string_view global, std::string_view type, std::string_view scheme,
                         std::string_view layers = "{}") {
    return config_of("qwen3_moe", R"({"quant_method": "quark", "global_quant_config": )" +
                                      std::string(global) + R"(, "layer_type_quant_config": {")" +
                                      std::string(type) + R"(": )" + std::string(scheme) +
                                      R"(}, "layer_quant_config": )" + std::string(layers) + "}");
  };
  for (const std::string_view type : {"Linear", "nn.Linear", "torch.nn.Linear", "QuantLinear",
                                      "<class 'torch.nn.modules.linear.Linear'>"}) {
    const Error why = refused(tensors, config(e8m0, type, kE5m3));
    EXPECT_EQ(why.id, "dialect.unsupported") << type;
    EXPECT_NE(why.message.find("e5m3"), std::string::npos) << why.message;
    for (const std::string& read : {config(kE5m3, type, e8m0),
                                    config(kE5m3, type, kE5m3, R"({"*experts*": )" + e8m0 + "}")}) {
      const TemporaryFolder folder;
      const auto checkpoint = open(folder, tensors, read);
      EXPECT_TRUE(checkpoint) << text(checkpoint.why());
    }
  }
  EXPECT_EQ(
      refused(tensors, config(e8m0, "Linear", e8m0, R"({"*up_proj": )" + std::string(kE5m3) + "}"))
          .id,
      "dialect.unsupported");
  // A class that is not known may be the experts'.
  EXPECT_EQ(refused(tensors, config(e8m0, "Qwen3MoeExperts", kE5m3)).id, "dialect.unsupported");
}

}  // namespace quant_claim_test
}  // namespace fp4moe::checkpoint
