// fp4moe diff: two ways of computing a layer, or two files of outputs, held against each other.
//
// Exit status: 0 equal or within the backends' numerics, 5 not, 2, 3, 4, 7 as run.
#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/progress.hpp"
#include "fp4moe/cli/run_options.hpp"
#include "fp4moe/runtime/run.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::cli {

Run declare_diff(OptionSet& set);

namespace {

using runtime::Comparison;
using runtime::LayerRun;

struct DiffOptions {
  std::string a{}, b{}, path{}, input{}, layer{};
  std::uint64_t tokens = 16, seed = 1;
};

// One side of one layer: what it computed, or what a file holds.
struct DiffSide {
  std::string text{};
  std::string describes{};  // backend and numerics, or the file's name
  std::optional<RunArgs> words{};
  std::optional<LayerRun> run{};
  std::vector<double> values{};
  std::uint64_t columns = 0;
};

bool is_file(const std::string& text) { return text.ends_with(".safetensors"); }

std::string output_name(std::uint64_t layer) { return fmt::format("layers.{}.output", layer); }

// The output of a layer, as run writes it: "layers.N.output" of several, "output" of one; else the
// one matrix of the file.
Result<Done> read_file(DiffSide& side, std::optional<std::uint64_t> layer) {
  const Result<tensor::Store> store = tensor::Store::open(side.text);
  if (!store) return store.why();
  const tensor::StoredTensor* found = layer ? store->find(output_name(*layer)) : nullptr;
  if (found == nullptr) found = store->find("output");
  if (found == nullptr && store->tensors().size() == 1) found = &store->tensors()[0];
  const bool fits = found != nullptr && found->entry.shape.size() == 2 &&
                    moe::is_activation_type(found->entry.dtype);
  if (!fits)
    return invalid("diff.file", "the file has no output to compare")
        .in(side.text)
        .expects(
            fmt::format("a tensor output{} [T,H] of BF16, F16, F32 or F64, or one tensor alone",
                        layer ? " or " + output_name(*layer) : ""),
            counted(store->tensors().size(), "tensor"));
  const std::uint64_t rows = found->entry.shape[0];
  side.columns = found->entry.shape[1];
  side.values.resize(rows * side.columns);
  const moe::ConstRows from{store->bytes(*found).data(), found->entry.dtype, rows, side.columns,
                            side.columns * moe::element_bytes(found->entry.dtype)};
  for (std::uint64_t row = 0; row < rows; ++row)
    read_row(from, row, std::span(side.values).subspan(row * side.columns, side.columns));
  side.describes = side.text;
  return Done{};
}

struct Computation {
  const runtime::Model& model;
  std::size_t number = 0;
  const runtime::RunInput& input;
  const DiffOptions& options;
  std::size_t threads = 1;
};

Result<LayerRun> compute(const Computation& computation, const RunArgs& words,
                         moe::reference::Trace* trace) {
  Result<runtime::RunOptions> how = run_options(words, computation.threads);
  if (!how) return how.why();
  how->seed = computation.options.seed;
  how->trace = trace;
  how->layer.max_tokens = std::max<std::uint64_t>(1, computation.input.tokens);
  return runtime::run_layer(computation.model, computation.number, computation.input, *how);
}

Result<Done> fill(DiffSide& side, const Computation* computation,
                  std::optional<std::uint64_t> layer) {
  if (is_file(side.text)) return read_file(side, layer);
  Result<RunArgs> words = parse_specification(side.text);
  if (!words) return words.why();
  Result<LayerRun> run = compute(*computation, *words, nullptr);
  if (!run) return run.why();
  side.values.assign(run->out.begin(), run->out.end());
  side.columns = run->hidden;
  side.describes = fmt::format("{}, {}", run->backend, run->kernel);
  side.words = std::move(*words);
  side.run = std::move(*run);
  return Done{};
}

// The first stage that differs, of the first token that differs.
Result<std::string> first_stage(const Computation& computation, const DiffSide& a,
                                const DiffSide& b, std::size_t token) {
  const auto one_rank = [](const DiffSide& side) {
    return side.words && side.words->tp == "1" && side.words->ep == "1";
  };
  if (!one_rank(a) || !one_rank(b)) return std::string();
  for (std::uint64_t choice = 0; choice < a.run->top_k; ++choice) {
    moe::reference::Trace left{.assignment = token * a.run->top_k + choice}, right = left;
    for (const auto& [side, trace] : {std::pair{&a, &left}, {&b, &right}}) {
      RunArgs words = *side->words;
      words.batch = 0;             // assignments are numbered within a call
      words.engine = "reference";  // which shows its stages
      const auto run = compute(computation, words, trace);
      if (!run) return run.why();
    }
    if (!left.is_seen || !right.is_seen) continue;
    const auto differs = [](const std::vector<double>& x, const std::vector<double>& y) {
      return std::ranges::mismatch(x, y).in1 != x.end();
    };
    if (differs(left.first, right.first)) return fmt::format("GEMM1, choice {}", choice);
    if (differs(left.middle, right.middle)) return fmt::format("the activation, choice {}", choice);
    if (differs(left.second, right.second))
      return fmt::format("GEMM2 and its weight, choice {}", choice);
  }
  if (a.run->engine != "reference" || b.run->engine != "reference") return std::string();
  return std::string("the sum over a token's experts");
}

moe::Tolerance allowed_for(const DiffSide& a, const DiffSide& b) {
  moe::Tolerance result{.of_largest = 0, .cosine = 1};
  for (const DiffSide* side : {&a, &b}) {
    // A file is as good as a 16-bit backend.
    const moe::Tolerance own =
        side->run ? side->run->tolerance : moe::Tolerance{.of_largest = 2e-2, .cosine = 0.9999};
    result.of_largest = std::max(result.of_largest, own.of_largest);
    result.cosine = std::min(result.cosine, own.cosine);
  }
  return result;
}

struct DiffVerdict {
  Comparison comparison{};
  moe::Tolerance allowed{};
  std::string stage{};
  std::string text() const {
    if (comparison.unequal == 0) return "equal, bit for bit";
    return comparison.is_within(allowed) ? "within the backends' numerics"
                                         : "NOT within the backends' numerics";
  }
};

// Two sides of a layer and how far they are apart.
struct LayerDiff {
  std::optional<std::uint64_t> layer{};  // its block's number; none: of files alone
  DiffSide a{}, b{};
  DiffVerdict verdict{};

  bool is_fine() const {
    return verdict.comparison.unequal == 0 || verdict.comparison.is_within(verdict.allowed);
  }
};

void print_one(const Io& io, const LayerDiff& diff) {
  const DiffSide &a = diff.a, &b = diff.b;
  const Comparison& found = diff.verdict.comparison;
  io.out << fmt::format("A: {}\nB: {}\n", a.describes, b.describes);
  if (found.unequal != 0) {
    const std::uint64_t columns = a.columns;
    const auto place = [&](std::size_t at) {
      return fmt::format("token {}, column {}: {:.9g} and {:.9g}", at / columns, at % columns,
                         a.values[at], b.values[at]);
    };
    io.out << fmt::format("first difference    {}\n", place(*found.first));
    io.out << fmt::format("largest difference  {}\n", place(*found.farthest));
    if (!diff.verdict.stage.empty())
      io.out << fmt::format("they part at        {}\n", diff.verdict.stage);
    io.out << fmt::format(
        "{} of {} differ; {:.2e} of the largest value (allowed {:.2g}), rms "
        "{:.2e}, cosine {:.7f} (allowed {:.4f})\n",
        found.unequal, counted(found.elements, "element"), found.of_largest(),
        diff.verdict.allowed.of_largest, found.rms, found.cosine, diff.verdict.allowed.cosine);
  }
  io.out << io.bold(diff.verdict.text()) << "\n";
}

void print_table(const Io& io, const std::vector<LayerDiff>& diffs) {
  io.out << fmt::format("A: {}\nB: {}\n", diffs.front().a.describes, diffs.front().b.describes);
  io.out << "layer   elements    unequal  of largest    allowed        rms     cosine  verdict\n";
  for (const LayerDiff& diff : diffs) {
    const Comparison& found = diff.verdict.comparison;
    io.out << fmt::format("{:>5} {:>10} {:>10}  {:>10.2e} {:>10.2g} {:>10.2e}  {:.7f}  {}\n",
                          diff.layer.value_or(0), found.elements, found.unequal, found.of_largest(),
                          diff.verdict.allowed.of_largest, found.rms, found.cosine,
                          diff.verdict.text());
  }
  const auto bad = std::ranges::count_if(diffs, [](auto& diff) { return !diff.is_fine(); });
  io.out << io.bold(bad == 0
                        ? fmt::format("all {} layers within the backends' numerics", diffs.size())
                        : fmt::format("{} of {} layers NOT within the backends' numerics", bad,
                                      diffs.size()))
         << "\n";
}

Json side_json(const DiffSide& side) {
  return side.run ? cli::to_json(*side.run) : Json{{"file", side.text}};
}

Json to_json(const LayerDiff& diff) {
  const DiffVerdict& verdict = diff.verdict;
  return {
      {"a", side_json(diff.a)},
      {"b", side_json(diff.b)},
      {"difference", cli::to_json(verdict.comparison, diff.a.columns)},
      {"allowed", {{"rel_error", verdict.allowed.of_largest}, {"cosine", verdict.allowed.cosine}}},
      {"stage", verdict.stage},
      {"verdict", verdict.text()}};
}

Result<LayerDiff> compare_sides(const DiffOptions& options, std::optional<std::uint64_t> layer,
                                const Computation* computation) {
  LayerDiff result{.layer = layer, .a = {.text = options.a}, .b = {.text = options.b}};
  DiffSide &a = result.a, &b = result.b;
  for (DiffSide* side : {&a, &b})
    if (const auto done = fill(*side, computation, layer); !done) return done.why();
  const auto shape = [](const DiffSide& side) {
    return fmt::format("[{}, {}]", side.columns == 0 ? 0 : side.values.size() / side.columns,
                       side.columns);
  };
  if (a.values.size() != b.values.size() || a.columns != b.columns)
    return invalid("diff.shape", "the two outputs have different shapes")
        .expects(shape(a), shape(b));
  result.verdict = {.comparison = runtime::compare(a.values, b.values),
                    .allowed = allowed_for(a, b)};
  if (result.verdict.comparison.first && computation != nullptr) {
    Result<std::string> stage =
        first_stage(*computation, a, b, *result.verdict.comparison.first / a.columns);
    if (!stage) return stage.why();
    result.verdict.stage = std::move(*stage);
  }
  return result;
}

// Layers of a file that has several; none where it has one output.
Result<std::vector<std::optional<std::uint64_t>>> layers_of_file(const DiffOptions& options) {
  constexpr std::string_view kLead = "layers.", kTail = ".output";
  const Result<tensor::Store> store = tensor::Store::open(options.a);
  if (!store) return store.why();
  std::vector<std::optional<std::uint64_t>> found;
  for (const tensor::StoredTensor& tensor : store->tensors()) {
    const std::string_view name = tensor.entry.name;
    if (!name.starts_with(kLead) || !name.ends_with(kTail)) continue;
    std::uint64_t number = 0;
    const char* end = name.data() + name.size() - kTail.size();
    const auto [at, code] = std::from_chars(name.data() + kLead.size(), end, number);
    if (code == std::errc() && at == end) found.emplace_back(number);
  }
  std::ranges::sort(found);
  if (found.empty()) return std::vector<std::optional<std::uint64_t>>{std::nullopt};
  if (!options.layer.empty() && options.layer != "all")
    std::erase_if(found,
                  [&](const auto& layer) { return std::to_string(*layer) != options.layer; });
  if (found.empty())
    return usage("run.option", "--layer does not take this value")
        .in(options.a)
        .expects("all, or a layer that the file has", "'" + printable(options.layer) + "'");
  return found;
}

Result<std::vector<LayerDiff>> compare_files(const DiffOptions& options) {
  const auto layers = layers_of_file(options);
  if (!layers) return layers.why();
  std::vector<LayerDiff> result;
  for (const std::optional<std::uint64_t>& layer : *layers) {
    Result<LayerDiff> diff = compare_sides(options, layer, nullptr);
    if (!diff) return diff.why();
    result.push_back(std::move(*diff));
  }
  return result;
}

// Bytes of a layer's codes and scales, for progress.
std::uint64_t weight_bytes(const runtime::Model& model, std::size_t number) {
  const Result<runtime::LayerFacts> facts = model.facts(number);
  if (!facts) return 0;
  const checkpoint::MoeShape& shape = facts->model.shape;
  const std::uint64_t weights =
      shape.experts * shape.hidden * (shape.w13_rows() + shape.intermediate);
  return weights / 2 + weights / block_size(shape.format);
}

Result<std::vector<LayerDiff>> compare_layers(const DiffOptions& options, const Io& io) {
  if (options.path.empty())
    return usage("diff.path", "weights are needed to compute")
        .expects("--checkpoint PATH, unless both sides are .safetensors files", "none");
  for (const std::string& side : {options.a, options.b})
    if (!is_file(side))
      if (const Result<RunArgs> words = parse_specification(side); !words) return words.why();
  const Result<runtime::Model> model = runtime::Model::open(options.path);
  if (!model) return model.why();
  const auto layers = choose_layers(*model, options.layer);
  if (!layers) return layers.why();
  std::vector<LayerDiff> result;
  std::uint64_t bytes = 0;
  for (const std::size_t number : *layers) bytes += weight_bytes(*model, number);
  Progress progress(io, "diff", bytes);
  for (const std::size_t number : *layers) {
    const Result<runtime::RunInput> input =
        options.input.empty()
            ? runtime::seeded_input(options.tokens, model->hidden(number), options.seed)
            : runtime::read_input(options.input);
    if (!input) return input.why();
    const Computation computation{*model, number, *input, options, io.threads};
    Result<LayerDiff> diff = compare_sides(options, model->layer_index(number), &computation);
    if (!diff) return diff.why();
    result.push_back(std::move(*diff));
    progress.add(weight_bytes(*model, number));
  }
  return result;
}

Result<int> run_diff(const DiffOptions& options, const Io& io) {
  const Result<std::vector<LayerDiff>> diffs = is_file(options.a) && is_file(options.b)
                                                   ? compare_files(options)
                                                   : compare_layers(options, io);
  if (!diffs) return diffs.why();
  const bool is_table = diffs->size() > 1 || options.layer == "all";
  if (!io.json && is_table) print_table(io, *diffs);
  if (!io.json && !is_table) print_one(io, diffs->front());
  const bool fine = std::ranges::all_of(*diffs, [](auto& diff) { return diff.is_fine(); });
  if (io.json && !is_table) {
    Json whole{{"command", "diff"}};
    whole.update(to_json(diffs->front()));
    io.print(whole);
  } else if (io.json) {
    Json rows = Json::array();
    for (const LayerDiff& diff : *diffs) {
      Json row{{"layer", diff.layer ? Json(*diff.layer) : Json()}};
      row.update(to_json(diff));
      rows.push_back(std::move(row));
    }
    io.print({{"command", "diff"}, {"layers", std::move(rows)}, {"within_numerics", fine}});
  }
  return fine ? kDone : static_cast<int>(ErrorCode::mismatch);
}

}  // namespace

Run declare_diff(OptionSet& set) {
  const auto options = std::make_shared<DiffOptions>();
  set.add("A", options->a,
          "MARLIN, exact, \"CPU,tp=2\", \"backend=TRITON,batch=1\", or a .safetensors file")
      .required()
      .listed("backends");
  set.add("B", options->b, "The same").required();
  set.add("--checkpoint", options->path, "Weights: a checkpoint or a converted folder")
      .as(Form::path);
  set.add("--layer", options->layer,
          "Block number of a MoE layer, or all (default: the first; of two files all)")
      .as(Form::number);
  set.add("--input", options->input, "Tokens, as run takes them").as(Form::path);
  set.add("--tokens", options->tokens, "Without --input: number of seeded tokens")
      .between(std::uint64_t{0}, kMaxTokens)
      .show_default();
  set.add("--seed", options->seed, "Of those tokens").show_default();
  return [options](const Io& io) { return run_diff(*options, io); };
}

}  // namespace fp4moe::cli
