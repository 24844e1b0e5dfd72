// fp4moe run: MoE layers of a checkpoint or a converted folder on tokens.
//
// Exit status: 0 done, 2 the request is wrong, 3 the input is, 4 no backend, 5 with --check: not
// within the backend's numerics, 7 this build or machine lacks it.
#include "fp4moe/runtime/run.hpp"

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/error_json.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/mapping_guard.hpp"
#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/shell_word.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/defects.hpp"
#include "fp4moe/cli/error_text.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/run_options.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/moe/exchange/all.hpp"
#include "fp4moe/moe/exchange/mpi.hpp"
#include "fp4moe/tensor/files/safetensors.hpp"

namespace fp4moe::cli {

Run declare_run(OptionSet& set);

namespace {

using runtime::LayerRun;

struct RunOptions {
  std::string path{}, input{}, out{}, layer{};
  std::uint64_t tokens = 16, seed = 1;
  std::optional<double> deadline{};  // in seconds
  bool checks = false;
  RunArgs words{};
};

// This process among those that mpirun started. Lives until errors are printed: mpirun ends all
// ranks when the first of them leaves.
struct Group {
  std::optional<InterruptGuard> guard{};
  std::unique_ptr<moe::exchange::Communicator> ranks{};
};

void print_text(const Io& io, const LayerRun& run) {
  io.out << fmt::format("layer {}: {} ({}), layout {}\n", run.index, io.bold(run.backend), run.why,
                        run.layout);
  io.out << fmt::format("  kernel {}, activations {}, {} ({})\n", run.kernel, activations_of(run),
                        run.is_monolithic ? "routed in the kernel" : "routed before it",
                        run.routing);
  io.out << fmt::format("  {} in {:.3f} ms; weights {} ready in {:.3f} s\n",
                        counted(run.tokens, "token"), run.seconds * 1e3, human_bytes(run.bytes),
                        run.load_seconds);
  for (const std::string& warning : run.warnings) io.out << fmt::format("  note: {}\n", warning);
  if (run.exact.empty()) return;
  const runtime::Comparison found =
      runtime::compare(run.exact, std::vector<double>(run.out.begin(), run.out.end()));
  io.out << fmt::format(
      "  against float64: largest difference {:.2e} of the largest value (allowed {:.2g}), cosine "
      "{:.7f}: {}\n",
      found.of_largest(), run.tolerance.of_largest, found.cosine,
      found.is_within(run.tolerance) ? "within the backend's numerics"
                                     : "NOT within the backend's numerics");
}

bool is_fine(const LayerRun& run) {
  if (run.exact.empty()) return true;
  return runtime::compare(run.exact, std::vector<double>(run.out.begin(), run.out.end()))
      .is_within(run.tolerance);
}

// bf16 as a model's layers hand on; float32 for exact numerics. One layer's is "output".
Result<Done> write_outputs(const std::string& path, const std::vector<LayerRun>& runs) {
  std::vector<tensor::TensorSpec> specs;
  for (const LayerRun& run : runs)
    specs.push_back(
        {.name = runs.size() == 1 ? "output" : fmt::format("layers.{}.output", run.index),
         .dtype = run.numerics == "exact" ? tensor::DType::f32 : tensor::DType::bf16,
         .shape = {run.tokens, run.hidden}});
  Result<tensor::SafetensorsWriter> writer = tensor::SafetensorsWriter::create(
      path, specs,
      {{"fp4moe.backend", runs.front().backend}, {"fp4moe.numerics", runs.front().numerics}});
  if (!writer) return writer.why();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::vector<float>& values = runs[i].out;
    std::vector<std::uint16_t> half;
    if (specs[i].dtype == tensor::DType::bf16)
      for (const float value : values) half.push_back(formats::Bf16::encode(value));
    const auto bytes =
        half.empty() ? std::as_bytes(std::span(values)) : std::as_bytes(std::span(half));
    if (const auto done = writer->write(i, 0, bytes); !done) return done.why();
  }
  return writer->finish();
}

// Joins the other ranks. MPI waits for them without end, so another thread ends the process.
Result<Done> join_ranks(const Io& io, const moe::exchange::CommunicatorOptions& times,
                        bool has_deadline, Group& mpi) {
  mpi.guard.emplace();
  moe::exchange::MpiOptions options;
  options.deadline = times.deadline;
  options.close_deadline = times.deadline;
  if (has_deadline) options.start_deadline = times.deadline;
  options.on_stuck = [&io](const Error& why) {
    if (io.json) io.print({{"error", to_json(why)}});
    io.out.flush();
    io.err << error_text(why, "run", io.err_columns) << std::flush;
    std::_Exit(static_cast<int>(why.code));
  };
  auto opened = moe::exchange::open_mpi(options);
  if (!opened) return opened.why();
  mpi.ranks = std::move(*opened);
  return Done{};
}

// One layer's values are looked at whole, those of many only where that takes no time.
checkpoint::LintOptions lint_of(const runtime::Model& model, const std::vector<std::size_t>& layers,
                                const Io& io) {
  checkpoint::LintOptions result{.scalars_only = layers.size() > 1, .threads = io.threads};
  if (layers.size() == 1) result.layer = model.layer_index(layers.front());
  return result;
}

std::string next_of_run(const RunOptions& options, bool is_whole, bool is_converted) {
  const std::string path = shell_word(printable(options.path));
  if (!options.checks || !is_whole)
    return fmt::format("fp4moe run {} --layer all --check (every layer against float64)", path);
  return is_converted
             ? fmt::format("fp4moe verify {} --deep (every byte)", path)
             : fmt::format("fp4moe diff MARLIN exact --checkpoint {} (two backends)", path);
}

// All ranks have come to the end: none waits for what the first does with the result.
Result<Done> leave_ranks(Group& mpi) {
  if (!mpi.ranks) return Done{};
  const auto together = mpi.ranks->barrier();
  if (together) mpi.ranks.reset();
  return together;
}

Result<int> compute(const RunOptions& options, const Io& io, runtime::RunOptions how, Group& mpi) {
  moe::exchange::Communicator* const group = how.group;
  const bool is_first = !group || group->rank() == 0;  // which speaks for all
  const std::uint64_t ranks = group ? group->size() : how.ranks;
  const Result<runtime::Model> model = runtime::Model::open(options.path);
  if (!model) return model.why();
  const auto layers = choose_layers(*model, options.layer);
  if (!layers) return layers.why();
  if (!model->is_converted() && is_first)
    warn_of_defects(checkpoint::lint(options.path, lint_of(*model, *layers, io)), io);
  Result<runtime::RunInput> input =
      options.input.empty()
          ? runtime::seeded_input(options.tokens, model->hidden(layers->front()), options.seed)
          : runtime::read_input(options.input);
  if (!input) return input.why();
  how.layer.max_tokens = std::max<std::uint64_t>(1, input->tokens);
  if (group)
    if (const auto same = runtime::agree_on_request(*group, *model, *layers, *input, how); !same)
      return same.why();
  std::vector<LayerRun> runs;
  for (const std::size_t number : *layers) {
    Result<LayerRun> run = runtime::run_layer(*model, number, *input, how);
    if (!run) return run.why();
    runs.push_back(std::move(*run));
  }
  if (const auto same = check_mappings(); !same) return same.why();
  if (const auto done = leave_ranks(mpi); !done) return done.why();
  if (!is_first) return kDone;
  for (std::size_t i = 0; options.checks && i < runs.size(); ++i) {
    Result<std::vector<double>> exact = runtime::run_exact(*model, (*layers)[i], *input, how);
    if (!exact) return exact.why();
    runs[i].exact = std::move(*exact);
    if (model->is_converted())
      runs[i].warnings.push_back(fmt::format(
          "--check is about computing; whether the folder's bytes are right says fp4moe verify {}",
          options.path));
  }
  if (const auto same = check_mappings(); !same) return same.why();
  // The answer is ready before the file stands: a lack of memory leaves neither.
  std::ostringstream text;
  const Io answer = io.to(text);
  Json rows = Json::array();
  bool fine = true;
  for (const LayerRun& run : runs) {
    if (io.json)
      rows.push_back(cli::to_json(run));
    else
      print_text(answer, run);
    fine = fine && is_fine(run);
  }
  if (io.json)
    answer.print({{"command", "run"},
                  {"path", options.path},
                  {"input", input->origin},
                  {"ranks", ranks},
                  {"exchange", moe::exchange::row(how.layer.exchange).name},
                  {"output", options.out},
                  {"layers", std::move(rows)}});
  else if (ranks > 1)
    text << fmt::format("{} ranks ({}), exchange {}\n", ranks, group ? "MPI" : "threads",
                        moe::exchange::row(how.layer.exchange).name);
  if (!io.json && fine)
    text << "Next: " << next_of_run(options, runs.size() == model->layers(), model->is_converted())
         << "\n";
  if (!options.out.empty())
    if (const auto done = write_outputs(options.out, runs); !done) return done.why();
  io.out << text.view();
  return fine ? kDone : static_cast<int>(ErrorCode::mismatch);
}

Result<int> run_layers(const RunOptions& options, const Io& io, Group& mpi) {
  Result<runtime::RunOptions> how = run_options(options.words, io.threads);
  if (!how) return how.why();
  how->seed = options.seed;
  if (options.deadline)
    how->threads.deadline =
        std::chrono::milliseconds(static_cast<std::int64_t>(*options.deadline * 1000));
  if (options.words.tp == "mpi" || options.words.ep == "mpi") {
    if (const auto done = join_ranks(io, how->threads, options.deadline.has_value(), mpi); !done)
      return done.why();
    how->group = mpi.ranks.get();
  }
  Result<int> status = compute(options, io, *std::move(how), mpi);
  if (!status && mpi.ranks) mpi.ranks->abort(status.why());
  return status;
}

std::vector<std::string> exchange_names() {
  std::vector<std::string> names;
  for (const auto& row : moe::exchange::all_exchanges()) names.emplace_back(row.name);
  return names;
}

}  // namespace

Run declare_run(OptionSet& set) {
  const auto options = std::make_shared<RunOptions>();
  RunArgs& words = options->words;
  set.add("PATH", options->path, "Checkpoint or converted folder").as(Form::path).required();
  set.add("--layer", options->layer, "Block number of a MoE layer, or all (default: the first)")
      .as(Form::number);
  set.add("--input", options->input,
          "safetensors file: hidden_states [T,H] and router_logits [T,E], or topk_ids and "
          "topk_weights [T,k]")
      .as(Form::path);
  set.add("--tokens", options->tokens, "Without --input: number of seeded tokens")
      .between(std::uint64_t{0}, kMaxTokens)
      .show_default();
  set.add("--seed", options->seed, "Of those tokens").show_default();
  set.add("-o,--out", options->out, "Write the outputs to this safetensors file").as(Form::path);
  set.add("--backend", words.backend, "Backend whose layout and numerics are used")
      .show_default()
      .listed("backends");
  set.add("--policy", words.policy, "Whose rules select it: native, a policy of vLLM, or latest")
      .show_default()
      .listed("policies");
  set.add("--vllm", words.vllm, "Those of a release of vLLM: a version, latest or auto")
      .listed("vllm");
  set.add("--device", words.device, "Device it is selected for").show_default().listed("devices");
  set.add("--engine", words.engine, "Engine that computes").show_default().listed("engines");
  set.add("--numerics", words.numerics, "Instead of the backend's, e.g. exact");
  set.add("--activations", words.activations,
          "Quantize activations to none, fp8, fp8_token, fp8_block, mxfp8, mxfp4 or nvfp4, instead "
          "of the backend's type");
  set.add("--weights", words.weights,
          "Packed into the backend's layout, or mapped: read where the checkpoint has them")
      .one_of({"auto", "packed", "mapped"})
      .show_default();
  set.add("--input-scale", words.input_scale,
          "X,H: scales of quantized activations, instead of the checkpoint's");
  set.add("--adapter", words.adapters,
          "LoRA adapter folder, added while running; repeat for more. Tokens choose by "
          "token_lora_mapping [T] of --input, else all take the first")
      .as(Form::path);
  set.add_threads(words.threads);
  set.add("--batch", words.batch, "Tokens computed at once (default: all)")
      .between(std::uint64_t{1}, kMaxTokens);
  set.add("--tp", words.tp, "Tensor-parallel ranks, as threads of this process, or mpi")
      .as(Form::number)
      .show_default();
  set.add("--ep", words.ep, "Expert-parallel ranks, or mpi (start with mpirun)")
      .as(Form::number)
      .show_default();
  set.add("--exchange", words.exchange, "How tokens travel between expert-parallel ranks")
      .one_of(exchange_names());
  set.add("--placement", words.placement, "How experts are placed on ranks")
      .one_of({"linear", "round-robin"})
      .show_default();
  set.add("--deadline", options->deadline,
          "Seconds that ranks wait for one that does nothing (default: 30; 25 to start MPI)")
      .between(1.0, 86400.0);
  set.add("--check", options->checks, "Compare with the float64 reference");
  const auto mpi = std::make_shared<Group>();
  return [options, mpi](const Io& io) { return run_layers(*options, io, *mpi); };
}

}  // namespace fp4moe::cli
