// config.json and hf_quant_config.json of a transcoded checkpoint.
#pragma once
#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/edit/transcode_fp8.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"

namespace fp4moe::checkpoint {

// The source of the target's configuration; GGUF takes only some of its values.
Result<Json> read_source_config(const tensor::Store& store, Dialect target);

// Adds them to a plan whose tensors are there, and notes about settings that they lose.
Result<Done> add_config(const Checkpoint& source, const Fp8Modules& fp8, Json config,
                        CheckpointPlan& out);

}  // namespace fp4moe::checkpoint
