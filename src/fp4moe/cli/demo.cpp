// fp4moe demo: the main job from end to end on a layer it makes itself, one line for each step.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <stdlib.h>  // mkdtemp

#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/base/version.hpp"
#include "fp4moe/bench/ceilings.hpp"
#include "fp4moe/bench/measure.hpp"
#include "fp4moe/checkpoint/codec.hpp"
#include "fp4moe/checkpoint/edit/transcode.hpp"
#include "fp4moe/checkpoint/lint/lint.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/selection_options.hpp"
#include "fp4moe/convert/folder/convert_folder.hpp"
#include "fp4moe/convert/folder/unconvert.hpp"
#include "fp4moe/convert/folder/verify.hpp"
#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/kernels/cpu/block_codec_list.hpp"
#include "fp4moe/oracle/explain/record.hpp"
#include "fp4moe/platform/machine.hpp"
#include "fp4moe/runtime/run.hpp"
#include "fp4moe/tensor/files/folder_tree.hpp"

namespace fp4moe::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::Dialect;

struct DemoOptions {
  std::string model = "gpt-oss-20b";
  std::uint64_t experts = 0;  // 0: the model's
  std::uint64_t seed = 1;
  std::size_t threads = 0;
};

// A folder for the demo's files that goes when the demo does.
class Scratch {
 public:
  static Result<std::unique_ptr<Scratch>> create() {
    std::error_code code;
    std::string name = (fs::temp_directory_path(code) / "fp4moe-demo-XXXXXX").string();
    auto scratch = std::make_unique<Scratch>(name);  // before there is something to remove
    if (!code && mkdtemp(scratch->path_.data()) != nullptr) return scratch;
    const int why = errno;
    scratch->path_.clear();
    return system_error("demo.scratch", "cannot make a temporary folder", code ? code.value() : why)
        .in(name)
        .try_this("set TMPDIR to a folder with 1.5 GB of free space");
  }
  explicit Scratch(std::string path) : path_(std::move(path)) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (!path_.empty()) tensor::remove_folder(path_);
  }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  void remove(std::string_view name) const { tensor::remove_folder(*this / name); }

 private:
  std::string path_;
};

// One step of the demo, shown as it ends and kept for --json.
class Steps {
 public:
  explicit Steps(const Io& io) : io_(io) {}

  void done(std::string_view step, const std::string& what, Json facts) {
    facts["step"] = step;
    facts["what"] = what;
    steps_.push_back(std::move(facts));
    if (!io_.json) io_.out << fmt::format("{:<10} {}\n", step, what) << std::flush;
  }
  void finish(Json head) const {
    head["steps"] = steps_;
    if (io_.json) io_.print(head);
  }

 private:
  const Io& io_;
  Json steps_ = Json::array();
};

double gigabytes_per_second(std::uint64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

// How many tensors of two stores are equal to the byte; an error names the first that is not.
Result<std::size_t> compare(const tensor::Store& a, const tensor::Store& b) {
  for (const tensor::StoredTensor& tensor : a.tensors()) {
    const tensor::StoredTensor* other = b.find(tensor.entry.name);
    if (other == nullptr || !std::ranges::equal(a.bytes(tensor), b.bytes(*other)))
      return error(ErrorCode::mismatch, "demo.mismatch", "the way there and back changed a tensor")
          .at(tensor.entry.name);
  }
  return a.tensors().size();
}

// The decision of a policy for the model on a device.
struct Decision {
  SelectionRequest request{};
  oracle::Record record{};
  const oracle::Backend& backend() const { return *record.selection.backend; }
};
Result<Decision> decide(const std::string& model, std::string_view device,
                        std::string_view policy) {
  SelectionOptions asked;
  asked.model = model;
  asked.device = device;
  asked.policy = policy;
  Result<SelectionRequest> request = runtime::resolve(asked);
  if (!request) return request.why();
  Decision result{.request = *std::move(request)};
  result.record = make_record(*result.request.policy, result.request.mode, result.request.request);
  if (result.record.selection.outcome != oracle::Outcome::selected)
    return error(ErrorCode::no_backend, "demo.explain", result.record.selection.message);
  return result;
}

// Who would run the layer: here under our own rules, on two GPUs under vLLM's.
Result<Done> explain_step(Steps& steps, const std::string& model, std::string_view device,
                          std::string_view policy) {
  const Result<Decision> decision = decide(model, device, policy);
  if (!decision) return decision.why();
  const oracle::Record& record = decision->record;
  const std::string_view rules = decision->request.policy->name;
  std::string refused;
  for (const oracle::BackendRow& row : record.rows) {
    if (row.backend == &decision->backend()) break;
    if (refused.empty() && !row.would_run())
      refused = fmt::format("; not {}: {}", row.backend->name,
                            decisive_reason(record.request, *row.nearest));
  }
  const std::string_view where = device == "auto" ? std::string_view("here") : device;
  steps.done("explain",
             fmt::format("{} ({}): {}{}", where, rules, decision->backend().name, refused),
             {{"device", record.request.device.name},
              {"policy", rules},
              {"backend", decision->backend().name}});
  return Done{};
}

// Tokens through the converted layer: who computed it, how long, how close to what memory and
// arithmetic allow here, and how far from float64.
Result<Done> run_step(Steps& steps, const std::string& folder, const DemoOptions& options,
                      std::size_t threads) {
  const Result<runtime::Model> model = runtime::Model::open(folder);
  if (!model) return model.why();
  const Result<bench::Ceilings> ceilings =
      bench::bench_ceilings({.threads = threads,
                             .megabytes = 64,
                             .seconds = 0.5,
                             .features = platform::describe_machine().features});
  if (!ceilings) return ceilings.why();
  runtime::RunOptions how{.checks = true, .seed = options.seed};
  how.layer.pool = std::make_shared<ThreadPool>(threads);
  for (const std::uint64_t tokens : {1u, 16u, 64u}) {
    const auto input = runtime::seeded_input(tokens, model->hidden(0), options.seed);
    if (!input) return input.why();
    const Result<runtime::LayerRun> run = runtime::run_layer(*model, 0, *input, how);
    if (!run) return run.why();
    const runtime::Comparison found =
        runtime::compare(run->exact, std::vector<double>(run->out.begin(), run->out.end()));
    if (!found.is_within(run->tolerance))
      return error(ErrorCode::mismatch, "demo.run", "the layer's output is not what it should be")
          .expects(fmt::format("within {} of the largest value", run->tolerance.of_largest),
                   fmt::format("{}", found.of_largest()));
    const double share =
        100 *
        std::max(run->floor_seconds(ceilings->read_gb_per_s, ceilings->bf16_gflop_per_s), 0.0) /
        run->seconds;
    steps.done("run",
               fmt::format("{} token{}: {} ({}) in {:.0f} ms, {:.1f} % of what memory and "
                           "arithmetic allow; {:.1e} from float64",
                           tokens, tokens == 1 ? "" : "s", run->backend, run->kernel,
                           run->seconds * 1e3, share, found.of_largest()),
               {{"tokens", tokens},
                {"backend", run->backend},
                {"kernel", run->kernel},
                {"us", run->seconds * 1e6},
                {"share_of_ceiling", share / 100},
                {"rel_error", found.of_largest()}});
  }
  return Done{};
}

// The layer in the layout of the backend that was chosen, every expert packed again and compared,
// and back to the checkpoint's own files.
Result<Done> convert_step(Steps& steps, const Scratch& scratch, const DemoOptions& options,
                          std::string_view device, std::string_view policy, std::size_t threads) {
  const Result<Decision> decision = decide(options.model, device, policy);
  if (!decision) return decision.why();
  const oracle::Request& request = decision->record.request;
  const auto layout = backends::layout_of({.backend = decision->backend(),
                                           .policy_date = decision->request.policy->policy_date,
                                           .device = request.device});
  if (!layout) return layout.why();
  const Result<Checkpoint> source = Checkpoint::open(scratch / "layer");
  if (!source) return source.why();
  convert::Recipe recipe{.layout = *layout};
  recipe.sizing.backend = &decision->backend();
  recipe.sizing.device = request.device;
  Result<convert::FolderPlan> plan = convert::plan_folder(*source, scratch / "layer", recipe);
  if (!plan) return plan.why();
  const auto result = convert::convert_folder(*source, *std::move(plan), scratch / "converted",
                                              {.threads = threads});
  if (!result) return result.why();
  const auto checked =
      convert::verify_folder(scratch / "converted", {.threads = threads, .deep = true});
  if (!checked) return checked.why();
  if (!checked->findings.empty()) return checked->findings[0];
  const std::string folders[] = {scratch / "converted"};
  const auto back = convert::unconvert(folders, scratch / "again", {.threads = threads});
  if (!back) return back.why();
  const Result<tensor::Store> again = tensor::Store::open(scratch / "again");
  if (!again) return again.why();
  const Result<std::size_t> equal = compare(source->store(), *again);
  if (!equal) return equal.why();
  scratch.remove("again");
  const double speed = gigabytes_per_second(result->expert_bytes, result->seconds);
  steps.done("convert",
             fmt::format("{} for {}: {} in {:.2f} s ({:.1f} GB/s, to disk); packed again: equal; "
                         "converted back: {} tensors equal",
                         (*layout)->id, decision->backend().name, human_bytes(result->expert_bytes),
                         result->seconds, speed, *equal),
             {{"layout", (*layout)->id},
              {"generation", (*layout)->generation},
              {"backend", decision->backend().name},
              {"bytes", result->expert_bytes},
              {"gb_per_s", speed},
              {"verified", true},
              {"tensors_restored", *equal}});
  // A layout of this machine's is also run here.
  if (device == "auto")
    if (Result<Done> step = run_step(steps, scratch / "converted", options, threads); !step)
      return step;
  scratch.remove("converted");
  return Done{};
}

Result<Done> transcode_step(Steps& steps, const Scratch& scratch, std::string_view from,
                            Dialect target, std::size_t threads) {
  const Result<Checkpoint> source = Checkpoint::open(scratch / from);
  if (!source) return source.why();
  const std::string to(name(target));
  const bool back = target == Dialect::gpt_oss;
  const Result<checkpoint::TranscodeReport> report =
      checkpoint::transcode(*source, target, scratch / (back ? "back" : to), {.threads = threads});
  if (!report) return report.why();
  const std::uint64_t bytes = report->expert_bytes + report->other_bytes;
  const double speed = gigabytes_per_second(bytes, report->seconds);
  steps.done("transcode",
             fmt::format("{} -> {}: {} in {:.2f} s ({:.1f} GB/s), flushed to disk", report->from,
                         report->to, human_bytes(bytes), report->seconds, speed),
             {{"from", report->from}, {"to", report->to}, {"bytes", bytes}, {"gb_per_s", speed}});
  return Done{};
}

// Tensor parallel by four: 2880 is 90 blocks of 32, which four ranks cannot share evenly.
Result<Done> slice_step(Steps& steps, const Checkpoint& checkpoint) {
  const checkpoint::MoeShape& shape = checkpoint.layers()[0].shape;
  std::vector<std::string> shares;
  std::uint64_t bytes = 0;
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    checkpoint::ExpertReader reader(checkpoint, {.tensor_parallel = {rank, 4}});
    for (std::uint64_t expert = 0; expert < shape.experts; ++expert) {
      const Result<checkpoint::ExpertView> view = reader.read(0, expert);
      if (!view) return view.why();
      if (expert == 0) shares.push_back(std::to_string(view->shape.intermediate));
      for (const checkpoint::ProjectionView* part : {&view->gate, &view->up, &view->down})
        bytes +=
            part->codes.rows * part->codes.row_bytes + part->scales.rows * part->scales.row_bytes;
    }
  }
  steps.done("slice",
             fmt::format("tensor parallel 4 at block borders: intermediate {} = {}, {} read",
                         shape.intermediate, join(shares, " + "), human_bytes(bytes)),
             {{"shares", shares}, {"bytes", bytes}});
  return Done{};
}

// One projection to bf16 and back: the codes must return, at a measured share of memcpy.
Result<Done> numbers_step(Steps& steps, const Checkpoint& checkpoint) {
  checkpoint::ExpertReader reader(checkpoint, {});
  const Result<checkpoint::ExpertView> expert = reader.read(0, 0);
  if (!expert) return expert.why();
  const checkpoint::RowsView &codes = expert->down.codes, &scales = expert->down.scales;
  const std::size_t blocks = scales.rows * scales.row_bytes;
  Result<tensor::Buffer> values = tensor::Buffer::allocate(blocks * 64);
  Result<tensor::Buffer> copy = tensor::Buffer::allocate(blocks * 64);
  Result<tensor::Buffer> again = tensor::Buffer::allocate(blocks * 17);
  if (!values || !copy || !again)
    return error(ErrorCode::exhausted, "memory.exhausted", "too little memory for the demo");

  const kernels::cpu::BlockCodec& codec = checkpoint::machine_codec();
  const auto* code_bytes = reinterpret_cast<const std::uint8_t*>(codes.data);
  const auto* scale_bytes = reinterpret_cast<const std::uint8_t*>(scales.data);
  std::uint8_t* codes_again = again->as<std::uint8_t>().data();
  std::uint8_t* scales_again = codes_again + blocks * 16;
  const std::vector<bench::Job> jobs{
      {"memcpy", static_cast<double>(blocks * 64),
       [&]() -> Result<Done> {
         std::memcpy(copy->data(), values->data(), values->size());
         return Done{};
       }},
      {"dequantize", static_cast<double>(blocks * 64),
       [&]() -> Result<Done> {
         codec.dequantize_mxfp4({.codes = code_bytes,
                                 .scales = scale_bytes,
                                 .blocks = blocks,
                                 .output = values->data()});
         return Done{};
       }},
      {"quantize", static_cast<double>(blocks * 64), [&]() -> Result<Done> {
         codec.quantize_mxfp4({.input = values->data(),
                               .blocks = blocks,
                               .codes = codes_again,
                               .scales = scales_again,
                               .mxfp4_rule = formats::Mxfp4Rule::ceil6_rne});
         return Done{};
       }}};
  const Result<std::vector<bench::Timing>> timings = bench::measure(jobs, {.seconds = 0.5});
  if (!timings) return timings.why();
  const double copied = (*timings)[0].rate();
  const double out = (*timings)[1].rate(), in = (*timings)[2].rate();
  steps.done("numbers",
             fmt::format("{}, one core: MXFP4 -> BF16 {:.1f} GB/s, BF16 -> MXFP4 {:.1f} GB/s "
                         "({:.0f} % and {:.0f} % of memcpy)",
                         codec.name, out, in, 100 * out / copied, 100 * in / copied),
             {{"kernel", codec.name},
              {"dequantize_gb_per_s", out},
              {"quantize_gb_per_s", in},
              {"memcpy_gb_per_s", copied}});
  return Done{};
}

Result<Done> run_steps(const DemoOptions& options, Steps& steps, const Scratch& scratch,
                       std::size_t threads) {
  checkpoint::SynthOptions synth{.model = options.model,
                                 .dialect = Dialect::gpt_oss,
                                 .seed = options.seed,
                                 .shards = 3,
                                 .threads = threads};
  if (options.experts != 0) synth.experts = options.experts;
  const Result<checkpoint::SynthReport> result = checkpoint::synth(synth, scratch / "layer");
  if (!result) return result.why();
  steps.done("make",
             fmt::format("a {} layer: {} experts, hidden {}, intermediate {}; {} in {} files",
                         options.model, result->shape.experts, result->shape.hidden,
                         result->shape.intermediate, human_bytes(result->bytes), result->shards),
             {{"bytes", result->bytes}, {"seconds", result->seconds}});

  const Result<Checkpoint> checkpoint = Checkpoint::open(scratch / "layer");
  if (!checkpoint) return checkpoint.why();
  steps.done("inspect",
             fmt::format("dialect {} ({}), {}, w13 rows {}", checkpoint->dialect().name,
                         checkpoint->evidence(), name(checkpoint->dialect().format),
                         name(checkpoint->layers()[0].shape.order)),
             {{"dialect", checkpoint->dialect().name}});

  const checkpoint::LintReport lint =
      checkpoint::lint(checkpoint->store(), scratch / "layer", {.threads = threads});
  if (lint.exhausted) return *lint.exhausted;
  steps.done(
      "lint",
      fmt::format("{} errors, {} warnings: {} experts, {} of scales read in {:.2f} s", lint.errors,
                  lint.warnings, lint.experts, human_bytes(lint.bytes_read), lint.seconds),
      {{"errors", lint.errors}, {"warnings", lint.warnings}});
  if (lint.errors != 0)
    return error(ErrorCode::mismatch, "demo.lint", "lint found errors in a sound checkpoint");

  for (const auto& [device, policy] :
       {std::pair<std::string_view, std::string_view>{"auto", "native"},
        {"h100", "latest"},
        {"b200", "latest"}})
    if (Result<Done> step = explain_step(steps, options.model, device, policy); !step) return step;

  for (const auto& [device, policy] :
       {std::pair<std::string_view, std::string_view>{"auto", "native"}, {"h100", "2026-04-24"}})
    if (Result<Done> step = convert_step(steps, scratch, options, device, policy, threads); !step)
      return step;

  // gpt-oss -> GGUF -> gpt-oss.
  if (Result<Done> step = transcode_step(steps, scratch, "layer", Dialect::gguf, threads); !step)
    return step;
  if (Result<Done> step = transcode_step(steps, scratch, "gguf", Dialect::gpt_oss, threads); !step)
    return step;
  scratch.remove("gguf");
  const Result<tensor::Store> back = tensor::Store::open(scratch / "back");
  if (!back) return back.why();
  const Result<std::size_t> equal = compare(checkpoint->store(), *back);
  if (!equal) return equal.why();
  steps.done("verify", fmt::format("there and back: all {} tensors equal to the byte", *equal),
             {{"tensors", *equal}});
  scratch.remove("back");

  if (Result<Done> step = slice_step(steps, *checkpoint); !step) return step;
  return numbers_step(steps, *checkpoint);
}

Result<int> run_demo(const DemoOptions& options, const Io& io) {
  const platform::Machine machine = platform::describe_machine();
  if (!io.json)
    io.out << fmt::format("fp4moe {} on {} ({}, {} cores; {})\n\n", kVersion, machine.model,
                          machine.architecture, machine.cores, text(machine.features));
  Result<std::unique_ptr<Scratch>> scratch = Scratch::create();
  if (!scratch) return scratch.why();
  const InterruptGuard guard;
  Steps steps(io);
  const std::size_t threads = options.threads == 0 ? io.threads : options.threads;
  if (Result<Done> done = run_steps(options, steps, **scratch, threads); !done) {
    Error why = done.why();
    // There is nothing to go on with: the demo's files go with it.
    if (why.code == ErrorCode::interrupted) why.remedy = "Run fp4moe demo again";
    return why;
  }
  steps.finish({{"command", "demo"}, {"machine", bench::to_json(machine)}});
  if (!io.json)
    io.out << "\nNext: fp4moe inspect PATH, fp4moe lint PATH, fp4moe explain --device h100, fp4moe "
              "convert PATH -o OUT, fp4moe run PATH, fp4moe plan --model gpt-oss-120b --tp 8\n";
  return kDone;
}

}  // namespace

Run declare_demo(OptionSet& set) {
  auto options = std::make_shared<DemoOptions>();
  set.add("--model", options->model, "A gpt-oss model").show_default().listed("models");
  set.add("--experts", options->experts, "Fewer experts than the model has")
      .between(std::uint64_t{1}, std::uint64_t{1 << 20});
  set.add("--seed", options->seed, "Seed of the weights").show_default();
  set.add_threads(options->threads);
  return [options](const Io& io) { return run_demo(*options, io); };
}

}  // namespace fp4moe::cli
