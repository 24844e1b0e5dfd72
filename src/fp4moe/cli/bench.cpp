// fp4moe bench ceilings|formats|pack|files|select|route|layer|plot
//
// Work and ceilings are measured in one process, interleaved, and ratios are reported: they mean more
// than times, which change from machine to machine and from hour to hour.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/bench/ceilings.hpp"
#include "fp4moe/bench/files.hpp"
#include "fp4moe/bench/formats.hpp"
#include "fp4moe/bench/layer.hpp"
#include "fp4moe/bench/pack.hpp"
#include "fp4moe/bench/plot.hpp"
#include "fp4moe/bench/route.hpp"
#include "fp4moe/bench/select.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"
#include "fp4moe/platform/detect.hpp"
#include "fp4moe/platform/machine.hpp"
#include "fp4moe/platform/settings.hpp"
#include "fp4moe/tensor/files/atomic_file.hpp"

namespace fp4moe::cli {
namespace {

enum class Benchmark : std::uint8_t { ceilings, formats, pack, files, select, route, layer, plot };

struct BenchOptions {
  Benchmark benchmark = Benchmark::ceilings;
  std::vector<std::string> threads{};
  std::optional<std::size_t> megabytes{};
  std::optional<double> seconds{}, warm_up{};
  std::string path{}, scratch{}, layout{};
  std::vector<std::string> tokens{};
  std::string model = "gpt-oss-20b", format{}, routing = "uniform";
  std::vector<std::string> engines{"auto"}, numerics{"exact"}, activations{"none"};
  std::uint64_t layers = 0;
  std::vector<std::string> reports{};
  std::string out{};
};

// Options of every benchmark.
struct Setting {
  platform::Machine machine{};
  std::size_t threads = 1;                   // the last of those asked for
  std::vector<std::size_t> all_threads{};    // what ceilings are measured with, one after another
  EnumSet<platform::CpuFeature> features{};  // usable, after forcing
};

// Whole numbers of a list; empty: nothing when one of them is not.
std::optional<std::vector<std::uint64_t>> parse_counts(const std::vector<std::string>& words) {
  std::vector<std::uint64_t> counts;
  for (const std::string& word : words) {
    std::uint64_t count = 0;
    const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), count);
    if (problem != std::errc() || end != word.data() + word.size()) return std::nullopt;
    counts.push_back(count);
  }
  return counts;
}

Result<std::vector<std::uint64_t>> token_counts(const std::vector<std::string>& words) {
  auto counts = parse_counts(words);
  if (counts) return *std::move(counts);
  return usage("bench.tokens", "invalid number of tokens")
      .expects("such as 1,512,8192", printable(fmt::format("{}", fmt::join(words, ","))));
}

Result<std::vector<std::size_t>> thread_counts(const std::vector<std::string>& words) {
  const auto counts = parse_counts(words);
  if (counts && std::ranges::all_of(*counts, [](std::uint64_t count) {
        return count >= 1 && count <= platform::kMaxThreads;
      }))
    return std::vector<std::size_t>(counts->begin(), counts->end());
  return usage("bench.threads", "invalid number of threads")
      .expects(fmt::format("1 to {}", platform::kMaxThreads),
               printable(fmt::format("{}", fmt::join(words, ","))));
}

Result<Setting> read_setting(const BenchOptions& options) {
  const Result<platform::Settings> settings = platform::read_settings();
  if (!settings) return settings.why();
  Setting setting{.machine = platform::describe_machine()};
  const auto asked = thread_counts(options.threads);
  if (!asked) return asked.why();
  setting.all_threads = *asked;
  if (asked->empty()) {
    const std::size_t usual = platform::choose_threads(std::nullopt, *settings);
    if (options.benchmark == Benchmark::ceilings && usual > 1) setting.all_threads.push_back(1);
    setting.all_threads.push_back(usual);
  }
  setting.threads = setting.all_threads.back();
  if (options.benchmark != Benchmark::ceilings && setting.all_threads.size() > 1)
    return usage("bench.threads", "this benchmark takes one number of threads")
        .expects("one number", fmt::format("{}", fmt::join(setting.all_threads, ",")))
        .try_this("several numbers are for bench ceilings");
  const auto usable = kernels::cpu::usable_features(setting.machine.features, settings->cpu_isa);
  if (!usable) return usable.why();
  setting.features = *usable;
  return setting;
}

Json report(const Setting& setting, const bench::Ceilings& ceilings, Json results) {
  return {{"machine", bench::to_json(setting.machine)},
          {"ceilings", bench::to_json(ceilings)},
          {"results", std::move(results)}};
}

void print_machine(const Io& io, const Setting& setting, const bench::Ceilings& ceilings) {
  const platform::Machine& machine = setting.machine;
  io.out << fmt::format("{} ({}), {} cores, {} thread{}; L2 {}, L3 {}, memory {}\n", machine.model,
                        machine.architecture, machine.cores, setting.threads,
                        setting.threads == 1 ? "" : "s", human_bytes(machine.l2_bytes),
                        human_bytes(machine.l3_bytes), human_bytes(machine.memory_bytes));
  io.out << fmt::format(
      "ceilings: read {:.1f} GB/s, copy {:.1f} GB/s, int8 {:.0f} Gop/s, bf16 {:.0f} GFLOP/s\n\n",
      ceilings.read_gb_per_s, ceilings.copy_gb_per_s, ceilings.int8_gop_per_s,
      ceilings.bf16_gflop_per_s);
}

void print_device(const Io& io, const bench::GpuFacts& gpu, const bench::Ceilings& ceilings) {
  io.out << fmt::format("{}, {} multiprocessors at up to {} MHz, driver {}.{}; L2 {}, memory {}\n",
                        gpu.name, gpu.multiprocessors, gpu.clock_khz / 1000,
                        gpu.driver_version / 1000, gpu.driver_version % 1000 / 10,
                        human_bytes(gpu.l2_bytes), human_bytes(gpu.memory_bytes));
  io.out << fmt::format("ceilings: read {:.0f} GB/s, copy {:.0f} GB/s, bf16 {:.0f} GFLOP/s\n",
                        ceilings.read_gb_per_s, ceilings.copy_gb_per_s, ceilings.bf16_gflop_per_s);
  io.out << bench::sustained_text(gpu) << "\n\n";
}

Result<int> run_ceilings(const BenchOptions& options, const Setting& setting, const Io& io) {
  Json results = Json::array(), by_threads = Json::array();
  bench::Ceilings last;
  for (const std::size_t threads : setting.all_threads) {
    bench::CeilingsOptions asked{.threads = threads, .features = setting.features};
    if (options.megabytes) asked.megabytes = *options.megabytes;
    if (options.seconds) asked.seconds = *options.seconds;
    auto ceilings = bench::bench_ceilings(asked);
    if (!ceilings) return ceilings.why();
    last = *std::move(ceilings);
    by_threads.push_back(bench::to_json(last));
    by_threads.back()["threads"] = threads;
    for (const bench::CeilingResult& result : last.results)
      results.push_back(bench::to_json(result, threads));
    if (io.json) continue;
    if (by_threads.size() > 1) io.out << "\n";
    Setting shown = setting;
    shown.threads = threads;
    print_machine(io, shown, last);
    io.out << fmt::format("{:8} {:24} {:>10} {:>10} {:>10} {:>10}\n", "ceiling", "kernel", "G/s",
                          "us median", "p10", "p90");
    for (const bench::CeilingResult& result : last.results)
      io.out << fmt::format("{:8} {:24} {:10.1f} {:10.0f} {:10.0f} {:10.0f}\n", result.name,
                            result.kernel, result.timing.rate(), result.timing.us_median,
                            result.timing.us_p10, result.timing.us_p90);
  }
  if (io.json) {
    Json whole = report(setting, last, std::move(results));
    whole["ceilings_by_threads"] = std::move(by_threads);
    io.print(whole);
  }
  return kDone;
}

// Short, for the head of the other reports.
Result<bench::Ceilings> quick_ceilings(const Setting& setting) {
  return bench::bench_ceilings(
      {.threads = setting.threads, .seconds = 1, .features = setting.features});
}

Result<int> run_formats(const BenchOptions& options, const Setting& setting, const Io& io) {
  bench::FormatsOptions asked{.threads = setting.threads, .features = setting.features};
  if (options.megabytes) asked.megabytes = *options.megabytes;
  if (options.seconds) asked.seconds = *options.seconds;
  const auto results = bench::bench_formats(asked);
  if (!results) return results.why();
  const auto ceilings = quick_ceilings(setting);
  if (!ceilings) return ceilings.why();
  if (io.json) {
    Json rows = Json::array();
    for (const bench::FormatResult& result : *results)
      rows.push_back(bench::to_json(result, setting.threads));
    io.print(report(setting, *ceilings, std::move(rows)));
    return kDone;
  }
  print_machine(io, setting, *ceilings);
  io.out << fmt::format("{:14} {:6} {:20} {:5} {:22} {:>8} {:>8} {:>6}\n", "operation", "format",
                        "rule", "type", "kernel", "GB/s", "memcpy", "share");
  for (const bench::FormatResult& result : *results)
    io.out << fmt::format("{:14} {:6} {:20} {:5} {:22} {:8.2f} {:8.2f} {:5.0f}%\n",
                          result.operation, result.format, result.rule, result.element,
                          result.kernel, result.timing.rate(), result.memcpy_gb_per_s,
                          100 * result.share_of_memcpy());
  return kDone;
}

Result<int> run_pack(const BenchOptions& options, const Setting& setting, const Io& io) {
  bench::PackOptions asked{.threads = setting.threads, .layout = options.layout};
  if (options.megabytes) asked.megabytes = *options.megabytes;
  if (options.seconds) asked.seconds = *options.seconds;
  const auto results = bench::bench_pack(asked);
  if (!results) return results.why();
  const auto ceilings = quick_ceilings(setting);
  if (!ceilings) return ceilings.why();
  if (io.json) {
    Json rows = Json::array();
    for (const bench::PackResult& result : *results)
      rows.push_back(bench::to_json(result, setting.threads));
    io.print(report(setting, *ceilings, std::move(rows)));
    return kDone;
  }
  print_machine(io, setting, *ceilings);
  io.out << fmt::format("{:32} {:26} {:>6} {:>7} {:>7} {:>6} {:>9}\n", "layout", "generation",
                        "GB/s", "unpack", "memcpy", "share", "times map");
  for (const bench::PackResult& result : *results)
    io.out << fmt::format("{:32} {:26} {:6.2f} {:7.2f} {:7.2f} {:5.0f}% {:8.0f}x\n", result.layout,
                          result.generation, result.pack.rate(), result.unpack.rate(),
                          result.memcpy_gb_per_s, 100 * result.share_of_memcpy(),
                          result.times_map());
  return kDone;
}

Result<int> run_files(const BenchOptions& options, const Setting& setting, const Io& io) {
  bench::FilesOptions asked{.path = options.path,
                            .scratch = options.scratch,
                            .threads = setting.threads,
                            .features = setting.features};
  if (options.megabytes) asked.megabytes = *options.megabytes;
  if (options.seconds) asked.seconds = *options.seconds;
  const auto results = bench::bench_files(asked);
  if (!results) return results.why();
  const auto ceilings = quick_ceilings(setting);
  if (!ceilings) return ceilings.why();
  if (io.json) {
    Json rows = Json::array();
    for (const bench::FileResult& result : *results)
      rows.push_back(bench::to_json(result, setting.threads));
    io.print(report(setting, *ceilings, std::move(rows)));
    return kDone;
  }
  print_machine(io, setting, *ceilings);
  io.out << fmt::format("{:10} {:6} {:20} {:20} {:>8} {:>12} {:>6}\n", "operation", "format",
                        "from", "to", "GB/s", "plain copy", "share");
  for (const bench::FileResult& result : *results)
    io.out << fmt::format("{:10} {:6} {:20} {:20} {:8.2f} {:12.2f} {:5.0f}%\n", result.operation,
                          result.format, result.from, result.to, result.timing.rate(),
                          result.copy_gb_per_s, 100 * result.share_of_copy());
  return kDone;
}

Result<int> run_select(const BenchOptions& options, const Setting& setting, const Io& io) {
  bench::SelectOptions asked;
  if (options.seconds) asked.seconds = *options.seconds;
  const auto results = bench::bench_select(asked);
  if (!results) return results.why();
  if (io.json) {
    Json rows = Json::array();
    for (const bench::SelectResult& result : *results) rows.push_back(bench::to_json(result));
    io.print({{"machine", bench::to_json(setting.machine)}, {"results", std::move(rows)}});
    return kDone;
  }
  io.out << fmt::format("{} ({})\n\n{:24} {:6} {:>8} {:>12} {:>16}\n", setting.machine.model,
                        setting.machine.architecture, "policy", "format", "kernels", "us a choice",
                        "us a full record");
  for (const bench::SelectResult& result : *results)
    io.out << fmt::format("{:24} {:6} {:8} {:12.2f} {:16.1f}\n", result.policy, result.format,
                          result.candidates, result.select_us, result.record_us);
  return kDone;
}

Result<int> run_route(const BenchOptions& options, const Setting& setting, const Io& io) {
  bench::RouteOptions asked{.threads = setting.threads};
  if (options.seconds) asked.seconds = *options.seconds;
  if (!options.tokens.empty()) {
    const auto counts = token_counts(options.tokens);
    if (!counts) return counts.why();
    asked.tokens = *counts;
  }
  const auto results = bench::bench_route(asked);
  if (!results) return results.why();
  const auto ceilings = quick_ceilings(setting);
  if (!ceilings) return ceilings.why();
  if (io.json) {
    Json rows = Json::array();
    for (const bench::RouteResult& result : *results)
      rows.push_back(bench::to_json(result, setting.threads));
    io.print(report(setting, *ceilings, std::move(rows)));
    return kDone;
  }
  print_machine(io, setting, *ceilings);
  io.out << fmt::format("{:14} {:17} {:6} {:>7} {:>5} {:>7} {:>10} {:>9} {:>6} {:>6}\n", "model",
                        "method", "logits", "experts", "top k", "tokens", "us median", "ns/token",
                        "growth", "read");
  for (const bench::RouteResult& result : *results)
    io.out << fmt::format("{:14} {:17} {:6} {:7} {:5} {:7} {:10.0f} {:9.1f} {:6.2f} {:5.0f}%\n",
                          result.model, result.method, result.logits, result.experts, result.top_k,
                          result.tokens, result.once.us_median, result.ns_per_token(),
                          result.growth(), 100 * result.share_of_read());
  return kDone;
}

Result<int> run_layer(const BenchOptions& options, const Setting& setting, const Io& io) {
  // The rest is for the machine, for tokens and for what engines keep.
  const std::uint64_t memory = setting.machine.memory_bytes / 4 * 3;
  bench::LayerBenchOptions asked{.model = {.model = options.model,
                                           .format = options.format,
                                           .device = platform::detect_device(),
                                           .layers = options.layers,
                                           .memory = memory,
                                           .threads = setting.threads},
                                 .engines = options.engines,
                                 .numerics = options.numerics,
                                 .activations = options.activations,
                                 .routing = options.routing,
                                 .last_level_bytes = setting.machine.l3_bytes,
                                 .features = setting.features};
  if (options.seconds) asked.seconds = *options.seconds;
  if (options.warm_up) asked.warm_up = *options.warm_up;
  if (!options.tokens.empty()) {
    const auto counts = token_counts(options.tokens);
    if (!counts) return counts.why();
    asked.tokens = *counts;
  }
  const auto measured = bench::bench_layer(asked);
  if (!measured) return measured.why();
  if (io.json) {
    Json rows = Json::array();
    for (const bench::LayerResult& result : measured->results)
      rows.push_back(bench::to_json(result));
    Json whole = report(setting, measured->ceilings, std::move(rows));
    if (measured->gpu) whole["device"] = bench::to_json(*measured->gpu);
    io.print(whole);
    return kDone;
  }
  if (measured->gpu)
    print_device(io, *measured->gpu, measured->ceilings);
  else
    print_machine(io, setting, measured->ceilings);
  const bench::LayerResult& first = measured->results.front();
  io.out << fmt::format("{}, {}, {} routing, {} layer{} in rotation\n\n", first.model, first.format,
                        first.routing, first.layers, first.layers == 1 ? "" : "s");
  const auto kernel = [](const bench::LayerResult& result) {
    if (result.path.empty()) return result.kernel;
    const std::string family = result.kernel.substr(0, result.kernel.find('/'));
    return result.activations == "none"
               ? fmt::format("{}/{}", family, result.path)
               : fmt::format("{}/{}+{}", family, result.path, result.activations);
  };
  // Devices are fast: a digit behind the point.
  const auto time = [&](double us) { return fmt::format("{:.{}f}", us, measured->gpu ? 1 : 0); };
  // The error against float64 of activations as they came, beside that of the quantized ones.
  const bool has_quantized = std::ranges::any_of(
      measured->results,
      [](const bench::LayerResult& result) { return result.rel_error_unquantized.has_value(); });
  const auto unquantized = [&](const bench::LayerResult& result) {
    if (!has_quantized) return std::string();
    return fmt::format(" {:>11}", result.rel_error_unquantized
                                      ? fmt::format("{:.1e}", *result.rel_error_unquantized)
                                      : "");
  };
  io.out << fmt::format(
      "{:>6} {:24} {:8} {:>7} {:>10} {:>10} {:>10} {:>7} {:>8} {:>10} {:>6} {:>8}{}{}\n", "tokens",
      "kernel", "numerics", "experts", "us median", "p10", "p90", "GB/s", "GFLOP/s", "floor us",
      "ratio", "error", has_quantized ? " unquantized" : "",
      first.gpu_state ? "   MHz   W  °C mJ/token" : "");
  const auto state = [](const bench::LayerResult& result) {
    if (!result.gpu_state) return std::string();
    const auto& [clock, power, temperature] = *result.gpu_state;
    return fmt::format(
        " {:5} {:3} {:3} {:>8}", clock, power, temperature,
        result.joules_per_token ? fmt::format("{:.3g}", 1e3 * *result.joules_per_token) : "");
  };
  for (const bench::LayerResult& result : measured->results)
    io.out << fmt::format(
        "{:6} {:24} {:8} {:7.1f} {:>10} {:>10} {:>10} {:7.1f} {:8.0f} {:>10} {:6.2f} {:8.1e}{}{}\n",
        result.tokens, kernel(result), result.numerics, result.active_experts,
        time(result.timing.us_median), time(result.timing.us_p10), time(result.timing.us_p90),
        result.timing.rate(), result.gflop_per_s(), time(result.floor_us), result.ratio_to_floor(),
        result.rel_error, unquantized(result), state(result));
  return kDone;
}

Result<int> run_plot(const BenchOptions& options, const Io& io) {
  std::vector<Json> reports;
  for (const std::string& path : options.reports) {
    Result<Json> read = read_json_file(path);
    if (!read) return read.why();
    // A report is refused with the name of its file.
    const auto alone = bench::layer_plot(std::span(&*read, 1));
    if (!alone) return Error(alone.why()).in(path);
    reports.push_back(*std::move(read));
  }
  const auto plot = bench::layer_plot(reports);
  if (!plot) return plot.why();
  const auto drawing = bench::svg(*plot);
  if (!drawing) return drawing.why();
  const auto written = tensor::write_file(options.out, std::as_bytes(std::span(*drawing)));
  if (!written) return written.why();
  if (io.json)
    io.print({{"output", options.out}, {"series", plot->series.size()}});
  else
    io.out << fmt::format("{}: {} series\n", options.out, plot->series.size());
  return kDone;
}

Result<int> run_bench(const BenchOptions& options, const Io& io) {
  if (options.benchmark == Benchmark::plot) return run_plot(options, io);
  const Result<Setting> setting = read_setting(options);
  if (!setting) return setting.why();
  switch (options.benchmark) {
    case Benchmark::ceilings:
      return run_ceilings(options, *setting, io);
    case Benchmark::formats:
      return run_formats(options, *setting, io);
    case Benchmark::pack:
      return run_pack(options, *setting, io);
    case Benchmark::files:
      return run_files(options, *setting, io);
    case Benchmark::select:
      return run_select(options, *setting, io);
    case Benchmark::route:
      return run_route(options, *setting, io);
    case Benchmark::layer:
      return run_layer(options, *setting, io);
    case Benchmark::plot:
      break;
  }
  return usage("bench.question", "there is no such benchmark");
}

}  // namespace

Run declare_bench(OptionSet& set) {
  auto options = std::make_shared<BenchOptions>();
  const auto asks = [&options](Benchmark benchmark) {
    return [options, benchmark] { options->benchmark = benchmark; };
  };
  set.add_subcommand("ceilings", "Memory read and copy, int8 and bf16 multiply-adds",
                     asks(Benchmark::ceilings));
  set.add_subcommand("formats", "Quantize, dequantize and GGUF moves, as shares of memcpy",
                     asks(Benchmark::formats));
  OptionSet& pack = set.add_subcommand(
      "pack", "Laying experts out for each backend, as a share of memcpy", asks(Benchmark::pack));
  pack.add("--layout", options->layout, "Only this layout, e.g. marlin.mxfp4").listed("layouts");
  OptionSet& files =
      set.add_subcommand("files", "Reading through mmap and transcoding, as shares of a plain copy",
                         asks(Benchmark::files));
  files.add("PATH", options->path, "Checkpoint (default: one of each dialect is made and removed)")
      .as(Form::path);
  files.add("--scratch", options->scratch, "Folder to write in (default: $TMPDIR or /tmp)")
      .existing_folder();
  set.add_subcommand("select", "One selection under every policy, in microseconds",
                     asks(Benchmark::select));
  OptionSet& route = set.add_subcommand(
      "route", "Routing and permuting tokens, as a share of reading the router's logits",
      asks(Benchmark::route));
  route.add("--tokens", options->tokens, "Numbers of tokens (default: 8192)")
      .as(Form::number)
      .separated_by_commas("N");
  OptionSet& layer = set.add_subcommand(
      "layer", "A whole MoE layer, from router logits to output, against its floor",
      asks(Benchmark::layer));
  layer.add("--model", options->model, "A model of the table, or a checkpoint")
      .as(Form::path)
      .show_default();
  layer.add("--format", options->format, "mxfp4 or nvfp4 (default: the model's)");
  layer.add("--tokens", options->tokens, "Numbers of tokens (default: 1,4,16,64)")
      .as(Form::number)
      .separated_by_commas("N");
  layer
      .add("--engine", options->engines,
           "Engines, measured interleaved, or cuda alone (default: auto)")
      .separated_by_commas("ENGINE");
  layer.add("--numerics", options->numerics, "exact, fast or both (default: exact)")
      .separated_by_commas("NUMERICS");
  layer
      .add("--activations", options->activations,
           "Engine cuda: quantized on the way to none, mxfp8, mxfp4, nvfp4, fp8, fp8_token or "
           "fp8_block (default: none); fp8_token_in_bf16, fp8_block_in_bf16: not on FP8 tensor "
           "cores")
      .separated_by_commas("SCHEME");
  layer
      .add("--routing", options->routing,
           "uniform, or skewed: half of the tokens take an eighth of the experts")
      .show_default();
  layer.add("--layers", options->layers,
            "Layers in rotation (default: four times the last-level cache, at least 2)");
  layer
      .add("--warm-up", options->warm_up,
           "Engine cuda: seconds of work before the measurement (default: 10; less, or --seconds "
           "below 4, is a burst)")
      .between(0.0, 3600.0);
  OptionSet& plot = set.add_subcommand("plot", "Draw reports of bench layer --json as SVG",
                                       asks(Benchmark::plot));
  plot.add("FILE", options->reports, "Reports").as(Form::path).required();
  plot.add("-o,--out", options->out, "The drawing").as(Form::path).required();
  set.add("--threads", options->threads,
          "Threads (default: FP4MOE_THREADS, else all cores); ceilings takes several")
      .as(Form::number)
      .separated_by_commas("N");
  set.add("--megabytes", options->megabytes, "Size of the data")
      .between(std::size_t{1}, std::size_t{65536});
  set.add("--seconds", options->seconds, "Time to measure, about").between(0.01, 3600.0);
  return [options](const Io& io) { return run_bench(*options, io); };
}

}  // namespace fp4moe::cli
