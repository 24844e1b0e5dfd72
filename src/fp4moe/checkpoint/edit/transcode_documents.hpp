// config.json and hf_quant_config.json of a transcoded checkpoint.
#pragma once
#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/edit/transcode_fp8.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"

namespace fp4moe::checkpoint {

// What the target's configuration is made of; GGUF takes some values of it alone.
Result<Json> read_source_config(const tensor::Store& store, Dialect target);

// Adds them to a plan whose tensors are there, and notes about settings that they lose.
Result<Done> add_config(const Checkpoint& source, const Fp8Modules& fp8, Json config,
                        CheckpointPlan& out);

}  // namespace fp4moe::checkpoint
