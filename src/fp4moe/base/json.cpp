#include "fp4moe/base/json.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <ostream>
#include <stdexcept>
#include <unordered_set>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

namespace fp4moe {
namespace {

std::logic_error wrong(std::string_view expected, const Json& found) {
  return std::logic_error("JSON: expected " + std::string(expected) + ", found " +
                          std::string(found.type_name()));
}

// A text and a value: what a braced list has for a member.
bool is_member(const Json& json) {
  return json.is_array() && json.size() == 2 && json.front().is_string();
}

bool is_plain(char byte) { return byte >= ' ' && byte < 0x7f && byte != '"' && byte != '\\'; }

void write_text(std::string& out, const std::string& text) {
  if (std::all_of(text.begin(), text.end(), is_plain)) {
    out += '"';
    out += text;
    out += '"';
    return;
  }
  out += nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void new_line(std::string& out, int indent, std::size_t depth) {
  if (indent < 0) return;
  out += '\n';
  out.append(static_cast<std::size_t>(indent) * depth, ' ');
}

}  // namespace

Json::Json(std::string&& text) : type_(Type::string) {
  content_.string = new std::string(std::move(text));
}

Json::Json(std::initializer_list<Part> list)
    : Json(std::all_of(list.begin(), list.end(),
                       [](const Part& part) { return is_member(part.value_); })
               ? object(list)
               : array(list)) {}

Json Json::array() {
  Json json;
  json.content_.array = new Array;
  json.type_ = Type::array;
  return json;
}

Json Json::array(std::initializer_list<Part> list) {
  Json json = array();
  json.content_.array->reserve(list.size());
  for (const Part& part : list) json.content_.array->push_back(std::move(part.value_));
  return json;
}

Json Json::object() {
  Json json;
  json.content_.object = new Object;
  json.type_ = Type::object;
  return json;
}

Json Json::object(std::initializer_list<Part> list) {
  Json json = object();
  json.content_.object->reserve(list.size());
  for (const Part& part : list) {
    if (!is_member(part.value_)) throw wrong("a list of a text and a value", part.value_);
    json[part.value_.front().string()] = std::move(part.value_.back());
  }
  return json;
}

Json::Json(const Json& other) : type_(other.type_), content_(other.content_) {
  if (type_ == Type::string) content_.string = new std::string(*other.content_.string);
  if (type_ == Type::array) content_.array = new Array(*other.content_.array);
  if (type_ == Type::object) content_.object = new Object(*other.content_.object);
}

Json::~Json() {
  if (type_ == Type::string) delete content_.string;
  if (type_ == Type::array) delete content_.array;
  if (type_ == Type::object) delete content_.object;
}

std::string_view Json::type_name() const {
  constexpr std::string_view kNames[] = {"null",   "boolean", "number", "number",
                                         "number", "string",  "array",  "object"};
  return kNames[static_cast<std::size_t>(type_)];
}

bool Json::boolean() const {
  if (!is_boolean()) throw wrong("a boolean", *this);
  return content_.boolean;
}

std::int64_t Json::integer() const {
  if (type_ == Type::integer) return content_.integer;
  if (type_ == Type::unsigned_integer) return static_cast<std::int64_t>(content_.unsigned_integer);
  return static_cast<std::int64_t>(real());
}

double Json::real() const {
  if (type_ == Type::integer) return static_cast<double>(content_.integer);
  if (type_ == Type::unsigned_integer) return static_cast<double>(content_.unsigned_integer);
  if (type_ != Type::real) throw wrong("a number", *this);
  return content_.real;
}

const std::string& Json::string() const {
  if (!is_string()) throw wrong("a string", *this);
  return *content_.string;
}

std::string& Json::string() {
  if (!is_string()) throw wrong("a string", *this);
  return *content_.string;
}

std::span<const Json> Json::elements() const {
  if (!is_array()) throw wrong("an array", *this);
  return *content_.array;
}

std::span<const Json::Member> Json::items() const {
  if (is_null()) return {};
  if (!is_object()) throw wrong("an object", *this);
  return *content_.object;
}

std::span<Json::Member> Json::items() {
  if (is_null()) return {};
  if (!is_object()) throw wrong("an object", *this);
  return *content_.object;
}

std::size_t Json::size() const {
  if (is_array()) return content_.array->size();
  if (is_object()) return content_.object->size();
  return is_null() ? 0 : 1;
}

Json::Array& Json::make_array() {
  if (is_null()) *this = array();
  if (!is_array()) throw wrong("an array", *this);
  return *content_.array;
}

Json::Object& Json::make_object() {
  if (is_null()) *this = object();
  if (!is_object()) throw wrong("an object", *this);
  return *content_.object;
}

Json& Json::value_at(std::size_t index) {
  return is_object() ? content_.object->at(index).value : element(index);
}

const Json& Json::value_at(std::size_t index) const {
  return is_object() ? content_.object->at(index).value : element(index);
}

Json& Json::element(std::size_t index) {
  if (!is_array()) throw wrong("an array", *this);
  return content_.array->at(index);
}

const Json& Json::element(std::size_t index) const {
  if (!is_array()) throw wrong("an array", *this);
  return content_.array->at(index);
}

void Json::push_back(Json value) { make_array().push_back(std::move(value)); }

void Json::erase(std::size_t index) {
  Array& all = make_array();
  all.erase(all.begin() + static_cast<std::ptrdiff_t>(index));
}

std::size_t Json::index_of(std::string_view key) const {
  if (!is_object()) return size();
  const Object& all = *content_.object;
  const auto found = std::find_if(all.begin(), all.end(),
                                  [key](const Member& member) { return member.key == key; });
  return static_cast<std::size_t>(found - all.begin());
}

Json& Json::operator[](std::string_view key) {
  Object& all = make_object();
  const std::size_t index = index_of(key);
  return index < all.size() ? all[index].value : append_member(std::string(key), nullptr);
}

Json& Json::at(std::string_view key) { return const_cast<Json&>(std::as_const(*this).at(key)); }

const Json& Json::at(std::string_view key) const {
  if (!is_object()) throw wrong("an object", *this);
  const std::size_t index = index_of(key);
  if (index == size()) throw std::out_of_range("JSON: no member \"" + std::string(key) + "\"");
  return (*content_.object)[index].value;
}

std::size_t Json::erase(std::string_view key) {
  Object& all = make_object();
  return std::erase_if(all, [key](const Member& member) { return member.key == key; });
}

void Json::update(const Json& other) {
  for (const Member& member : other.items()) (*this)[member.key] = member.value;
}

Json& Json::append_member(std::string key, Json value) {
  Object& all = make_object();
  all.push_back({std::move(key), std::move(value)});
  return all.back().value;
}

bool Json::equals(const Json& other) const {
  if (is_number() && other.is_number()) {
    if (type_ == Type::real || other.type_ == Type::real) return real() == other.real();
    const bool below = type_ == Type::integer && content_.integer < 0;
    const bool other_below = other.type_ == Type::integer && other.content_.integer < 0;
    return below == other_below && integer() == other.integer();
  }
  if (type_ != other.type_) return false;
  switch (type_) {
    case Type::boolean:
      return content_.boolean == other.content_.boolean;
    case Type::string:
      return *content_.string == *other.content_.string;
    case Type::array:
      return *content_.array == *other.content_.array;
    case Type::object:
      return std::equal(
          content_.object->begin(), content_.object->end(), other.content_.object->begin(),
          other.content_.object->end(),
          [](const Member& a, const Member& b) { return a.key == b.key && a.value == b.value; });
    default:
      return true;  // both are null
  }
}

void Json::write(std::string& out, int indent, std::size_t depth) const {
  const auto close = [&](char bracket) {
    if (!empty()) new_line(out, indent, depth);
    out += bracket;
  };
  auto open_next = [&, is_first = true]() mutable {
    if (!std::exchange(is_first, false)) out += ',';
    new_line(out, indent, depth + 1);
  };
  switch (type_) {
    case Type::null:
      out += "null";
      return;
    case Type::boolean:
      out += content_.boolean ? "true" : "false";
      return;
    case Type::integer:
      out += std::to_string(content_.integer);
      return;
    case Type::unsigned_integer:
      out += std::to_string(content_.unsigned_integer);
      return;
    case Type::real:
      out += nlohmann::json(content_.real).dump();
      return;
    case Type::string:
      write_text(out, *content_.string);
      return;
    case Type::array:
      out += '[';
      for (const Json& item : *content_.array) {
        open_next();
        item.write(out, indent, depth + 1);
      }
      close(']');
      return;
    case Type::object:
      out += '{';
      for (const Member& member : *content_.object) {
        open_next();
        write_text(out, member.key);
        out += indent < 0 ? ":" : ": ";
        member.value.write(out, indent, depth + 1);
      }
      close('}');
      return;
  }
}

std::string Json::dump(int indent) const {
  std::string out;
  write(out, indent, 0);
  return out;
}

std::ostream& operator<<(std::ostream& out, const Json& json) { return out << json.dump(); }

std::string quoted_json(std::string_view text) {
  std::string out;
  write_text(out, std::string(text));
  return out;
}

namespace {

// nlohmann's names for the events.
class Forwarder {
 public:
  explicit Forwarder(JsonEvents& events) : events_(events) {}
  bool null() { return events_.null(); }
  bool boolean(bool value) { return events_.boolean(value); }
  bool number_integer(std::int64_t value) { return events_.number_integer(value); }
  bool number_unsigned(std::uint64_t value) { return events_.number_unsigned(value); }
  bool number_float(double value, const std::string& text) {
    return events_.number_float(value, text);
  }
  bool string(std::string& value) { return events_.string(value); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // not in a text
  bool start_object(std::size_t) { return events_.start_object(); }
  bool start_array(std::size_t) { return events_.start_array(); }
  bool end_object() { return events_.end_object(); }
  bool end_array() { return events_.end_array(); }
  bool key(std::string& name) { return events_.key(name); }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::json::exception&) {
    return events_.parse_error(position, token);
  }

 private:
  JsonEvents& events_;
};

// Builds a document while refusing what nlohmann lets pass: duplicate keys and great depth.
class StrictBuilder final : public JsonEvents {
 public:
  explicit StrictBuilder(Json& root) : root_(root) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(std::int64_t value) override { return put(value); }
  bool number_unsigned(std::uint64_t value) override { return put(value); }
  bool number_float(double value, const std::string&) override { return put(value); }
  bool string(std::string& value) override { return put(std::move(value)); }

  bool start_object() override { return open(Json::object()); }
  bool start_array() override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    if (!keys_.back().insert(name).second)
      return fail("json.duplicate_key", "a key occurs twice in one object", name);
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token) override {
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
    return &parent.append_member(std::move(key_), std::forward<Value>(value));
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

Result<std::string> read_regular_file(int fd, std::size_t max_bytes) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return system_error("json.read", "cannot stat", errno);
  if (!S_ISREG(status.st_mode))
    return invalid("file.not_regular", "cannot be read as JSON")
        .expects("a regular file",
                 S_ISDIR(status.st_mode) ? "a folder" : "a pipe, a socket or a device");
  std::string content;
  std::array<char, 65536> chunk{};
  while (true) {
    const ssize_t got = read(fd, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error("json.read", "cannot read", errno);
    if (got == 0) return content;
    content.append(chunk.data(), static_cast<std::size_t>(got));
    if (content.size() > max_bytes)
      return invalid("json.too_large", "the file is too large for JSON")
          .expects("at most " + std::to_string(max_bytes) + " bytes", "more");
  }
}

}  // namespace

bool walk_json(std::string_view text, JsonEvents& events) {
  // nlohmann takes NUL for the end of the text and would believe anything after it.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    return events.parse_error(nul + 1, "NUL");
  Forwarder forwarder(events);
  return nlohmann::json::sax_parse(text.begin(), text.end(), &forwarder,
                                   nlohmann::json::input_format_t::json, true);
}

Result<Json> parse_json(std::string_view text) {
  Json root;
  StrictBuilder builder(root);
  if (!walk_json(text, builder)) return builder.why();
  return root;
}

Result<Json> read_json_file(std::string_view path, std::size_t max_bytes) {
  const std::string name(path);
  // O_NONBLOCK: a pipe must be refused, not waited for.
  const int fd = open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return system_error("json.open", "cannot open", errno).in(path);
  Result<std::string> content = read_regular_file(fd, max_bytes);
  close(fd);
  if (!content) return Error(content.why()).in(path);
  Result<Json> document = parse_json(*content);
  if (!document) return Error(document.why()).in(path);
  return document;
}

}  // namespace fp4moe
