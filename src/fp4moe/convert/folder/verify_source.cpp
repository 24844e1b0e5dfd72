// The deep check: packs every expert of the source again and names the first element that differs.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/parallel.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/convert/folder/locate.hpp"
#include "fp4moe/convert/folder/source_parts.hpp"
#include "fp4moe/convert/folder/verify.hpp"
#include "fp4moe/convert/pack/pack_layer.hpp"

namespace fp4moe::convert {
namespace {

using tensor::StoredTensor;

Error differs(const std::string& path, std::string_view tensor) {
  return error(ErrorCode::mismatch, "verify.differs", "the folder is not what the source gives")
      .in(path)
      .at(tensor);
}

bool is_equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// The same of large tensors, whose pages are released.
bool is_equal_in_pieces(std::span<const std::byte> a, const tensor::MappedFile& of_a,
                        std::span<const std::byte> b, const tensor::MappedFile& of_b) {
  if (a.size() != b.size()) return false;
  for (std::uint64_t at = 0; at < a.size(); at += kPieceBytes) {
    const std::uint64_t count = std::min<std::uint64_t>(kPieceBytes, a.size() - at);
    const auto left = a.subspan(at, count), right = b.subspan(at, count);
    const bool equal = is_equal(left, right);
    of_a.drop(left);
    of_b.drop(right);
    if (!equal) return false;
  }
  return true;
}

class Comparison {
 public:
  Comparison(const ConvertedFolder& folder, const checkpoint::Checkpoint& checkpoint,
             const VerifyOptions& options, VerifyReport& report)
      : folder_(folder), checkpoint_(checkpoint), options_(options), report_(report) {}

  // False, with a finding, when it is another source.
  Result<bool> is_same_source() const {
    const Result<std::vector<FileStamp>> stamps = stamps_of(checkpoint_);
    if (!stamps) return stamps.why();
    const auto& wanted = folder_.manifest().source_files;
    for (std::size_t i = 0; i < std::max(wanted.size(), stamps->size()); ++i) {
      const SourceFile* left = i < wanted.size() ? &wanted[i] : nullptr;
      const SourceFile* right = i < stamps->size() ? &(*stamps)[i].file : nullptr;
      if (left != nullptr && right != nullptr && left->name == right->name &&
          left->bytes == right->bytes && left->frame == right->frame)
        continue;
      const auto shown = [](const SourceFile* file) {
        return file == nullptr ? std::string("no further file")
                               : fmt::format("{} of {} bytes, header {}", printable(file->name),
                                             file->bytes, text(file->frame));
      };
      report_.add(error(ErrorCode::mismatch, "verify.source",
                        "the folder was converted from another source")
                      .in(checkpoint_.store().folder())
                      .expects(shown(left), shown(right))
                      .try_this("name the right one: --source PATH"));
      return false;
    }
    return true;
  }

  Result<Done> compare_layer(std::size_t number) {
    const LayerRecord& record = folder_.manifest().layers[number];
    const auto found = folder_.layout();
    if (!found) return found.why();
    const Result<LayerJob> job = job_of(record, **found);
    if (!job) return job.why();
    Result<LayerPacker> packer = LayerPacker::make(**found, job->problem);
    if (!packer) return packer.why();
    if (Result<Done> done = prepare(*job, *packer, options_.threads); !done) return done;
    const std::size_t file = folder_.file_of_layer(number);
    const auto work = [&](std::size_t position, const checkpoint::ExpertView& view,
                          Lane& lane) -> Result<Done> {
      return compare_expert(number, position, view, lane, *packer);
    };
    if (Result<Done> done = for_each_expert(*job, options_.threads, work); !done) return done;
    std::vector<std::vector<std::byte>> memory(packer->tensors().size());
    std::vector<std::span<std::byte>> targets(memory.size());
    for (std::size_t t = 0; t < memory.size(); ++t) {
      if (packer->tensors()[t].expert_bytes != 0) continue;
      memory[t].resize(packer->tensors()[t].bytes);
      targets[t] = memory[t];
    }
    if (Result<Done> done = packer->pack_scalars(targets); !done) return done;
    for (std::size_t t = 0; t < memory.size(); ++t)
      if (packer->tensors()[t].expert_bytes == 0)
        compare_plain(file, t, memory[t], folder_.bytes(file, t));
    if (packer->record() != record.record)
      report_.add(differs(folder_.path(), printable(record.prefix))
                      .expects("the record that packing gives", "another one in the manifest"));
    sort_findings();
    return Done{};
  }

  Result<Done> compare_kept() {
    const tensor::Store& store = checkpoint_.store();
    const SourceParts parts = parts_of(checkpoint_);
    for (std::size_t i = 0; i < store.files().size(); ++i) {
      const std::string name = file_name(store, i);
      if (Result<Done> done = compare_frame(Frame(store, i), fmt::format("frame/{}", name)); !done)
        return done;
      compare_named(kSourceName, fmt::format("scalars/{}", name), joined(store, parts.scalars[i]));
    }
    if (folder_.manifest().experts_only) return Done{};
    std::mutex mutex;
    std::vector<const StoredTensor*> unequal;
    const auto compare = [&](std::size_t i) -> Result<Done> {
      if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
      const StoredTensor& tensor = *parts.others[i];
      if (!is_other_equal(tensor)) {
        const std::lock_guard lock(mutex);
        unequal.push_back(&tensor);
      }
      if (options_.progress) options_.progress(tensor.entry.bytes);
      return Done{};
    };
    const std::size_t threads = std::min<std::size_t>(options_.threads, 4);
    if (Result<Done> done = parallel_for(threads, parts.others.size(), compare); !done) return done;
    std::ranges::sort(unequal);
    for (const StoredTensor* tensor : unequal)
      report_.add(differs(folder_.path(), tensor->entry.name)
                      .expects("the source's bytes", "other bytes or no such tensor"));
    return Done{};
  }

 private:
  Result<LayerJob> job_of(const LayerRecord& record, const layout::Layout& layout) const {
    const auto layers = checkpoint_.layers();
    const auto layer = std::ranges::find(layers, record.prefix, &checkpoint::LayerTensors::prefix);
    if (layer == layers.end())
      return differs(folder_.path(), printable(record.prefix))
          .expects("a layer of the source", "none of this name");
    const Recipe recipe{.layout = &layout,
                        .sizing = {.hidden = record.problem.padded.hidden,
                                   .intermediate = record.problem.padded.intermediate},
                        .slice = folder_.manifest().slice,
                        .params_type = folder_.manifest().params_type};
    return layer_job(checkpoint_, static_cast<std::size_t>(layer - layers.begin()), recipe);
  }

  Result<Done> compare_expert(std::size_t number, std::size_t position,
                              const checkpoint::ExpertView& view, Lane& lane, LayerPacker& packer) {
    const auto tensors = packer.tensors();
    std::uint64_t total = 0;
    for (const PackedTensorSpec& tensor : tensors)
      total += round_up(tensor.expert_bytes, tensor::Buffer::kAlignment);
    if (lane.buffer.size() < total) {
      Result<tensor::Buffer> result = tensor::Buffer::allocate(total);
      if (!result) return result.why();
      lane.buffer = *std::move(result);
    }
    std::vector<std::span<std::byte>> parts(tensors.size());
    std::uint64_t at = 0;
    for (std::size_t t = 0; t < parts.size(); ++t) {
      parts[t] = lane.buffer.bytes().subspan(at, tensors[t].expert_bytes);
      at += round_up(tensors[t].expert_bytes, tensor::Buffer::kAlignment);
    }
    if (Result<Done> done = packer.pack(position, view, parts); !done) return done;
    const std::size_t file = folder_.file_of_layer(number);
    for (std::size_t t = 0; t < parts.size(); ++t) {
      if (parts[t].empty()) continue;
      const auto stored =
          folder_.bytes(file, t).subspan(position * parts[t].size(), parts[t].size());
      if (!is_equal(parts[t], stored)) {
        const Difference first = locate(packer, tensors[t].name, parts[t], stored);
        const FileRecord& record = folder_.manifest().files[file];
        Error finding =
            differs(fmt::format("{}/{}", folder_.path(), record.name), record.tensors[t].name)
                .expects(first.expected, first.found);
        finding.message += fmt::format(" at expert {} of the rank, {}", position, first.where);
        const std::lock_guard lock(mutex_);
        found_.push_back({position, t, std::move(finding)});
      }
      folder_.mapped(file).drop(stored);
    }
    if (options_.progress) options_.progress(packer.expert_bytes());
    return Done{};
  }

  // Threads find them in any order.
  void sort_findings() {
    std::ranges::sort(found_, {}, [](const Found& each) {
      return std::pair{each.position, each.tensor};
    });
    for (Found& each : found_) report_.add(std::move(each.finding));
    found_.clear();
  }

  // `at`: where these bytes begin in the tensor.
  void compare_plain(std::size_t file, std::size_t tensor, std::span<const std::byte> expected,
                     std::span<const std::byte> found, std::uint64_t at = 0) {
    if (is_equal(expected, found)) return;
    const FileRecord& record = folder_.manifest().files[file];
    const Difference first = locate_byte(expected, found, at);
    Error finding =
        differs(fmt::format("{}/{}", folder_.path(), record.name), record.tensors[tensor].name)
            .expects(first.expected, first.found);
    finding.message += fmt::format(" at {}", first.where);
    report_.add(std::move(finding));
  }

  void compare_named(std::string_view file, const std::string& tensor,
                     std::span<const std::byte> expected) {
    const auto place = folder_.find(file, tensor);
    if (!place) {
      report_.add(differs(folder_.path(), tensor).expects("it", "no such tensor"));
      return;
    }
    compare_plain(place->file, place->tensor, expected, folder_.bytes(place->file, place->tensor));
  }

  Result<Done> compare_frame(const Frame& expected, const std::string& tensor) {
    const auto place = folder_.find(kSourceName, tensor);
    const auto found =
        place ? folder_.bytes(place->file, place->tensor) : std::span<const std::byte>();
    if (!place || found.size() != expected.bytes()) {
      report_.add(differs(folder_.path(), tensor)
                      .expects(fmt::format("{} bytes", expected.bytes()),
                               place ? fmt::format("{} bytes", found.size()) : "no such tensor"));
      return Done{};
    }
    bool is_told = false;
    return expected.for_each_piece([&](std::uint64_t at, std::span<const std::byte> piece) {
      const auto stored = found.subspan(at, piece.size());
      if (!is_told && !is_equal(piece, stored)) {
        is_told = true;
        compare_plain(place->file, place->tensor, piece, stored, at);
      }
      folder_.mapped(place->file).drop(stored);
      return Result<Done>(Done{});
    });
  }

  bool is_other_equal(const StoredTensor& tensor) const {
    for (const FileRecord& file : folder_.manifest().files) {
      if (!file.name.starts_with("others-")) continue;
      const auto place = folder_.find(file.name, tensor.entry.name);
      if (!place) continue;
      return is_equal_in_pieces(folder_.bytes(place->file, place->tensor),
                                folder_.mapped(place->file), checkpoint_.store().bytes(tensor),
                                checkpoint_.store().files()[tensor.file]);
    }
    return false;
  }

  struct Found {
    std::size_t position = 0, tensor = 0;
    Error finding{};
  };

  const ConvertedFolder& folder_;
  const checkpoint::Checkpoint& checkpoint_;
  const VerifyOptions& options_;
  VerifyReport& report_;
  std::mutex mutex_{};
  std::vector<Found> found_{};
};

}  // namespace

Result<Done> compare_with_source(const ConvertedFolder& folder,
                                 const checkpoint::Checkpoint& checkpoint,
                                 const VerifyOptions& options, VerifyReport& report) {
  Comparison comparison(folder, checkpoint, options, report);
  const Result<bool> same = comparison.is_same_source();
  if (!same) return same.why();
  if (!*same) return Done{};
  for (std::size_t layer = 0; layer < folder.manifest().layers.size(); ++layer)
    if (Result<Done> done = comparison.compare_layer(layer); !done) return done;
  return comparison.compare_kept();
}

}  // namespace fp4moe::convert
