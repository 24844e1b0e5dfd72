#include "fp4moe/checkpoint/survey.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::checkpoint {
namespace {

struct NamedLayers {
  std::vector<NamedLayer> layers{};
  // Names that speak of experts in no known form: the first, and those that change numbers.
  std::string strange{};
  std::vector<std::pair<UnknownExpertName, const tensor::StoredTensor*>> unread{};
};

// One pass over the names.
NamedLayers group_layers(const tensor::Store& store) {
  NamedLayers named;
  std::unordered_map<std::string_view, std::size_t> by_prefix;
  std::size_t current = 0;
  for (const tensor::StoredTensor& tensor : store.tensors()) {
    const auto parsed = parse_expert_name(tensor.entry.name);
    if (!parsed) {
      const auto unknown = unknown_expert_name(tensor.entry.name);
      if (!unknown) continue;
      if (named.strange.empty()) named.strange = tensor.entry.name;
      if (changes_numbers(unknown->part)) named.unread.emplace_back(*unknown, &tensor);
      continue;
    }
    const bool same = !named.layers.empty() && named.layers[current].prefix == parsed->prefix;
    if (!same) {
      const auto [at, is_new] = by_prefix.try_emplace(parsed->prefix, named.layers.size());
      if (is_new) named.layers.push_back({parsed->family, parsed->prefix, parsed->layer, {}});
      current = at->second;
    }
    named.layers[current].tensors.push_back({*parsed, &tensor});
  }
  // Kinds of layers with the most members first (the model before its draft layers), each kind by
  // number.
  std::map<std::pair<std::string_view, std::string_view>, std::size_t> members;
  const auto kind = [](const NamedLayer& layer) {
    const PrefixFamily family = prefix_family(layer.prefix);
    return std::pair{family.before, family.after};
  };
  for (const NamedLayer& layer : named.layers) ++members[kind(layer)];
  std::sort(named.layers.begin(), named.layers.end(), [&](const auto& a, const auto& b) {
    const auto key = [&](const NamedLayer& layer) {
      return std::tuple{~members[kind(layer)], kind(layer), layer.index, layer.prefix};
    };
    return key(a) < key(b);
  });
  return named;
}

// Two layers of one number: "layers.3.mlp." and "layers.3.block_sparse_moe.", or 3 and 03.
void check_duplicates(const std::vector<NamedLayer>& layers, Survey& into) {
  std::map<std::pair<std::string_view, std::uint64_t>, const NamedLayer*> seen;
  for (const NamedLayer& layer : layers) {
    const auto [at, is_new] =
        seen.try_emplace({prefix_family(layer.prefix).before, layer.index}, &layer);
    if (is_new) continue;
    into.add(invalid("layer.duplicate", "two groups of experts claim the same layer")
                 .at(layer.prefix)
                 .expects("one", fmt::format("also \"{}\"", printable(at->second->prefix))));
  }
}

bool agrees(const QuantClaim& claim, const DialectRow& row) {
  if (!claim.dialect) return false;
  // OpenAI's own naming holds the same blocks as the Hugging Face one.
  const bool same = *claim.dialect == row.dialect ||
                    (claim.dialect == Dialect::gpt_oss && row.dialect == Dialect::openai);
  return same && (!claim.format || *claim.format == row.format);
}

std::string claims_text(const ModelFacts& facts, const tensor::Store& store) {
  std::string text;
  for (const QuantClaim& claim : facts.claims) {
    text +=
        fmt::format("{}{} says {}", text.empty() ? "" : "; ", claim.source, printable(claim.fact));
  }
  if (!text.empty()) return text;
  if (store.kind() == tensor::StoreKind::gguf) return "GGUF";
  return facts.has_config ? "config.json names no quantization" : "no config.json";
}

// Why nothing was recognized.
void explain_unrecognized(const NamedLayers& named, const std::vector<DialectVerdict>& verdicts,
                          const tensor::Store& store, Survey& into) {
  const std::string said = claims_text(into.facts, store);
  if (named.layers.empty()) {
    Error problem =
        invalid("dialect.unknown", "no tensors of routed experts were found")
            .in(store.folder())
            .expects("names like model.layers.0.mlp.experts.0.up_proj.weight",
                     named.strange.empty()
                         ? fmt::format("{} tensors, none of an expert", store.tensors().size())
                         : fmt::format("\"{}\"", printable(named.strange)))
            .try_this("See what it holds: fp4moe inspect --tensors");
    into.add(std::move(problem));
    return;
  }
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    const DialectVerdict& verdict = verdicts[i];
    if (verdict.why_id.empty()) continue;
    into.add(invalid(verdict.why_id, verdict.why)
                 .in(store.folder())
                 .at(named.layers[i].prefix)
                 .expects("the tensors of one FP4 dialect", verdict.fact + "; " + said));
    return;
  }
  const auto plain = std::find_if(verdicts.begin(), verdicts.end(),
                                  [](const DialectVerdict& verdict) { return !verdict.is_float; });
  const bool all_float = plain == verdicts.end();
  const std::size_t at = all_float ? 0 : static_cast<std::size_t>(plain - verdicts.begin());
  const std::string_view prefix = named.layers[at].prefix;
  if (!all_float) {
    into.add(invalid("dialect.unsupported",
                     "the experts are " + verdicts[at].other + ", which is not read here")
                 .in(store.folder())
                 .at(prefix)
                 .expects("MXFP4 or NVFP4 experts", verdicts[at].fact + "; " + said)
                 .try_this("Start from a BF16 checkpoint and run fp4moe quantize"));
    return;
  }
  std::string found = verdicts[at].fact + "; " + said;
  for (const QuantClaim& claim : into.facts.claims) {
    const std::string module = std::string(prefix) + "experts.0.up_proj";
    if (const std::string* pattern = claim.excluded.find(module)) {
      found += fmt::format(" but excludes the routed experts (\"{}\")", printable(*pattern));
    }
  }
  into.add(invalid("dialect.unquantized",
                   fmt::format("the experts are not quantized ({})", verdicts[at].other))
               .in(store.folder())
               .at(prefix)
               .expects("MXFP4 or NVFP4 experts", found)
               .try_this("Quantize it: fp4moe quantize"));
}

// Why a claim's experts of a layer cannot be read: the error of the first such module.
std::optional<Error> unread_module(const NamedLayer& layer, const QuantClaim& claim) {
  std::string_view last;
  for (const NamedTensor& item : layer.tensors) {
    std::string_view module = item.tensor->entry.name;
    module.remove_suffix(item.name.part.size());
    if (module == last) continue;  // names are sorted
    last = module;
    const auto unread = claim.unread(module);
    if (!unread || claim.excluded.find(module) != nullptr) continue;
    return invalid("dialect.unsupported",
                   unread->pattern.empty()
                       ? fmt::format("the experts are {}, which is not read here", unread->what)
                       : fmt::format("the pattern \"{}\" is not understood; if it names the "
                                     "experts, they are {}, which is not read here",
                                     printable(unread->pattern), unread->what))
        .at(module);
  }
  return std::nullopt;
}

// FP4 in a form that is not read here. Its tensors may look like another's, so this comes before
// anything is concluded from types and shapes.
bool explain_unread(const NamedLayers& named, const std::vector<DialectVerdict>& verdicts,
                    const tensor::Store& store, Survey& into) {
  for (const QuantClaim& claim : into.facts.claims) {
    if (!claim.has_unread()) continue;
    for (std::size_t i = 0; i < verdicts.size(); ++i) {
      if (verdicts[i].is_float) continue;
      std::optional<Error> problem = unread_module(named.layers[i], claim);
      if (!problem) continue;
      into.add(
          std::move(*problem)
              .in(store.path_of(claim.source))
              .expects("MXFP4 (blocks of 32, E8M0 scales) or NVFP4 (blocks of 16, E4M3 scales)",
                       verdicts[i].fact)
              .try_this("Start from a BF16 checkpoint and run fp4moe quantize"));
      return true;
    }
  }
  return false;
}

// Tensors of FP4 layers' experts that belong to no projection. One that is not applied means other
// numbers than the writer's.
void refuse_unread(const NamedLayers& named, const std::vector<DialectVerdict>& verdicts,
                   const tensor::Store& store, Survey& into) {
  std::set<std::string_view> prefixes;
  for (std::size_t i = 0; i < verdicts.size(); ++i)
    if (verdicts[i].row == into.row) prefixes.insert(named.layers[i].prefix);
  for (const auto& [name, tensor] : named.unread)
    if (prefixes.contains(name.prefix))
      into.add(unread_part(*into.row, name.part).in(store.path(*tensor)).at(tensor->entry.name));
}

// The row most layers have; others are problems.
const DialectRow* choose_row(const NamedLayers& named, const std::vector<DialectVerdict>& verdicts,
                             const tensor::Store& store, Survey& into) {
  std::map<const DialectRow*, std::pair<std::size_t, std::size_t>> counts;  // how many, the first
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    if (verdicts[i].row == nullptr) continue;
    ++counts.try_emplace(verdicts[i].row, 0, i).first->second.first;
  }
  if (counts.empty()) return nullptr;
  const auto best = std::max_element(counts.begin(), counts.end(), [](auto& a, auto& b) {
    return a.second.first < b.second.first;
  });
  const auto describe = [&](const DialectRow& row, std::size_t layer) {
    return fmt::format("{} {} ({}) in {}", row.name, name(row.format), name(row.grouping),
                       printable(named.layers[layer].prefix));
  };
  for (const auto& [row, count] : counts) {
    if (row == best->first) continue;
    into.add(invalid("dialect.mixed", "the layers are of different dialects")
                 .in(store.folder())
                 .at(named.layers[count.second].prefix)
                 .expects(describe(*best->first, best->second.second), describe(*row, count.second))
                 .try_this("Transcode the parts to one dialect before joining them"));
  }
  return best->first;
}

void check_claims(const DialectVerdict& verdict, const tensor::Store& store, Survey& into) {
  for (const QuantClaim& claim : into.facts.claims) {
    if (agrees(claim, *into.row)) continue;
    into.add(
        invalid("dialect.contradiction",
                "the configuration and the tensors name different "
                "formats")
            .in(store.path_of(claim.source))
            .expects(fmt::format("{} {}: {}", into.row->name, name(into.row->format), verdict.fact),
                     claim.fact)
            .try_this("Use the configuration that came with these tensors, or remove it"));
  }
}

// Files that `fp4moe convert` wrote say so; their weights are in no checkpoint's order.
bool is_converted(const tensor::Store& store, Survey& into) {
  for (std::size_t i = 0; i < store.metadata().size(); ++i) {
    const tensor::Metadata& tags = store.metadata()[i];
    const auto layout = tags.find("fp4moe.layout");
    if (layout == tags.end()) continue;
    into.add(invalid("dialect.converted", "this is converted already, not a checkpoint")
                 .in(store.files()[i].path())
                 .expects("a checkpoint in a dialect of its own",
                          fmt::format("weights in layout {}", printable(layout->second)))
                 .try_this("Undo it: fp4moe unconvert; or check it: fp4moe verify"));
    return true;
  }
  return false;
}

}  // namespace

Survey survey(const tensor::Store& store) {
  Survey found;
  if (is_converted(store, found)) return found;
  if (auto facts = read_facts(store)) {
    found.facts = std::move(*facts);
  } else {
    found.add(facts.why());
  }
  const NamedLayers named = group_layers(store);
  std::vector<DialectVerdict> verdicts;
  verdicts.reserve(named.layers.size());
  for (const NamedLayer& layer : named.layers) verdicts.push_back(classify(layer, found.facts));

  const bool is_read = !explain_unread(named, verdicts, store, found);
  if (is_read) found.row = choose_row(named, verdicts, store, found);
  if (found.row == nullptr) {
    if (is_read) explain_unrecognized(named, verdicts, store, found);
    for (std::size_t i = 0; i < verdicts.size(); ++i) {
      const DialectVerdict& verdict = verdicts[i];
      found.others.push_back({named.layers[i].index, std::string(named.layers[i].prefix),
                              !is_read                ? "FP4 in another form"
                              : verdict.other.empty() ? verdict.why
                                                      : verdict.other});
    }
    return found;
  }
  const auto first = std::find_if(verdicts.begin(), verdicts.end(),
                                  [&](const DialectVerdict& v) { return v.row == found.row; });
  check_claims(*first, store, found);
  found.evidence = claims_text(found.facts, store) + "; " + first->fact;

  check_duplicates(named.layers, found);
  refuse_unread(named, verdicts, store, found);
  for (std::size_t i = 0; i < named.layers.size(); ++i) {
    const NamedLayer& layer = named.layers[i];
    const DialectVerdict& verdict = verdicts[i];
    if (!verdict.why_id.empty()) {
      found.add(invalid(verdict.why_id, verdict.why)
                    .in(store.folder())
                    .at(layer.prefix)
                    .expects("the tensors of one FP4 dialect", verdict.fact));
    } else if (verdict.row == nullptr) {
      found.others.push_back({layer.index, std::string(layer.prefix), verdict.other});
    } else if (verdict.row == found.row) {
      found.layers.push_back(build_layer(layer, *verdict.row, store, found));
    }
  }
  return found;
}

}  // namespace fp4moe::checkpoint
