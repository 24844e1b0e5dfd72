#include "fp4moe/checkpoint/tokenizer_json.hpp"

#include <optional>
#include <set>
#include <utility>

#include "fp4moe/base/text.hpp"

namespace fp4moe::checkpoint {
namespace {

constexpr std::size_t kMaxNodes = std::size_t{1} << 16;  // of a subtree that is built

// Follows the places that matter: "model" (its vocab and merges), "added_tokens", and three
// subtrees that are small enough to be built.
class TokenizerReader final : public JsonEvents {
 public:
  explicit TokenizerReader(TokenizerJson& out) : out_(out) {}

  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(std::int64_t value) override { return scalar(value); }
  bool number_unsigned(std::uint64_t value) override { return scalar(value); }
  bool number_float(double value, const std::string&) override { return scalar(value); }
  bool string(std::string& value) override { return scalar(std::move(value)); }
  bool start_object() override { return open(true); }
  bool start_array() override { return open(false); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    if (!built_.empty()) {
      built_key_ = std::move(name);
    } else if (depth_ == 1 || (depth_ == 2 && section_ == "model")) {
      (depth_ == 1 ? section_ : field_) = name;
      if (!seen_.emplace(depth_, name).second) return fail(name, "each key once", "it again");
    } else {
      key_ = std::move(name);
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string& token) override {
    return fail("", "JSON", "at byte " + std::to_string(position) + " '" + printable(token) + "'");
  }

  Error why() && {
    return why_ ? *std::move(why_)
                : invalid("vocabulary.malformed", "the tokenizer cannot be read");
  }

 private:
  bool fail(std::string_view place, std::string_view expected, std::string_view found) {
    why_ = invalid("vocabulary.malformed", "the tokenizer cannot be read")
               .at(printable(place.substr(0, 200)))
               .expects(expected, printable(found.substr(0, 200)));
    return false;
  }

  bool is_in(std::size_t depth, std::string_view section, std::string_view field = {}) const {
    return depth_ == depth && section_ == section && (field.empty() || field_ == field);
  }

  bool open(bool is_object) {
    if (depth_ + 1 >= kMaxJsonDepth) return fail(section_, "less depth", "values inside values");
    if (!built_.empty()) {
      Json* inner = put(is_object ? Json::object() : Json::array());
      if (inner == nullptr) return false;
      built_.push_back(inner);
    } else if (depth_ == 0) {
      if (!is_object) return fail("", "an object", "an array");
    } else if (depth_ == 1) {
      if (section_ == "model" && !is_object) return fail(section_, "an object", "an array");
      if (section_ == "added_tokens" && is_object) return fail(section_, "an array", "an object");
      if (Json* subtree = subtree_of_section()) {
        *subtree = is_object ? Json::object() : Json::array();
        built_.push_back(subtree);
      }
    } else if (is_in(2, "model", "merges") && is_object) {
      return fail("model.merges", "an array", "an object");
    } else if (is_in(2, "model", "vocab")) {
      has_list_vocab_ = !is_object;  // of Unigram, which is not read
    } else if (is_in(2, "added_tokens")) {
      if (!is_object) return fail(section_, "objects", "an array");
      if (out_.added.size() == kMaxAddedTokens) return too_many(section_, kMaxAddedTokens);
      added_ = {};
      has_id_ = has_content_ = false;
    } else if (is_in(3, "model", "vocab") && !has_list_vocab_) {
      return fail("model.vocab", "numbers", "a list or an object");
    } else if (is_in(3, "model", "merges")) {
      if (is_object) return fail("model.merges", "texts or pairs", "an object");
      pair_.clear();
      pair_size_ = 0;
    } else if (is_in(4, "model", "merges")) {
      return fail("model.merges", "pairs of texts", "more depth");
    }
    ++depth_;
    return true;
  }

  bool close() {
    --depth_;
    if (!built_.empty()) {
      built_.pop_back();
    } else if (is_in(2, "added_tokens")) {
      if (!has_id_ || !has_content_)
        return fail(section_, "id and content", "a token without them");
      out_.added.push_back(std::move(added_));
    } else if (is_in(3, "model", "merges")) {
      if (pair_size_ != 2) return fail("model.merges", "two texts", std::to_string(pair_size_));
      return add_merge(std::move(pair_));
    }
    return true;
  }

  bool scalar(Json value) {
    if (!built_.empty()) return put(std::move(value)) != nullptr;
    if (depth_ == 0) return fail("", "an object", value.type_name());
    if (depth_ == 1) {
      const bool is_needed = section_ == "model" || section_ == "added_tokens";
      return !is_needed || value.is_null() ||
             fail(section_, "an object or array", value.type_name());
    }
    if (is_in(2, "model")) return set_model(value);
    if (is_in(2, "added_tokens")) return fail(section_, "objects", value.type_name());
    if (is_in(3, "model", "vocab") && !has_list_vocab_) return add_token(value);
    if (is_in(3, "model", "merges")) {
      if (!value.is_string()) return fail("model.merges", "texts or pairs", value.type_name());
      const std::string& text = value.string();
      const std::size_t blank = text.find(' ');
      if (blank == 0 || blank == text.npos || blank + 1 == text.size() ||
          text.find(' ', blank + 1) != text.npos)
        return fail("model.merges", "two parts and a blank between them", text);
      return add_merge(std::move(value.string()));
    }
    if (is_in(4, "model", "merges")) {
      if (!value.is_string()) return fail("model.merges", "pairs of texts", value.type_name());
      if (value.string().empty()) return fail("model.merges", "pairs of texts", "an empty text");
      if (pair_size_++ == 1) pair_ += ' ';
      for (const char c : value.string())
        if (c == ' ')
          pair_ += "\xC4\xA0";
        else
          pair_ += c;
      return true;
    }
    if (is_in(3, "added_tokens")) return set_added(value);
    return true;
  }

  bool set_model(const Json& value) {
    if (field_ == "vocab" || field_ == "merges")
      return fail("model." + field_, "an object or array", value.type_name());
    if (field_ == "type") {
      if (!value.is_string()) return fail("model.type", "a text", value.type_name());
      out_.model = value.string();
    }
    if (field_ == "byte_fallback") out_.has_byte_fallback = value == Json(true);
    if (field_ == "ignore_merges") out_.ignores_merges = value == Json(true);
    return true;
  }

  bool add_token(const Json& value) {
    const auto id = number_of(value);
    if (!id) return fail("model.vocab", "numbers below " + std::to_string(kMaxTokens), key_);
    if (*id >= out_.tokens.size()) {
      out_.tokens.resize(*id + 1);
      out_.is_there.resize(*id + 1);
    }
    if (out_.is_there[*id])
      return fail("model.vocab", "one token for number " + std::to_string(*id),
                  out_.tokens[*id] + " and " + key_);
    out_.tokens[*id] = std::move(key_);
    out_.is_there[*id] = true;
    return true;
  }

  bool set_added(const Json& value) {
    if (key_ == "id") {
      const auto id = number_of(value);
      if (!id) return fail("added_tokens", "ids below " + std::to_string(kMaxTokens), value.dump());
      added_.id = *id;
      has_id_ = true;
    } else if (key_ == "content") {
      if (!value.is_string()) return fail("added_tokens", "a text", value.type_name());
      added_.content = value.string();
      has_content_ = true;
    } else if (key_ == "special") {
      if (!value.is_boolean()) return fail("added_tokens", "true or false", value.type_name());
      added_.is_special = value.get<bool>();
    }
    return true;
  }

  bool add_merge(std::string merge) {
    if (out_.merges.size() == kMaxTokens) return too_many("model.merges", kMaxTokens);
    out_.merges.push_back(std::move(merge));
    return true;
  }

  bool too_many(std::string_view place, std::size_t max) {
    return fail(place, "at most " + std::to_string(max) + " entries", "more");
  }

  static std::optional<std::uint32_t> number_of(const Json& value) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= kMaxTokens)
      return std::nullopt;
    return value.get<std::uint32_t>();
  }

  Json* subtree_of_section() {
    if (section_ == "pre_tokenizer") return &out_.pre_tokenizer;
    if (section_ == "post_processor") return &out_.post_processor;
    if (section_ == "decoder") return &out_.decoder;
    return nullptr;
  }

  // Into the innermost open container of the subtree.
  Json* put(Json value) {
    if (++nodes_ > kMaxNodes) {
      too_many(section_, kMaxNodes);
      return nullptr;
    }
    Json& parent = *built_.back();
    if (parent.is_array()) return &parent.emplace_back(std::move(value));
    if (parent.contains(built_key_)) {
      fail(section_ + "." + built_key_, "each key once", "it again");
      return nullptr;
    }
    return &parent.append_member(std::move(built_key_), std::move(value));
  }

  TokenizerJson& out_;
  std::optional<Error> why_{};
  std::size_t depth_ = 0, nodes_ = 0, pair_size_ = 0;
  std::string section_{}, field_{}, key_{}, built_key_{}, pair_{};
  std::set<std::pair<std::size_t, std::string>> seen_{};
  std::vector<Json*> built_{};
  AddedToken added_{};
  bool has_id_ = false, has_content_ = false, has_list_vocab_ = false;
};

}  // namespace

Result<TokenizerJson> parse_tokenizer(std::string_view text) {
  if (text.size() > kMaxTokenizerBytes)
    return invalid("vocabulary.malformed", "the tokenizer cannot be read")
        .expects("at most " + human_bytes(kMaxTokenizerBytes), human_bytes(text.size()));
  TokenizerJson tokenizer;
  TokenizerReader reader(tokenizer);
  if (!walk_json(text, reader)) return std::move(reader).why();
  return tokenizer;
}

}  // namespace fp4moe::checkpoint
