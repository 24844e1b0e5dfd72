#include "fp4moe/checkpoint/gguf_fields.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/config.hpp"

namespace fp4moe::checkpoint {
namespace gguf_fields_test {

std::vector<tensor::GgufField> written(Json config) {
  return gguf_fields({.model_type = "new",
                      .config = std::move(config),
                      .shape = {.experts = 4, .hidden = 64, .intermediate = 32},
                      .layers = 1,
                      .top_k = 2});
}

std::optional<std::uint64_t> count(const std::vector<tensor::GgufField>& fields,
                                   const std::string& key) {
  const auto found = std::ranges::find(fields, "new." + key, &tensor::GgufField::key);
  if (found == fields.end()) return std::nullopt;
  EXPECT_EQ(std::ranges::count(fields, found->key, &tensor::GgufField::key), 1) << key;
  return std::get<std::uint64_t>(found->value);
}

// What is left to a reader that does not know fp4moe.config_json.
ModelConfig of_llama_cpp(std::vector<tensor::GgufField> fields) {
  std::erase_if(fields, [](const tensor::GgufField& field) { return field.key == kGgufConfigKey; });
  const auto facts = facts_from_gguf(fields);
  EXPECT_TRUE(facts) << text(facts.why());
  return facts ? facts->model : ModelConfig{};
}

TEST(GgufFields, ScoresAreWrittenAndReadAsLlamaCppNumbersThem) {
  const std::pair<const char*, std::uint64_t> scores[] = {
      {"softmax", 1}, {"sigmoid", 2}, {"sqrtsoftplus", 4}};
  for (const auto& [name, number] : scores) {
    const auto fields = written({{"scoring_func", name}});
    EXPECT_EQ(count(fields, "expert_gating_func"), number) << name;
    EXPECT_EQ(of_llama_cpp(fields).scoring, name);
    EXPECT_EQ(gguf_scoring(number), name);
  }
  EXPECT_EQ(count(written({{"scoring_func", "tanh"}}), "expert_gating_func"), std::nullopt);
}

TEST(GgufFields, LatentExpertsAreNarrowerThanTheEmbedding) {
  for (const char* key : {"moe_latent_size", "routed_expert_hidden_size"}) {
    const auto fields = written({{"hidden_size", 128}, {key, 64}});
    EXPECT_EQ(count(fields, "embedding_length"), 128u) << key;
    EXPECT_EQ(count(fields, "moe_latent_size"), 64u) << key;
    const ModelConfig read = of_llama_cpp(fields);
    EXPECT_EQ(read.hidden, 64u) << key;
    EXPECT_EQ(read.router_hidden, 128u) << key;
  }
  const auto usual = written({{"hidden_size", 64}});
  EXPECT_EQ(count(usual, "embedding_length"), 64u);
  EXPECT_EQ(count(usual, "moe_latent_size"), std::nullopt);
}

}  // namespace gguf_fields_test
}  // namespace fp4moe::checkpoint
