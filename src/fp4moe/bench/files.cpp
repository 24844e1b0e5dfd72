#include "fp4moe/bench/files.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include <fcntl.h>
#include <unistd.h>

#include "fp4moe/base/parallel.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/edit/transcode.hpp"
#include "fp4moe/checkpoint/models.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "fp4moe/checkpoint/write/expert_layout.hpp"
#include "fp4moe/kernels/cpu/ceiling_list.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"
#include "fp4moe/tensor/buffer.hpp"
#include "fp4moe/tensor/files/folder_tree.hpp"
#include "fp4moe/tensor/files/mapped_file.hpp"

namespace fp4moe::bench {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::Dialect;
using tensor::Buffer;
using tensor::MappedFile;

// A folder of our own that goes away with us.
class Scratch {
 public:
  static Result<Scratch> create(const std::string& parent) {
    std::string name = (parent.empty() ? fs::temp_directory_path().string() : parent);
    name += "/fp4moe-bench-XXXXXX";
    if (mkdtemp(name.data()) == nullptr)
      return system_error("bench.scratch", "cannot make a folder for the benchmark", errno)
          .in(name);
    return Scratch(name);
  }
  Scratch(Scratch&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  Scratch& operator=(Scratch&&) = delete;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (!path_.empty()) tensor::remove_folder(path_);
  }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  explicit Scratch(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Experts of a checkpoint, in order of layers, up to a number of bytes.
struct ExpertList {
  struct ExpertIndex {
    std::size_t layer;
    std::uint64_t expert;
  };
  std::vector<ExpertIndex> places{};
  std::uint64_t expert_bytes = 0;  // in the target's layout, the largest
};

ExpertList choose_experts(const Checkpoint& source, const checkpoint::TranscodePlan& plan,
                          std::uint64_t max_bytes) {
  ExpertList chosen;
  for (std::size_t layer = 0; layer < plan.checkpoint.layers.size(); ++layer) {
    const checkpoint::MoeShape& shape = plan.checkpoint.layers[layer].shape;
    const std::uint64_t bytes =
        checkpoint::expert_layout(plan.checkpoint.row, shape, plan.checkpoint.bias_dtype).bytes();
    chosen.expert_bytes = std::max(chosen.expert_bytes, bytes);
    for (std::uint64_t expert = 0; expert < source.layers()[layer].shape.experts; ++expert) {
      if (!chosen.places.empty() && (chosen.places.size() + 1) * chosen.expert_bytes > max_bytes)
        return chosen;
      chosen.places.push_back({layer, expert});
    }
  }
  return chosen;
}

// Reads and lays out one expert.
Result<Done> convert(checkpoint::ExpertReader& reader, const checkpoint::CheckpointPlan& plan,
                     ExpertList::ExpertIndex place, std::span<std::byte> out) {
  const checkpoint::ExpertLayout layout =
      checkpoint::expert_layout(plan.row, plan.layers[place.layer].shape, plan.bias_dtype);
  const std::span<std::byte> to = out.first(layout.bytes());
  checkpoint::ExpertBuffers buffers;
  if (!plan.row.needs_unpacking()) buffers = checkpoint::buffers_in(layout, to);
  const auto view =
      reader.read(place.layer, place.expert, plan.row.needs_unpacking() ? nullptr : &buffers);
  if (!view) return view.why();
  return checkpoint::lay_out_expert(layout, {.view = *view}, to);
}

// Experts are handed out one by one; every worker has its own reader.
Job to_memory_job(const Checkpoint& source, const checkpoint::TranscodePlan& plan,
                  const ExpertList& experts, Buffer& out, std::size_t threads) {
  const std::size_t count = experts.places.size();
  const std::uint64_t bytes = experts.expert_bytes;
  return {std::string(plan.checkpoint.row.name), static_cast<double>(count * bytes),
          [&source, &plan, &experts, &out, threads, count, bytes] {
            const std::size_t workers = std::min(threads, count);
            std::atomic<std::size_t> next{0};
            return parallel_for(workers, workers, [&](std::size_t) -> Result<Done> {
              checkpoint::ExpertReader reader(source, {});
              for (std::size_t i = next++; i < count; i = next++) {
                const auto done = convert(reader, plan.checkpoint, experts.places[i],
                                          out.bytes().subspan(i * bytes, bytes));
                if (!done) return done.why();
              }
              return Done{};
            });
          }};
}

Job memcpy_job(const Buffer& from, Buffer& to, std::size_t bytes, std::size_t threads) {
  return {"memcpy", static_cast<double>(bytes), [&from, &to, bytes, threads] {
            return in_parts(threads, bytes, 4096, [&](std::size_t first, std::size_t count) {
              std::memcpy(to.data() + first, from.data() + first, count);
            });
          }};
}

// The files of a checkpoint, at most `max_bytes` of them, as one run of bytes after another.
std::vector<std::span<const std::byte>> mapped_bytes(const Checkpoint& source,
                                                     std::uint64_t max_bytes) {
  std::vector<std::span<const std::byte>> parts;
  for (const MappedFile& file : source.store().files()) {
    const auto whole = file.bytes();
    const std::size_t take =
        std::min<std::uint64_t>(whole.size(), max_bytes) / 4096 * 4096;  // whole pages
    parts.push_back(whole.first(take));
    max_bytes -= take;
  }
  return parts;
}

Job mmap_read_job(const std::vector<std::span<const std::byte>>& parts,
                  const FilesOptions& options) {
  double bytes = 0;
  for (const auto part : parts) bytes += static_cast<double>(part.size());
  const auto& reader = kernels::cpu::pick(kernels::cpu::read_kernels(), options.features);
  return {"mmap_read", bytes, [&parts, &options, &reader]() -> Result<Done> {
            std::atomic<std::uint64_t> checksum{0};
            for (const auto part : parts) {
              const auto done = in_parts(options.threads, part.size(), 4096,
                                         [&](std::size_t first, std::size_t count) {
                                           checksum ^= reader.run(part.data() + first, count);
                                         });
              if (!done) return done.why();
            }
            return Done{};
          }};
}

Job mmap_copy_job(const std::vector<std::span<const std::byte>>& parts, Buffer& to,
                  const FilesOptions& options) {
  double bytes = 0;
  for (const auto part : parts) bytes += static_cast<double>(part.size());
  return {"mmap_copy", bytes, [&parts, &to, &options]() -> Result<Done> {
            std::size_t offset = 0;
            for (const auto part : parts) {
              std::byte* out = to.data() + offset;
              const auto done = in_parts(options.threads, part.size(), 4096,
                                         [&](std::size_t first, std::size_t count) {
                                           std::memcpy(out + first, part.data() + first, count);
                                         });
              if (!done) return done.why();
              offset += part.size();
            }
            return Done{};
          }};
}

// A plain copy: read, write, flush. One thread, like cp.
Result<Done> copy_file(const std::string& from, const std::string& to) {
  const Result<MappedFile> source = MappedFile::open(from);
  if (!source) return source.why();
  const int file = ::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return system_error("bench.copy", "cannot create a copy", errno).in(to);
  int failed = 0;
  for (auto rest = source->bytes(); !rest.empty() && failed == 0;) {
    const std::size_t piece = std::min<std::size_t>(rest.size(), std::size_t{8} << 20);
    const ssize_t written = ::write(file, rest.data(), piece);
    if (written < 0)
      failed = errno;
    else
      rest = rest.subspan(static_cast<std::size_t>(written));
  }
  if (failed == 0 && fsync(file) != 0) failed = errno;
  if (::close(file) != 0 && failed == 0) failed = errno;
  if (failed != 0) return system_error("bench.copy", "cannot write a copy", failed).in(to);
  return Done{};
}

std::uint64_t file_bytes(const Checkpoint& source) {
  std::uint64_t bytes = 0;
  for (const MappedFile& file : source.store().files()) bytes += file.bytes().size();
  return bytes;
}

Job file_copy_job(const Checkpoint& source, const Scratch& scratch) {
  return {"copy", static_cast<double>(file_bytes(source)), [&source, &scratch]() -> Result<Done> {
            std::size_t number = 0;
            for (const MappedFile& file : source.store().files()) {
              const std::string to = scratch.file("copy-" + std::to_string(number++));
              if (const auto done = copy_file(file.path(), to); !done) return done.why();
              std::error_code ignored;
              fs::remove(to, ignored);
            }
            return Done{};
          }};
}

Job to_file_job(const Checkpoint& source, Dialect target, const Scratch& scratch,
                std::size_t threads) {
  return {std::string(name(target)), static_cast<double>(file_bytes(source)),
          [&source, &scratch, target, threads]() -> Result<Done> {
            const std::string out = scratch.file("converted");
            const auto done = checkpoint::transcode(source, target, out, {.threads = threads});
            if (!done) return done.why();
            tensor::remove_folder(out);
            return Done{};
          }};
}

struct Target {
  Dialect dialect;
  checkpoint::TranscodePlan plan;
  ExpertList experts;
};

// Every dialect the source can be written in; refusals are not of interest here.
std::vector<Target> targets_of(const Checkpoint& source, std::uint64_t max_bytes) {
  std::vector<Target> targets;
  for (const checkpoint::DialectRow& row : checkpoint::dialects()) {
    if (std::ranges::any_of(targets, [&](const Target& t) { return t.dialect == row.dialect; }))
      continue;
    Result<checkpoint::TranscodePlan> plan = checkpoint::plan_transcode(source, row.dialect);
    if (!plan) continue;
    ExpertList experts = choose_experts(source, *plan, max_bytes);
    targets.push_back({row.dialect, *std::move(plan), std::move(experts)});
  }
  return targets;
}

void report(std::vector<FileResult>& results, const Checkpoint& source, std::span<const Job> jobs,
            std::span<const Timing> timings) {
  for (std::size_t i = 1; i < jobs.size(); ++i) {
    const bool is_read = jobs[i].name.starts_with("mmap_");
    results.push_back({.operation = is_read ? jobs[i].name : "to_memory",
                       .format = std::string(checkpoint::name(source.dialect().format)),
                       .from = std::string(source.dialect().name),
                       .to = is_read ? "" : jobs[i].name,
                       .timing = timings[i],
                       .copy_gb_per_s = timings[0].rate()});
  }
}

Result<Done> bench_source(const std::string& path, const Scratch& scratch,
                          const FilesOptions& options, std::vector<FileResult>& results) {
  const Result<Checkpoint> source = Checkpoint::open(path);
  if (!source) return source.why();
  const std::uint64_t max = options.megabytes << 20;
  const std::vector<Target> targets = targets_of(*source, max);
  const auto parts = mapped_bytes(*source, max);
  std::size_t mapped = 0;
  for (const auto part : parts) mapped += part.size();
  std::uint64_t bytes = mapped;
  for (const Target& target : targets)
    bytes = std::max(bytes, target.experts.places.size() * target.experts.expert_bytes);
  Result<Buffer> from = Buffer::allocate(mapped);
  if (!from) return from.why();
  Result<Buffer> to = Buffer::allocate(bytes);
  if (!to) return to.why();
  std::memset(from->data(), 1, from->size());
  std::memset(to->data(), 1, to->size());

  std::vector<Job> jobs{memcpy_job(*from, *to, mapped, options.threads),
                        mmap_read_job(parts, options), mmap_copy_job(parts, *to, options)};
  for (const Target& target : targets)
    jobs.push_back(to_memory_job(*source, target.plan, target.experts, *to, options.threads));
  const auto timings = measure(jobs, {.min = 5, .seconds = options.seconds / 2});
  if (!timings) return timings.why();
  report(results, *source, jobs, *timings);
  // Writing a large checkpoint again and again takes too long.
  if (!options.path.empty() && file_bytes(*source) > 2 * max) return Done{};

  std::vector<Job> writes{file_copy_job(*source, scratch)};
  for (const Target& target : targets)
    writes.push_back(to_file_job(*source, target.dialect, scratch, options.threads));
  const auto written = measure(writes, {.min = 3, .seconds = options.seconds / 2});
  if (!written) return written.why();
  for (std::size_t i = 1; i < writes.size(); ++i)
    results.push_back({.operation = "to_file",
                       .format = std::string(checkpoint::name(source->dialect().format)),
                       .from = std::string(source->dialect().name),
                       .to = writes[i].name,
                       .timing = (*written)[i],
                       .copy_gb_per_s = written->front().rate()});
  return Done{};
}

// Shapes of the two formats' best-known models, as many experts as the size allows.
Result<std::string> make_source(Dialect dialect, checkpoint::WeightFormat format,
                                const Scratch& scratch, const FilesOptions& options) {
  const std::string model =
      format == checkpoint::WeightFormat::mxfp4 ? "gpt-oss-20b" : "qwen3-30b-a3b";
  const checkpoint::ModelRow* row = checkpoint::find_model(model);
  // Three matrices of half a byte and one scale byte for every 16 or 32 elements.
  const std::uint64_t expert_bytes = row->hidden * row->intermediate * 3 * 9 / 16;
  const std::uint64_t experts =
      std::max<std::uint64_t>(1, (options.megabytes << 20) / expert_bytes);
  const std::string path = scratch.file("source");
  const auto created = checkpoint::synth({.model = model,
                                          .dialect = dialect,
                                          .format = format,
                                          .experts = experts,
                                          .with_other_tensors = false,
                                          .threads = options.threads},
                                         path);
  if (!created) return created.why();
  return path;
}

// True if other dialects can be made of this one; not of DeepSeek's own.
bool is_source(const checkpoint::DialectRow& row) {
  return row.dialect != Dialect::deepseek_v4 &&
         checkpoint::find_row(row.dialect, row.format) == &row;
}

}  // namespace

Result<std::vector<FileResult>> bench_files(const FilesOptions& options) {
  const Result<Scratch> scratch = Scratch::create(options.scratch);
  if (!scratch) return scratch.why();
  std::vector<FileResult> results;
  if (!options.path.empty()) {
    const auto done = bench_source(options.path, *scratch, options, results);
    if (!done) return done.why();
    return results;
  }
  for (const checkpoint::DialectRow& row : checkpoint::dialects()) {
    if (!is_source(row)) continue;
    const auto path = make_source(row.dialect, row.format, *scratch, options);
    if (!path) return path.why();
    if (const auto done = bench_source(*path, *scratch, options, results); !done) return done.why();
    tensor::remove_folder(*path);
  }
  return results;
}

Json to_json(const FileResult& result, std::size_t threads) {
  Json object{{"operation", result.operation}, {"format", result.format}, {"from", result.from}};
  if (!result.to.empty()) object["to"] = result.to;
  object["threads"] = threads;
  add_times(object, result.timing);
  object["gb_per_s"] = rounded(result.timing.rate());
  const bool to_file = result.operation == "to_file";
  object[to_file ? "file_copy_gb_per_s" : "memcpy_gb_per_s"] = rounded(result.copy_gb_per_s);
  object[to_file ? "share_of_file_copy" : "share_of_memcpy"] = rounded(result.share_of_copy());
  return object;
}

}  // namespace fp4moe::bench
