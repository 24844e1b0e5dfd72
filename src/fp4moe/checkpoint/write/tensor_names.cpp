#include "fp4moe/checkpoint/write/tensor_names.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/models.hpp"

namespace fp4moe::checkpoint {
namespace {

// {} is the layer's number. A row without ".weight" at its end stands for both .weight and .bias.
struct NameRow {
  std::string_view families;  // model types, separated by blanks; empty: all
  std::string_view theirs;    // Hugging Face
  std::string_view other;
};

// llama.cpp stores q and k of the "llama" architectures permuted, so Mixtral's and Llama 4's keep
// their own names here rather than claim to be something they are not.
constexpr std::string_view kPlainAttention = "gpt_oss qwen3_moe glm4_moe minimax_m2";

// clang-format off
constexpr NameRow kGgufNames[] = {
    {{},               "model.embed_tokens",                               "token_embd"},
    {{},               "model.norm",                                       "output_norm"},
    {{},               "lm_head",                                          "output"},
    {{},               "model.layers.{}.input_layernorm",                  "blk.{}.attn_norm"},
    {"gpt_oss",        "model.layers.{}.post_attention_layernorm",         "blk.{}.post_attention_norm"},
    {"glm4_moe",       "model.layers.{}.post_attention_layernorm",         "blk.{}.post_attention_norm"},
    {{},               "model.layers.{}.post_attention_layernorm",         "blk.{}.ffn_norm"},
    {kPlainAttention,  "model.layers.{}.self_attn.q_proj",                 "blk.{}.attn_q"},
    {kPlainAttention,  "model.layers.{}.self_attn.k_proj",                 "blk.{}.attn_k"},
    {kPlainAttention,  "model.layers.{}.self_attn.v_proj",                 "blk.{}.attn_v"},
    {kPlainAttention,  "model.layers.{}.self_attn.o_proj",                 "blk.{}.attn_output"},
    {kPlainAttention,  "model.layers.{}.self_attn.q_norm",                 "blk.{}.attn_q_norm"},
    {kPlainAttention,  "model.layers.{}.self_attn.k_norm",                 "blk.{}.attn_k_norm"},
    {"gpt_oss",        "model.layers.{}.self_attn.sinks",                  "blk.{}.attn_sinks.weight"},
    {"gpt_oss",        "model.layers.{}.mlp.router",                       "blk.{}.ffn_gate_inp"},
    {{},               "model.layers.{}.mlp.gate",                         "blk.{}.ffn_gate_inp"},
    {{},               "model.layers.{}.block_sparse_moe.gate",            "blk.{}.ffn_gate_inp"},
    {{},               "model.layers.{}.mlp.gate.e_score_correction_bias", "blk.{}.exp_probs_b.bias"},
    {"minimax_m2",     "model.layers.{}.block_sparse_moe.e_score_correction_bias", "blk.{}.exp_probs_b.bias"},
    {{},               "model.layers.{}.mlp.gate_proj",                    "blk.{}.ffn_gate"},
    {{},               "model.layers.{}.mlp.up_proj",                      "blk.{}.ffn_up"},
    {{},               "model.layers.{}.mlp.down_proj",                    "blk.{}.ffn_down"},
    {{},               "model.layers.{}.mlp.shared_experts.gate_proj",     "blk.{}.ffn_gate_shexp"},
    {{},               "model.layers.{}.mlp.shared_experts.up_proj",       "blk.{}.ffn_up_shexp"},
    {{},               "model.layers.{}.mlp.shared_experts.down_proj",     "blk.{}.ffn_down_shexp"},
    {"glm4_moe",       "model.layers.{}.eh_proj",                          "blk.{}.nextn.eh_proj"},
    {"glm4_moe",       "model.layers.{}.enorm",                            "blk.{}.nextn.enorm"},
    {"glm4_moe",       "model.layers.{}.hnorm",                            "blk.{}.nextn.hnorm"},
    {"glm4_moe",       "model.layers.{}.embed_tokens",                     "blk.{}.nextn.embed_tokens"},
    {"glm4_moe",       "model.layers.{}.shared_head.head",                 "blk.{}.nextn.shared_head_head"},
    {"glm4_moe",       "model.layers.{}.shared_head.norm",                 "blk.{}.nextn.shared_head_norm"},
    {"nemotron_h",     "backbone.embeddings",                              "token_embd"},
    {"nemotron_h",     "backbone.norm_f",                                  "output_norm"},
    {"nemotron_h",     "backbone.layers.{}.norm",                          "blk.{}.attn_norm"},
    {"nemotron_h",     "backbone.layers.{}.mixer.gate",                    "blk.{}.ffn_gate_inp"},
    {"nemotron_h",     "backbone.layers.{}.mixer.gate.e_score_correction_bias", "blk.{}.exp_probs_b.bias"},
    {"nemotron_h",     "backbone.layers.{}.mixer.shared_experts.up_proj",  "blk.{}.ffn_up_shexp"},
    {"nemotron_h",     "backbone.layers.{}.mixer.shared_experts.down_proj","blk.{}.ffn_down_shexp"},
};

constexpr NameRow kOpenaiNames[] = {
    {{}, "model.embed_tokens.weight",                       "embedding.weight"},
    {{}, "model.norm.weight",                               "norm.scale"},
    {{}, "lm_head.weight",                                  "unembedding.weight"},
    {{}, "model.layers.{}.input_layernorm.weight",          "block.{}.attn.norm.scale"},
    {{}, "model.layers.{}.self_attn.sinks",                 "block.{}.attn.sinks"},
    {{}, "model.layers.{}.self_attn.o_proj",                "block.{}.attn.out"},
    {{}, "model.layers.{}.post_attention_layernorm.weight", "block.{}.mlp.norm.scale"},
    {{}, "model.layers.{}.mlp.router",                      "block.{}.mlp.gate"},
};
// clang-format on

constexpr std::array<std::string_view, 3> kQkv{"q_proj", "k_proj", "v_proj"};

bool concerns(const NameRow& row, std::string_view family) {
  if (row.families.empty()) return true;
  const std::vector<std::string_view> listed = split(row.families, ' ');
  return std::ranges::find(listed, family) != listed.end();
}

// The number in `name` where `pattern` has {}; empty text when the pattern has none.
std::optional<std::string_view> match(std::string_view pattern, std::string_view name) {
  const std::size_t hole = pattern.find("{}");
  if (hole == std::string_view::npos)
    return name == pattern ? std::optional<std::string_view>("") : std::nullopt;
  const std::string_view before = pattern.substr(0, hole), after = pattern.substr(hole + 2);
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) ||
      !name.ends_with(after))
    return std::nullopt;
  name.remove_prefix(before.size());
  name.remove_suffix(after.size());
  if (!std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  return name;
}

std::string fill(std::string_view pattern, std::string_view number) {
  std::string whole(pattern);
  const std::size_t hole = whole.find("{}");
  if (hole != std::string::npos) whole.replace(hole, 2, number);
  return whole;
}

using Column = std::string_view NameRow::*;

std::optional<std::string> look_up(std::span<const NameRow> table, std::string_view family,
                                   std::string_view name, Column from, Column to) {
  for (const NameRow& row : table) {
    if (!concerns(row, family)) continue;
    if (const auto number = match(row.*from, name)) return fill(row.*to, *number);
  }
  return std::nullopt;
}

std::string renamed(std::span<const NameRow> table, std::string_view family, std::string_view name,
                    Column from, Column to) {
  if (const auto whole = look_up(table, family, name, from, to)) return *whole;
  for (const std::string_view ending : {".weight", ".bias", ".scale", ".input_scale"}) {
    if (!name.ends_with(ending)) continue;
    const std::string_view stem = name.substr(0, name.size() - ending.size());
    if (const auto found = look_up(table, family, stem, from, to))
      return *found + std::string(ending);
  }
  return std::string(name);
}

// A router's tensor under any prefix and any of the names that families have.
std::optional<std::string> gguf_router_name(std::string_view name, const RenameContext& context) {
  const auto layer_before = [&](std::string_view ending) -> std::optional<std::uint64_t> {
    if (!name.ends_with(ending)) return std::nullopt;
    const auto found = context.layers.find(name.substr(0, name.size() - ending.size()));
    return found == context.layers.end() ? std::nullopt : std::optional(found->second);
  };
  for (const std::string_view module : kRouterModules) {
    for (const std::string_view part : {".weight", ".bias"})
      if (const auto layer = layer_before(std::string(module) + std::string(part)))
        return fmt::format("blk.{}.ffn_gate_inp{}", *layer, part);
    if (const auto layer = layer_before(std::string(module) + ".tid2eid"))
      return fmt::format("blk.{}.ffn_gate_tid2eid.weight", *layer);
    for (const std::string_view bias : kRouterBiases)
      if (const auto layer = layer_before(fill(bias, module)))
        return fmt::format("blk.{}.exp_probs_b.bias", *layer);
  }
  return std::nullopt;
}

std::string gguf_name_of(std::string_view name, const RenameContext& context) {
  std::string known = gguf_name(name, context.model_type);
  return known == name ? gguf_router_name(name, context).value_or(std::move(known)) : known;
}

void append(OtherTensor& to, OtherTensor&& from) {
  std::ranges::move(from.pieces, std::back_inserter(to.pieces));
  to.bytes.insert(to.bytes.end(), from.bytes.begin(), from.bytes.end());
}

Error unknown_qkv(std::string_view tensor, std::uint64_t rows, const RenameContext& context) {
  return invalid("names.qkv", "cannot tell the rows of q, k and v apart")
      .at(tensor)
      .expects("a config.json whose heads add up to the tensor's rows",
               std::to_string(rows) + " rows; heads give " + std::to_string(context.query_rows) +
                   " + 2 * " + std::to_string(context.key_rows));
}

bool can_split(std::uint64_t rows, const RenameContext& context) {
  return context.query_rows != 0 && rows == context.query_rows + 2 * context.key_rows;
}

// q, k and v of a layer become one tensor, their rows one after another.
Result<std::vector<OtherTensor>> join_qkv(std::vector<OtherTensor> others,
                                          const RenameContext& context) {
  struct QkvParts {
    std::array<OtherTensor*, 3> found{};
  };
  std::map<std::string, QkvParts> groups;
  for (OtherTensor& other : others)
    for (std::size_t i = 0; i < kQkv.size(); ++i)
      for (const std::string_view ending : {".weight", ".bias"}) {
        const std::string pattern =
            "model.layers.{}.self_attn." + std::string(kQkv[i]) + std::string(ending);
        if (const auto number = match(pattern, other.spec.name))
          groups["block." + std::string(*number) + ".attn.qkv" + std::string(ending)].found[i] =
              &other;
      }
  for (auto& group : groups) {
    const std::array<OtherTensor*, 3>& found = group.second.found;
    const bool whole = std::ranges::all_of(found, [&found](const OtherTensor* part) {
      return part != nullptr && part->spec.dtype == found[0]->spec.dtype &&
             part->stored == found[0]->stored &&
             part->spec.shape.size() == found[0]->spec.shape.size() && !part->spec.shape.empty();
    });
    if (!whole) continue;
    OtherTensor& joined = *found[0];
    joined.spec.name = group.first;
    for (OtherTensor* part : {found[1], found[2]}) {
      joined.spec.shape[0] += part->spec.shape[0];
      append(joined, std::move(*part));
      part->spec.name.clear();
    }
    if (!can_split(joined.spec.shape[0], context))
      return unknown_qkv(group.first, joined.spec.shape[0], context);
  }
  std::erase_if(others, [](const OtherTensor& other) { return other.spec.name.empty(); });
  return others;
}

OtherTensor rows_of(const OtherTensor& whole, std::string name, std::uint64_t begin,
                    std::uint64_t rows) {
  const std::uint64_t row_bytes = bytes_of(whole) / whole.spec.shape[0];
  OtherTensor part{.spec = whole.spec};
  part.spec.name = std::move(name);
  part.spec.shape[0] = rows;
  if (whole.pieces.empty()) {
    const auto first = whole.bytes.begin() + static_cast<std::ptrdiff_t>(begin * row_bytes);
    part.bytes.assign(first, first + static_cast<std::ptrdiff_t>(rows * row_bytes));
  } else {
    TensorSpan piece = whole.pieces[0];
    piece.begin += begin * row_bytes;
    piece.bytes = rows * row_bytes;
    part.pieces = {piece};
  }
  return part;
}

Result<std::vector<OtherTensor>> split_qkv(std::vector<OtherTensor> others,
                                           const RenameContext& context) {
  std::vector<OtherTensor> apart;
  for (OtherTensor& other : others) {
    bool is_joined = false;
    for (const std::string_view ending : {".weight", ".bias"}) {
      const auto number = match("block.{}.attn.qkv" + std::string(ending), other.spec.name);
      if (!number) continue;
      const std::uint64_t rows = other.spec.shape.empty() ? 0 : other.spec.shape[0];
      if (!can_split(rows, context)) return unknown_qkv(other.spec.name, rows, context);
      const std::string stem = "model.layers." + std::string(*number) + ".self_attn.";
      std::uint64_t begin = 0;
      for (std::size_t i = 0; i < kQkv.size(); ++i) {
        const std::uint64_t count = i == 0 ? context.query_rows : context.key_rows;
        apart.push_back(
            rows_of(other, stem + std::string(kQkv[i]) + std::string(ending), begin, count));
        begin += count;
      }
      is_joined = true;
    }
    if (!is_joined) apart.push_back(std::move(other));
  }
  return apart;
}

}  // namespace

RenameContext rename_context(std::string_view model_type, const Json& config, LayerNumbers layers) {
  RenameContext context{.model_type = std::string(model_type), .layers = std::move(layers)};
  const auto number = [&](const char* key) -> std::uint64_t {
    const auto found = config.is_object() ? config.find(key) : config.end();
    if (found == config.end() || !found->is_number_integer()) return 0;
    const auto value = found->get<std::int64_t>();
    return value > 0 && value <= (1 << 20) ? static_cast<std::uint64_t>(value) : 0;
  };
  const std::uint64_t heads = number("num_attention_heads");
  std::uint64_t head = number("head_dim");
  if (head == 0 && heads > 0) head = number("hidden_size") / heads;  // what models without it mean
  context.query_rows = heads * head;
  context.key_rows = number("num_key_value_heads") * head;
  return context;
}

std::string gguf_name(std::string_view name, std::string_view model_type) {
  return renamed(kGgufNames, model_type, name, &NameRow::theirs, &NameRow::other);
}

std::string hugging_face_name(std::string_view gguf, std::string_view model_type) {
  const ModelRow* family = find_family(model_type);
  // The router's name differs most between families; the table of models knows it.
  if (family != nullptr)
    for (const std::string_view ending : {".weight", ".bias"})
      if (const auto number = match("blk.{}.ffn_gate_inp" + std::string(ending), gguf))
        return fill(family->prefix, *number) + std::string(family->router) + std::string(ending);
  // Rows for one family come after the general ones and go before them on the way back.
  for (const NameRow& row : kGgufNames) {
    if (row.families.empty() || !concerns(row, model_type)) continue;
    std::string back =
        renamed(std::span(&row, 1), model_type, gguf, &NameRow::other, &NameRow::theirs);
    if (back != gguf) return back;
  }
  return renamed(kGgufNames, model_type, gguf, &NameRow::other, &NameRow::theirs);
}

Result<std::vector<OtherTensor>> rename_others(std::vector<OtherTensor> others, NameFamily from,
                                               NameFamily to, const RenameContext& context) {
  if (from == to) return others;
  if (from == NameFamily::openai) {
    Result<std::vector<OtherTensor>> apart = split_qkv(std::move(others), context);
    if (!apart) return apart.why();
    others = *std::move(apart);
  }
  for (OtherTensor& other : others) {
    std::string& name = other.spec.name;
    if (from == NameFamily::openai)
      name = renamed(kOpenaiNames, context.model_type, name, &NameRow::other, &NameRow::theirs);
    if (from != NameFamily::gguf) continue;
    const auto kept = context.names.find(name);
    name = kept != context.names.end() ? kept->second : hugging_face_name(name, context.model_type);
  }
  if (to == NameFamily::openai) {
    Result<std::vector<OtherTensor>> joined = join_qkv(std::move(others), context);
    if (!joined) return joined.why();
    others = *std::move(joined);
  }
  for (OtherTensor& other : others) {
    std::string& name = other.spec.name;
    if (to == NameFamily::openai)
      name = renamed(kOpenaiNames, context.model_type, name, &NameRow::theirs, &NameRow::other);
    if (to == NameFamily::gguf) name = gguf_name_of(name, context);
  }
  return others;
}

std::map<std::string, std::string> names_to_keep(const std::vector<OtherTensor>& others,
                                                 const RenameContext& context) {
  std::map<std::string, std::string> kept;
  for (const OtherTensor& other : others) {
    std::string gguf = gguf_name_of(other.spec.name, context);
    if (hugging_face_name(gguf, context.model_type) != other.spec.name)
      kept.emplace(std::move(gguf), other.spec.name);
  }
  return kept;
}

}  // namespace fp4moe::checkpoint
