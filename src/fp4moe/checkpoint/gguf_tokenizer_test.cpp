#include "fp4moe/checkpoint/gguf_tokenizer.hpp"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/pre_tokenizer.hpp"

namespace fp4moe::checkpoint::gguf_tokenizer_test {
namespace {

using tensor::GgufField;

constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";

std::string split(std::string_view regex) {
  return R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": ")" +
         std::string(regex) + R"("}, "behavior": "Isolated", "invert": false},
         {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";
}

// A tokenizer of four letters; the parts that tests change.
struct Parts {
  std::string vocab = R"({"a": 0, "b": 1, "ab": 2, "<e>": 3})";
  std::string merges = R"(["a b"])";
  std::string added = R"([{"id": 3, "content": "<e>", "special": true},
                          {"id": 5, "content": "<x\u2581y>", "special": false},
                          {"id": 6, "content": "<|odd|>", "special": false}])";
  std::string pre = split(kQwen2);
  std::string post = "null";
  std::string decoder = R"({"type": "ByteLevel"})";
  std::string model = R"("type": "BPE", "byte_fallback": false)";
};

std::string text_of(const Parts& parts) {
  return R"({"version": "1.0", "added_tokens": )" + parts.added +
         R"(, "normalizer": {"type": "NFC"},
    "pre_tokenizer": )" +
         parts.pre + R"(, "post_processor": )" + parts.post + R"(, "decoder": )" + parts.decoder +
         R"(, "model": {)" + parts.model + R"(, "vocab": )" + parts.vocab + R"(, "merges": )" +
         parts.merges + "}}";
}

Result<GgufTokenizer> fields_of(const Parts& parts, TokenizerContext context = {}) {
  const Result<TokenizerJson> tokenizer = parse_tokenizer(text_of(parts));
  if (!tokenizer) return tokenizer.why();
  return gguf_tokenizer(*tokenizer, context);
}

template <class T>
T value(const GgufTokenizer& tokenizer, std::string_view key) {
  const auto found = std::ranges::find(tokenizer.fields, key, &GgufField::key);
  EXPECT_NE(found, tokenizer.fields.end()) << key;
  if (found == tokenizer.fields.end()) return T{};
  EXPECT_TRUE(std::holds_alternative<T>(found->value)) << key;
  return std::get<T>(found->value);
}
bool has(const GgufTokenizer& tokenizer, std::string_view key) {
  return std::ranges::find(tokenizer.fields, key, &GgufField::key) != tokenizer.fields.end();
}

Json json(std::string_view text) { return *parse_json(text); }

TEST(GgufTokenizer, HoldsTokensTypesAndMergesAndPadsTheVocabulary) {
  const auto tokenizer = fields_of({}, {.model_type = "qwen3_moe", .rows = 8});
  ASSERT_TRUE(tokenizer) << text(tokenizer.why());
  EXPECT_EQ(value<std::string>(*tokenizer, "tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(value<std::string>(*tokenizer, "tokenizer.ggml.pre"), "qwen2");
  EXPECT_EQ(
      value<std::vector<std::string>>(*tokenizer, "tokenizer.ggml.tokens"),
      (std::vector<std::string>{"a", "b", "ab", "<e>", "[PAD4]", "<x y>", "<|odd|>", "[PAD7]"}));
  EXPECT_EQ(value<std::vector<std::int64_t>>(*tokenizer, "tokenizer.ggml.token_type"),
            (std::vector<std::int64_t>{1, 1, 1, 3, 5, 4, 3, 5}));
  EXPECT_EQ(value<std::vector<std::string>>(*tokenizer, "tokenizer.ggml.merges"),
            std::vector<std::string>{"a b"});
  EXPECT_TRUE(tokenizer->notes.empty());
}

TEST(GgufTokenizer, ReadsMergesThatArePairs) {
  const auto tokenizer = fields_of({.merges = R"([["a", "b"], ["a b", " "]])"});
  ASSERT_TRUE(tokenizer) << text(tokenizer.why());
  EXPECT_EQ(value<std::vector<std::string>>(*tokenizer, "tokenizer.ggml.merges"),
            (std::vector<std::string>{"a b", "a\u0120b \u0120"}));
}

TEST(GgufTokenizer, TakesSpecialTokensFromNamesThenNumbersThenTheFamily) {
  const auto named = fields_of(
      {}, {.rows = 8,
           .config = json(R"({"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 9})"),
           .tokenizer_config = json(
               R"({"eos_token": {"content": "<e>"}, "unk_token": null, "add_bos_token": false})")});
  ASSERT_TRUE(named) << text(named.why());
  EXPECT_EQ(value<std::uint64_t>(*named, "tokenizer.ggml.bos_token_id"), 0u);
  EXPECT_EQ(value<std::uint64_t>(*named, "tokenizer.ggml.eos_token_id"), 3u);
  EXPECT_FALSE(value<bool>(*named, "tokenizer.ggml.add_bos_token"));
  EXPECT_FALSE(has(*named, "tokenizer.ggml.padding_token_id"));
  ASSERT_EQ(named->notes.size(), 1u) << "a number that the model has not";
  EXPECT_FALSE(has(*named, "tokenizer.ggml.unknown_token_id"));

  const auto family = fields_of({.added = R"([{"id": 3, "content": "<e>", "special": true},
                              {"id": 4, "content": "<|user|>", "special": true}])"},
                                {.model_type = "glm4_moe"});
  ASSERT_TRUE(family) << text(family.why());
  EXPECT_EQ(value<std::uint64_t>(*family, "tokenizer.ggml.eot_token_id"), 4u);
}

TEST(GgufTokenizer, SaysWhatThePostProcessorPutsAroundAText) {
  const std::string post = R"({"type": "Sequence", "processors": [{"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<e>"}}, {"Sequence": {"id": "A"}},
               {"SpecialToken": {"id": "<|odd|>"}}], "pair": []}]})";
  const auto tokenizer =
      fields_of({.post = post}, {.tokenizer_config = json(R"({"eos_token": "<x▁y>"})")});
  ASSERT_TRUE(tokenizer) << text(tokenizer.why());
  EXPECT_TRUE(value<bool>(*tokenizer, "tokenizer.ggml.add_bos_token"));
  EXPECT_TRUE(value<bool>(*tokenizer, "tokenizer.ggml.add_eos_token"));
  EXPECT_EQ(value<std::uint64_t>(*tokenizer, "tokenizer.ggml.bos_token_id"), 3u);
  EXPECT_EQ(value<std::uint64_t>(*tokenizer, "tokenizer.ggml.eos_token_id"), 6u);
  EXPECT_EQ(value<std::uint64_t>(*tokenizer, "tokenizer.ggml.eot_token_id"), 5u);
}

TEST(GgufTokenizer, CarriesOneChatTemplateOrSeveral) {
  const auto one = fields_of({}, {.chat_template = "of the file"});
  EXPECT_EQ(value<std::string>(*one, "tokenizer.chat_template"), "of the file");
  const auto own = fields_of({}, {.tokenizer_config = json(R"({"chat_template": "own"})"),
                                  .chat_template = "of the file"});
  EXPECT_EQ(value<std::string>(*own, "tokenizer.chat_template"), "own");
  const auto several = fields_of({}, {.tokenizer_config = json(R"({"chat_template": [
      {"name": "default", "template": "d"}, {"name": "tool use", "template": "t"}]})")});
  EXPECT_EQ(value<std::string>(*several, "tokenizer.chat_template"), "d");
  EXPECT_EQ(value<std::string>(*several, "tokenizer.chat_template.tool_use"), "t");
  EXPECT_EQ(value<std::vector<std::string>>(*several, "tokenizer.chat_templates"),
            std::vector<std::string>{"tool_use"});
}

TEST(GgufTokenizer, DoesNotGuessASplitItDoesNotKnow) {
  const auto unknown = fields_of({.pre = split("x+")}, {.model_type = "qwen3_moe"});
  ASSERT_TRUE(unknown) << text(unknown.why());
  EXPECT_EQ(value<std::string>(*unknown, "tokenizer.ggml.pre"), "default");
  ASSERT_EQ(unknown->notes.size(), 1u);
  EXPECT_NE(unknown->notes[0].find("tokenizer.ggml.pre=str:qwen2"), std::string::npos);
  for (const char* other : {R"({"type": "Sequence", "pretokenizers": 3})", R"({"type": "Digits"})",
                            "null", "7", R"({"type": "ByteLevel", "add_prefix_space": true})"})
    EXPECT_EQ(value<std::string>(*fields_of({.pre = other}), "tokenizer.ggml.pre"), "default")
        << other;
  const auto gpt2 = fields_of({.pre = R"({"type": "ByteLevel", "add_prefix_space": false})"});
  EXPECT_EQ(value<std::string>(*gpt2, "tokenizer.ggml.pre"), "gpt-2");
}

TEST(GgufTokenizer, TakesTheNameOfTheFamilyWhereTwoHaveOneSplit) {
  const std::string llama =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
  const auto pre = [&](bool ignores, std::string_view family) {
    return pre_tokenizer_of(json(split(llama)), ignores, family);
  };
  EXPECT_EQ(pre(true, "glm4_moe").name, "glm4");
  EXPECT_FALSE(pre(true, "glm4_moe").differs_in_merges) << "the published tokenizer";
  EXPECT_EQ(pre(true, "other").name, "llama-bpe");
  EXPECT_EQ(pre(false, "other").name, "glm4");
  EXPECT_TRUE(pre_tokenizer_of(json(split(kQwen2)), true, "other").differs_in_merges);
  // A BOS token is added when the tokenizer says so, not because of a name.
  const auto silent = fields_of(
      {.pre = split(llama), .model = R"("type": "BPE", "ignore_merges": true)"}, {.rows = 8});
  EXPECT_FALSE(value<bool>(*silent, "tokenizer.ggml.add_bos_token"));
}

TEST(GgufTokenizer, LeavesTheVocabularyOutThatIsNotByteLevelOrHasNoMerges) {
  for (const Parts& parts :
       {Parts{.model = R"("type": "Unigram")"}, Parts{.decoder = R"({"type": "Metaspace"})"},
        Parts{.model = R"("type": "BPE", "byte_fallback": true)"}, Parts{.merges = "[]"},
        Parts{.vocab = R"([["a", 0.5]])", .model = R"("type": "Unigram")"}}) {
    const auto tokenizer = fields_of(parts);
    ASSERT_TRUE(tokenizer) << text(tokenizer.why());
    EXPECT_EQ(value<std::string>(*tokenizer, "tokenizer.ggml.model"), "none");
    EXPECT_EQ(tokenizer->notes.size(), 1u);
  }
}

TEST(GgufTokenizer, RefusesNumbersThatDoNotFitTheModel) {
  const auto id = [](const Parts& parts, std::uint64_t rows = 0) -> std::string {
    const auto tokenizer = fields_of(parts, {.rows = rows});
    return tokenizer ? "" : tokenizer.why().id;
  };
  EXPECT_EQ(id({}, 6), "vocabulary.ids") << "beyond the embedding";
  EXPECT_EQ(id({}, 7), "");
  EXPECT_EQ(id({}, std::uint64_t{1} << 40), "vocabulary.ids") << "an embedding of nobody";
  EXPECT_EQ(id({.vocab = R"({"a": 0, "b": 0})"}), "vocabulary.malformed");
  EXPECT_EQ(id({.vocab = R"({"a": 0, "a": 1})"}), "vocabulary.ids") << "one text twice";
  EXPECT_EQ(id({.added = R"([{"id": 1, "content": "<e>"}])"}), "vocabulary.ids");
  EXPECT_EQ(id({.added = R"([{"id": 4, "content": "x"}, {"id": 4, "content": "y"}])"}),
            "vocabulary.ids");
  EXPECT_EQ(id({.added = R"([{"id": 4, "content": "x"}, {"id": 4, "content": "x"}])"}), "");
  EXPECT_EQ(id({.vocab = R"({"a": 0, "[PAD1]": 2})"}, 7), "vocabulary.ids");
}

TEST(GgufTokenizer, RefusesDamagedFiles) {
  const std::string whole = text_of({});
  ASSERT_TRUE(parse_tokenizer(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto cut = parse_tokenizer(std::string_view(whole).substr(0, size));
    ASSERT_FALSE(cut) << size;
    ASSERT_EQ(cut.why().id, "vocabulary.malformed");
  }
  const std::string deep(100, '['), closed(100, ']');
  for (const Parts& parts : {Parts{.vocab = "[]", .merges = "3"},
                             Parts{.vocab = "7"},
                             Parts{.vocab = R"({"a": "0"})"},
                             Parts{.vocab = R"({"a": -1})"},
                             Parts{.vocab = R"({"a": 4294967296})"},
                             Parts{.vocab = R"({"a": [1]})"},
                             Parts{.merges = "{}"},
                             Parts{.merges = R"([1])"},
                             Parts{.merges = R"(["ab"])"},
                             Parts{.merges = R"(["a b c"])"},
                             Parts{.merges = R"(["  ab"])"},
                             Parts{.merges = R"([" a b"])"},
                             Parts{.merges = R"([["", "b"]])"},
                             Parts{.merges = R"([["a", ""]])"},
                             Parts{.merges = R"([["a"]])"},
                             Parts{.merges = R"([["a", 1]])"},
                             Parts{.merges = R"([["a", ["b"]]])"},
                             Parts{.merges = "[{}]"},
                             Parts{.added = "{}"},
                             Parts{.added = "[1]"},
                             Parts{.added = R"([{"content": "x"}])"},
                             Parts{.added = R"([{"id": 1}])"},
                             Parts{.added = R"([{"id": 1, "content": 1}])"},
                             Parts{.added = R"([[]])"},
                             Parts{.added = R"([{"id": 1, "content": "b", "special": 1}])"},
                             Parts{.pre = deep + closed},
                             Parts{.pre = R"({"a": 1, "a": 2})"},
                             Parts{.model = R"("type": 1)"},
                             Parts{.model = R"("type": "BPE", "type": "BPE")"},
                             Parts{.model = R"("type": "BPE", "merges": [])"}}) {
    const auto tokenizer = fields_of(parts);
    ASSERT_FALSE(tokenizer) << text_of(parts);
    EXPECT_EQ(tokenizer.why().id, "vocabulary.malformed") << text_of(parts);
    EXPECT_FALSE(tokenizer.why().expected.empty());
  }
  std::string many = "[1";
  for (std::size_t i = 0; i < 70'000; ++i) many += ",1";
  EXPECT_FALSE(parse_tokenizer(text_of({.post = many + "]"}))) << "more than is built";
}

}  // namespace
}  // namespace fp4moe::checkpoint::gguf_tokenizer_test
