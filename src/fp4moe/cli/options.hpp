// How a command declares its options. CLI11 costs seconds in every file that includes it, so only
// options.cpp and command.cpp do; commands see its App as a name and use what is declared here.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace fp4moe::cli {

// An option that was declared; its demands can be chained.
class Option {
 public:
  explicit Option(CLI::Option* inner) : inner_(inner) {}

  Option& required();
  Option& show_default();  // --help shows the value that the variable has now
  Option& one_of(const std::vector<std::string>& words);
  Option& between(std::uint64_t low, std::uint64_t high);
  Option& between(double low, double high);
  Option& existing_folder();
  Option& separated_by_commas(const std::string& what);  // "POLICY": --help shows POLICY,...
  Option& in_bytes(const std::string& shown_default);    // takes 5GB for 5000000000

 private:
  CLI::Option* inner_;
};

// `names` is "-o,--out", or "PATH" for an argument without one. The parsed value goes to `value`,
// which must outlive the parsing; without the option it stays as it is.
Option add_option(CLI::App& app, const std::string& names, std::string& value,
                  const std::string& help);
Option add_option(CLI::App& app, const std::string& names, std::uint64_t& value,
                  const std::string& help);
Option add_option(CLI::App& app, const std::string& names, std::optional<std::uint64_t>& value,
                  const std::string& help);
Option add_option(CLI::App& app, const std::string& names, std::optional<double>& value,
                  const std::string& help);
Option add_option(CLI::App& app, const std::string& names, std::vector<std::string>& value,
                  const std::string& help);
void add_flag(CLI::App& app, const std::string& names, bool& value, const std::string& help);

// A word that must follow the command, one of those added; `chosen` is called when it is this one.
// The command's own options may stand behind it.
CLI::App& add_question(CLI::App& app, const std::string& name, const std::string& summary,
                       std::function<void()> chosen);

}  // namespace fp4moe::cli
