// Exceptions of the standard library as errors, for the few places where they end: the command
// line and the C API.
#pragma once
#include "fp4moe/base/result.hpp"

namespace fp4moe {

// The exception that is being handled. No memory, no thread and no descriptor is ErrorCode::
// exhausted (memory.exhausted, thread.exhausted); anything else is a bug, `internal`.
Error thrown_error();

}  // namespace fp4moe
