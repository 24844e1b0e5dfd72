#include "fp4moe/convert/folder/unconvert.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/parallel.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/convert/folder/content.hpp"
#include "fp4moe/convert/folder/converted_folder.hpp"
#include "fp4moe/convert/folder/expert_writer.hpp"
#include "fp4moe/convert/folder/model_files.hpp"
#include "fp4moe/convert/folder/raw_file.hpp"
#include "fp4moe/convert/folder/record_fields.hpp"
#include "fp4moe/convert/folder/source_parts.hpp"
#include "fp4moe/tensor/files/atomic_file.hpp"

namespace fp4moe::convert {
namespace {

using Clock = std::chrono::steady_clock;
using tensor::StoredTensor;

bool is_same_source(const Manifest& a, const Manifest& b) {
  return std::ranges::equal(a.source_files, b.source_files,
                            [](const SourceFile& x, const SourceFile& y) {
                              return x.name == y.name && x.bytes == y.bytes && x.frame == y.frame;
                            });
}

// Checks that the folders are all ranks of one model, each once.
Result<Done> check_ranks(std::span<const ConvertedFolder> folders) {
  const Manifest& first = folders[0].manifest();
  const checkpoint::Slice& slice = first.slice;
  const std::uint64_t tp = slice.tensor_parallel.size, ep = slice.expert_parallel.size;
  const auto refuse = [](const ConvertedFolder& folder, std::string_view what) {
    return usage("unconvert.ranks", fmt::format("the folder {}", what)).in(folder.path());
  };
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  for (const ConvertedFolder& folder : folders) {
    const checkpoint::Slice& each = folder.manifest().slice;
    if (!is_same_source(first, folder.manifest()))
      return refuse(folder, "was made from another source")
          .expects("ranks of one model", fmt::format("another than {}", folders[0].path()));
    if (each.tensor_parallel.size != tp || each.expert_parallel.size != ep ||
        each.placement != slice.placement)
      return refuse(folder, "belongs to another split")
          .expects(fmt::format("{} tensor-parallel and {} expert-parallel ranks ({})", tp, ep,
                               name(slice.placement)),
                   fmt::format("{} and {} ({})", each.tensor_parallel.size,
                               each.expert_parallel.size, name(each.placement)));
    if (!seen.emplace(each.tensor_parallel.rank, each.expert_parallel.rank).second)
      return refuse(folder, "holds a rank that was named before")
          .expects("each rank once", fmt::format("tp {}, ep {}", text(each.tensor_parallel),
                                                 text(each.expert_parallel)));
  }
  const std::optional<std::uint64_t> all = checked_multiply(tp, ep);
  if (all == seen.size()) return Done{};
  for (std::uint64_t t = 0; t < tp; ++t)
    for (std::uint64_t e = 0; e < ep; ++e)
      if (!seen.contains({t, e}))
        return usage("unconvert.ranks",
                     "a part of the model is not the model: all ranks are needed")
            .in(folders[0].path())
            .expects(fmt::format("folders of {} x {} ranks", tp, ep),
                     fmt::format("{}; tp {}/{}, ep {}/{} is missing", seen.size(), t, tp, e, ep))
            .try_this("name the folders of all ranks: fp4moe unconvert RANK0 RANK1 ... -o OUT");
  return Done{};
}

std::vector<std::string> losses_of(std::span<const ConvertedFolder> folders) {
  std::vector<std::string> losses;
  for (const ConvertedFolder& folder : folders)
    for (const LayerRecord& layer : folder.manifest().layers)
      for (const std::string& loss : layer.losses)
        if (std::ranges::find(losses, loss) == losses.end()) losses.push_back(loss);
  return losses;
}

Error damaged(const ConvertedFolder& folder, std::string_view file, std::string_view tensor) {
  return error(ErrorCode::mismatch, "converted.checksum", "bytes changed since the conversion")
      .in(fmt::format("{}/{}", folder.path(), file))
      .at(tensor)
      .expects("the manifest's checksum", "another one")
      .try_this("fp4moe verify lists what is damaged; convert again");
}

// The bytes of a tensor whose checksum is right.
Result<std::span<const std::byte>> sound_bytes(const ConvertedFolder& folder,
                                               ConvertedFolder::TensorIndex place) {
  const FileRecord& file = folder.manifest().files[place.file];
  const TensorRecord& tensor = file.tensors[place.tensor];
  const std::span<const std::byte> bytes = folder.bytes(place.file, place.tensor);
  const tensor::MappedFile& mapped = folder.mapped(place.file);
  const bool is_sound = checksum_of(bytes, tensor.piece_bytes, &mapped) == tensor.checksum;
  mapped.drop(bytes);
  if (!is_sound) return damaged(folder, file.name, tensor.name);
  return bytes;
}

class Restorer {
 public:
  Restorer(std::span<const ConvertedFolder> folders, std::string staging,
           const UnconvertOptions& options)
      : folders_(folders), staging_(std::move(staging)), options_(options) {}

  Result<Done> run() {
    if (Result<Done> done = copy_companions(); !done) return done;
    if (Result<Done> done = set_up_files(); !done) return done;
    Result<checkpoint::Checkpoint> opened = checkpoint::Checkpoint::open(staging_);
    if (!opened) return opened.why();
    checkpoint_ = std::make_unique<checkpoint::Checkpoint>(*std::move(opened));
    if (Result<Done> done = match_files(); !done) return done;
    if (Result<Done> done = fill_kept(); !done) return done;
    if (Result<Done> done = fill_others(); !done) return done;
    for (const ConvertedFolder& folder : folders_)
      for (std::size_t layer = 0; layer < folder.manifest().layers.size(); ++layer)
        if (Result<Done> done = fill_layer(folder, layer); !done) return done;
    return Done{};
  }

  const checkpoint::Checkpoint& checkpoint() const { return *checkpoint_; }
  bool is_exact() const { return is_exact_; }

 private:
  const ConvertedFolder& first() const { return folders_[0]; }

  Result<std::span<const std::byte>> kept(std::string_view kind, std::string_view file) const {
    const std::string name = fmt::format("{}/{}", kind, file);
    const auto place = first().find(kSourceName, name);
    if (!place)
      return invalid("converted.manifest", "a part of the source was not kept")
          .in(first().path())
          .at(name)
          .expects(fmt::format("it in {}", kSourceName), "nothing");
    return sound_bytes(first(), *place);
  }

  // Files that were kept whole are the source's; files of these names in the folder were written by
  // convert.
  Result<Done> copy_companions() const {
    std::set<std::string> kept_names{std::string(kOthersIndexName)};
    for (const TensorRecord& tensor : source_tensors()) {
      const std::size_t slash = std::min(tensor.name.find('/'), tensor.name.size());
      const std::string kind = tensor.name.substr(0, slash);
      if (kind != "index" && kind != "file") continue;
      const std::string name = tensor.name.substr(std::min(slash + 1, tensor.name.size()));
      const auto bytes = kept(kind, name);
      if (!bytes) return bytes.why();
      if (!is_plain_file_name(name))
        return invalid("converted.manifest", "a kept file has a name outside the folder")
            .at(printable(name));
      if (Result<Done> done = tensor::write_file(fmt::format("{}/{}", staging_, name), *bytes);
          !done)
        return done;
      kept_names.insert(name);
    }
    for (const CompanionRecord& record : first().manifest().companions) {
      if (kept_names.contains(record.name)) continue;
      const std::string from = fmt::format("{}/{}", first().path(), record.name);
      const Result<tensor::MappedFile> file = tensor::MappedFile::open(from);
      if (!file) return file.why();
      if (file->bytes().size() != record.bytes) return damaged(first(), record.name, "");
      const auto checksum =
          write_with_checksum(fmt::format("{}/{}", staging_, record.name), file->bytes(), &*file);
      if (!checksum) return checksum.why();
      if (*checksum != record.checksum) return damaged(first(), record.name, "");
    }
    return Done{};
  }

  std::span<const TensorRecord> source_tensors() const {
    const FileRecord* file = first().manifest().find_file(kSourceName);
    return file == nullptr ? std::span<const TensorRecord>() : file->tensors;
  }

  // In pieces, whose pages are released: frames may be large.
  Result<Done> copy_kept(std::span<const std::byte> bytes, std::uint64_t to,
                         const RawFile& file) const {
    const Manifest& manifest = first().manifest();
    const auto source =
        static_cast<std::size_t>(manifest.find_file(kSourceName) - manifest.files.data());
    for (std::uint64_t at = 0; at < bytes.size(); at += kPieceBytes) {
      const auto piece = bytes.subspan(at, std::min<std::uint64_t>(kPieceBytes, bytes.size() - at));
      if (Result<Done> done = file.write(to + at, piece); !done) return done;
      first().mapped(source).drop(piece);
    }
    return Done{};
  }

  // Frames of GGUF files have more parts than the header; those find their places once it is read.
  Result<Done> set_up_files() {
    for (const SourceFile& source : first().manifest().source_files) {
      Result<RawFile> file =
          RawFile::create(fmt::format("{}/{}", staging_, source.name), source.bytes);
      if (!file) return file.why();
      const auto frame = kept("frame", source.name);
      if (!frame) return frame.why();
      if (Result<Done> done = copy_kept(*frame, 0, *file); !done) return done;
      raw_.emplace(source.name, *std::move(file));
    }
    return Done{};
  }

  // The store may list the files in another order.
  Result<Done> match_files() {
    const tensor::Store& store = checkpoint_->store();
    for (std::size_t i = 0; i < store.files().size(); ++i) {
      const auto found = raw_.find(file_name(store, i));
      if (found == raw_.end() || store.files().size() != raw_.size())
        return invalid("converted.manifest", "the kept headers do not make up the source's files")
            .in(first().path())
            .expects(fmt::format("{} files", raw_.size()),
                     fmt::format("{} files", store.files().size()));
      files_.push_back(std::move(found->second));
    }
    return Done{};
  }

  Result<Done> fill_kept() const {
    const tensor::Store& store = checkpoint_->store();
    const SourceParts parts = parts_of(*checkpoint_);
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const std::string name = file_name(store, i);
      const auto scalars = kept("scalars", name), frame = kept("frame", name);
      if (!scalars) return scalars.why();
      if (!frame) return frame.why();
      std::uint64_t at = 0;
      const auto put = [&](std::span<const std::byte> from, std::uint64_t begin,
                           std::uint64_t size) -> Result<Done> {
        if (at > from.size() || size > from.size() - at)
          return invalid("converted.manifest", "too little of the source was kept")
              .in(first().path())
              .at(name);
        Result<Done> done = copy_kept(from.subspan(at, size), begin, files_[i]);
        at += size;
        return done;
      };
      for (const StoredTensor* tensor : parts.scalars[i])
        if (Result<Done> done = put(*scalars, tensor->entry.begin, tensor->entry.bytes); !done)
          return done;
      at = 0;
      for (const checkpoint::Range& gap : gaps_of(store, i))
        if (Result<Done> done = put(*frame, gap.begin, gap.size()); !done) return done;
    }
    return Done{};
  }

  Result<Done> fill_others() const {
    const Manifest& manifest = first().manifest();
    std::unordered_map<std::string_view, ConvertedFolder::TensorIndex> places;
    for (std::size_t f = 0; f < manifest.files.size(); ++f) {
      const FileRecord& file = manifest.files[f];
      if (file.name == kSourceName ||
          std::ranges::find(manifest.layers, file.name, &LayerRecord::file) !=
              manifest.layers.end())
        continue;
      for (std::size_t t = 0; t < file.tensors.size(); ++t) places[file.tensors[t].name] = {f, t};
    }
    const std::vector<const StoredTensor*> others = parts_of(*checkpoint_).others;
    const std::size_t copiers = std::min<std::size_t>(options_.threads, 4);
    return parallel_for(copiers, others.size(), [&](std::size_t i) -> Result<Done> {
      const tensor::TensorEntry& entry = others[i]->entry;
      const auto found = places.find(entry.name);
      if (found == places.end() ||
          manifest.files[found->second.file].tensors[found->second.tensor].bytes != entry.bytes)
        return invalid("converted.tensor", "a tensor of the checkpoint was not kept")
            .in(first().path())
            .at(entry.name)
            .expects(fmt::format("{} bytes", entry.bytes), "none or another number");
      return copy_tensor(found->second, *others[i]);
    });
  }

  Result<Done> copy_tensor(ConvertedFolder::TensorIndex place, const StoredTensor& to) const {
    const FileRecord& file = first().manifest().files[place.file];
    const TensorRecord& tensor = file.tensors[place.tensor];
    const std::span<const std::byte> bytes = first().bytes(place.file, place.tensor);
    PieceDigests digests(tensor.bytes, tensor.piece_bytes);
    for (std::size_t i = 0; i < digests.count(); ++i) {
      if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
      const auto piece = bytes.subspan(digests.begin(i), digests.size(i));
      digests.put(i, piece);
      if (Result<Done> done = files_[to.file].write(to.entry.begin + digests.begin(i), piece);
          !done)
        return done;
      first().mapped(place.file).drop(piece);
      if (options_.progress) options_.progress(piece.size());
    }
    if (digests.whole() != tensor.checksum) return damaged(first(), file.name, tensor.name);
    return Done{};
  }

  Result<std::size_t> find_layer(const LayerRecord& record) const {
    const auto layers = checkpoint_->layers();
    const auto found = std::ranges::find(layers, record.prefix, &checkpoint::LayerTensors::prefix);
    if (found != layers.end() && found->shape.hidden == record.problem.real.hidden &&
        found->shape.experts == record.problem.global_experts &&
        found->shape.order == record.problem.order &&
        found->shape.has_bias == record.problem.has_bias)
      return static_cast<std::size_t>(found - layers.begin());
    return invalid("converted.manifest", "the manifest and the kept headers disagree on a layer")
        .in(first().path())
        .at(printable(record.prefix));
  }

  Result<Done> fill_layer(const ConvertedFolder& folder, std::size_t number) {
    const LayerRecord& record = folder.manifest().layers[number];
    const checkpoint::Slice& slice = folder.manifest().slice;
    const Result<std::size_t> position = find_layer(record);
    if (!position) return position.why();
    const checkpoint::LayerTensors& layer = checkpoint_->layers()[*position];
    const Result<LayerPacker> packer = folder.packer(number);
    if (!packer) return packer.why();
    const Result<ExpertWriter> writer = ExpertWriter::make(*checkpoint_, *position, slice, files_);
    if (!writer) return writer.why();
    const auto experts =
        checkpoint::local_experts(layer.shape.experts, slice.expert_parallel, slice.placement);
    if (!experts) return experts.why();
    if (experts->size() != record.problem.experts ||
        writer->range().size() != record.problem.real.intermediate)
      return invalid("converted.manifest", "the manifest's sizes do not follow from its ranks")
          .in(folder.path())
          .at(printable(record.prefix));

    const std::size_t file = folder.file_of_layer(number);
    const auto tensors = packer->tensors();
    std::vector<PieceDigests> digests;
    for (const TensorRecord& tensor : folder.manifest().files[file].tensors)
      digests.emplace_back(tensor.bytes, tensor.piece_bytes);
    PieceDigests content(experts->size(), 1);  // a piece is an expert
    std::mutex mutex;
    std::vector<std::unique_ptr<ExpertMemory>> idle;
    const auto restore = [&](std::size_t i) -> Result<Done> {
      if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
      std::unique_ptr<ExpertMemory> memory;
      {
        const std::lock_guard lock(mutex);
        if (!idle.empty()) {
          memory = std::move(idle.back());
          idle.pop_back();
        }
      }
      if (memory == nullptr) {
        auto result = ExpertMemory::make(layer, writer->range(), record.problem.bias_type);
        if (!result) return result.why();
        memory = std::make_unique<ExpertMemory>(*std::move(result));
      }
      std::vector<std::span<const std::byte>> sources(tensors.size());
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        if (tensors[t].expert_bytes == 0) continue;
        sources[t] =
            folder.bytes(file, t).subspan(i * tensors[t].expert_bytes, tensors[t].expert_bytes);
        digests[t].put(i, sources[t]);
      }
      if (Result<Done> done = packer->unpack(i, sources, memory->target()); !done)
        return Error(done.why()).in(folder.path());
      content.put(i, content_of(memory->view(slice.tensor_parallel.rank == 0)));
      if (Result<Done> done = writer->write((*experts)[i], *memory); !done) return done;
      for (const auto& source : sources) folder.mapped(file).drop(source);
      if (options_.progress) options_.progress(packer->expert_bytes());
      const std::lock_guard lock(mutex);
      idle.push_back(std::move(memory));
      return Done{};
    };
    if (Result<Done> done = parallel_for(options_.threads, experts->size(), restore); !done)
      return done;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const TensorRecord& tensor = folder.manifest().files[file].tensors[t];
      const Digest found =
          tensors[t].expert_bytes == 0
              ? checksum_of(folder.bytes(file, t), tensor.piece_bytes, &folder.mapped(file))
              : digests[t].whole();
      if (found != tensor.checksum) return damaged(folder, record.file, tensor.name);
    }
    return content.whole() == record.content ? Done{} : inexact(folder, record);
  }

  // The weights differ. Allowed if the manifest records a loss.
  Result<Done> inexact(const ConvertedFolder& folder, const LayerRecord& record) {
    is_exact_ = false;
    if (options_.accept_losses && !record.losses.empty()) return Done{};
    Error why =
        error(ErrorCode::mismatch, "unconvert.losses", "what comes back is not what was converted")
            .in(folder.path())
            .at(record.prefix)
            .expects("the weights of the checkpoint",
                     record.losses.empty() ? "others, though no loss was noted: this is a bug"
                                           : join(record.losses, "; "));
    if (!record.losses.empty())
      why.remedy = "keep the original, or take what there is with --accept-losses";
    return why;
  }

  bool is_exact_ = true;
  std::span<const ConvertedFolder> folders_;
  std::string staging_;
  UnconvertOptions options_;
  std::unordered_map<std::string, RawFile> raw_{};
  std::vector<RawFile> files_{};  // in the store's order
  std::unique_ptr<checkpoint::Checkpoint> checkpoint_{};
};

Result<std::vector<ConvertedFolder>> open_all(std::span<const std::string> paths) {
  if (paths.empty())
    return usage("unconvert.ranks", "there is nothing to convert back")
        .expects("at least one converted folder", "none");
  std::vector<ConvertedFolder> folders;
  for (const std::string& path : paths) {
    Result<ConvertedFolder> folder = ConvertedFolder::open(path);
    if (!folder) return folder.why();
    folders.push_back(*std::move(folder));
  }
  return folders;
}

}  // namespace

Result<std::uint64_t> unconvert_bytes(std::span<const std::string> paths) {
  std::uint64_t bytes = 0;
  for (const std::string& path : paths) {
    const Result<Manifest> manifest = read_manifest(path);
    if (!manifest) return manifest.why();
    for (const FileRecord& file : manifest->files) bytes += file.bytes;
  }
  return bytes;
}

Result<UnconvertReport> unconvert(std::span<const std::string> paths, const std::string& out,
                                  const UnconvertOptions& options) {
  const Clock::time_point begin = Clock::now();
  const Result<std::vector<ConvertedFolder>> folders = open_all(paths);
  if (!folders) return folders.why();
  if (Result<Done> fine = check_ranks(*folders); !fine) return fine.why();
  const Manifest& manifest = folders->front().manifest();
  if (manifest.experts_only)
    return usage("unconvert.experts_only", "the folder holds experts alone, not a whole checkpoint")
        .in(paths[0])
        .expects("a folder converted without --experts-only", "one converted with it")
        .try_this("use the checkpoint itself, or convert it again");
  UnconvertReport report{.dialect = manifest.dialect};
  Result<tensor::AtomicFolder> folder = tensor::AtomicFolder::create(out);
  if (!folder) return folder.why();
  Restorer restorer(*folders, folder->staging(), options);
  if (Result<Done> done = restorer.run(); !done) return folder->explain(done.why());
  if (Result<Done> done = folder->commit(); !done) return done.why();
  report.is_exact = restorer.is_exact();
  if (!report.is_exact) report.losses = losses_of(*folders);
  report.layers = manifest.layers.size();
  for (const checkpoint::LayerTensors& layer : restorer.checkpoint().layers())
    report.experts += layer.shape.experts;
  for (const SourceFile& file : manifest.source_files) report.bytes += file.bytes;
  report.files = manifest.source_files.size();
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return report;
}

}  // namespace fp4moe::convert
