// How far backends are from float64, layer by layer, and how fast this machine is.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/error_json.hpp"
#include "fp4moe/bench/plot.hpp"
#include "fp4moe/report/markup.hpp"
#include "fp4moe/report/records.hpp"
#include "fp4moe/report/sections.hpp"

namespace fp4moe::report {
namespace {

std::string layer_name(const Json& layer) {
  return layer.at("layer").is_null() ? "" : std::to_string(layer.at("layer").get<std::uint64_t>());
}

// JSON has null where it has no number.
double number_of(const Json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

// A number that is not finite is larger than all finite ones.
double larger(double a, double b) { return std::isfinite(a) && !(b <= a) ? b : a; }

DotSeries errors_of(const Json& numerics, const Json& diff) {
  DotSeries series{.name = numerics.at("backend").get<std::string>()};
  for (const Json& layer : diff.at("layers")) {
    series.values.push_back(number_of(layer.at("difference").at("rel_error")));
    series.allowed = layer.at("allowed").at("rel_error").get<double>();
  }
  return series;
}

std::vector<std::string> numerics_row(const Json& numerics, const Json& diff) {
  double error = 0, rms = 0, cosine = 1, allowed = 0;
  for (const Json& layer : diff.at("layers")) {
    const Json& found = layer.at("difference");
    error = larger(error, number_of(found.at("rel_error")));
    rms = larger(rms, number_of(found.at("rms_error")));
    cosine = -larger(-cosine, -number_of(found.at("cosine")));
    allowed = layer.at("allowed").at("rel_error").get<double>();
  }
  const bool is_within = diff.at("within_numerics").get<bool>();
  const Json& run = diff.at("layers").front().at("a");
  return {escaped(numerics.at("backend").get<std::string>()),
          escaped(run.value<std::string>("policy", "")),
          escaped(run.value<std::string>("numerics", "")),
          badge(is_within ? "good" : "bad", is_within ? "within" : "outside"),
          fmt::format("{:.2e}", error),
          fmt::format("{:.2e}", allowed),
          fmt::format("{:.2e}", rms),
          fmt::format("{:.8f}", cosine)};
}

// A plot as an image of its own, so that its style stays inside.
std::string plot_image(const bench::Plot& plot) {
  const Result<std::string> drawing = bench::svg(plot);
  if (!drawing) return failure(to_json(drawing.why()));
  std::string encoded;
  for (const char c : *drawing) {
    const bool is_plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
        std::string_view(" -_.!~*()/:;=,?@[]{}").find(c) != std::string_view::npos;
    encoded += is_plain
                   ? std::string(1, c)
                   : fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  return fmt::format("<img class=\"plot\" alt=\"{}\" src=\"data:image/svg+xml,{}\">\n",
                     escaped(plot.title), encoded);
}

std::string ceilings_text(const Json& bench) {
  const Json &machine = bench.at("machine"), &ceilings = bench.at("ceilings");
  return fmt::format(
      "<p>{} ({}), {} cores. It reads {:.1f} GB/s, copies {:.1f} GB/s, does {:.0f} Gop/s of int8 "
      "and "
      "{:.0f} GFLOP/s of bf16.</p>\n",
      escaped(machine.value<std::string>("model", "")),
      escaped(machine.value<std::string>("architecture", "")),
      machine.value<std::uint64_t>("cores", 0), ceilings.value("read_gb_per_s", 0.0),
      ceilings.value("copy_gb_per_s", 0.0), ceilings.value("int8_gop_per_s", 0.0),
      ceilings.value("bf16_gflop_per_s", 0.0));
}

std::string times_table(const Json& bench) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& row : bench.at("results"))
    rows.push_back({grouped(row.at("tokens").get<std::uint64_t>()),
                    escaped(row.value<std::string>("kernel", "")),
                    fmt::format("{:.1f}", row.value("us_median", 0.0)),
                    fmt::format("{:.1f}", row.value("floor_us", 0.0)),
                    fmt::format("{:.2f}", row.value("ratio_to_floor", 0.0)),
                    fmt::format("{:.1f}", row.value("gb_per_s", 0.0)),
                    fmt::format("{:.1f}", row.value("gflop_per_s", 0.0))});
  constexpr Column kColumns[] = {{"tokens", true},   {"kernel"},      {"us median", true},
                                 {"floor us", true}, {"ratio", true}, {"GB/s", true},
                                 {"GFLOP/s", true}};
  return table(kColumns, rows) +
         soft("Floor: what the measured ceilings allow for the same bytes and operations.");
}

std::string peers_part(const Json& record, const std::string& model) {
  std::string result;
  for (const bench::Plot& plot : peers_plots(record.at("report"), model))
    result += plot_image(plot);
  const std::string file = escaped(record.at("file").get<std::string>());
  if (result.empty())
    return soft(fmt::format("{} has no measurement of a model with these sizes.", file));
  const auto what = record.at("report").find("what");  // the file is not trusted
  const bool has_text = what != record.at("report").end() && what->is_string();
  return result +
         soft(fmt::format("From {}. {}", file, has_text ? escaped(what->get<std::string>()) : ""));
}

std::string model_name(const Json& facts) {
  const Json* inspect = result_of(facts.at("inspect"));
  if (inspect == nullptr || inspect->at("layers").size() == 0) return "";
  const Json& layer = inspect->at("layers").front();
  return model_of_sizes(layer.at("experts").get<std::uint64_t>(),
                        layer.at("hidden").get<std::uint64_t>(),
                        layer.at("intermediate").get<std::uint64_t>());
}

}  // namespace

std::string numerics_section(const Json& facts) {
  if (facts.at("numerics").size() == 0) return "";
  std::vector<std::string> names;
  std::vector<DotSeries> series;
  std::vector<std::vector<std::string>> rows;
  std::string failures, commands;
  for (const Json& numerics : facts.at("numerics")) {
    commands += command_line(numerics.at("diff"));
    const Json* diff = result_of(numerics.at("diff"));
    if (diff == nullptr) {
      failures += failure(numerics.at("diff").at("error"));
      continue;
    }
    series.push_back(errors_of(numerics, *diff));
    rows.push_back(numerics_row(numerics, *diff));
    names.clear();
    for (const Json& layer : diff->at("layers")) names.push_back(layer_name(layer));
  }
  constexpr Column kColumns[] = {
      {"backend"},         {"policy"},        {"numerics"},        {""},
      {"max error", true}, {"allowed", true}, {"rms error", true}, {"cosine", true}};
  const std::string shown =
      series.empty()
          ? ""
          : dots(names, series,
                 "largest error over largest value, against float64 (dashed: allowed)", "layer") +
                table(kColumns, rows);
  return commands + shown + failures;
}

std::string bench_section(const Json& facts) {
  const Json& bench = facts.at("bench");
  if (bench.is_null()) return "";
  std::string result;
  std::vector<Json> reports;
  if (!bench.at("layer").is_null()) {
    const Json& answer = bench.at("layer");
    result += command_line(answer);
    const Json* measured = result_of(answer);
    if (measured == nullptr) {
      result += failure(answer.at("error"));
    } else {
      result += ceilings_text(*measured) + times_table(*measured);
      reports.push_back(*measured);
    }
  }
  std::string peers;
  for (const Json& record : bench.at("records")) {
    if (is_peers_record(record.at("report")))
      peers += peers_part(record, model_name(facts));
    else
      reports.push_back(record.at("report"));
  }
  const Result<bench::Plot> plot = bench::layer_plot(reports);
  if (!plot)
    result += failure(to_json(plot.why()));
  else if (!plot->series.empty())
    result += plot_image(*plot);
  return result + (peers.empty() ? "" : "<h3>Peers</h3>\n" + peers);
}

}  // namespace fp4moe::report
