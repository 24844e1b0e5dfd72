#include "fp4moe/checkpoint/gguf_tokenizer.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/config_document.hpp"
#include "fp4moe/checkpoint/pre_tokenizer.hpp"

namespace fp4moe::checkpoint {
namespace {

using tensor::GgufField;
using tensor::GgufType;

enum TokenType : std::int64_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

// Special tokens: the name in Hugging Face's files and the one in GGUF's.
struct SpecialRow {
  std::string_view name, gguf;
  bool is_in_config;  // NAME_token, NAME_token_id
};
constexpr SpecialRow kSpecial[] = {
    {"bos", "bos", true},       {"eos", "eos", true},     {"unk", "unknown", true},
    {"sep", "seperator", true}, {"pad", "padding", true}, {"mask", "mask", true},
    {"eot", "eot", false},      {"eom", "eom", false},
};

// Tokens that llama.cpp's converter names for a family when its files do not.
struct FamilySpecial {
  std::string_view family, name, token;
};
constexpr FamilySpecial kFamilySpecial[] = {
    {"glm4_moe", "bos", "[gMASK]"},
    {"glm4_moe", "eot", "<|user|>"},
    {"glm4_moe", "unk", "<|endoftext|>"},
    {"glm4_moe", "eom", "<|observation|>"},
};

const Json* member_of(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

std::string text_of(const Json* value) {
  if (value != nullptr && value->is_object()) value = member_of(*value, "content");
  return value != nullptr && value->is_string() ? value->string() : std::string();
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// Control tokens that some tokenizers do not call special.
bool looks_special(std::string_view token) {
  constexpr std::array<std::string_view, 4> kWords{"<pad>", "<mask>", "<2mass>", "[@BOS@]"};
  const auto is_between = [token](std::string_view first, std::string_view last) {
    return token.size() >= first.size() + last.size() && token.starts_with(first) &&
           token.ends_with(last);
  };
  return std::ranges::find(kWords, token) != kWords.end() || is_between("<|", "|>") ||
         is_between("<｜", "｜>") || is_between("<unused", ">");
}

Error bad_ids(std::string_view expected, std::string_view found) {
  return invalid("vocabulary.ids", "the tokens' numbers do not fit the model")
      .expects(expected, printable(found))
      .try_this(
          "Take the tokenizer.json that belongs to the model, or move it away: the GGUF file is "
          "written without a vocabulary then");
}

class TokenizerWriter {
 public:
  TokenizerWriter(const TokenizerJson& tokenizer, const TokenizerContext& context)
      : tokenizer_(tokenizer), context_(context) {}

  Result<GgufTokenizer> write() {
    if (Result<Done> done = list_tokens(); !done) return done.why();
    const PreTokenizer pre =
        pre_tokenizer_of(tokenizer_.pre_tokenizer, tokenizer_.ignores_merges, context_.model_type);
    note_split(pre);
    add_text("tokenizer.ggml.model", "gpt2");
    add_text("tokenizer.ggml.pre", pre.name);
    add_special(pre.name);
    add_chat_template();
    out_.fields.push_back({"tokenizer.ggml.tokens", GgufType::string, std::move(tokens_)});
    out_.fields.push_back({"tokenizer.ggml.token_type", GgufType::i32, std::move(types_)});
    out_.fields.push_back({"tokenizer.ggml.merges", GgufType::string, tokenizer_.merges});
    return std::move(out_);
  }

 private:
  void add_text(std::string_view key, std::string value) {
    out_.fields.push_back({std::string(key), GgufType::string, std::move(value)});
  }

  Result<Done> list_tokens() {
    std::size_t count = tokenizer_.tokens.size();
    for (const AddedToken& added : tokenizer_.added)
      count = std::max<std::size_t>(count, std::size_t{added.id} + 1);
    const std::uint64_t rows = context_.rows != 0 ? context_.rows : count;
    if (count > rows)
      return bad_ids(fmt::format("numbers below {}, the rows of the embedding", rows),
                     fmt::format("token number {}", count - 1));
    if (rows > kMaxTokens)
      return bad_ids(fmt::format("an embedding of at most {} rows", kMaxTokens),
                     fmt::format("{} rows", rows));
    tokens_ = tokenizer_.tokens;
    tokens_.resize(rows);
    types_.assign(rows, kUnused);
    for (std::size_t id = 0; id < tokenizer_.tokens.size(); ++id)
      if (tokenizer_.is_there[id]) types_[id] = kNormal;
    const std::vector<std::string> named = named_special_tokens();
    for (std::size_t id = 0; id < tokenizer_.tokens.size(); ++id)
      if (types_[id] == kNormal && std::ranges::find(named, tokens_[id]) != named.end())
        types_[id] = kControl;
    std::map<std::uint32_t, std::string_view> added_before;
    for (const AddedToken& added : tokenizer_.added) {
      const bool is_models = added.id < tokenizer_.tokens.size() && tokenizer_.is_there[added.id];
      const std::string_view before =
          added_before.emplace(added.id, is_models ? tokenizer_.tokens[added.id] : added.content)
              .first->second;
      if (before != added.content)
        return bad_ids(fmt::format("one token for number {}", added.id),
                       fmt::format("{} and {}", before, added.content));
      ids_.emplace(added.content, added.id);
      const bool is_control = added.is_special || looks_special(added.content);
      types_[added.id] = is_control ? kControl : kUserDefined;
      tokens_[added.id] = added.content;
      if (!is_control) replace_all(tokens_[added.id], "\xE2\x96\x81", " ");  // as the text has it
    }
    for (std::size_t id = 0; id < tokens_.size(); ++id)
      if (types_[id] == kUnused) tokens_[id] = fmt::format("[PAD{}]", id);
    return check_unique();
  }

  // llama.cpp stops where two tokens have one text.
  Result<Done> check_unique() const {
    std::unordered_map<std::string_view, std::size_t> seen;
    seen.reserve(tokens_.size());
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      const auto [first, is_new] = seen.emplace(tokens_[id], id);
      if (!is_new)
        return bad_ids("tokens that differ",
                       fmt::format("'{}' for {} and {}", tokens_[id], first->second, id));
    }
    return Done{};
  }

  // Transformers makes every token that the configuration names a special one.
  std::vector<std::string> named_special_tokens() const {
    std::vector<std::string> named;
    for (const SpecialRow& row : kSpecial) {
      std::string token =
          text_of(member_of(context_.tokenizer_config, std::string(row.name) + "_token"));
      if (row.is_in_config && !token.empty()) named.push_back(std::move(token));
    }
    return named;
  }

  std::optional<std::uint32_t> id_of(const std::string& content) const {
    const auto found = ids_.find(content);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  void add_special(std::string_view pre) {
    std::map<std::string_view, std::string> names;
    std::map<std::string_view, bool> adds;
    for (const SpecialRow& row : kSpecial)
      if (row.is_in_config)
        names[row.name] =
            text_of(member_of(context_.tokenizer_config, std::string(row.name) + "_token"));
    read_template(names, adds);
    for (const std::string_view name : {"bos", "eos", "sep"}) {
      const Json* field =
          member_of(context_.tokenizer_config, "add_" + std::string(name) + "_token");
      if (field != nullptr && field->is_boolean()) adds[name] = field->get<bool>();
    }
    if (adds_bos_by_itself(pre)) adds.emplace("bos", false);
    for (const SpecialRow& row : kSpecial) {
      const auto id = special_id(row, names[row.name]);
      if (!id) continue;
      if (*id >= tokens_.size()) {
        out_.notes.push_back(fmt::format(
            "the model has no token {}, which its configuration calls {}", *id, row.name));
        continue;
      }
      out_.fields.push_back(
          {fmt::format("tokenizer.ggml.{}_token_id", row.gguf), GgufType::u32, *id});
    }
    for (const auto& [name, is_added] : adds)
      out_.fields.push_back(
          {fmt::format("tokenizer.ggml.add_{}_token", name), GgufType::boolean, is_added});
  }

  // By the token's name, then by its number in config.json, then as the family has it.
  std::optional<std::uint64_t> special_id(const SpecialRow& row, const std::string& token) const {
    if (!token.empty())
      if (const auto id = id_of(token)) return *id;
    const std::string key = std::string(row.name) + "_token_id";
    const Json* number = row.is_in_config ? member_of(context_.config, key) : nullptr;
    if (number == nullptr && row.is_in_config)
      if (const Json* text = member_of(context_.config, "text_config"))
        number = member_of(*text, key);
    if (number != nullptr && number->is_number_unsigned()) return number->get<std::uint64_t>();
    if (number != nullptr && number->is_number_integer() && number->get<std::int64_t>() >= 0)
      return number->get<std::uint64_t>();
    for (const FamilySpecial& known : kFamilySpecial)
      if (known.family == context_.model_type && known.name == row.name)
        if (const auto id = id_of(std::string(known.token))) return *id;
    return std::nullopt;
  }

  // The tokens that the post-processor puts around a text.
  void read_template(std::map<std::string_view, std::string>& names,
                     std::map<std::string_view, bool>& adds) {
    const Json& post = tokenizer_.post_processor;
    std::vector<const Json*> steps{&post};
    if (const Json* list = member_of(post, "processors"); list != nullptr && list->is_array()) {
      steps.clear();
      for (const Json& step : list->elements()) steps.push_back(&step);
    }
    for (const Json* step : steps) {
      const Json* single = member_of(*step, "single");
      if (text_of(member_of(*step, "type")) != "TemplateProcessing" || single == nullptr ||
          !single->is_array() || single->size() < 2)
        continue;
      const auto token_at = [&](std::size_t i) -> std::string {
        const Json* special = member_of(single->elements()[i], "SpecialToken");
        return special != nullptr ? text_of(member_of(*special, "id")) : std::string();
      };
      if (const std::string first = token_at(0); !first.empty()) {
        if (names["bos"].empty()) names["bos"] = first;
        adds["bos"] = names["bos"] == first;
        if (!adds["bos"])
          out_.notes.push_back(fmt::format(
              "the tokenizer puts {} before a text, which llama.cpp does not", printable(first)));
      }
      if (const std::string last = token_at(single->size() - 1); !last.empty()) {
        if (!names["eos"].empty() && names["eos"] != last) names["eot"] = names["eos"];
        names["eos"] = last;
        adds["eos"] = true;
      }
    }
  }

  void add_chat_template() {
    const Json* own = member_of(context_.tokenizer_config, "chat_template");
    if (own != nullptr && own->is_string())
      return add_text("tokenizer.chat_template", own->string());
    if (own == nullptr || !own->is_array()) {
      if (!context_.chat_template.empty())
        add_text("tokenizer.chat_template", context_.chat_template);
      return;
    }
    std::map<std::string, std::string> named;
    for (const Json& choice : own->elements()) {
      std::string name = text_of(member_of(choice, "name"));
      for (char& c : name)
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) c = '_';
      const Json* text = member_of(choice, "template");
      if (!name.empty() && text != nullptr && text->is_string())
        named.emplace(std::move(name), text->string());
    }
    std::vector<std::string> others;
    for (auto& [name, text] : named) {
      const bool is_default = name == "default";
      add_text(is_default ? "tokenizer.chat_template" : "tokenizer.chat_template." + name,
               std::move(text));
      if (!is_default) others.push_back(name);
    }
    if (!others.empty())
      out_.fields.push_back({"tokenizer.chat_templates", GgufType::string, std::move(others)});
  }

  void note_split(const PreTokenizer& pre) {
    if (!pre.is_known)
      out_.notes.push_back(fmt::format(
          "tokenizer.json splits text in a way that is not known here, so tokenizer.ggml.pre is "
          "\"default\" and llama.cpp may split text otherwise; if it knows this tokenizer, give it "
          "--override-kv tokenizer.ggml.pre=str:{}{}",
          pre.usual.empty() ? std::string_view("NAME") : pre.usual,
          pre.usual.empty() ? "" : " (the name of this family's published tokenizer)"));
    if (pre.differs_in_merges)
      out_.notes.push_back(fmt::format(
          "tokenizer.json {} whole words from the vocabulary before merging, and llama.cpp's "
          "\"{}\" {}: rare words may become other tokens",
          tokenizer_.ignores_merges ? "takes" : "does not take", pre.name,
          tokenizer_.ignores_merges ? "does not" : "does"));
  }

  const TokenizerJson& tokenizer_;
  const TokenizerContext& context_;
  GgufTokenizer out_{};
  std::vector<std::string> tokens_{};
  std::vector<std::int64_t> types_{};
  std::unordered_map<std::string, std::uint32_t> ids_{};  // of added tokens
};

// llama.cpp loads such a file: benchmarks run, text does not.
GgufTokenizer without_vocabulary(std::string_view why) {
  GgufTokenizer none;
  none.fields.push_back({"tokenizer.ggml.model", GgufType::string, std::string("none")});
  none.notes.push_back(fmt::format(
      "{}: the GGUF file has no vocabulary; llama.cpp loads it, but reads and writes no text",
      why));
  return none;
}

std::string_view text_in(const tensor::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

Result<Json> tokenizer_document(const tensor::Store& store, std::string_view name) {
  Result<std::optional<ConfigDocument>> document = read_config_document(store, name);
  if (!document) return document.why();
  return *document ? std::move((*document)->json) : Json();
}

Result<std::string> read_chat_template(const tensor::Store& store) {
  constexpr std::size_t kMaxTemplate = std::size_t{4} << 20;
  const Result<std::optional<tensor::MappedFile>> file = store.document("chat_template.jinja");
  if (!file) return file.why();
  if (*file) {
    const std::string_view text = text_in(**file);
    if (text.size() > kMaxTemplate || !is_utf8(text))
      return invalid("vocabulary.malformed", "the chat template cannot be read")
          .in((*file)->path())
          .expects("UTF-8 text of at most 4 MiB", human_bytes(text.size()));
    return std::string(text);
  }
  const Result<Json> json = tokenizer_document(store, "chat_template.json");
  if (!json) return json.why();
  return text_of(member_of(*json, "chat_template"));
}

}  // namespace

Result<GgufTokenizer> gguf_tokenizer(const TokenizerJson& tokenizer,
                                     const TokenizerContext& context) {
  const bool is_bpe = tokenizer.model == "BPE" ||
                      (tokenizer.model.empty() && !tokenizer.merges.empty());  // old files
  if (!is_bpe)
    return without_vocabulary(fmt::format("tokenizer.json holds '{}', not BPE",
                                          printable(tokenizer.model.substr(0, 40))));
  const std::string decoder = tokenizer.decoder.dump();
  if (tokenizer.has_byte_fallback || decoder.find("\"ByteLevel\"") == decoder.npos)
    return without_vocabulary("tokenizer.json holds BPE that is not byte-level (SentencePiece's)");
  if (tokenizer.merges.empty())
    return without_vocabulary("tokenizer.json holds BPE without merges");
  return TokenizerWriter(tokenizer, context).write();
}

Result<GgufTokenizer> read_gguf_tokenizer(const tensor::Store& store, std::string_view model_type,
                                          const Json& config, std::uint64_t rows) {
  const Result<std::optional<tensor::MappedFile>> file = store.document("tokenizer.json");
  if (!file) return file.why();
  if (!*file) {
    for (const std::string_view other : {"tokenizer.model", "tiktoken.model"}) {
      const Result<std::optional<tensor::MappedFile>> found = store.document(other);
      if (found && *found)
        return without_vocabulary(
            fmt::format("there is no tokenizer.json, and {} is not read", other));
    }
    return without_vocabulary("there is no tokenizer.json");
  }
  const auto place = [&](const Error& why) {
    Error placed = Error(why).in(why.path.empty() ? (*file)->path() : why.path);
    if (!placed.remedy.empty()) return placed;
    return std::move(placed).try_this(
        "Fetch the file again, or move it away: the GGUF file is written without a vocabulary "
        "then");
  };
  const Result<TokenizerJson> tokenizer = parse_tokenizer(text_in(**file));
  if (!tokenizer) return place(tokenizer.why());
  Result<Json> tokenizer_config = tokenizer_document(store, "tokenizer_config.json");
  if (!tokenizer_config) return tokenizer_config.why();
  Result<std::string> chat = read_chat_template(store);
  if (!chat) return chat.why();
  Result<GgufTokenizer> result =
      gguf_tokenizer(*tokenizer, {.model_type = model_type,
                                  .rows = rows,
                                  .config = config,
                                  .tokenizer_config = *std::move(tokenizer_config),
                                  .chat_template = *std::move(chat)});
  if (!result) return place(result.why());
  return result;
}

}  // namespace fp4moe::checkpoint
