#include "fp4moe/tensor/files/store_index.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe::tensor {
namespace {

bool is_plain_relative(std::string_view path) {
  if (path.find('\0') != std::string_view::npos || path.find('\\') != std::string_view::npos)
    return false;
  const std::vector<std::string_view> parts = split(path, '/');
  return std::none_of(parts.begin(), parts.end(), [](std::string_view part) {
    return part.empty() || part == "." || part == "..";
  });
}

class IndexWalker final : public JsonEvents {
 public:
  explicit IndexWalker(StoreIndex& index) : index_(index) {}

  bool null() override { return plain("null"); }
  bool boolean(bool) override { return plain("true or false"); }
  bool number_integer(std::int64_t) override { return plain("a number"); }
  bool number_unsigned(std::uint64_t) override { return plain("a number"); }
  bool number_float(double, const std::string&) override { return plain("a number"); }
  bool string(std::string& value) override {
    if (!in_map()) return plain("a string");
    return add(value);
  }

  bool start_object() override {
    if (depth_ == 1 && at_map_ && std::exchange(has_map_, true))
      return fail("index.duplicate", "\"weight_map\" occurs twice", "it once", "it twice");
    return open("an object");
  }
  bool start_array() override {
    if (depth_ == 1 && at_map_) return plain("an array");
    return open("an array");
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    if (depth_ == 1) at_map_ = name == "weight_map";
    if (in_map()) {
      if (name.empty() || name.find('\0') != std::string::npos)
        return fail("index.name", "a tensor has no usable name", "a name without NUL",
                    name.empty() ? "an empty name" : name);
      name_ = std::move(name);
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&) override {
    return fail("index.json", "the index is not valid JSON", "JSON",
                "an error at byte " + std::to_string(position));
  }

  bool has_map() const { return has_map_; }
  const Error& why() const { return why_; }

 private:
  bool in_map() const { return depth_ == 2 && at_map_; }

  bool add(const std::string& shard) {
    if (index_.entries.empty() || index_.shards[last_] != shard) {
      const auto [place, is_new] =
          numbers_.try_emplace(shard, static_cast<std::uint32_t>(index_.shards.size()));
      if (is_new) {
        if (!is_plain_relative(shard))
          return fail("index.shard_name", "a shard lies outside the folder",
                      "a relative path without \"..\"", shard);
        index_.shards.push_back(shard);
      }
      last_ = place->second;
    }
    index_.entries.push_back({std::move(name_), last_});
    return true;
  }

  // A value that is no object: legal anywhere but as the document, the map or in the map.
  bool plain(std::string_view found) {
    if (depth_ == 0) return fail("index.kind", "the index is not an object", "an object", found);
    if (depth_ == 1 && at_map_)
      return fail("index.kind", "\"weight_map\" is not an object", "an object", found);
    if (in_map()) return fail("index.kind", "the shard is not a string", "a file name", found);
    return true;
  }

  bool open(std::string_view found) {
    if (depth_ == 0 && found != "an object") return plain(found);
    if (in_map()) return plain(found);
    if (depth_ >= kMaxJsonDepth)
      return fail("index.depth", "the index is nested too deeply",
                  "at most " + std::to_string(kMaxJsonDepth) + " levels", "more");
    ++depth_;
    return true;
  }

  bool close() {
    --depth_;
    return true;
  }

  bool fail(std::string_view id, std::string_view message, std::string_view expected,
            std::string_view found) {
    if (why_.id.empty()) why_ = invalid(id, message).at(name_).expects(expected, printable(found));
    return false;
  }

  StoreIndex& index_;
  std::unordered_map<std::string, std::uint32_t> numbers_{};
  std::uint32_t last_ = 0;
  std::string name_{};
  std::size_t depth_ = 0;
  bool at_map_ = false, has_map_ = false;
  Error why_{};
};

}  // namespace

Result<StoreIndex> parse_index(std::string_view text) {
  StoreIndex index;
  IndexWalker walker(index);
  if (!walk_json(text, walker)) {
    if (walker.why().id == "index.json" && !is_utf8(text))
      return invalid("index.utf8", "the index is not valid UTF-8")
          .expects("UTF-8", walker.why().found);
    return walker.why();
  }
  if (!walker.has_map())
    return invalid("index.weight_map", "the index does not say where tensors are")
        .expects("an object \"weight_map\"", "none");
  const auto by_name = [](const IndexEntry& a, const IndexEntry& b) { return a.name < b.name; };
  if (!std::is_sorted(index.entries.begin(), index.entries.end(), by_name))
    std::sort(index.entries.begin(), index.entries.end(), by_name);
  const auto duplicate =
      std::adjacent_find(index.entries.begin(), index.entries.end(),
                         [](const IndexEntry& a, const IndexEntry& b) { return a.name == b.name; });
  if (duplicate != index.entries.end())
    return invalid("index.duplicate", "the index names a tensor twice")
        .at(duplicate->name)
        .expects("each tensor once", "it twice");
  return index;
}

}  // namespace fp4moe::tensor
