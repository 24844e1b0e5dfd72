#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/checkpoint/gguf_blocks.hpp"
#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/formats/mxfp8.hpp"
#include "fp4moe/formats/nvfp4.hpp"
#include "fp4moe/moe/expert_map.hpp"
#include "fp4moe/moe/permute.hpp"
#include "golden/fields.hpp"
#include "golden/moe.hpp"
#include "golden/moe_data.hpp"

namespace fp4moe::golden {
namespace {

using checkpoint::WeightFormat;

constexpr std::int32_t kMaxNumber = 1 << 24;
constexpr std::uint64_t kMaxMoeExperts = 1 << 16;

// Where two lists of numbers first differ.
template <class Number>
std::optional<Mismatch> first_difference(std::string_view what,
                                         std::span<const std::int32_t> wanted,
                                         std::span<const Number> found) {
  if (wanted.size() != found.size())
    return Mismatch{fmt::format("{}: size", what), std::to_string(wanted.size()),
                    std::to_string(found.size())};
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] != found[i])
      return Mismatch{fmt::format("{}[{}]", what, i), std::to_string(wanted[i]),
                      std::to_string(found[i])};
  return std::nullopt;
}

std::optional<Mismatch> byte_difference(std::string_view what, std::span<const std::uint8_t> wanted,
                                        std::span<const std::uint8_t> found) {
  if (wanted.size() != found.size())
    return Mismatch{fmt::format("{}: bytes", what), std::to_string(wanted.size()),
                    std::to_string(found.size())};
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] != found[i])
      return Mismatch{fmt::format("{}: byte {}", what, i), fmt::format("{:#04x}", wanted[i]),
                      fmt::format("{:#04x}", found[i])};
  return std::nullopt;
}

std::optional<Mismatch> value_difference(std::span<const double> wanted,
                                         std::span<const float> found) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double slack = std::isfinite(wanted[i]) ? 2e-7 * std::abs(wanted[i]) : 0;
    if (!(std::abs(static_cast<double>(found[i]) - wanted[i]) <= slack))
      return Mismatch{fmt::format("dequantized value {}", i), show(wanted[i]), show(found[i])};
  }
  return std::nullopt;
}

Outcome check_expert_map(const Json& item) {
  const Result<std::uint64_t> experts = number_field(item, "num_experts", kMaxMoeExperts);
  if (!experts) return experts.why();
  const Result<std::uint64_t> ranks = number_field(item, "ep_size", kMaxMoeExperts);
  if (!ranks) return ranks.why();
  const Result<std::string> strategy = string_field(item, "strategy");
  if (!strategy) return strategy.why();
  if (*strategy != "linear" && *strategy != "round_robin")
    return malformed("strategy", "linear or round_robin", fmt::format("\"{}\"", *strategy));
  const auto placement =
      *strategy == "linear" ? checkpoint::Placement::linear : checkpoint::Placement::round_robin;
  const auto list = item.find("ranks");
  if (list == item.end() || !list->is_array() || list->size() != *ranks)
    return malformed("ranks", fmt::format("a list of {}", *ranks),
                     list == item.end() ? "none" : list->type_name());
  for (const Json& one : *list) {
    const Result<std::uint64_t> rank = number_field(one, "rank", kMaxMoeExperts);
    if (!rank) return rank.why();
    const Result<std::uint64_t> local = number_field(one, "local_num_experts", kMaxMoeExperts);
    if (!local) return local.why();
    const auto wanted = read_moe_list(one, "expert_map", {-1, kMaxNumber});
    if (!wanted) return wanted.why();
    const auto map = moe::expert_map(*experts, {*rank, *ranks}, placement);
    if (!map) return map.why();
    if (auto found = first_difference<std::int32_t>(fmt::format("rank {}, expert_map", *rank),
                                                    *wanted, *map))
      return found;
    const auto here = static_cast<std::uint64_t>(
        std::ranges::count_if(*map, [](std::int32_t number) { return number >= 0; }));
    if (here != *local)
      return std::optional<Mismatch>({fmt::format("rank {}: local experts", *rank),
                                      std::to_string(*local), std::to_string(here)});
  }
  return std::optional<Mismatch>();
}

Outcome check_alignment(const Json& item) {
  const Result<MoeNumbers> ids = read_moe_rows(item, "topk_ids", {-kMaxNumber, kMaxNumber});
  if (!ids) return ids.why();
  const Result<std::uint64_t> block = number_field(item, "block_size", 65536);
  if (!block) return block.why();
  const Result<std::uint64_t> experts = number_field(item, "num_experts", kMaxMoeExperts);
  if (!experts) return experts.why();
  const auto ignores = item.find("ignore_invalid_experts");
  if (ignores == item.end() || !ignores->is_boolean())
    return malformed("ignore_invalid_experts", "true or false",
                     ignores == item.end() ? "none" : ignores->type_name());
  std::vector<std::int32_t> map;
  if (const auto told = item.find("expert_map"); told != item.end() && !told->is_null()) {
    const auto read = read_moe_list(item, "expert_map", {-1, kMaxNumber});
    if (!read) return read.why();
    map = *read;
  }
  const auto sorted = read_moe_list(item, "sorted_token_ids", {0, kMaxNumber});
  if (!sorted) return sorted.why();
  const auto owners = read_moe_list(item, "expert_ids", {-1, kMaxNumber});
  if (!owners) return owners.why();
  const Result<std::uint64_t> padded = number_field(item, "num_tokens_post_padded", kMaxNumber);
  if (!padded) return padded.why();

  for (const std::size_t threads : {1u, 3u}) {
    ThreadPool pool(threads);
    moe::BlockAligned found;
    const Result<Done> done = moe::align_blocks(
        {.ids = ids->numbers, .experts = *experts, .expert_map = map, .local_experts = *experts},
        {*block, ignores->get<bool>()}, pool, found);
    if (!done) return done.why();
    if (found.used != *padded)
      return std::optional<Mismatch>(
          {"num_tokens_post_padded", std::to_string(*padded), std::to_string(found.used)});
    const std::span<const std::int32_t> used(found.sorted_assignments.data(), found.used);
    if (auto differs = first_difference<std::int32_t>("sorted_token_ids", *sorted, used))
      return differs;
    const std::span<const std::int32_t> blocks(found.expert_ids.data(), found.used / *block);
    if (auto differs = first_difference<std::int32_t>("expert_ids", *owners, blocks))
      return differs;
  }
  return std::optional<Mismatch>();
}

Outcome check_eplb(const Json& item) {
  Result<MoeNumbers> ids = read_moe_rows(item, "topk_ids", {-1, kMaxNumber});
  if (!ids) return ids.why();
  const auto copies = read_moe_rows(item, "logical_to_physical", {-1, kMaxNumber});
  if (!copies) return copies.why();
  const auto replicas = read_moe_list(item, "logical_replica_count", {0, kMaxNumber});
  if (!replicas) return replicas.why();
  const Result<std::uint64_t> physical = number_field(item, "num_physical", kMaxMoeExperts);
  if (!physical) return physical.why();
  const auto wanted = read_moe_rows(item, "physical_ids", {-1, kMaxNumber});
  if (!wanted) return wanted.why();
  const auto load = read_moe_list(item, "load", {0, kMaxNumber});
  if (!load) return load.why();
  const Result<moe::ReplicaTable> table = moe::replica_table({.experts = copies->rows,
                                                              .physical = *physical,
                                                              .max_replicas = copies->columns,
                                                              .physical_of = copies->numbers,
                                                              .replicas = *replicas});
  if (!table) return table.why();
  std::vector<std::int64_t> loads(*physical);
  const Result<Done> done = moe::map_to_physical(
      *table,
      {.ids = ids->numbers, .top_k = std::max<std::uint64_t>(1, ids->columns), .loads = loads});
  if (!done) return done.why();
  if (auto differs = first_difference<std::int32_t>("physical_ids", wanted->numbers, ids->numbers))
    return differs;
  return first_difference<std::int64_t>("load", *load, loads);
}

std::vector<std::uint8_t> plain_bytes(std::span<const std::byte> bytes) {
  std::vector<std::uint8_t> result(bytes.size());
  std::ranges::transform(bytes, result.begin(),
                         [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); });
  return result;
}

// What codes and scales say, in float32; sizes agree.
Result<std::vector<float>> dequantized(WeightFormat format, std::span<const std::uint8_t> scales,
                                       std::span<const std::uint8_t> codes, std::size_t columns) {
  std::vector<float> values(codes.size() * 2);
  const formats::Rows<float> rows{values, columns};
  const Result<Done> done = format == WeightFormat::mxfp4
                                ? formats::dequantize_mxfp4_rows(scales, codes, rows)
                                : formats::dequantize_nvfp4_rows(1.0f, scales, codes, rows);
  if (!done) return done.why();
  return values;
}

Outcome check_gguf(const Json& item, WeightFormat format) {
  const std::uint64_t block = format == WeightFormat::mxfp4 ? 32 : 16;
  const std::uint64_t step = checkpoint::gguf_block_elements(format);
  const Result<std::uint64_t> rows = number_field(item, "rows", 1 << 12);
  if (!rows) return rows.why();
  const Result<std::uint64_t> columns = number_field(item, "cols", 1 << 12);
  if (!columns) return columns.why();
  if (*columns == 0 || *columns % step != 0)
    return malformed("cols", fmt::format("a multiple of {}", step), std::to_string(*columns));
  const auto packed = read_moe_tensor(item, "packed", {*rows, *columns / 2});
  if (!packed) return packed.why();
  const auto scale = read_moe_tensor(item, "scale", {*rows, *columns / block});
  if (!scale) return scale.why();
  if (packed->dtype != tensor::DType::u8 || scale->dtype != tensor::DType::u8)
    return malformed("encoding", "u8 for packed and scale", "another");
  const auto wanted = bytes_field(item, "gguf_hex");
  if (!wanted) return wanted.why();
  const auto values =
      read_moe_values(item, format == WeightFormat::mxfp4 ? "dequant" : "dequant_without_scale2",
                      {*rows, *columns});
  if (!values) return values.why();

  const checkpoint::GgufBlocks blocks(format);
  std::vector<std::byte> result(*rows * *columns / step * checkpoint::gguf_block_bytes(format));
  blocks.pack(packed->bytes, scale->bytes, result);
  if (auto differs = byte_difference("GGUF blocks", *wanted, plain_bytes(result))) return differs;
  std::vector<std::byte> codes(packed->bytes.size()), scales(scale->bytes.size());
  blocks.unpack(result, codes, scales);
  if (auto differs =
          byte_difference("codes unpacked", plain_bytes(packed->bytes), plain_bytes(codes)))
    return differs;
  if (auto differs =
          byte_difference("scales unpacked", plain_bytes(scale->bytes), plain_bytes(scales)))
    return differs;
  const auto found = dequantized(format, plain_bytes(scales), plain_bytes(codes), *columns);
  if (!found) return found.why();
  return value_difference(values->values, *found);
}

// The three quantizers of activations by their block, and what they do with one tensor.
struct QuantizerRow {
  std::string_view kind;
  std::size_t block, code_bytes;
  Result<Done> (*quantize)(formats::Rows<const float> x, float g, std::span<std::uint8_t> scales,
                           std::span<std::uint8_t> codes);
  Result<Done> (*dequantize)(std::span<const std::uint8_t> scales,
                             std::span<const std::uint8_t> codes, float g,
                             formats::Rows<float> out);
};
using CodeBytes = std::span<std::uint8_t>;
using ConstCodes = std::span<const std::uint8_t>;

constexpr QuantizerRow kMoeQuantizers[] = {
    {"nvfp4_quant", 16, 8,
     [](formats::Rows<const float> x, float g, CodeBytes scales, CodeBytes codes) {
       return formats::quantize_nvfp4_rows({.global_scale = g}, x, scales, codes);
     },
     [](ConstCodes scales, ConstCodes codes, float g, formats::Rows<float> out) {
       return formats::dequantize_nvfp4_rows(g, scales, codes, out);
     }},
    {"mxfp8_quant", 32, 32,
     [](formats::Rows<const float> x, float, CodeBytes scales, CodeBytes codes) {
       return formats::quantize_mxfp8_rows(formats::Mxfp8Rule::log2, x, scales, codes);
     },
     [](ConstCodes scales, ConstCodes codes, float, formats::Rows<float> out) {
       return formats::dequantize_mxfp8_rows(scales, codes, out);
     }},
    {"mxfp4_quant_even", 32, 16,
     [](formats::Rows<const float> x, float, CodeBytes scales, CodeBytes codes) {
       return formats::quantize_mxfp4_rows(formats::Mxfp4Rule::even_rne, x, scales, codes);
     },
     [](ConstCodes scales, ConstCodes codes, float, formats::Rows<float> out) {
       return formats::dequantize_mxfp4_rows(scales, codes, out);
     }},
};

Outcome check_quantizer(const Json& item, const QuantizerRow& row) {
  const auto x = read_moe_tensor(item, "x");
  if (!x) return x.why();
  if (x->shape.size() != 2 || x->shape[1] == 0 || x->shape[1] % row.block != 0)
    return malformed("x", fmt::format("[rows, a multiple of {}]", row.block),
                     tensor::text(x->shape));
  float g = 1;
  if (row.kind == "nvfp4_quant") {
    const auto told = item.find("global_scale");
    if (told == item.end() || !told->is_number() || !(told->get<double>() > 0))
      return malformed("global_scale", "a positive number",
                       told == item.end() ? "none" : told->dump());
    g = told->get<float>();
  }
  const auto wanted_codes = bytes_field(item, "codes_hex");
  if (!wanted_codes) return wanted_codes.why();
  const auto wanted_scales = bytes_field(item, "block_scales_hex");
  if (!wanted_scales) return wanted_scales.why();
  const auto values = read_moe_values(item, "dequant", x->shape);
  if (!values) return values.why();

  const std::vector<float> numbers = x->floats();
  const std::size_t blocks = numbers.size() / row.block;
  std::vector<std::uint8_t> scales(blocks), codes(blocks * row.code_bytes);
  if (const auto done = row.quantize({numbers, x->shape[1]}, g, scales, codes); !done)
    return done.why();
  if (auto differs = byte_difference("block scales", *wanted_scales, scales)) return differs;
  if (auto differs = byte_difference("codes", *wanted_codes, codes)) return differs;
  std::vector<float> back(numbers.size());
  if (const auto done = row.dequantize(scales, codes, g, {back, x->shape[1]}); !done)
    return done.why();
  return value_difference(values->values, back);
}

}  // namespace

Outcome check_moe_auxiliary(const Json& item) {
  const Result<std::string> kind = string_field(item, "kind");
  if (!kind) return kind.why();
  if (*kind == "expert_map") return check_expert_map(item);
  if (*kind == "moe_align_block_size") return check_alignment(item);
  if (*kind == "eplb") return check_eplb(item);
  if (*kind == "gguf_mxfp4") return check_gguf(item, WeightFormat::mxfp4);
  if (*kind == "gguf_nvfp4") return check_gguf(item, WeightFormat::nvfp4);
  for (const QuantizerRow& row : kMoeQuantizers)
    if (row.kind == *kind) return check_quantizer(item, row);
  return malformed("kind",
                   "expert_map, moe_align_block_size, eplb, gguf_mxfp4, gguf_nvfp4, nvfp4_quant, "
                   "mxfp8_quant or mxfp4_quant_even",
                   fmt::format("\"{}\"", *kind));
}

}  // namespace fp4moe::golden
