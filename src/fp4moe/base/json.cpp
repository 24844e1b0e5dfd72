#include "fp4moe/base/json.hpp"

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <unordered_set>
#include <vector>

namespace fp4moe {
namespace {

// Builds a document while refusing what nlohmann lets pass: duplicate keys and great depth.
class StrictBuilder {
 public:
  explicit StrictBuilder(Json& root) : root_(root) {}

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(Json::number_integer_t value) { return put(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return put(value); }
  bool number_float(Json::number_float_t value, const Json::string_t&) { return put(value); }
  bool string(Json::string_t& value) { return put(std::move(value)); }
  bool binary(Json::binary_t&) { return fail("json.binary", "binary values are not JSON"); }

  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(Json::string_t& name) {
    if (!keys_.back().insert(name).second)
      return fail("json.duplicate_key", "a key occurs twice in one object", name);
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::detail::exception&) {
    return fail("json.syntax", "not valid JSON at byte " + std::to_string(position), token);
  }
  Error& why() { return why_; }

 private:
  template <class Value>
  Json* place(Value&& value) {
    if (open_.empty()) {
      root_ = std::forward<Value>(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::forward<Value>(value));
      return &parent.back();
    }
    // Keys are known to be new, so append without ordered_json's linear search.
    auto& entries = parent.get_ref<Json::object_t&>();
    entries.std::vector<Json::object_t::value_type>::emplace_back(key_, std::forward<Value>(value));
    return &entries.back().second;
  }
  template <class Value>
  bool put(Value&& value) {
    place(std::forward<Value>(value));
    return true;
  }
  bool open(Json container) {
    if (open_.size() >= kMaxJsonDepth)
      return fail("json.depth", "nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    open_.push_back(place(std::move(container)));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }
  bool fail(std::string_view id, std::string_view message, std::string_view at = {}) {
    if (why_.id.empty()) why_ = invalid(id, message).at(at);
    return false;
  }

  Json& root_;
  std::vector<Json*> open_{};
  std::vector<std::unordered_set<std::string>> keys_{};
  std::string key_{};
  Error why_{};
};

}  // namespace

Result<Json> parse_json(std::string_view text) {
  Json root;
  StrictBuilder builder(root);
  if (!walk_json(text, builder)) return builder.why();
  return root;
}

Result<Json> read_json_file(std::string_view path, std::size_t max_bytes) {
  const std::string name(path);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(name.c_str(), "rbe"),
                                                             std::fclose);
  if (!file) return system_error("json.open", "cannot open", errno).in(path);
  std::string content;
  std::array<char, 65536> chunk{};
  while (const std::size_t got = std::fread(chunk.data(), 1, chunk.size(), file.get())) {
    content.append(chunk.data(), got);
    if (content.size() > max_bytes)
      return invalid("json.too_large", "the file is too large for JSON")
          .in(path)
          .expects("at most " + std::to_string(max_bytes) + " bytes", "more");
  }
  if (std::ferror(file.get()) != 0) return system_error("json.read", "cannot read", errno).in(path);
  Result<Json> document = parse_json(content);
  if (!document) return Error(document.why()).in(path);
  return document;
}

}  // namespace fp4moe
