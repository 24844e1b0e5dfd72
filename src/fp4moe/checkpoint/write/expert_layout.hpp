// One expert's bytes as a dialect stores them: a few runs of rows, each a tensor of its own or a
// part of one. Codes and scales keep their bits; only their places differ.
//
//   gpt-oss    gate_up rows interleaved | scales | bias | down | scales | bias
//   ModelOpt   gate | scales | global | input | up ... | down ...
//   GGUF       gate blocks (scales inside) | bias | up blocks ... | down blocks ...
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/checkpoint/dialect.hpp"
#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/checkpoint/slice.hpp"
#include "fp4moe/tensor/files/tensor_entry.hpp"

namespace fp4moe::checkpoint {

enum class Part : std::uint8_t { codes, scales, bias, global_scale, input_scale };

// Which rows a run holds. Gate and up share one where the dialect fuses them.
enum class Matrix : std::uint8_t { gate, up, down, gate_up };

struct Run {
  Part part = Part::codes;
  Matrix matrix = Matrix::gate;
  std::uint64_t rows = 0;  // of one expert
  std::uint64_t row_bytes = 0;
  std::uint64_t k = 0;  // elements of a row of the matrix
  tensor::DType dtype = tensor::DType::u8;

  std::uint64_t bytes() const { return rows * row_bytes; }
};

inline bool is_scalar(const Run& run) {
  return run.part == Part::global_scale || run.part == Part::input_scale;
}

struct ExpertLayout {
  DialectRow row;
  MoeShape shape{};  // order: how the target lays w13's rows
  std::vector<Run> runs{};

  std::uint64_t bytes() const;  // of one expert
};

// The layout of `shape` in a dialect. The row order is the dialect's own: gate and up are
// interleaved where they are fused, but in transposed tensors, where it is that of `shape`.
ExpertLayout expert_layout(const DialectRow& row, const MoeShape& shape, tensor::DType bias_dtype);

// The scalars of an expert as they are to be stored, in float32 bits. Absent: from the view.
struct StoredScales {
  struct Pair {
    std::optional<std::uint32_t> global{}, input{};
    friend bool operator==(const Pair&, const Pair&) = default;
  };
  Pair gate{}, up{}, down{};

  // Gate and up that are one tensor have one number: up's.
  const Pair& at(Matrix matrix) const {
    return matrix == Matrix::gate ? gate : matrix == Matrix::down ? down : up;
  }
  Pair& at(Matrix matrix) {
    return matrix == Matrix::gate ? gate : matrix == Matrix::down ? down : up;
  }
};

// A view to be laid out, and its exact scalars where they are known.
struct ExpertBytes {
  const ExpertView& view;
  const StoredScales* scales = nullptr;
};

// The run's bytes when they lie in the source as the dialect stores them; empty otherwise.
std::span<const std::byte> stored_bytes(const ExpertLayout& layout, const Run& run,
                                        const ExpertBytes& source);

// A piece of work: some rows of one run, and the same rows of `paired` with them.
struct Step {
  std::size_t run = 0;
  std::optional<std::size_t> paired{};
  Range rows{};
};

// All rows of all runs in pieces of about `bytes`. Gate and up are pairs where they lie interleaved
// in the source and apart in the layout; such steps have no stored bytes.
std::vector<Step> steps_of(const ExpertLayout& layout, const ExpertBytes& source,
                           std::uint64_t bytes);

// Lays out a step; `out` holds exactly its rows, `paired_out` those of its paired.
void lay_out_step(const ExpertLayout& layout, const Step& step, const ExpertBytes& source,
                  std::span<std::byte> out, std::span<std::byte> paired_out = {});

// Lays out a whole expert, run after run, into memory of layout.bytes() bytes. What lies in its
// place already stays.
Result<Done> lay_out_expert(const ExpertLayout& layout, const ExpertBytes& source,
                            std::span<std::byte> out);

// The addresses where lay_out_expert puts codes and scales: a reader that unpacks them there saves
// the copy. Not for GGUF layouts, whose scales are inside the blocks, nor for transposed ones.
ExpertBuffers buffers_in(const ExpertLayout& layout, std::span<std::byte> out);

// The tensor that holds `run` for `expert`: its name, type and whole shape (all experts where they
// share it).
tensor::TensorSpec run_tensor(const ExpertLayout& layout, const Run& run, std::string_view prefix,
                              std::uint64_t expert);

// 1/x, correctly rounded: compressed-tensors stores the reciprocal of ModelOpt's number.
std::uint32_t reciprocal_bits(std::uint32_t bits);

}  // namespace fp4moe::checkpoint
