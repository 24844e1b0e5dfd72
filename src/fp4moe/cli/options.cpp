#include "fp4moe/cli/options.hpp"

#include <utility>

#include <CLI/CLI.hpp>

namespace fp4moe::cli {

Option& Option::required() {
  inner_->required();
  return *this;
}

Option& Option::show_default() {
  inner_->capture_default_str();
  return *this;
}

Option& Option::one_of(const std::vector<std::string>& words) {
  inner_->check(CLI::IsMember(words));
  return *this;
}

Option& Option::between(std::uint64_t low, std::uint64_t high) {
  inner_->check(CLI::Range(low, high));
  return *this;
}

Option& Option::between(double low, double high) {
  inner_->check(CLI::Range(low, high));
  return *this;
}

Option& Option::existing_folder() {
  inner_->check(CLI::ExistingDirectory);
  return *this;
}

Option& Option::separated_by_commas(const std::string& what) {
  inner_->delimiter(',')->type_name(what + ",...");
  return *this;
}

Option& Option::in_bytes(const std::string& shown_default) {
  inner_->transform(CLI::AsSizeValue(true))->default_str(shown_default);
  return *this;
}

Option add_option(CLI::App& app, const std::string& names, std::string& value,
                  const std::string& help) {
  return Option(app.add_option(names, value, help));
}

Option add_option(CLI::App& app, const std::string& names, std::uint64_t& value,
                  const std::string& help) {
  return Option(app.add_option(names, value, help));
}

Option add_option(CLI::App& app, const std::string& names, std::optional<std::uint64_t>& value,
                  const std::string& help) {
  return Option(app.add_option(names, value, help));
}

Option add_option(CLI::App& app, const std::string& names, std::optional<double>& value,
                  const std::string& help) {
  return Option(app.add_option(names, value, help));
}

Option add_option(CLI::App& app, const std::string& names, std::vector<std::string>& value,
                  const std::string& help) {
  return Option(app.add_option(names, value, help));
}

void add_flag(CLI::App& app, const std::string& names, bool& value, const std::string& help) {
  app.add_flag(names, value, help);
}

CLI::App& add_question(CLI::App& app, const std::string& name, const std::string& summary,
                       std::function<void()> chosen) {
  app.require_subcommand(1);
  CLI::App* sub = app.add_subcommand(name, summary);
  sub->fallthrough();  // --json and the command's options may stand behind the question
  sub->callback(std::move(chosen));
  return *sub;
}

}  // namespace fp4moe::cli
