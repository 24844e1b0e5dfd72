#include "fp4moe/checkpoint/quant_claim.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::checkpoint {
namespace {

// The words of a configuration as one form of FP4: a format that is read, or what it is instead.
struct Fp4Scheme {
  std::optional<WeightFormat> format{};
  std::string unread{};

  bool is_fp4() const { return format || !unread.empty(); }
};

// A block of another size than the format's own makes another format of it.
void check_block(Fp4Scheme& scheme, std::optional<std::uint64_t> size, std::string_view words) {
  if (!scheme.format || !size || *size == block_size(*scheme.format)) return;
  scheme.unread = fmt::format("{} with a block scale for {} elements instead of {} ({})",
                              name(*scheme.format), *size, block_size(*scheme.format), words);
  scheme.format.reset();
}

// The one format of several schemes; none when they differ.
class CommonFormat {
 public:
  void add(const Fp4Scheme& scheme) {
    has_unread_ = has_unread_ || !scheme.unread.empty();
    has_mxfp4_ = has_mxfp4_ || scheme.format == WeightFormat::mxfp4;
    has_nvfp4_ = has_nvfp4_ || scheme.format == WeightFormat::nvfp4;
  }
  bool has_fp4() const { return has_unread_ || has_mxfp4_ || has_nvfp4_; }
  std::optional<WeightFormat> format() const {
    if (has_unread_ || has_mxfp4_ == has_nvfp4_) return std::nullopt;
    return has_mxfp4_ ? WeightFormat::mxfp4 : WeightFormat::nvfp4;
  }

 private:
  bool has_unread_ = false, has_mxfp4_ = false, has_nvfp4_ = false;
};

struct ModeloptAlgorithm {
  std::string_view name;
  WeightFormat format;
};
constexpr ModeloptAlgorithm kModeloptAlgorithms[] = {
    {"NVFP4", WeightFormat::nvfp4},          {"W4A16_NVFP4", WeightFormat::nvfp4},
    {"NVFP4_AWQ", WeightFormat::nvfp4},      {"W4A8_NVFP4_FP8", WeightFormat::nvfp4},
    {"MXFP4", WeightFormat::mxfp4},          {"W4A16_MXFP4", WeightFormat::mxfp4},
    {"W4A8_MXFP4_FP8", WeightFormat::mxfp4},
};

Fp4Scheme modelopt_scheme(std::string_view algorithm, std::optional<std::uint64_t> group_size) {
  Fp4Scheme scheme;
  std::string upper(algorithm);  // ModelOpt itself writes "mxfp4" beside "NVFP4"
  std::ranges::transform(upper, upper.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  for (const ModeloptAlgorithm& row : kModeloptAlgorithms)
    if (row.name == upper) scheme.format = row.format;
  const std::string words = fmt::format("quant_algo \"{}\"", algorithm);
  if (!scheme.format && upper.find("FP4") != std::string::npos)
    scheme.unread = fmt::format("FP4 of an unknown kind ({})", words);
  if (group_size)
    check_block(scheme, group_size, fmt::format("{}, group_size {}", words, *group_size));
  return scheme;
}

// The size of a block as ModelOpt gives it: of its own, or in compressed-tensors' manner.
Result<std::optional<std::uint64_t>> modelopt_group_size(ConfigFields& fields) {
  if (const auto own = fields.count({"group_size"})) return own;
  if (const Json* groups = fields.object("config_groups")) {
    for (const Json& group : *groups) {
      ConfigFields row(group);
      const Json* weights = row.object("weights");
      if (row.problem()) return *row.problem();
      if (weights == nullptr) continue;
      ConfigFields scheme(*weights);
      const bool is_fp4 = scheme.count({"num_bits"}) == std::uint64_t{4};
      const auto size = scheme.count({"group_size"});
      if (scheme.problem()) return *scheme.problem();
      if (is_fp4 && size) return size;
    }
  }
  return std::optional<std::uint64_t>{};
}

// MIXED_PRECISION: an algorithm for each module. Modules of one algorithm have one scheme: their
// lists are long. Unread ones come first.
Result<Done> add_modelopt_layers(const Json& layers, QuantClaim& claim) {
  CommonFormat common;
  std::map<std::tuple<bool, std::string, Fp8Inputs, std::array<std::uint64_t, 2>>, ClaimedScheme>
      schemes;
  for (const auto& [module, layer] : layers.items()) {
    ConfigFields row(layer);
    const std::string algorithm = row.string("quant_algo");
    const Fp4Scheme scheme = modelopt_scheme(algorithm, row.count({"group_size"}));
    if (row.problem()) return *row.problem();
    common.add(scheme);
    ClaimedScheme said{.unread = scheme.unread};
    if (algorithm == "FP8") said.inputs = Fp8Inputs::stored;
    if (algorithm == "FP8_PER_CHANNEL_PER_TOKEN") said.inputs = Fp8Inputs::dynamic;
    if (algorithm == "fp8_pb_wo" || algorithm == "FP8_PB_WO") said.block = {128, 128};
    schemes.try_emplace({said.unread.empty(), said.unread, said.inputs, said.block}, said)
        .first->second.modules.add(module);
  }
  for (auto& [key, said] : schemes) claim.schemes.push_back(std::move(said));
  claim.fact += common.has_fp4() ? " with FP4 layers" : " without FP4 layers";
  if (common.has_fp4()) claim.dialect = Dialect::modelopt;
  claim.format = common.format();
  return Done{};
}

struct CompressedFormat {
  std::string_view name;
  WeightFormat format;
  std::string_view scale_types;  // as torch calls them
};
constexpr CompressedFormat kCompressedFormats[] = {
    {"nvfp4-pack-quantized", WeightFormat::nvfp4, "torch.float8_e4m3fn"},
    {"mxfp4-pack-quantized", WeightFormat::mxfp4, "torch.uint8 torch.float8_e8m0fnu"},
};

const CompressedFormat* compressed_format(std::string_view name) {
  for (const CompressedFormat& row : kCompressedFormats)
    if (row.name == name) return &row;
  return nullptr;
}

// One entry of config_groups; `whole` is the format of the file, for groups without one.
Result<Fp4Scheme> compressed_scheme(ConfigFields& group, const std::string& whole) {
  Fp4Scheme scheme;
  const std::string own = group.string("format");
  const CompressedFormat* row = compressed_format(own.empty() ? whole : own);
  const Json* weights = group.object("weights");
  if (group.problem()) return *group.problem();
  if (row == nullptr) return scheme;
  scheme.format = row->format;
  if (weights == nullptr) return scheme;
  ConfigFields arguments(*weights);
  const std::string type = arguments.string("scale_dtype");
  check_block(scheme, arguments.count({"group_size"}), fmt::format("format \"{}\"", row->name));
  if (arguments.problem()) return *arguments.problem();
  const auto known = split(row->scale_types, ' ');
  if (scheme.format && !type.empty() && std::ranges::find(known, type) == known.end()) {
    scheme.unread = fmt::format("{} with block scales of type {} (format \"{}\")",
                                name(*scheme.format), printable(type), row->name);
    scheme.format.reset();
  }
  return scheme;
}

// "Linear", "torch.nn.Linear", "QuantLinear", "<class 'torch.nn.modules.linear.Linear'>"
bool is_linear_class(std::string_view name) {
  if (name.ends_with("'>")) name.remove_suffix(2);
  return name.ends_with("Linear");
}

// Modules by name, or by class ("Linear"), which is all of them.
void add_targets(const Json* targets, ClaimedScheme& said) {
  if (targets == nullptr || !targets->is_array()) return;
  for (const Json& target : *targets) {
    if (!target.is_string()) continue;
    const std::string& text = target.string();
    const bool is_name =
        text.starts_with("re:") || (text.find('.') != std::string::npos && !is_linear_class(text));
    if (is_name) said.modules.add(text);
    said.is_default = said.is_default || !is_name;
  }
}

// Modules whose activations are rotated when the model runs; what is folded into weights needs
// nothing more.
void add_transforms(const Json& transforms, QuantClaim& claim) {
  if (!transforms.is_object()) return;
  const Json* groups = ConfigFields(transforms).find("config_groups");
  if (groups == nullptr || !groups->is_object()) return;
  for (const Json& group : *groups) {
    if (!group.is_object()) continue;
    const Json* applied = ConfigFields(group).find("apply");
    if (applied == nullptr || !applied->is_array()) continue;
    for (const Json& one : *applied) {
      if (!one.is_object()) continue;
      const Json* location = ConfigFields(one).find("location");
      if (location == nullptr || !location->is_string()) continue;
      const std::string& place = location->string();
      if (place != "input" && place != "output") continue;
      ClaimedScheme said{
          .unread = fmt::format("FP4 behind a transform of each {} (transform_config)", place)};
      add_targets(ConfigFields(one).find("targets"), said);
      claim.transforms.push_back(std::move(said));
    }
  }
}

// Two whole numbers, as tools write the size of a block.
std::array<std::uint64_t, 2> block_size_of(const Json* sizes) {
  std::array<std::uint64_t, 2> block{};
  if (sizes == nullptr || !sizes->is_array() || sizes->size() != 2) return block;
  for (std::size_t i = 0; i < 2; ++i)
    if ((*sizes)[i].is_number_unsigned()) block[i] = (*sizes)[i].get<std::uint64_t>();
  return block;
}

bool is_true(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

// A tool's statement about activations: nothing, an object that says whether they are dynamic, or,
// for several levels, a list of such objects.
Fp8Inputs claimed_inputs(const Json* inputs, std::string_view key) {
  if (inputs != nullptr && inputs->is_array() && !inputs->empty()) inputs = &(*inputs)[0];
  if (inputs == nullptr || !inputs->is_object()) return Fp8Inputs::none;
  return is_true(*inputs, key) ? Fp8Inputs::dynamic : Fp8Inputs::stored;
}

// Modules by name come before modules by class ("Linear").
Result<Done> add_compressed_groups(const Json& groups, const std::string& whole, QuantClaim& claim,
                                   CommonFormat& common) {
  std::vector<ClaimedScheme> by_class;
  for (const Json& group : groups) {
    ConfigFields fields(group);
    const auto scheme = compressed_scheme(fields, whole);
    if (!scheme) return scheme.why();
    common.add(*scheme);
    ClaimedScheme said{.unread = scheme->unread,
                       .inputs = claimed_inputs(fields.find("input_activations"), "dynamic")};
    if (const Json* weights = fields.find("weights"); weights != nullptr && weights->is_object())
      said.block = block_size_of(ConfigFields(*weights).find("block_structure"));
    add_targets(fields.find("targets"), said);
    (said.is_default ? by_class : claim.schemes).push_back(std::move(said));
  }
  std::ranges::move(by_class, std::back_inserter(claim.schemes));
  return Done{};
}

Result<QuantClaim> compressed_tensors_claim(ConfigFields& fields) {
  QuantClaim claim;
  const std::string format = fields.string("format");
  claim.fact = fmt::format("quant_method \"compressed-tensors\", format \"{}\"", format);
  const CompressedFormat* whole = compressed_format(format);
  CommonFormat common;
  if (const Json* transforms = fields.find("transform_config")) add_transforms(*transforms, claim);
  if (whole != nullptr) common.add({.format = whole->format});
  if (const Json* groups = fields.object("config_groups")) {
    CommonFormat of_groups;
    if (const auto done = add_compressed_groups(*groups, format, claim, of_groups); !done)
      return done.why();
    if (whole == nullptr && of_groups.has_fp4()) {  // "mixed-precision": each group has its own
      common = of_groups;
      for (const CompressedFormat& row : kCompressedFormats)
        if (of_groups.format() == row.format)
          claim.fact += fmt::format(", a group of format \"{}\"", row.name);
    }
  }
  claim.format = common.format();
  if (common.has_fp4()) claim.dialect = Dialect::compressed_tensors;
  fields.exclusions("ignore", claim.excluded);
  if (fields.problem()) return *fields.problem();
  return claim;
}

// One level of a weight's quantization in Quark's words.
struct QuarkLevel {
  std::string dtype{}, qscheme{}, scale_format{}, scale_type{};
  std::optional<std::uint64_t> group_size{};
  std::array<std::uint64_t, 2> block{};

  bool is_fp4() const { return dtype == "fp4" || dtype == "mxfp4" || dtype == "mx_fp4"; }
  std::string text() const {
    std::string words = fmt::format("weight dtype \"{}\"", printable(dtype));
    if (group_size) words += fmt::format(", group_size {}", *group_size);
    for (const auto& [key, value] :
         {std::pair{"qscheme", &qscheme}, std::pair{"scale_format", &scale_format},
          std::pair{"scale_type", &scale_type}})
      if (!value->empty()) words += fmt::format(", {} \"{}\"", key, printable(*value));
    return words;
  }
};

Result<QuarkLevel> quark_level(const Json& config) {
  ConfigFields fields(config);
  QuarkLevel level{.dtype = fields.string("dtype"),
                   .qscheme = fields.string("qscheme"),
                   .scale_format = fields.string("scale_format"),
                   .scale_type = fields.string("scale_type"),
                   .group_size = fields.count({"group_size"}),
                   .block = block_size_of(fields.find("block_size"))};
  if (level.dtype == "mx") level.dtype = "mx_" + fields.string("mx_element_dtype");
  if (fields.problem()) return *fields.problem();
  return level;
}

// MXFP4 is one level of blocks with E8M0 scales. NVFP4 is two: blocks, and their scales in E4M3.
Fp4Scheme quark_scheme(const std::vector<QuarkLevel>& levels) {
  Fp4Scheme scheme;
  if (levels.empty() || !levels[0].is_fp4()) return scheme;
  const QuarkLevel& blocks = levels[0];
  const bool is_blocked = blocks.qscheme.empty() || blocks.qscheme == "per_group";
  const auto has_block = [&](WeightFormat format) {
    return is_blocked && blocks.group_size.value_or(block_size(format)) == block_size(format);
  };
  const bool is_plain_type = blocks.scale_type.empty() ||
                             blocks.scale_type.starts_with("float32") ||
                             blocks.scale_type == "float";
  const bool is_e8m0 =
      blocks.scale_format == "e8m0" || (blocks.scale_format.empty() && is_plain_type);
  if (levels.size() == 1 && is_e8m0 && has_block(WeightFormat::mxfp4)) {
    scheme.format = WeightFormat::mxfp4;
  } else if (levels.size() == 2 && is_plain_type && has_block(WeightFormat::nvfp4) &&
             levels[1].dtype == "fp8_e4m3" && levels[1].qscheme == "per_tensor") {
    scheme.format = WeightFormat::nvfp4;
  } else {
    scheme.unread = fmt::format("FP4 that is neither MXFP4 nor NVFP4 ({}", blocks.text());
    if (levels.size() > 1) scheme.unread += "; its scales: " + levels[1].text();
    scheme.unread += ")";
  }
  return scheme;
}

// Quark gives a weight's quantization as an object or, for several levels, a list of them.
Result<std::vector<QuarkLevel>> quark_levels(const Json& config) {
  std::vector<QuarkLevel> levels;
  ConfigFields fields(config);
  const Json* weight = fields.find("weight");
  if (weight == nullptr) return levels;
  if (!weight->is_array()) {
    Result<QuarkLevel> level = quark_level(*weight);
    if (!level) return level.why();
    levels.push_back(*std::move(level));
    return levels;
  }
  for (const Json& item : *weight) {
    Result<QuarkLevel> level = quark_level(item);
    if (!level) return level.why();
    levels.push_back(*std::move(level));
  }
  return levels;
}

// The type of the experts' input before a gemm.
Result<ExpertInput> quark_input(const Json& config) {
  ConfigFields fields(config);
  const Json* inputs = fields.find("input_tensors");
  if (inputs != nullptr && inputs->is_array() && !inputs->empty()) inputs = &(*inputs)[0];
  if (inputs == nullptr || inputs->is_null() || inputs->is_array()) return ExpertInput::unquantized;
  const auto level = quark_level(*inputs);
  if (!level) return level.why();
  if (quark_scheme({*level}).format == WeightFormat::mxfp4) return ExpertInput::mxfp4;
  const bool is_fp8 =
      level->dtype == "fp8_e4m3" && (level->qscheme.empty() || level->qscheme == "per_tensor");
  if (is_fp8 && !is_true(*inputs, "is_dynamic")) return ExpertInput::fp8_static;
  return ExpertInput::other;
}

ClaimedScheme quark_claimed(const Fp4Scheme& scheme, const std::vector<QuarkLevel>& levels,
                            const Json& config) {
  const ConfigFields fields(config);
  ClaimedScheme said{.unread = scheme.unread,
                     .inputs = claimed_inputs(fields.find("input_tensors"), "is_dynamic")};
  if (!levels.empty()) said.block = levels[0].block;
  return said;
}

bool has_same_scheme(const ClaimedScheme& one, const ClaimedScheme& other) {
  return one.unread == other.unread && one.inputs == other.inputs && one.block == other.block;
}

// A layer's name goes before its type, the type before the global scheme.
Result<QuantClaim> quark_claim(ConfigFields& fields) {
  QuantClaim claim;
  CommonFormat common;
  const auto add = [&](const Fp4Scheme& scheme, const Json& config) -> Result<Done> {
    // The first FP4 scheme, which is the experts'.
    if (scheme.is_fp4() && !common.has_fp4()) {
      const auto input = quark_input(config);
      if (!input) return input.why();
      claim.input = *input;
    }
    common.add(scheme);
    return Done{};
  };
  if (const Json* layers = fields.object("layer_quant_config")) {
    for (const auto& [pattern, layer] : layers->items()) {
      const auto levels = quark_levels(layer);
      if (!levels) return levels.why();
      const Fp4Scheme scheme = quark_scheme(*levels);
      if (const auto done = add(scheme, layer); !done) return done.why();
      ClaimedScheme said = quark_claimed(scheme, *levels, layer);
      // Neighbors of one scheme are one: some files list every module.
      const bool is_same = !claim.schemes.empty() && has_same_scheme(claim.schemes.back(), said);
      if (!is_same) claim.schemes.push_back(std::move(said));
      claim.schemes.back().modules.add(pattern);
    }
  }
  std::string dtype = "none";
  bool is_fp4 = false, has_linear = false;
  if (const Json* types = fields.object("layer_type_quant_config")) {
    for (const auto& [type, layer] : types->items()) {
      const auto levels = quark_levels(layer);
      if (!levels) return levels.why();
      const Fp4Scheme scheme = quark_scheme(*levels);
      const bool is_linear = is_linear_class(type);
      // A class that is not known may be the experts'.
      if (!is_linear && scheme.unread.empty()) continue;
      if (is_linear) {
        if (const auto done = add(scheme, layer); !done) return done.why();
        has_linear = true;
      }
      ClaimedScheme said = quark_claimed(scheme, *levels, layer);
      said.is_default = true;
      claim.schemes.push_back(std::move(said));
    }
  }
  if (const Json* global = fields.object("global_quant_config")) {
    const auto levels = quark_levels(*global);
    if (!levels) return levels.why();
    if (!levels->empty()) dtype = (*levels)[0].dtype;
    const Fp4Scheme scheme = quark_scheme(*levels);
    if (const auto done = add(scheme, *global); !done) return done.why();
    is_fp4 = scheme.is_fp4();
    if (!has_linear) claim.schemes.push_back({.is_default = true, .unread = scheme.unread});
  }
  claim.fact = fmt::format("quant_method \"quark\", weight dtype \"{}\"", dtype);
  if (!is_fp4 && common.has_fp4()) claim.fact += ", some layers fp4";
  if (common.has_fp4()) claim.dialect = Dialect::quark;
  claim.format = common.format();
  fields.exclusions("exclude", claim.excluded);
  if (fields.problem()) return *fields.problem();
  return claim;
}

}  // namespace

Result<QuantClaim> modelopt_claim(ConfigFields& fields, std::string fact) {
  QuantClaim claim;
  const std::string algorithm = fields.string("quant_algo");
  claim.fact = fmt::format("{}, quant_algo \"{}\"", fact, algorithm);
  const auto group_size = modelopt_group_size(fields);
  if (!group_size) return group_size.why();
  if (algorithm == "MIXED_PRECISION") {
    if (const Json* layers = fields.object("quantized_layers")) {
      if (const auto done = add_modelopt_layers(*layers, claim); !done) return done.why();
    } else {
      claim.dialect = Dialect::modelopt;  // the tensors will tell
    }
  } else if (const Fp4Scheme scheme = modelopt_scheme(algorithm, *group_size); scheme.is_fp4()) {
    claim.dialect = Dialect::modelopt;
    claim.format = scheme.format;
    claim.schemes.push_back({.is_default = true, .unread = scheme.unread});
  }
  for (const std::string_view key : {"exclude_modules", "ignore"}) {
    fields.exclusions(key, claim.excluded);
  }
  if (fields.problem()) return *fields.problem();
  return claim;
}

Result<QuantClaim> claim_from(const Json& config, std::string_view model_type,
                              std::string_view expert_dtype) {
  ConfigFields fields(config);
  std::string method = fields.string("quant_method");
  if (const Json* producer = fields.object("producer"); producer != nullptr && method.empty()) {
    ConfigFields named(*producer);
    method = named.string("name");
    if (named.problem()) return *named.problem();
  }
  if (fields.problem()) return *fields.problem();
  if (method.starts_with("modelopt")) {
    return modelopt_claim(fields, fmt::format("quant_method \"{}\"", method));
  }
  if (method == "compressed-tensors") return compressed_tensors_claim(fields);
  if (method == "quark") return quark_claim(fields);

  QuantClaim claim;
  claim.fact = fmt::format("quant_method \"{}\"", method);
  if (method == "mxfp4") {
    claim.dialect = Dialect::gpt_oss;
    claim.format = WeightFormat::mxfp4;
    fields.exclusions("modules_to_not_convert", claim.excluded);
  } else if (method == "fp8") {
    // DeepSeek-V4: FP8 but for the experts.
    std::string own = fields.string("expert_dtype");
    if (own.empty()) own = expert_dtype;
    if (!own.empty()) claim.fact += fmt::format(", expert_dtype \"{}\"", own);
    if (model_type == "deepseek_v4") claim.fact += " of model_type \"deepseek_v4\"";
    if (own == "fp4" || (own.empty() && model_type == "deepseek_v4")) {
      claim.dialect = Dialect::deepseek_v4;
      claim.format = WeightFormat::mxfp4;
    }
  }
  if (fields.problem()) return *fields.problem();
  return claim;
}

const ClaimedScheme* QuantClaim::scheme(std::string_view module) const {
  for (const ClaimedScheme& said : schemes)
    if (said.is_default || said.modules.find(module) != nullptr) return &said;
  return nullptr;
}

bool QuantClaim::is_guessed(std::string_view module) const {
  const ClaimedScheme plain{};
  const ClaimedScheme* found = scheme(module);
  const ClaimedScheme& known = found == nullptr ? plain : *found;
  for (const ClaimedScheme& said : schemes) {
    if (&said == found) break;
    if (!has_same_scheme(said, known) && !said.modules.unparsed().empty()) return true;
  }
  return false;
}

bool QuantClaim::has_unread() const {
  return !transforms.empty() || std::ranges::any_of(schemes, [](const ClaimedScheme& said) {
    return !said.unread.empty();
  });
}

std::optional<UnreadScheme> QuantClaim::unread(std::string_view module) const {
  const auto names = [module](const ClaimedScheme& said) {
    return said.is_default || said.modules.find(module) != nullptr;
  };
  // Any of several classes may be the module's.
  const ClaimedScheme* found = scheme(module);
  if (found != nullptr && found->is_default)
    for (const ClaimedScheme& said : schemes)
      if (said.is_default && found->unread.empty()) found = &said;
  for (const ClaimedScheme& said : transforms)
    if (names(said)) return UnreadScheme{.what = said.unread};
  if (found != nullptr && !found->unread.empty()) return UnreadScheme{.what = found->unread};
  for (const std::vector<ClaimedScheme>* all : {&transforms, &schemes})
    for (const ClaimedScheme& said : *all) {
      if (&said == found) break;
      if (!said.unread.empty() && !said.modules.unparsed().empty())
        return UnreadScheme{.what = said.unread, .pattern = said.modules.unparsed()};
    }
  return std::nullopt;
}

}  // namespace fp4moe::checkpoint
