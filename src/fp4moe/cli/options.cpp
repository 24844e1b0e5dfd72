#include "fp4moe/cli/options.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/platform/settings.hpp"

namespace fp4moe::cli {
namespace {

// An option's value as --help shows it.
struct ValueText {
  std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
  std::string operator()(const std::string* value) const { return *value; }
  std::string operator()(const std::uint64_t* value) const { return std::to_string(*value); }
  template <typename T>
  std::string operator()(const std::optional<T>* value) const {
    return *value ? fmt::format("{}", **value) : std::string();
  }
  std::string operator()(const std::vector<std::string>* value) const {
    return fmt::format("[{}]", fmt::join(*value, ","));
  }
};

// Empty: the option's form says it.
struct ValueName {
  std::string operator()(const bool*) const { return ""; }
  std::string operator()(const std::string*) const { return ""; }
  std::string operator()(const std::uint64_t*) const { return "N"; }
  std::string operator()(const std::optional<std::uint64_t>*) const { return "N"; }
  std::string operator()(const std::optional<double>*) const { return "X"; }
  std::string operator()(const std::vector<std::string>*) const { return ""; }
};

// In the order of Form.
constexpr std::string_view kFormValues[] = {"NAME", "PATH", "N", "R/N", "NAME=VALUE", "COMMAND"};

}  // namespace

Option& Option::required() {
  is_required = true;
  return *this;
}

Option& Option::show_default() {
  default_text = std::visit(ValueText{}, target);
  return *this;
}

Option& Option::one_of(std::vector<std::string> words) {
  choices = std::move(words);
  return *this;
}

Option& Option::between(std::uint64_t low, std::uint64_t high) {
  range = Range<std::uint64_t>{low, high};
  return *this;
}

Option& Option::between(double low, double high) {
  range = Range<double>{low, high};
  return *this;
}

Option& Option::existing_folder() {
  is_existing_folder = true;
  return as(Form::path);
}

Option& Option::separated_by_commas(std::string what) {
  item = std::move(what);
  return *this;
}

Option& Option::in_bytes(std::string shown_default) {
  is_in_bytes = true;
  default_text = std::move(shown_default);
  return *this;
}

Option& Option::as(Form what) {
  form = what;
  return *this;
}

Option& Option::or_alone(std::string number) {
  implied = std::move(number);
  return *this;
}

Option& Option::listed(std::string subject) {
  listed_in = std::move(subject);
  return *this;
}

Option& Option::offering(std::vector<std::string> words) {
  offered = std::move(words);
  return *this;
}

std::vector<std::string> Option::spellings() const {
  const std::vector<std::string_view> parts = split(names, ',');
  return {parts.begin(), parts.end()};
}

std::string Option::name() const {
  const std::string longest = std::ranges::max(spellings(), {}, &std::string::size);
  return longest.substr(std::min(longest.find_first_not_of('-'), longest.size()));
}

Option& OptionSet::add_threads(std::uint64_t& value) {
  return add("--threads", value, "Threads (default: all)")
      .between(std::uint64_t{1}, std::uint64_t{platform::kMaxThreads});
}

OptionSet& OptionSet::add_subcommand(std::string_view called, std::string_view does,
                                     std::function<void()> on_choice) {
  OptionSet& result = subcommands.emplace_back();
  result.name = called;
  result.summary = does;
  result.chosen = std::move(on_choice);
  return result;
}

const OptionSet* OptionSet::find(std::string_view called) const {
  const auto found = std::ranges::find(subcommands, called, &OptionSet::name);
  return found == subcommands.end() ? nullptr : &*found;
}

const Option* OptionSet::find_option(std::string_view spelling) const {
  for (const Option& option : options) {
    if (option.is_positional()) continue;
    for (const std::string& known : option.spellings())
      if (known == spelling) return &option;
  }
  return nullptr;
}

std::string value_name(const Option& option) {
  if (!option.implied.empty()) return "[N]";
  if (!option.item.empty()) return option.item + ",...";
  const auto of_type = std::visit(ValueName{}, option.target);
  if (option.is_in_bytes) return "SIZE";
  return of_type.empty() ? std::string(kFormValues[static_cast<std::size_t>(option.form)])
                         : of_type;
}

}  // namespace fp4moe::cli
