#include "fp4moe/checkpoint/write/copy_checkpoint.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <set>

#include <sys/stat.h>

#include "fp4moe/base/folder_names.hpp"

namespace fp4moe::checkpoint {
namespace {

Result<Done> read_records(const std::string& text, const std::string& path, ExactScales& all) {
  const auto malformed = [&](std::string_view found) {
    return invalid("write.exact_scales", "the record of exact scales is malformed")
        .in(path)
        .at(kExactScalesKey)
        .expects("an object of tensor names and 8 hexadecimal digits each", found);
  };
  const Result<Json> records = parse_json(text);
  if (!records) return malformed(records.why().message);
  if (!records->is_object()) return malformed("something else");
  for (const auto& [name, value] : records->items()) {
    const std::string digits = value.is_string() ? value.string() : std::string();
    std::uint32_t bits = 0;
    const auto [end, status] =
        std::from_chars(digits.data(), digits.data() + digits.size(), bits, 16);
    if (digits.size() != 8 || status != std::errc() || end != digits.data() + digits.size())
      return malformed("a bad value for " + name);
    all[name] = bits;
  }
  return Done{};
}

}  // namespace

Result<ExactScales> read_exact_scales(const tensor::Store& source) {
  ExactScales all;
  const std::string key(kExactScalesKey);
  for (std::size_t i = 0; i < source.metadata().size(); ++i) {
    const auto found = source.metadata()[i].find(key);
    if (found == source.metadata()[i].end()) continue;
    if (Result<Done> done = read_records(found->second, source.files()[i].path(), all); !done)
      return done.why();
  }
  for (const tensor::GgufField& field : source.gguf_fields()) {
    const auto* text = field.key == key ? std::get_if<std::string>(&field.value) : nullptr;
    if (text == nullptr) continue;
    if (Result<Done> done = read_records(*text, source.files()[0].path(), all); !done)
      return done.why();
  }
  return all;
}

Result<std::vector<FileCopy>> companion_files(const tensor::Store& source,
                                              const std::vector<std::string>& without) {
  constexpr std::uint64_t kSmall = std::uint64_t{256} << 20;
  std::vector<FileCopy> files;
  const std::string folder = source.folder();
  std::vector<std::string> names;
  if (const int why = add_names_in(folder, names); why != 0)
    return system_error("folder.list", "cannot list", why).in(folder);
  for (const std::string& name : names) {
    if (name.starts_with(".") || name.ends_with(".safetensors") || name.ends_with(".gguf") ||
        name.ends_with(".index.json") || name.ends_with(".bin"))
      continue;
    if (std::ranges::find(without, name) != without.end()) continue;
    const std::string path = folder + "/" + name;
    struct stat own {};
    struct stat status {};
    const bool is_seen = lstat(path.c_str(), &own) == 0 && stat(path.c_str(), &status) == 0;
    const bool is_link = S_ISLNK(own.st_mode);
    if (!is_seen) {
      // A name that leads to nothing holds nothing to copy.
      if (errno == ENOENT || (is_link && (errno == ELOOP || source.is_one_file()))) continue;
      return system_error("file.open", "cannot stat", errno).in(path);
    }
    if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) > kSmall) continue;
    if (is_link) {
      const Result<std::string> inside = tensor::file_inside(folder, name);
      if (!inside && !source.is_one_file()) return inside.why();
      if (!inside) continue;
    }
    files.push_back({.name = name, .from = path});
  }
  return files;
}

Result<CheckpointPlan> plan_copy(const tensor::Store& source, const CheckpointEdits& edits,
                                 std::uint64_t max_shard_bytes) {
  if (const auto files = source.require_files(); !files) return files.why();
  std::map<std::string_view, const NewTensor*> put;
  for (const NewTensor& tensor : edits.put) {
    if (tensor::byte_count(tensor.spec.dtype, tensor.spec.shape) != tensor.bytes.size())
      return usage("copy.size", "the bytes given do not fill the tensor")
          .at(tensor.spec.name)
          .expects(
              std::string(tensor::name(tensor.spec.dtype)) + " " + tensor::text(tensor.spec.shape),
              std::to_string(tensor.bytes.size()) + " bytes");
    put[tensor.spec.name] = &tensor;
  }
  const std::set<std::string_view> remove(edits.remove.begin(), edits.remove.end());
  for (const std::string_view name : remove)
    if (source.find(name) == nullptr)
      return usage("copy.missing", "there is no such tensor to remove").at(name);

  const bool is_gguf = source.kind() == tensor::StoreKind::gguf;
  // Without layers only the kind of file matters.
  CheckpointPlan plan{
      .row = *find_row(is_gguf ? Dialect::gguf : Dialect::gpt_oss, WeightFormat::mxfp4)};
  plan.source = &source;
  plan.max_shard_bytes = max_shard_bytes;
  plan.documents = edits.documents;
  for (const tensor::StoredTensor& tensor : source.tensors()) {
    if (remove.contains(tensor.entry.name)) continue;
    const auto found = put.find(tensor.entry.name);
    if (found != put.end()) {
      plan.others.push_back({.spec = found->second->spec, .bytes = found->second->bytes});
      put.erase(found);
      continue;
    }
    plan.others.push_back(
        {.spec = {tensor.entry.name, tensor.entry.dtype, tensor.entry.shape},
         .pieces = {{.tensor = &tensor, .begin = 0, .bytes = tensor.entry.bytes}}});
  }
  for (const auto& [name, added] : put)
    plan.others.push_back({.spec = added->spec, .bytes = added->bytes});
  Result<ExactScales> scales = read_exact_scales(source);
  if (!scales) return scales.why();
  if (is_gguf) {
    plan.gguf_fields.assign(source.gguf_fields().begin(), source.gguf_fields().end());
  } else {
    plan.exact_scales = *std::move(scales);
  }
  std::vector<std::string> written;
  for (const auto& document : edits.documents) written.push_back(document.first);
  Result<std::vector<FileCopy>> files = companion_files(source, written);
  if (!files) return files.why();
  plan.files = *std::move(files);
  return plan;
}

Result<Done> copy_checkpoint(const tensor::Store& source, const std::string& out,
                             const CheckpointEdits& edits, const CopyOptions& options) {
  Result<CheckpointPlan> plan = plan_copy(source, edits, options.max_shard_bytes);
  if (!plan) return plan.why();
  plan->is_checked = options.is_checked;
  Result<CheckpointWriter> writer = CheckpointWriter::create(out, *std::move(plan));
  if (!writer) return writer.why();
  if (Result<Done> done = writer->copy_others(options.threads, options.progress); !done)
    return done;
  return writer->finish();
}

}  // namespace fp4moe::checkpoint
