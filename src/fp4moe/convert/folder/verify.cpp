#include "fp4moe/convert/folder/verify.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/folder_names.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/parallel.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/convert/folder/intact.hpp"

namespace fp4moe::convert {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

Error wrong_checksum(const std::string& path, const Digest& expected, const Digest& found) {
  return error(ErrorCode::mismatch, "converted.checksum", "bytes changed since the conversion")
      .in(path)
      .expects(text(expected), text(found))
      .try_this("convert the checkpoint again");
}

std::string path_of(const ConvertedFolder& folder, std::string_view file) {
  return fmt::format("{}/{}", folder.path(), file);
}

// A piece of a tensor, for the threads.
struct Item {
  std::size_t file = 0, tensor = 0, piece = 0;
};

Result<Done> check_tensors(const ConvertedFolder& folder, const VerifyOptions& options,
                           VerifyReport& report) {
  const Manifest& manifest = folder.manifest();
  std::vector<std::vector<PieceDigests>> digests(manifest.files.size());
  std::vector<Item> items;
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    for (std::size_t t = 0; t < manifest.files[f].tensors.size(); ++t) {
      const TensorRecord& tensor = manifest.files[f].tensors[t];
      // A manifest of tiny pieces would make lists larger than the file.
      const std::uint64_t min = std::min<std::uint64_t>(tensor.bytes, 16);
      digests[f].emplace_back(tensor.bytes, std::max(tensor.piece_bytes, min));
      for (std::size_t piece = 0; piece < digests[f][t].count(); ++piece)
        items.push_back({f, t, piece});
    }
  }
  const auto check = [&](std::size_t i) -> Result<Done> {
    if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
    const auto [f, t, number] = items[i];
    PieceDigests& all = digests[f][t];
    const auto piece = folder.bytes(f, t).subspan(all.begin(number), all.size(number));
    all.put(number, piece);
    folder.mapped(f).drop(piece);
    if (options.progress) options.progress(piece.size());
    return Done{};
  };
  if (Result<Done> done = parallel_for(options.threads, items.size(), check); !done) return done;
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    const FileRecord& file = manifest.files[f];
    const Digest header = digest_of(folder.mapped(f).bytes().first(file.header_bytes));
    if (header != file.header)
      report.add(
          wrong_checksum(path_of(folder, file.name), file.header, header).at("__metadata__"));
    for (std::size_t t = 0; t < file.tensors.size(); ++t) {
      const Digest found = digests[f][t].whole();
      if (found != file.tensors[t].checksum)
        report.add(wrong_checksum(path_of(folder, file.name), file.tensors[t].checksum, found)
                       .at(file.tensors[t].name));
    }
  }
  return Done{};
}

Result<Done> check_companions(const ConvertedFolder& folder, VerifyReport& report) {
  for (const CompanionRecord& record : folder.manifest().companions) {
    const std::string path = path_of(folder, record.name);
    const Result<tensor::MappedFile> file = tensor::MappedFile::open(path);
    if (!file && !is_damage(file.why())) return file.why();
    if (!file || file->bytes().size() != record.bytes) {
      report.add(
          invalid("converted.file", "a file beside the tensors is missing or has another size")
              .in(path)
              .expects(fmt::format("{} bytes", record.bytes),
                       file ? fmt::format("{} bytes", file->bytes().size()) : file.why().message));
      continue;
    }
    if (const Digest found = checksum_of(file->bytes(), kPieceBytes, &*file);
        found != record.checksum)
      report.add(wrong_checksum(path, record.checksum, found));
  }
  return Done{};
}

// Tensor files that no manifest speaks of would be taken for the model's by others.
Result<Done> check_strangers(const ConvertedFolder& folder, VerifyReport& report) {
  std::vector<std::string> names;
  if (const int why = add_names_in(folder.path(), names); why != 0)
    return system_error("folder.list", "cannot list", why).in(folder.path());
  for (const std::string& name : names)
    if (name.ends_with(".safetensors") && folder.manifest().find_file(name) == nullptr)
      report.add(invalid("converted.file", "a tensor file does not belong to the conversion")
                     .in(path_of(folder, printable(name)))
                     .expects("the files that the manifest names", "this one too"));
  return Done{};
}

Result<Done> check_packers(const ConvertedFolder& folder, VerifyReport& report) {
  for (std::size_t layer = 0; layer < folder.manifest().layers.size(); ++layer) {
    const Result<LayerPacker> packer = folder.packer(layer);
    if (!packer && !is_damage(packer.why())) return packer.why();
    if (!packer) report.add(packer.why());
  }
  return Done{};
}

// The source's recorded path, or the one beside the folder if both were moved.
std::string find_source(const std::string& folder, const std::string& recorded) {
  std::error_code code;
  const fs::path beside = fs::absolute(folder, code).lexically_normal() / "..";
  for (const fs::path& place :
       {fs::path(recorded), beside / recorded, beside / fs::path(recorded).filename()})
    if (fs::exists(place, code)) return place.lexically_normal().string();
  return recorded;
}

}  // namespace

Result<std::uint64_t> verify_bytes(const std::string& path, bool deep) {
  const Result<Manifest> manifest = read_manifest(path);
  if (!manifest) return manifest.why();
  std::uint64_t bytes = 0;
  for (const FileRecord& file : manifest->files)
    for (const TensorRecord& tensor : file.tensors) bytes += tensor.bytes;
  return deep ? 2 * bytes : bytes;
}

Result<VerifyReport> verify_folder(const std::string& path, const VerifyOptions& options) {
  const Clock::time_point begin = Clock::now();
  std::error_code code;
  if (!fs::exists(fmt::format("{}/{}", path, kManifestName), code))
    if (const Result<Manifest> manifest = read_manifest(path); !manifest) return manifest.why();
  VerifyReport report{.deep = options.deep};
  const auto timed = [&] {
    report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return report;
  };
  const Result<ConvertedFolder> folder = ConvertedFolder::open(path);
  if (!folder && !is_damage(folder.why())) return folder.why();
  if (!folder) {
    report.add(folder.why());
    return timed();
  }
  const Manifest& manifest = folder->manifest();
  report.layout = manifest.layout;
  report.generation = manifest.generation;
  report.backend = manifest.backend;
  report.layers = manifest.layers.size();
  report.files = manifest.files.size();
  for (const FileRecord& file : manifest.files) {
    report.tensors += file.tensors.size();
    report.bytes += file.bytes;
  }
  if (Result<Done> done = check_packers(*folder, report); !done) return done.why();
  if (Result<Done> done = check_tensors(*folder, options, report); !done) return done.why();
  if (Result<Done> done = check_companions(*folder, report); !done) return done.why();
  if (Result<Done> done = check_strangers(*folder, report); !done) return done.why();
  if (!options.deep || !report.findings.empty()) return timed();
  const std::string source =
      options.source.empty() ? find_source(path, manifest.source_path) : options.source;
  const Result<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::open(source);
  if (!checkpoint) {
    Error why = checkpoint.why();
    if (why.remedy.empty() || why.id == "store.open")
      why.remedy = "say where the source is now: --source PATH";
    return why;
  }
  if (Result<Done> done = compare_with_source(*folder, *checkpoint, options, report); !done)
    return done.why();
  return timed();
}

}  // namespace fp4moe::convert
