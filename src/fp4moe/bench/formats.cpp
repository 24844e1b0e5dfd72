#include "fp4moe/bench/formats.hpp"

#include <algorithm>
#include <cstring>

#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/formats/mxfp8.hpp"
#include "fp4moe/formats/nvfp4.hpp"
#include "fp4moe/kernels/cpu/block_codec_list.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"
#include "fp4moe/tensor/buffer.hpp"

namespace fp4moe::bench {
namespace {

using kernels::cpu::BlockCodec;
using kernels::cpu::DequantizeBlocks;
using kernels::cpu::Element;
using kernels::cpu::PackGguf;
using kernels::cpu::QuantizeBlocks;
using kernels::cpu::UnpackGguf;
using tensor::Buffer;

// The memory all jobs share: the values, their codes and scales, and GGUF blocks.
struct Arena {
  std::size_t wide_bytes = 0;
  Buffer values, copy, codes, scales, gguf;
};

// Sums of three uniform numbers, as bf16 or f32: the shape of real weights, good enough for speed.
void fill_values(std::span<std::uint8_t> to, Element element) {
  SplitMix64 random(1);
  const std::size_t size = element == Element::f32 ? 4 : 2;
  for (std::size_t i = 0; i + size <= to.size(); i += size) {
    const float value = random.unit() + random.unit() + random.unit() - 1.5f;
    const std::uint16_t code = formats::Bf16::encode(value);
    if (element == Element::f32)
      std::memcpy(&to[i], &value, size);
    else
      std::memcpy(&to[i], &code, size);
  }
}

Result<Arena> make_arena(std::size_t wide_bytes) {
  Arena arena{
      .wide_bytes = wide_bytes, .values = {}, .copy = {}, .codes = {}, .scales = {}, .gguf = {}};
  const std::pair<Buffer*, std::size_t> wanted[] = {
      {&arena.values, wide_bytes},
      {&arena.copy, wide_bytes},
      {&arena.codes, wide_bytes},
      {&arena.scales, wide_bytes / 16},
      {&arena.gguf, wide_bytes + wide_bytes / 8},
  };
  for (const auto& [buffer, bytes] : wanted) {
    Result<Buffer> created = Buffer::allocate(bytes);
    if (!created) return created.why();
    *buffer = std::move(*created);
    std::memset(buffer->data(), 1, buffer->size());  // resident before the clock starts
  }
  return arena;
}

std::uint8_t* at(Buffer& buffer, std::size_t offset) {
  return reinterpret_cast<std::uint8_t*>(buffer.data()) + offset;
}

// One line of the benchmark: the bytes a block has on its wide side, and how to run `count` blocks
// from `first` on.
struct Line {
  std::string operation, format, rule;
  Element element;
  std::size_t wide_block;
  std::function<void(const BlockCodec&, Arena&, std::size_t first, std::size_t count)> run;
};

struct Format {
  std::string_view name;
  std::size_t elements, code_bytes;
  void (*BlockCodec::*quantize)(const QuantizeBlocks&) noexcept;
  void (*BlockCodec::*dequantize)(const DequantizeBlocks&) noexcept;
};

constexpr Format kMxfp4{"mxfp4", 32, 16, &BlockCodec::quantize_mxfp4,
                        &BlockCodec::dequantize_mxfp4};
constexpr Format kNvfp4{"nvfp4", 16, 8, &BlockCodec::quantize_nvfp4, &BlockCodec::dequantize_nvfp4};
constexpr Format kMxfp8{"mxfp8", 32, 32, &BlockCodec::quantize_mxfp8,
                        &BlockCodec::dequantize_mxfp8};

std::size_t size_of(Element element) { return element == Element::f32 ? 4 : 2; }

Line quantize_line(const Format& format, Element element, std::string_view rule,
                   const QuantizeBlocks& settings) {
  const std::size_t wide = format.elements * size_of(element);
  return {"quantize",
          std::string(format.name),
          std::string(rule),
          element,
          wide,
          [=, kernel = format.quantize, code_bytes = format.code_bytes](
              const BlockCodec& codec, Arena& arena, std::size_t first, std::size_t count) {
            QuantizeBlocks work = settings;
            work.input = at(arena.values, first * wide);
            work.element = element;
            work.blocks = count;
            work.codes = at(arena.codes, first * code_bytes);
            work.scales = at(arena.scales, first);
            (codec.*kernel)(work);
          }};
}

Line dequantize_line(const Format& format, Element element) {
  const std::size_t wide = format.elements * size_of(element);
  return {"dequantize",
          std::string(format.name),
          "",
          element,
          wide,
          [=, kernel = format.dequantize, code_bytes = format.code_bytes](
              const BlockCodec& codec, Arena& arena, std::size_t first, std::size_t count) {
            (codec.*kernel)({.codes = at(arena.codes, first * code_bytes),
                             .scales = at(arena.scales, first),
                             .blocks = count,
                             .output = at(arena.copy, first * wide),
                             .element = element,
                             .global_scale = 2688.0f});
          }};
}

Line max_line(Element element) {
  const std::size_t wide = 32 * size_of(element);
  return {"max_magnitude",
          "",
          "",
          element,
          wide,
          [=](const BlockCodec& codec, Arena& arena, std::size_t first, std::size_t count) {
            const float largest = codec.max_magnitude(
                {.input = at(arena.values, first * wide), .element = element, .count = 32 * count});
            // Kept, so that nothing can be left out.
            *at(arena.scales, first) = largest > 0 ? 1 : 0;
          }};
}

// GGUF moves count codes and scales as their wide side.
Line pack_line(const Format& format, void (*BlockCodec::*kernel)(const PackGguf&) noexcept) {
  const std::size_t code_bytes = format.code_bytes;
  return {"pack_gguf",
          std::string(format.name),
          "",
          Element::bf16,
          code_bytes + 1,
          [=](const BlockCodec& codec, Arena& arena, std::size_t first, std::size_t count) {
            (codec.*kernel)({.codes = at(arena.codes, first * code_bytes),
                             .scales = at(arena.scales, first),
                             .blocks = count,
                             .gguf = at(arena.gguf, first * (code_bytes + 1))});
          }};
}

Line unpack_line(const Format& format, void (*BlockCodec::*kernel)(const UnpackGguf&) noexcept) {
  const std::size_t code_bytes = format.code_bytes;
  return {"unpack_gguf",
          std::string(format.name),
          "",
          Element::bf16,
          code_bytes + 1,
          [=](const BlockCodec& codec, Arena& arena, std::size_t first, std::size_t count) {
            (codec.*kernel)({.gguf = at(arena.gguf, first * (code_bytes + 1)),
                             .blocks = count,
                             .codes = at(arena.codes, first * code_bytes),
                             .scales = at(arena.scales, first)});
          }};
}

std::vector<Line> lines_of(Element element) {
  std::vector<Line> lines;
  for (const formats::Mxfp4RuleRow& row : formats::kMxfp4Rules)
    if (kernels::cpu::mxfp4_recipe(row.rule) != nullptr)
      lines.push_back(quantize_line(kMxfp4, element, row.name, {.mxfp4_rule = row.rule}));
  lines.push_back(quantize_line(kNvfp4, element, name(formats::Nvfp4Rule::reference),
                                {.global_scale = 2688.0f / 1.5f}));
  lines.push_back(quantize_line(kMxfp8, element, name(formats::Mxfp8Rule::ceil448), {}));
  for (const Format& format : {kMxfp4, kNvfp4, kMxfp8})
    lines.push_back(dequantize_line(format, element));
  lines.push_back(max_line(element));
  if (element != Element::bf16) return lines;
  lines.push_back(pack_line(kMxfp4, &BlockCodec::pack_gguf_mxfp4));
  lines.push_back(unpack_line(kMxfp4, &BlockCodec::unpack_gguf_mxfp4));
  lines.push_back(pack_line(kNvfp4, &BlockCodec::pack_gguf_nvfp4));
  lines.push_back(unpack_line(kNvfp4, &BlockCodec::unpack_gguf_nvfp4));
  return lines;
}

// The blocks of a line that fit the arena; the slow reference gets a small part of them.
std::size_t blocks_of(const Line& line, const Arena& arena, bool is_portable) {
  const std::size_t fitting = std::min(arena.wide_bytes / line.wide_block, arena.scales.size());
  const std::size_t wanted = fitting / (is_portable ? 16 : 1);
  return wanted / 64 * 64;
}

Result<Done> bench_line(const Line& line, Arena& arena, const FormatsOptions& options,
                        double seconds, std::vector<FormatResult>& results) {
  const auto codecs = kernels::cpu::block_codecs();
  const BlockCodec& best = kernels::cpu::pick(codecs, options.features);
  const BlockCodec& portable = codecs.back();
  std::vector<const BlockCodec*> chosen{&best};
  if (&best != &portable) chosen.push_back(&portable);

  std::vector<Job> jobs;
  const std::size_t copied = blocks_of(line, arena, false) * line.wide_block;
  jobs.push_back({"memcpy", static_cast<double>(copied), [&arena, &options, copied] {
                    return in_parts(options.threads, copied, 4096,
                                    [&arena](std::size_t first, std::size_t count) {
                                      std::memcpy(at(arena.copy, first), at(arena.values, first),
                                                  count);
                                    });
                  }});
  for (const BlockCodec* codec : chosen) {
    const std::size_t blocks = blocks_of(line, arena, codec == &portable);
    jobs.push_back({std::string(codec->name), static_cast<double>(blocks * line.wide_block),
                    [&line, &arena, &options, codec, blocks] {
                      return in_parts(options.threads, blocks, 64,
                                      [&](std::size_t first, std::size_t count) {
                                        line.run(*codec, arena, first, count);
                                      });
                    }});
  }
  const auto timings = measure(jobs, {.seconds = seconds});
  if (!timings) return timings.why();
  for (std::size_t i = 0; i < chosen.size(); ++i)
    results.push_back({.operation = line.operation,
                       .format = line.format,
                       .rule = line.rule,
                       .element = line.operation.ends_with("gguf") ? ""
                                  : line.element == Element::f32   ? "f32"
                                                                   : "bf16",
                       .kernel = jobs[i + 1].name,
                       .timing = (*timings)[i + 1],
                       .memcpy_gb_per_s = timings->front().rate()});
  return Done{};
}

}  // namespace

Result<std::vector<FormatResult>> bench_formats(const FormatsOptions& options) {
  Result<Arena> arena = make_arena(options.megabytes << 20);
  if (!arena) return arena.why();
  std::vector<FormatResult> results;
  constexpr Element kMeasured[] = {Element::bf16, Element::f32};
  const std::size_t count = lines_of(Element::bf16).size() + lines_of(Element::f32).size();
  for (const Element element : kMeasured) {
    fill_values({at(arena->values, 0), arena->values.size()}, element);
    for (const Line& line : lines_of(element)) {
      const double seconds = options.seconds / static_cast<double>(count);
      if (const auto done = bench_line(line, *arena, options, seconds, results); !done)
        return done.why();
    }
  }
  return results;
}

Json to_json(const FormatResult& result, std::size_t threads) {
  Json object{{"operation", result.operation}};
  const auto add = [&object](const char* key, const std::string& value) {
    if (!value.empty()) object[key] = value;
  };
  add("format", result.format);
  add("rule", result.rule);
  add("element", result.element);
  object["kernel"] = result.kernel;
  object["threads"] = threads;
  add_times(object, result.timing);
  object["gb_per_s"] = rounded(result.timing.rate());
  object["memcpy_gb_per_s"] = rounded(result.memcpy_gb_per_s);
  object["share_of_memcpy"] = rounded(result.share_of_memcpy());
  return object;
}

}  // namespace fp4moe::bench
