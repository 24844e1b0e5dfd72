#include "golden/oracle_fields.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "golden/fields.hpp"

namespace fp4moe::golden {
namespace {

constexpr std::uint64_t kMaxRanks = std::numeric_limits<std::int32_t>::max();

struct OracleDate {
  std::string_view name;
  oracle::PolicyDate policy_date;
};
constexpr OracleDate kOracleDates[] = {
    {"2026-01-seed", oracle::PolicyDate::january_seed},
    {"2026-01-27", oracle::PolicyDate::january_27},
    {"2026-03-20", oracle::PolicyDate::march_20},
    {"2026-03-27", oracle::PolicyDate::march_27},
    {"2026-04-24", oracle::PolicyDate::april_24},
    {"2026-08-22", oracle::PolicyDate::august_22},
    {"vllm-0.33.0", oracle::PolicyDate::vllm_033},
    {"native", oracle::PolicyDate::native},
};

// Reads whole numbers into ints; the first error is kept.
class IntReader {
 public:
  explicit IntReader(const Json& object) : object_(object) {}
  void read(std::string_view key, int& into) {
    if (why_) return;
    const auto number = number_field(object_, key, kMaxRanks);
    if (number) {
      into = static_cast<int>(*number);
    } else {
      why_ = number.why();
    }
  }
  const std::optional<Error>& why() const { return why_; }

 private:
  const Json& object_;
  std::optional<Error> why_{};
};

Result<std::optional<platform::Capability>> capability_field(const Json& object) {
  const auto found = object.find("capability");
  if (found == object.end()) return malformed("capability", "the field", "none");
  if (found->is_null()) return std::optional<platform::Capability>{};
  const auto is_small = [](const Json& value) {
    return value.is_number_unsigned() && value.get<std::uint64_t>() <= 1000;
  };
  if (!found->is_array() || found->size() != 2 || !is_small((*found)[0]) || !is_small((*found)[1]))
    return malformed("capability", "[major, minor] or null", found->dump());
  return std::optional<platform::Capability>({(*found)[0].get<int>(), (*found)[1].get<int>()});
}

Result<EnumSet<platform::Library>> libraries_field(const Json& object) {
  const auto libs = object_field(object, "libs");
  if (!libs) return libs.why();
  EnumSet<platform::Library> libraries;
  for (const auto& [key, value] : (*libs)->items()) {
    const auto* const row = std::ranges::find(platform::kLibraryNames, std::string_view(key));
    if (row == platform::kLibraryNames.end())
      return malformed("libs", fmt::format("one of {}", fmt::join(platform::kLibraryNames, ", ")),
                       "\"" + printable(key) + "\"");
    if (!value.is_boolean()) return malformed(key, "true or false", value.type_name());
    if (value.get<bool>())
      libraries.insert(static_cast<platform::Library>(row - platform::kLibraryNames.begin()));
  }
  return libraries;
}

}  // namespace

Result<std::optional<std::string>> optional_string_field(const Json& object, std::string_view key) {
  if (!object.is_object()) return malformed("the case", "an object", object.type_name());
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::optional<std::string>{};
  if (!found->is_string()) return malformed(key, "a string or null", found->type_name());
  return std::optional<std::string>(found->string());
}

Result<Done> refuse_other_keys(const Json& object, std::string_view what,
                               std::span<const std::string_view> known) {
  if (!object.is_object()) return malformed(what, "an object", object.type_name());
  for (const auto& [key, value] : object.items())
    if (std::ranges::find(known, std::string_view(key)) == known.end())
      return malformed(what, fmt::format("only {}", fmt::join(known, ", ")),
                       "\"" + printable(key) + "\"");
  return Done{};
}

Result<oracle::PolicyDate> policy_date_field(const Json& item) {
  const auto version = string_field(item, "version");
  if (!version) return version.why();
  for (const OracleDate& row : kOracleDates)
    if (row.name == *version) return row.policy_date;
  std::vector<std::string_view> names;
  for (const OracleDate& row : kOracleDates) names.push_back(row.name);
  return malformed("version", fmt::format("one of {}", fmt::join(names, ", ")),
                   "\"" + printable(*version) + "\"");
}

Result<platform::Device> device_field(const Json& platform) {
  constexpr std::string_view kKnown[] = {"name", "type", "capability", "gfx", "libs", "amx"};
  if (const auto fine = refuse_other_keys(platform, "platform", kKnown); !fine) return fine.why();
  const auto label = optional_string_field(platform, "name");
  if (!label) return label.why();
  const auto type = string_field(platform, "type");
  if (!type) return type.why();
  const auto* const kind = std::ranges::find(platform::kPlatformNames, *type);
  if (kind == platform::kPlatformNames.end())
    return malformed("type", fmt::format("one of {}", fmt::join(platform::kPlatformNames, ", ")),
                     "\"" + printable(*type) + "\"");
  const auto capability = capability_field(platform);
  if (!capability) return capability.why();
  const auto gfx = optional_string_field(platform, "gfx");
  if (!gfx) return gfx.why();
  const auto libraries = libraries_field(platform);
  if (!libraries) return libraries.why();

  platform::Device device{.name = label->value_or(*type)};
  device.kind = static_cast<platform::PlatformKind>(kind - platform::kPlatformNames.begin());
  device.capability = *capability;
  device.gfx = gfx->value_or("");
  device.libraries = *libraries;
  if (platform.contains("amx")) {
    const auto amx = bool_field(platform, "amx");
    if (!amx) return amx.why();
    device.architecture = platform::CpuArchitecture::x86;
    if (*amx)
      device.cpu = {platform::CpuFeature::avx2, platform::CpuFeature::avx512,
                    platform::CpuFeature::amx_int8, platform::CpuFeature::amx_bf16};
  }
  return device;
}

Result<oracle::Parallel> parallel_field(const Json& parallel) {
  constexpr std::string_view kKnown[] = {"tp_size", "pcp_size", "dp_size",         "ep_size",
                                         "tp_rank", "pcp_rank", "dp_rank",         "ep_rank",
                                         "sp_size", "use_ep",   "all2all_backend", "enable_eplb"};
  if (const auto fine = refuse_other_keys(parallel, "parallel", kKnown); !fine) return fine.why();
  oracle::Parallel result;
  IntReader ints(parallel);
  ints.read("tp_size", result.tp_size);
  ints.read("pcp_size", result.pcp_size);
  ints.read("dp_size", result.dp_size);
  ints.read("ep_size", result.ep_size);
  ints.read("tp_rank", result.tp_rank);
  ints.read("pcp_rank", result.pcp_rank);
  ints.read("dp_rank", result.dp_rank);
  ints.read("ep_rank", result.ep_rank);
  ints.read("sp_size", result.sp_size);
  if (ints.why()) return *ints.why();
  const auto use_ep = bool_field(parallel, "use_ep");
  if (!use_ep) return use_ep.why();
  const auto exchange = string_field(parallel, "all2all_backend");
  if (!exchange) return exchange.why();
  const auto eplb = bool_field(parallel, "enable_eplb");
  if (!eplb) return eplb.why();
  result.use_ep = *use_ep;
  result.all2all_backend = *exchange;
  result.enable_eplb = *eplb;
  return result;
}

Result<oracle::Deployment> deployment_field(const Json& input) {
  constexpr std::string_view kKnown[] = {
      "tp_size",         "pcp_size",   "dp_size", "tp_rank",
      "pcp_rank",        "dp_rank",    "sp_size", "enable_expert_parallel",
      "all2all_backend", "enable_eplb"};
  if (const auto fine = refuse_other_keys(input, "input", kKnown); !fine) return fine.why();
  oracle::Deployment result;
  IntReader ints(input);
  ints.read("tp_size", result.tp_size);
  ints.read("pcp_size", result.pcp_size);
  ints.read("dp_size", result.dp_size);
  ints.read("tp_rank", result.tp_rank);
  ints.read("pcp_rank", result.pcp_rank);
  ints.read("dp_rank", result.dp_rank);
  ints.read("sp_size", result.sp_size);
  if (ints.why()) return *ints.why();
  const auto expert_parallel = bool_field(input, "enable_expert_parallel");
  if (!expert_parallel) return expert_parallel.why();
  const auto exchange = string_field(input, "all2all_backend");
  if (!exchange) return exchange.why();
  const auto eplb = bool_field(input, "enable_eplb");
  if (!eplb) return eplb.why();
  result.enable_expert_parallel = *expert_parallel;
  result.all2all_backend = *exchange;
  result.enable_eplb = *eplb;
  return result;
}

}  // namespace fp4moe::golden
