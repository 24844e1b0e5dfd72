// An answer as text: one sentence, what to do to change it, what nearly runs. The rest is
// --verbose.
#pragma once
#include <string>

#include "fp4moe/cli/command.hpp"
#include "fp4moe/runtime/answer.hpp"

namespace fp4moe::cli {

void print_answer(const Io& io, const runtime::Answer& answer, bool verbose);

// "TRITON / OAITritonMxfp4ExpertsMonolithic", "none (NotImplementedError)"
std::string short_choice(const oracle::Selection& selection);

// "chosen", "would run" or "refused"
std::string_view decision(const oracle::Record& record, const oracle::BackendRow& row);

}  // namespace fp4moe::cli
