// Shared by transcode and quantize when they write GGUF: the types, the metadata and the
// tokenizer that llama.cpp wants, and notes about what it will not find.
#pragma once
#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/gguf_fields.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::checkpoint {

// Completes a plan whose layers and tensors are there under their GGUF names. Vectors become F32;
// `model` gets what the plan tells of it. Errors: those of read_gguf_tokenizer.
Result<Done> finish_gguf(CheckpointPlan& plan, GgufModel model, const tensor::Store& source);

// True if a GGUF file has a tokenizer without a tokenizer.json beside it.
bool holds_lost_tokenizer(const tensor::Store& source);

}  // namespace fp4moe::checkpoint
