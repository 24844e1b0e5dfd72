#include "fp4moe/cli/command.hpp"

namespace fp4moe::cli {

Run declare_bench(OptionSet& set);
Run declare_completion(OptionSet& set);
Run declare_convert(OptionSet& set);
Run declare_demo(OptionSet& set);
Run declare_diff(OptionSet& set);
Run declare_doctor(OptionSet& set);
Run declare_error(OptionSet& set);
Run declare_explain(OptionSet& set);
Run declare_help(OptionSet& set);
Run declare_inspect(OptionSet& set);
Run declare_layouts(OptionSet& set);
Run declare_lint(OptionSet& set);
Run declare_list(OptionSet& set);
Run declare_man(OptionSet& set);
Run declare_numbers(OptionSet& set);
Run declare_plan(OptionSet& set);
Run declare_matrix(OptionSet& set);
Run declare_merge(OptionSet& set);
Run declare_quantize(OptionSet& set);
Run declare_report(OptionSet& set);
Run declare_run(OptionSet& set);
Run declare_synth(OptionSet& set);
Run declare_transcode(OptionSet& set);
Run declare_unconvert(OptionSet& set);
Run declare_verify(OptionSet& set);
Run declare_vllm_versions(OptionSet& set);

namespace {

// In the order in which a newcomer meets them.
// clang-format off
constexpr Command kCommands[] = {
    // name       summary                                                      example
    {"demo",      "Show the main job on a layer it makes itself",              "fp4moe demo", declare_demo},
    {"inspect",   "Say what a checkpoint holds: dialect, layers, shapes",      "fp4moe inspect ./gpt-oss-20b",  declare_inspect, Settings::check, "fp4moe lint {PATH} (defects), fp4moe explain {PATH} --device h100 (its backend there)"},
    {"lint",      "Find defects of a checkpoint, and repair some",             "fp4moe lint ./model --fix fill-input-scale -o model-fixed", declare_lint},
    {"explain",   "Say which backend a layer gets, and why not the others",    "fp4moe explain --device h100 --model gpt-oss-20b --vllm 0.33.0", declare_explain},
    {"plan",      "Say what a model takes on each rank: sizes, padding, bytes",   "fp4moe plan --model gpt-oss-120b --tp 8 --device h100 --policy 2026-08-22", declare_plan, Settings::check, "fp4moe explain with the same options (why this backend), fp4moe convert CHECKPOINT --device NAME -o OUT (its layout)"},
    {"matrix",    "Tabulate what every backend can do and who gets which",     "fp4moe matrix --vllm 0.33.0", declare_matrix},
    {"vllm-versions", "List releases of vLLM and the policy of each",       "fp4moe vllm-versions", declare_vllm_versions},
    {"convert",   "Write a checkpoint in a backend's layout, for one rank or all",    "fp4moe convert ./gpt-oss-20b --backend MARLIN --device h100 -o gpt-oss-marlin", declare_convert, Settings::check, "fp4moe verify {OUT} --deep (every byte), fp4moe run {RANK} --check (numbers); engines that read it: docs/serving.md"},
    {"unconvert", "Write the checkpoint that a folder was converted from",     "fp4moe unconvert ./gpt-oss-marlin -o gpt-oss-20b", declare_unconvert, Settings::check, "fp4moe inspect {OUT}"},
    {"verify",    "Prove that a converted folder is what its source gives",    "fp4moe verify ./gpt-oss-marlin --deep", declare_verify, Settings::check, "fp4moe run {PATH} --check (numbers)"},
    {"run",       "Run MoE layers on tokens, by any backend's numerics",       "fp4moe run ./gpt-oss-20b --backend MARLIN --tokens 16 --check", declare_run},
    {"diff",      "Compare two backends, splits, batch sizes or output files", "fp4moe diff MARLIN exact --checkpoint ./gpt-oss-20b", declare_diff, Settings::check, "fp4moe run CHECKPOINT --backend NAME --layer all --check (every layer against float64)"},
    {"report",    "Write one HTML page about a checkpoint: findings, scales, plans",  "fp4moe report ./gpt-oss-20b --device h100,b200 -o report.html", declare_report},
    {"layouts",   "List and draw the weight layouts of every backend",         "fp4moe layouts marlin.mxfp4", declare_layouts},
    {"numbers",   "Say what numbers become in FP4, FP8 and scales, by every rule", "fp4moe numbers 0.7,-1.5,3", declare_numbers},
    {"transcode", "Write a checkpoint in another dialect, bit for bit",        "fp4moe transcode ./gpt-oss-20b --to gguf -o gpt-oss-20b.gguf", declare_transcode, Settings::check, "fp4moe inspect {OUT}, fp4moe lint {OUT}"},
    {"quantize",  "Quantize the experts of a BF16, F16 or F32 checkpoint",     "fp4moe quantize ./qwen3-bf16 --format nvfp4 -o qwen3-nvfp4", declare_quantize, Settings::check, "fp4moe lint {OUT}, fp4moe run {OUT} --check"},
    {"merge",     "Merge a LoRA adapter into the experts of a checkpoint",     "fp4moe merge ./gpt-oss-20b ./adapter -o gpt-oss-20b-merged", declare_merge, Settings::check, "fp4moe lint {OUT}, fp4moe run {OUT} --check"},
    {"synth",     "Make a seeded test checkpoint in any dialect",              "fp4moe synth --model gpt-oss-20b --layers 1 --seed 1 -o layer", declare_synth},
    {"doctor",    "Say what this build and machine have and which kernels run", "fp4moe doctor", declare_doctor, Settings::leave_alone, "fp4moe explain (the backend of this machine), fp4moe bench layer (its speed)"},
    {"bench",     "Measure this machine, whole layers, codecs and conversion", "fp4moe bench layer --model gpt-oss-20b --tokens 1,16", declare_bench},
    {"list",      "List what options take: models, devices, policies, backends", "fp4moe list devices", declare_list, Settings::leave_alone},
    {"error",     "Say what an error id means and what to do about it",        "fp4moe error scale.nan", declare_error, Settings::leave_alone},
    {"help",      "Show the help of a command; with --json what every command takes", "fp4moe help convert", declare_help, Settings::leave_alone},
    {"completion", "Print a script that lets a shell complete commands and options", "fp4moe completion bash", declare_completion, Settings::leave_alone},
    {"man",       "Print manual pages for man, of the program or a command",    "fp4moe man convert", declare_man, Settings::leave_alone},
};
// clang-format on

}  // namespace

std::span<const Command> commands() { return kCommands; }

}  // namespace fp4moe::cli
