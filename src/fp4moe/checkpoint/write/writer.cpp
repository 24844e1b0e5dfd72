#include "fp4moe/checkpoint/write/writer.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/parallel.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/config.hpp"
#include "fp4moe/checkpoint/gguf_blocks.hpp"
#include "fp4moe/checkpoint/page_release.hpp"
#include "fp4moe/checkpoint/scale_scan.hpp"
#include "fp4moe/checkpoint/write/convert_vector.hpp"
#include "fp4moe/checkpoint/write/exact_scales.hpp"

namespace fp4moe::checkpoint {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;  // about this much in one write
constexpr std::uint64_t kCopyChunk = std::uint64_t{4} << 20;

bool is_per_expert(const CheckpointPlan& plan) { return plan.row.grouping == Grouping::per_expert; }

std::size_t tensors_of(const CheckpointPlan& plan, const ExpertLayout& layout) {
  return layout.runs.size() * (is_per_expert(plan) ? layout.shape.experts : 1);
}

std::string exact_scales_text(const ExactScales& scales) {
  std::string text = "{";
  for (const auto& [name, bits] : scales)
    text += fmt::format("{}{}: \"{:08x}\"", text.size() == 1 ? "" : ", ", Json(name).dump(), bits);
  return text + "}";
}

// The documents of a plan that say what its tensors are.
Result<std::vector<tensor::Document>> planned_documents(const CheckpointPlan& plan) {
  std::vector<tensor::Document> documents;
  for (const auto& [name, document] : plan.documents)
    documents.push_back({.name = name, .text = document.dump()});
  for (const FileCopy& copy : plan.files) {
    if (std::ranges::find(kConfigDocuments, copy.name) == std::end(kConfigDocuments)) continue;
    const Result<tensor::MappedFile> file = tensor::MappedFile::open(copy.from);
    if (!file) return file.why();
    const std::span<const std::byte> bytes = file->bytes();
    documents.push_back(
        {.name = copy.name,
         .text = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())});
  }
  return documents;
}

// A checkpoint that no reader could open is not written.
Result<Done> check_plan(const CheckpointPlan& plan, const SpecList& specs, const std::string& out) {
  std::vector<tensor::TensorSpec> tensors;
  tensors.reserve(specs.count);
  for (std::size_t i = 0; i < specs.count; ++i) tensors.push_back(specs.at(i));
  Result<std::vector<tensor::Document>> documents = planned_documents(plan);
  if (!documents) return documents.why();
  Result<tensor::Store> store =
      plan.row.dialect == Dialect::gguf
          ? tensor::Store::planned_gguf(std::move(tensors), plan.gguf_fields)
          : tensor::Store::planned(std::move(tensors), *std::move(documents));
  const Result<Checkpoint> opened =
      store ? Checkpoint::of(*std::move(store)) : Result<Checkpoint>(store.why());
  if (opened) return Done{};
  return Error(opened.why()).in(plan.source != nullptr ? plan.source->folder() : out);
}

}  // namespace

std::uint64_t bytes_of(const OtherTensor& other) {
  if (other.block || other.stored) return *tensor::byte_count(other.spec.dtype, other.spec.shape);
  std::uint64_t total = other.bytes.size();
  for (const TensorSpan& piece : other.pieces) total += piece.bytes;
  return total;
}

Result<CheckpointWriter> CheckpointWriter::create(const std::string& out, CheckpointPlan given) {
  CheckpointWriter writer(std::move(given));
  CheckpointPlan& plan = writer.plan_;
  std::size_t count = plan.others.size();
  for (const OutputLayer& layer : plan.layers) {
    writer.layouts_.push_back(expert_layout(plan.row, layer.shape, plan.bias_dtype));
    writer.begins_.push_back(count);
    count += tensors_of(plan, writer.layouts_.back());
  }
  const SpecList specs{.count = count, .at = [&plan, &writer](std::size_t i) -> tensor::TensorSpec {
                         if (i < plan.others.size()) return plan.others[i].spec;
                         const auto next = std::ranges::upper_bound(writer.begins_, i);
                         const auto layer =
                             static_cast<std::size_t>(next - writer.begins_.begin()) - 1;
                         const ExpertLayout& layout = writer.layouts_[layer];
                         const std::size_t at = i - writer.begins_[layer];
                         return run_tensor(layout, layout.runs[at % layout.runs.size()],
                                           plan.layers[layer].prefix, at / layout.runs.size());
                       }};
  if (plan.is_checked)
    if (Result<Done> fine = check_plan(plan, specs, out); !fine) return fine.why();
  if (plan.row.dialect == Dialect::gguf) {
    if (!plan.exact_scales.empty())
      plan.gguf_fields.push_back({.key = std::string(kExactScalesKey),
                                  .type = tensor::GgufType::string,
                                  .value = exact_scales_text(plan.exact_scales)});
    Result<TensorSink> sink = TensorSink::create_gguf(out, specs, plan.gguf_fields);
    if (!sink) return sink.why();
    writer.sink_ = *std::move(sink);
    return writer;
  }
  const SinkOptions options{
      .max_shard_bytes = plan.max_shard_bytes,
      .metadata = [&](std::size_t begin, std::size_t end) -> tensor::Metadata {
        tensor::Metadata metadata = plan.metadata;
        if (plan.exact_scales.empty()) return metadata;
        ExactScales here;
        for (std::size_t i = begin; i < end; ++i) {
          const auto found = plan.exact_scales.find(specs.at(i).name);
          if (found != plan.exact_scales.end()) here.insert(*found);
        }
        if (!here.empty()) metadata[std::string(kExactScalesKey)] = exact_scales_text(here);
        return metadata;
      }};
  Result<TensorSink> sink = TensorSink::create(out, specs, options);
  if (!sink) return sink.why();
  writer.sink_ = *std::move(sink);
  return writer;
}

Result<tensor::Buffer> CheckpointWriter::take_scratch(std::size_t bytes) {
  {
    const std::lock_guard lock(*mutex_);
    if (!scratch_.empty() && scratch_.back().size() >= bytes) {
      tensor::Buffer taken = std::move(scratch_.back());
      scratch_.pop_back();
      return taken;
    }
  }
  return tensor::Buffer::allocate(bytes);
}

void CheckpointWriter::give_back(tensor::Buffer scratch) {
  const std::lock_guard lock(*mutex_);
  scratch_.push_back(std::move(scratch));
}

Result<Done> CheckpointWriter::write_rows(std::size_t layer, std::uint64_t expert,
                                          std::size_t number, Range rows,
                                          std::span<const std::byte> bytes) {
  const ExpertLayout& layout = layouts_[layer];
  const Run& run = layout.runs[number];
  const bool per_expert = is_per_expert(plan_);
  const std::size_t index =
      begins_[layer] + number + (per_expert ? expert * layout.runs.size() : 0);
  return sink_.write(index, rows.begin * run.row_bytes + (per_expert ? 0 : expert * run.bytes()),
                     bytes);
}

Result<Done> CheckpointWriter::write_step(std::size_t layer, std::uint64_t expert, const Step& step,
                                          const ExpertBytes& source) {
  const ExpertLayout& layout = layouts_[layer];
  const Run& run = layout.runs[step.run];
  if (layout.row.is_transposed && is_scalar(run) && expert != 0) return Done{};  // one for all
  const std::uint64_t size = step.rows.size() * run.row_bytes;
  if (const auto stored = stored_bytes(layout, run, source); !stored.empty())
    return write_rows(layer, expert, step.run, step.rows,
                      stored.subspan(step.rows.begin * run.row_bytes, size));
  Result<tensor::Buffer> scratch = take_scratch(std::max(step.paired ? 2 * size : size, kChunk));
  if (!scratch) return scratch.why();
  const std::span<std::byte> piece = scratch->bytes().first(size);
  const std::span<std::byte> paired = scratch->bytes().subspan(size, step.paired ? size : 0);
  lay_out_step(layout, step, source, piece, paired);
  if (Result<Done> done = write_rows(layer, expert, step.run, step.rows, piece); !done) return done;
  if (step.paired)
    if (Result<Done> done = write_rows(layer, expert, *step.paired, step.rows, paired); !done)
      return done;
  give_back(*std::move(scratch));
  return Done{};
}

Result<Done> CheckpointWriter::write_expert(std::size_t layer, std::uint64_t expert,
                                            const ExpertBytes& source) {
  for (const Step& step : steps_of(layouts_[layer], source, kChunk))
    if (Result<Done> done = write_step(layer, expert, step, source); !done) return done;
  return Done{};
}

// Some rows at a time.
Result<Done> CheckpointWriter::copy_block(std::size_t index, const OtherTensor& other) {
  const BlockPiece& piece = *other.block;
  const GgufBlocks gguf(piece.format);
  const std::uint64_t code_row = piece.k / 2, scale_row = piece.k / block_size(piece.format);
  const std::uint64_t block_row =
      piece.k / gguf_block_elements(piece.format) * gguf_block_bytes(piece.format);
  const bool packs = piece.what == BlockPiece::What::blocks;
  const std::span<const std::byte> first = plan_.source->bytes(*piece.codes);
  const std::span<const std::byte> second =
      packs ? plan_.source->bytes(*piece.scales) : std::span<const std::byte>{};
  const std::uint64_t max = std::max<std::uint64_t>(1, kCopyChunk / block_row);
  std::vector<std::byte> codes, scales, blocks;
  for (std::uint64_t row = 0; row < piece.rows; row += max) {
    if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
    const std::uint64_t rows = std::min(max, piece.rows - row);
    std::span<const std::byte> result;
    std::uint64_t each = block_row;
    if (packs) {
      const auto part = second.subspan(row * scale_row, rows * scale_row);
      if (piece.format == WeightFormat::nvfp4 && find_negative_scale(part) != kNoScale)
        return invalid("transcode.negative_scale", "GGUF cannot hold a negative block scale")
            .at(piece.scales->entry.name)
            .expects("positive scales", "a negative one");
      blocks.resize(rows * block_row);
      gguf.pack(first.subspan(row * code_row, rows * code_row), part, blocks);
      result = blocks;
    } else {
      codes.resize(rows * code_row);
      scales.resize(rows * scale_row);
      gguf.unpack(first.subspan(row * block_row, rows * block_row), codes, scales);
      const bool wants_codes = piece.what == BlockPiece::What::codes;
      result = wants_codes ? std::span<const std::byte>(codes) : std::span<const std::byte>(scales);
      each = wants_codes ? code_row : scale_row;
    }
    if (Result<Done> done = sink_.write(index, row * each, result); !done) return done;
  }
  drop_all(*plan_.source);
  return Done{};
}

Result<Done> CheckpointWriter::copy_piece(std::size_t index, const OtherTensor& other,
                                          std::uint64_t at, const TensorSpan& piece,
                                          const ProgressFunction& progress) {
  const std::span<const std::byte> all =
      plan_.source->bytes(*piece.tensor).subspan(piece.begin, piece.bytes);
  std::vector<std::byte> converted;
  for (std::uint64_t begin = 0; begin < all.size(); begin += kCopyChunk) {
    if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
    const auto part = all.subspan(begin, std::min<std::uint64_t>(kCopyChunk, all.size() - begin));
    std::span<const std::byte> result = part;
    if (other.stored) {
      convert_vector(*other.stored, other.spec.dtype, part, converted);
      result = converted;
    }
    if (Result<Done> done = sink_.write(index, at, result); !done) return done;
    plan_.source->drop(*piece.tensor, part);
    at += result.size();
    if (progress) progress(result.size());
  }
  // Reading a page may have mapped its neighbors too.
  const tensor::MappedFile& file = plan_.source->files()[piece.tensor->file];
  file.drop(file.bytes());
  return Done{};
}

Result<Done> CheckpointWriter::copy_others(std::size_t threads, const ProgressFunction& progress) {
  return parallel_for(threads, plan_.others.size(), [&](std::size_t i) -> Result<Done> {
    const OtherTensor& other = plan_.others[i];
    if (other.block) {
      if (progress) progress(bytes_of(other));
      return copy_block(i, other);
    }
    if (!other.bytes.empty())
      if (Result<Done> done = sink_.write(i, 0, other.bytes); !done) return done;
    std::uint64_t at = other.bytes.size();
    for (const TensorSpan& piece : other.pieces) {
      if (Result<Done> done = copy_piece(i, other, at, piece, progress); !done) return done;
      at += other.stored ? converted_bytes(*other.stored, other.spec.dtype, piece.bytes)
                         : piece.bytes;
    }
    return Done{};
  });
}

Result<Done> CheckpointWriter::finish() {
  for (const auto& [name, document] : plan_.documents)
    if (Result<Done> done = sink_.put_json(name, document); !done) return done;
  for (const FileCopy& copy : plan_.files)
    if (Result<Done> done = sink_.copy_file(copy.name, copy.from); !done) return done;
  if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
  return sink_.finish();
}

}  // namespace fp4moe::checkpoint
