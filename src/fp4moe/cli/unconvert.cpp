// fp4moe unconvert: a converted folder (of a split model: those of all ranks) back into the
// checkpoint it was made from.
//
// Exit status: 0 done, 2 ranks are missing, 3 not a converted folder, 5 it is damaged or the layout
// lost something, 6 no disk, 130 interrupted.
#include "fp4moe/convert/folder/unconvert.hpp"

#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/counts.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/progress.hpp"
#include "fp4moe/cli/rank_folders.hpp"

namespace fp4moe::cli {

Run declare_unconvert(OptionSet& set);

namespace {

struct UnconvertOptions {
  std::vector<std::string> paths{};
  std::string out{};
  std::size_t threads = 0;
  bool accept_losses = false;
};

Result<int> run_unconvert(const UnconvertOptions& given, const Io& io) {
  UnconvertOptions options = given;
  if (given.paths.size() == 1) options.paths = rank_folders(given.paths.front());
  const Result<std::uint64_t> total = convert::unconvert_bytes(options.paths);
  if (!total) return total.why();
  const InterruptGuard guard;
  const Result<convert::UnconvertReport> report = [&] {
    Progress progress(io, "unconvert", *total);
    return convert::unconvert(
        options.paths, options.out,
        {.threads = options.threads == 0 ? io.threads : options.threads,
         .accept_losses = options.accept_losses,
         .progress = [&progress](std::uint64_t bytes) { progress.add(bytes); }});
  }();
  if (!report) return report.why();
  if (io.json) {
    io.print({{"command", "unconvert"},
              {"out", options.out},
              {"dialect", report->dialect},
              {"layers", report->layers},
              {"experts", report->experts},
              {"bytes", report->bytes},
              {"files", report->files},
              {"exact", report->is_exact},
              {"losses", report->losses},
              {"seconds", report->seconds}});
    return kDone;
  }
  for (const std::string& loss : report->losses) io.out << fmt::format("lost: {}\n", loss);
  io.out << fmt::format(
      "{}: {}, {}, {}, {} in {}, {:.2f} s; {}\n", options.out, report->dialect,
      counted(report->layers, "MoE layer"), experts_text(report->experts, report->layers),
      human_bytes(report->bytes), counted(report->files, "file"), report->seconds,
      report->is_exact ? "every weight is what it was" : "not the weights that were converted");
  return kDone;
}

}  // namespace

Run declare_unconvert(OptionSet& set) {
  const auto options = std::make_shared<UnconvertOptions>();
  set.add("PATH", options->paths,
          "Converted folder; of a split model all ranks', or the folder that holds them")
      .as(Form::path)
      .required();
  set.add("-o,--out", options->out, "Folder to create").as(Form::path).required();
  set.add_threads(options->threads);
  set.add("--accept-losses", options->accept_losses,
          "Write what there is where the layout could not keep everything");
  return [options](const Io& io) { return run_unconvert(*options, io); };
}

}  // namespace fp4moe::cli
