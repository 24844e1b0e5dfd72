// "No backend" is a value of the reference until April: sizes are rounded for it, nothing runs.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::none {
namespace {

constexpr Backend row(PolicyDates policy_dates, std::span<const Rounding> rounding) {
  return {.name = "None",
          .family = "none",
          .format = WeightFormat::mxfp4,
          .policy_dates = policy_dates,
          .rounding = rounding,
          .scheme = QuantScheme::ocp_mx_mxfp4,
          .numerics = "unfused"};
}
constexpr Backend kBackends[] = {
    row({march_20}, kOtherRoundingMarch20),
    row({march_27, april_24, august_22, vllm_033}, kOtherRounding),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::none
