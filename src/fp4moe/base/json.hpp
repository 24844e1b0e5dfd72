// JSON values, and JSON from untrusted files: no duplicate keys, bounded depth, valid
// UTF-8.
//
// The value is a class of ours because most of the tree reads this header: nlohmann's value costs
// seconds of compile time in every file that touches one. The grammar, the text of numbers and the
// escapes are nlohmann's; json.cpp alone includes it.
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "fp4moe/base/result.hpp"

namespace fp4moe {

class Json;

// Types that become an object, an array, a text.
template <class T>
concept JsonMap = requires {
  typename T::mapped_type;
};
template <class T>
concept JsonText = std::convertible_to<const T&, std::string_view>;
template <class T>
concept JsonList = !std::same_as<T, Json> && !JsonText<T> && !JsonMap<T> &&
                   !std::convertible_to<const T&, std::string> && requires(const T& list) {
  typename T::value_type;
  list.begin();
  list.end();
};

// null, a boolean, a number, a text, an array, or an object that keeps the order of its members.
//
//   Json report{{"name", tensor.name}, {"shape", tensor.shape}};
//   report["bytes"] = tensor.bytes;
//   for (const auto& [key, value] : report.items()) ...
//
// A braced list is an object where every element is a list of a text and a value, else an array.
// A wrong access (the text of a number, an absent key) throws std::logic_error: input is checked
// with is_*() and find() before.
class Json {
 public:
  struct Member;
  class Part;  // an element of a braced list
  enum class Type : std::uint8_t {
    null,
    boolean,
    integer,
    unsigned_integer,
    real,
    string,
    array,
    object
  };

  Json() noexcept {}
  Json(std::nullptr_t) noexcept {}
  template <std::same_as<bool> T>
  Json(T value) noexcept : type_(Type::boolean), content_{.boolean = value} {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) Json(T value)
  noexcept {
    if constexpr (std::is_signed_v<T>)
      type_ = Type::integer, content_.integer = value;
    else
      type_ = Type::unsigned_integer, content_.unsigned_integer = value;
  }
  template <std::floating_point T>
  Json(T value) noexcept : type_(Type::real), content_{.real = static_cast<double>(value)} {}
  Json(const char* text) : Json(std::string(text)) {}
  Json(std::string_view text) : Json(std::string(text)) {}
  Json(const std::string& text) : Json(std::string(text)) {}
  Json(std::string&& text);
  template <JsonList List>
  Json(const List& list) : Json(array()) {
    for (const auto& item : list) push_back(static_cast<const typename List::value_type&>(item));
  }
  template <JsonMap Map>
  Json(const Map& map) : Json(object()) {
    for (const auto& [key, value] : map) (*this)[key] = value;
  }
  Json(std::initializer_list<Part> list);
  Json(const Json& other);
  Json(Json&& other) noexcept
      : type_(std::exchange(other.type_, Type::null)), content_(other.content_) {}
  Json& operator=(Json other) noexcept {
    std::swap(type_, other.type_);
    std::swap(content_, other.content_);
    return *this;
  }
  ~Json();
  static Json array();
  static Json array(std::initializer_list<Part> list);
  static Json object();
  static Json object(std::initializer_list<Part> list);

  Type type() const { return type_; }
  std::string_view type_name() const;  // "number", "object", ...
  bool is_null() const { return type_ == Type::null; }
  bool is_boolean() const { return type_ == Type::boolean; }
  bool is_number() const { return is_number_integer() || type_ == Type::real; }
  bool is_number_integer() const { return type_ == Type::integer || is_number_unsigned(); }
  bool is_number_unsigned() const { return type_ == Type::unsigned_integer; }
  bool is_number_float() const { return type_ == Type::real; }
  bool is_string() const { return type_ == Type::string; }
  bool is_array() const { return type_ == Type::array; }
  bool is_object() const { return type_ == Type::object; }
  bool is_structured() const { return is_array() || is_object(); }

  // The value as a T: bool, a number of any type, a text, or a list of these.
  template <class T>
  T get() const {
    if constexpr (std::same_as<T, bool>) {
      return boolean();
    } else if constexpr (std::integral<T>) {
      return static_cast<T>(integer());
    } else if constexpr (std::floating_point<T>) {
      return static_cast<T>(real());
    } else if constexpr (std::same_as<T, std::string>) {
      return string();
    } else {
      T list;
      for (const Json& item : elements()) list.push_back(item.get<typename T::value_type>());
      return list;
    }
  }
  const std::string& string() const;
  std::string& string();
  std::span<const Json> elements() const;  // of an array
  std::span<const Member> items() const;   // of an object; none of null
  std::span<Member> items();

  // The elements of an array or object. Iterators give the values of an object's members.
  template <class Parent>
  class Iterator;
  using iterator_type = Iterator<Json>;
  using const_iterator_type = Iterator<const Json>;
  std::size_t size() const;
  bool empty() const { return size() == 0; }
  iterator_type begin();
  iterator_type end();
  const_iterator_type begin() const;
  const_iterator_type end() const;
  Json& front() { return value_at(0); }
  const Json& front() const { return value_at(0); }
  Json& back() { return value_at(size() - 1); }
  const Json& back() const { return value_at(size() - 1); }

  // Elements of an array.
  void push_back(Json value);  // null becomes an array
  template <class... Arguments>
  Json& emplace_back(Arguments&&... arguments) {
    push_back(Json(std::forward<Arguments>(arguments)...));
    return back();
  }
  template <std::integral Index>
  Json& operator[](Index index) {
    return element(static_cast<std::size_t>(index));
  }
  template <std::integral Index>
  const Json& operator[](Index index) const {
    return element(static_cast<std::size_t>(index));
  }
  template <std::integral Index>
  Json& at(Index index) {
    return element(static_cast<std::size_t>(index));
  }
  template <std::integral Index>
  const Json& at(Index index) const {
    return element(static_cast<std::size_t>(index));
  }
  void erase(std::size_t index);

  // Members of an object.
  Json& operator[](std::string_view key);  // null becomes an object, an absent member null
  const Json& operator[](std::string_view key) const { return at(key); }
  Json& operator[](const char* key) { return (*this)[std::string_view(key)]; }
  const Json& operator[](const char* key) const { return at(std::string_view(key)); }
  Json& at(std::string_view key);
  const Json& at(std::string_view key) const;
  bool contains(std::string_view key) const { return index_of(key) != size(); }
  iterator_type find(std::string_view key);
  const_iterator_type find(std::string_view key) const;
  template <class T>
  T value(std::string_view key, T otherwise) const {
    return contains(key) ? at(key).template get<T>() : otherwise;
  }
  std::size_t erase(std::string_view key);
  void update(const Json& other);  // members of `other` are set
  // Without a look at the others: the caller knows that the key is new.
  Json& append_member(std::string key, Json value);

  // Texts that are not UTF-8 are shown with replacement characters. A negative indent: one line.
  std::string dump(int indent = -1) const;

  // Numbers are equal where their values are; objects where the order of members is, too.
  friend bool operator==(const Json& a, const Json& b) { return a.equals(b); }
  friend std::ostream& operator<<(std::ostream& out, const Json& json);

 private:
  template <class Parent>
  friend class Iterator;
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;
  union Content {
    bool boolean;
    std::int64_t integer = 0;
    std::uint64_t unsigned_integer;
    double real;
    std::string* string;
    Array* array;
    Object* object;
  };

  bool boolean() const;
  std::int64_t integer() const;  // of any number; unsigned ones by their bits
  double real() const;
  bool equals(const Json& other) const;
  Array& make_array();
  Object& make_object();
  std::size_t index_of(std::string_view key) const;  // size(): absent
  Json& value_at(std::size_t index);
  const Json& value_at(std::size_t index) const;
  Json& element(std::size_t index);
  const Json& element(std::size_t index) const;
  void write(std::string& out, int indent, std::size_t depth) const;

  Type type_ = Type::null;
  Content content_{};
};

struct Json::Member {
  std::string key{};
  Json value{};
};

// Elements of a std::initializer_list are const, so they can only be copied; this one lets its
// value be moved out.
class Json::Part {
 public:
  template <class T>
  requires(!std::same_as<std::remove_cvref_t<T>, Part>) Part(T&& value)
      : value_(std::forward<T>(value)) {}
  Part(std::initializer_list<Part> list) : value_(list) {}

 private:
  friend class Json;
  mutable Json value_;
};

template <class Parent>
class Json::Iterator {
 public:
  using value_type = Json;
  using difference_type = std::ptrdiff_t;
  using reference = Parent&;
  using pointer = Parent*;
  using iterator_category = std::forward_iterator_tag;

  Iterator() = default;
  Iterator(Parent* parent, std::size_t index) : parent_(parent), index_(index) {}
  Parent& operator*() const { return parent_->value_at(index_); }
  Parent* operator->() const { return &**this; }
  const std::string& key() const { return parent_->items()[index_].key; }
  Parent& value() const { return **this; }
  Iterator& operator++() {
    ++index_;
    return *this;
  }
  Iterator operator++(int) { return {parent_, index_++}; }
  bool operator==(const Iterator& other) const = default;

 private:
  Parent* parent_ = nullptr;
  std::size_t index_ = 0;
};

inline Json::iterator_type Json::begin() { return {this, 0}; }
inline Json::iterator_type Json::end() { return {this, size()}; }
inline Json::const_iterator_type Json::begin() const { return {this, 0}; }
inline Json::const_iterator_type Json::end() const { return {this, size()}; }
inline Json::iterator_type Json::find(std::string_view key) { return {this, index_of(key)}; }
inline Json::const_iterator_type Json::find(std::string_view key) const {
  return {this, index_of(key)};
}

constexpr std::size_t kMaxJsonDepth = 64;

// The document in `text`, or an error with id `json.*` that gives the byte where reading stopped.
Result<Json> parse_json(std::string_view text);

// Reads and parses a file of at most `max_bytes`.
Result<Json> read_json_file(std::string_view path, std::size_t max_bytes = 100u << 20);

// `text` between quotes, escaped.
std::string quoted_json(std::string_view text);

// Events of walk_json(), in the order of the text. Each returns true to go on.
class JsonEvents {
 public:
  virtual bool null() = 0;
  virtual bool boolean(bool value) = 0;
  virtual bool number_integer(std::int64_t value) = 0;  // below zero
  virtual bool number_unsigned(std::uint64_t value) = 0;
  virtual bool number_float(double value, const std::string& text) = 0;
  virtual bool string(std::string& value) = 0;
  virtual bool start_object() = 0;
  virtual bool key(std::string& name) = 0;
  virtual bool end_object() = 0;
  virtual bool start_array() = 0;
  virtual bool end_array() = 0;
  virtual bool parse_error(std::size_t position, const std::string& token) = 0;

 protected:
  ~JsonEvents() = default;
};

// Walks a document without building it. False when a handler said so or the text is malformed.
bool walk_json(std::string_view text, JsonEvents& events);

}  // namespace fp4moe
