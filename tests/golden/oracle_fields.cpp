#include "golden/oracle_fields.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>
#include <variant>
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

template <class Struct>
struct FieldRow {
  std::string_view key;
  std::variant<int Struct::*, bool Struct::*, std::string Struct::*> member;
};
using oracle::Deployment;
using oracle::Parallel;
// clang-format off
constexpr FieldRow<Parallel> kParallelFields[] = {
    {"tp_size", &Parallel::tp_size}, {"pcp_size", &Parallel::pcp_size}, {"dp_size", &Parallel::dp_size}, {"ep_size", &Parallel::ep_size},
    {"tp_rank", &Parallel::tp_rank}, {"pcp_rank", &Parallel::pcp_rank}, {"dp_rank", &Parallel::dp_rank}, {"ep_rank", &Parallel::ep_rank},
    {"sp_size", &Parallel::sp_size}, {"use_ep", &Parallel::use_ep},
    {"all2all_backend", &Parallel::all2all_backend}, {"enable_eplb", &Parallel::enable_eplb},
};
constexpr FieldRow<Deployment> kDeploymentFields[] = {
    {"tp_size", &Deployment::tp_size}, {"pcp_size", &Deployment::pcp_size}, {"dp_size", &Deployment::dp_size},
    {"tp_rank", &Deployment::tp_rank}, {"pcp_rank", &Deployment::pcp_rank}, {"dp_rank", &Deployment::dp_rank},
    {"sp_size", &Deployment::sp_size}, {"enable_expert_parallel", &Deployment::enable_expert_parallel},
    {"all2all_backend", &Deployment::all2all_backend}, {"enable_eplb", &Deployment::enable_eplb},
};
// clang-format on

template <class T>
Result<Done> read_into(const Json& object, std::string_view key, T& to) {
  auto found = [&] {
    if constexpr (std::is_same_v<T, int>)
      return number_field(object, key, kMaxRanks);
    else if constexpr (std::is_same_v<T, bool>)
      return bool_field(object, key);
    else
      return string_field(object, key);
  }();
  if (!found) return found.why();
  to = static_cast<T>(*std::move(found));
  return Done{};
}

// All rows are required, and no other key is accepted.
template <class Struct>
Result<Struct> read_fields(const Json& object, std::string_view what,
                           std::span<const FieldRow<Struct>> rows) {
  std::vector<std::string_view> known;
  for (const FieldRow<Struct>& row : rows) known.push_back(row.key);
  if (const auto fine = refuse_other_keys(object, what, known); !fine) return fine.why();
  Struct result;
  for (const FieldRow<Struct>& row : rows) {
    const auto read = [&](auto member) -> Result<Done> {
      return read_into(object, row.key, result.*member);
    };
    if (const auto done = std::visit(read, row.member); !done) return done.why();
  }
  return result;
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

Result<Parallel> parallel_field(const Json& parallel) {
  return read_fields<Parallel>(parallel, "parallel", kParallelFields);
}

Result<Deployment> deployment_field(const Json& input) {
  return read_fields<Deployment>(input, "input", kDeploymentFields);
}

}  // namespace fp4moe::golden
