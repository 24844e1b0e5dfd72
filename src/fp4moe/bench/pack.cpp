#include "fp4moe/bench/pack.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/parallel.hpp"
#include "fp4moe/base/random.hpp"
#include "fp4moe/convert/pack/layer_packer.hpp"
#include "fp4moe/tensor/buffer.hpp"

namespace fp4moe::bench {
namespace {

using checkpoint::ExpertView;
using checkpoint::RowsView;
using convert::LayerPacker;
using convert::PackPath;
using layout::Layout;
using layout::Sizes;
using tensor::Buffer;

constexpr Sizes kReal{2880, 2880};                 // gpt-oss
constexpr Sizes kReference{2880, 256};             // what the map is asked for: it takes its time
constexpr std::uint64_t kSteps[] = {1, 128, 256};  // multiples that sizes are padded to, if need be

std::uint64_t scale_bytes(layout::WeightFormat format, Sizes sizes) {
  return 3 * sizes.intermediate * sizes.hidden / formats::block_size(format);
}
std::uint64_t source_bytes(layout::WeightFormat format, Sizes sizes) {
  return 3 * sizes.intermediate * sizes.hidden / 2 + scale_bytes(format, sizes);
}

// An expert's matrices one after another: w13 codes, w13 scales, w2 codes, w2 scales.
ExpertView view_of(layout::WeightFormat format, Sizes sizes, const std::byte* at) {
  const bool interleaved = format == layout::WeightFormat::mxfp4;
  ExpertView view;
  view.shape = {
      .format = format,
      .experts = 1,
      .hidden = sizes.hidden,
      .intermediate = sizes.intermediate,
      .order = interleaved ? checkpoint::RowOrder::interleaved : checkpoint::RowOrder::halves};
  const auto w13 = [&](std::uint64_t row_bytes, bool is_up) {
    return RowsView{
        .data = at + (is_up ? (interleaved ? row_bytes : row_bytes * sizes.intermediate) : 0),
        .rows = sizes.intermediate,
        .row_bytes = row_bytes,
        .stride = interleaved ? 2 * row_bytes : row_bytes};
  };
  const std::uint64_t block = formats::block_size(format);
  for (const std::uint64_t per : {std::uint64_t{2}, block}) {
    const std::uint64_t row = sizes.hidden / per, row2 = sizes.intermediate / per;
    (per == 2 ? view.gate.codes : view.gate.scales) = w13(row, false);
    (per == 2 ? view.up.codes : view.up.scales) = w13(row, true);
    at += 2 * sizes.intermediate * row;
    (per == 2 ? view.down.codes : view.down.scales) = {at, sizes.hidden, row2, row2};
    at += sizes.hidden * row2;
  }
  view.gate.input_scale = view.up.input_scale = view.down.input_scale = 1.0f;
  return view;
}

// Any codes, and scales that every layout takes.
void fill(std::span<std::byte> expert, layout::WeightFormat format, Sizes sizes,
          std::uint64_t seed) {
  SplitMix64 random(seed);
  const ExpertView view = view_of(format, sizes, expert.data());
  for (std::size_t i = 0; i + 8 <= expert.size(); i += 8) {
    const std::uint64_t bits = random.next();
    std::memcpy(expert.data() + i, &bits, sizeof bits);
  }
  const auto tame = [&](const std::byte* first, std::uint64_t size) {
    std::byte* scales = expert.data() + (first - expert.data());
    for (std::uint64_t i = 0; i < size; ++i)
      scales[i] = static_cast<std::byte>((std::to_integer<unsigned>(scales[i]) & 31u) + 64);
  };
  tame(view.gate.scales.data, 2 * sizes.intermediate * view.gate.scales.row_bytes);
  tame(view.down.scales.data, sizes.hidden * view.down.scales.row_bytes);
}

// The packer for the first padding that the layout takes.
Result<LayerPacker> packer_for(const Layout& layout, Sizes sizes, std::uint64_t experts) {
  Result<LayerPacker> created = usage("bench.layout", "no size was tried");
  for (const std::uint64_t step : kSteps) {
    convert::Problem problem{
        .experts = experts,
        .real = sizes,
        .padded = {round_up(sizes.hidden, step), round_up(sizes.intermediate, step)},
        .order = layout.format == layout::WeightFormat::mxfp4 ? checkpoint::RowOrder::interleaved
                                                              : checkpoint::RowOrder::halves};
    created = LayerPacker::make(layout, problem);
    if (created) break;
  }
  return created;
}

// One layout's work: experts in `source`, packed to `target` and back to `back`.
struct Bench {
  LayerPacker packer;
  Sizes sizes{};
  std::uint64_t experts = 0;
  Buffer* source = nullptr;
  Buffer* target = nullptr;
  Buffer* back = nullptr;

  std::uint64_t source_step() const { return source_bytes(packer.layout().format, sizes); }

  std::vector<std::span<std::byte>> spans(std::uint64_t expert) const {
    std::vector<std::span<std::byte>> created;
    std::byte* at = target->data() + expert * packer.expert_bytes();
    for (const convert::PackedTensorSpec& tensor : packer.tensors()) {
      created.emplace_back(at, tensor.expert_bytes);
      at += tensor.expert_bytes;
    }
    return created;
  }
  Result<Done> pack(std::size_t threads, PackPath path) {
    const layout::WeightFormat format = packer.layout().format;
    const auto view = [&](std::size_t e) {
      return view_of(format, sizes, source->data() + e * source_step());
    };
    if (packer.needs_all_experts()) {
      const Result<Done> noted =
          parallel_for(threads, experts, [&](std::size_t e) { return packer.note(e, view(e)); });
      if (!noted) return noted;
    }
    return parallel_for(threads, experts,
                        [&](std::size_t e) { return packer.pack(e, view(e), spans(e), path); });
  }
  Result<Done> unpack(std::size_t threads) {
    return parallel_for(threads, experts, [&](std::size_t e) {
      const ExpertView rows =
          view_of(packer.layout().format, sizes, back->data() + e * source_step());
      const auto storage = [&](const RowsView& view) {
        return checkpoint::RowsBuffer{back->data() + (view.data - back->data()), view.stride};
      };
      LayerPacker::ExpertTarget to;
      to.buffers.gate = {storage(rows.gate.codes), storage(rows.gate.scales)};
      to.buffers.up = {storage(rows.up.codes), storage(rows.up.scales)};
      to.buffers.down = {storage(rows.down.codes), storage(rows.down.scales)};
      std::vector<std::span<const std::byte>> from;
      for (const std::span<std::byte> span : spans(e)) from.emplace_back(span);
      return packer.unpack(e, from, to);
    });
  }
};

Result<Done> copy(std::size_t threads, Buffer& from, Buffer& to, std::uint64_t step,
                  std::uint64_t count) {
  return parallel_for(threads, count, [&](std::size_t e) -> Result<Done> {
    std::memcpy(to.data() + e * step, from.data() + e * step, step);
    return Done{};
  });
}

Result<double> map_rate(const Layout& layout, Buffer& source, Buffer& target) {
  Result<LayerPacker> packer = packer_for(layout, kReference, 1);
  if (!packer) return packer.why();
  fill(source.bytes().first(source_bytes(layout.format, kReference)), layout.format, kReference, 1);
  Bench bench{*std::move(packer), kReference, 1, &source, &target, nullptr};
  const auto begin = std::chrono::steady_clock::now();
  if (Result<Done> done = bench.pack(1, PackPath::map); !done) return done.why();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(bench.source_step()) / took.count() / 1e9;
}

}  // namespace

Result<std::vector<PackResult>> bench_pack(const PackOptions& options) {
  std::vector<const Layout*> wanted;
  for (const Layout& layout : backends::layouts())
    if (options.layout.empty() || options.layout == layout.id) wanted.push_back(&layout);
  if (wanted.empty()) return backends::require_layout(options.layout, {}).why();

  const std::uint64_t one = source_bytes(layout::WeightFormat::nvfp4, kReal);
  const std::uint64_t experts =
      std::max<std::uint64_t>(options.threads, (options.megabytes << 20) / one);
  Buffer memory[3];
  for (Buffer& buffer : memory) {
    Result<Buffer> created = Buffer::allocate(experts * one + experts * one / 3);
    if (!created) return created.why();
    buffer = *std::move(created);
    std::memset(buffer.data(), 1, buffer.size());  // resident before the clock starts
  }
  std::vector<PackResult> results;
  for (const Layout* layout : wanted) {
    const Result<double> map = map_rate(*layout, memory[0], memory[1]);
    if (!map) return map.why();
    Result<LayerPacker> packer = packer_for(*layout, kReal, experts);
    if (!packer) return packer.why();
    Bench bench{*std::move(packer), kReal, experts, &memory[0], &memory[1], &memory[2]};
    for (std::uint64_t e = 0; e < experts; ++e)
      fill(memory[0].bytes().subspan(e * bench.source_step(), bench.source_step()), layout->format,
           kReal, e);
    const auto work = static_cast<double>(experts * bench.source_step());
    const Job jobs[] = {
        {"memcpy", work,
         [&] { return copy(options.threads, memory[0], memory[2], bench.source_step(), experts); }},
        {"pack", work, [&] { return bench.pack(options.threads, PackPath::fast); }},
        {"unpack", work, [&] { return bench.unpack(options.threads); }}};
    const auto timings =
        measure(jobs, {.seconds = options.seconds / static_cast<double>(wanted.size())});
    if (!timings) return timings.why();
    const Sizes padded = bench.packer.problem().padded;
    results.push_back({.layout = std::string(layout->id),
                       .generation = std::string(layout->generation),
                       .format = std::string(name(layout->format)),
                       .recodes = layout->scale_transform != nullptr ||
                                  layout->codes.code != nullptr || layout->has_no_negative_zero,
                       .hidden = kReal.hidden,
                       .intermediate = kReal.intermediate,
                       .experts = experts,
                       .padded = padded == kReal
                                     ? std::string()
                                     : fmt::format("{} x {}", padded.intermediate, padded.hidden),
                       .pack = (*timings)[1],
                       .unpack = (*timings)[2],
                       .memcpy_gb_per_s = (*timings)[0].rate(),
                       .map_gb_per_s = *map * static_cast<double>(options.threads)});
  }
  return results;
}

Json to_json(const PackResult& result, std::size_t threads) {
  Json created{{"layout", result.layout},
               {"generation", result.generation},
               {"format", result.format},
               {"recodes", result.recodes},
               {"hidden", result.hidden},
               {"intermediate", result.intermediate},
               {"experts", result.experts},
               {"padded", result.padded},
               {"threads", threads},
               {"gb_per_s", rounded(result.pack.rate())},
               {"unpack_gb_per_s", rounded(result.unpack.rate())},
               {"memcpy_gb_per_s", rounded(result.memcpy_gb_per_s)},
               {"share_of_memcpy", rounded(result.share_of_memcpy())},
               {"map_gb_per_s", result.map_gb_per_s},
               {"times_map", rounded(result.times_map())}};
  add_times(created, result.pack);
  return created;
}

}  // namespace fp4moe::bench
