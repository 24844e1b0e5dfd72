// A configuration, and after a zero byte names of tensors, one to a line: what decides a dialect.
#include <algorithm>
#include <string>

#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/config_document.hpp"
#include "fp4moe/checkpoint/expert_name.hpp"
#include "fuzz.hpp"

namespace fp4moe {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view whole(reinterpret_cast<const char*>(data), size);
  const std::size_t end = std::min(whole.find('\0'), whole.size());
  const std::string_view names = whole.substr(std::min(end + 1, whole.size()));
  for (const std::string_view name : split(names, '\n')) {
    const auto parsed = checkpoint::parse_expert_name(name);
    if (!parsed) continue;
    fuzz::require(name.starts_with(parsed->prefix));
    fuzz::require(name.ends_with(parsed->part));
    fuzz::require(parsed->layer < 1'000'000'000 && parsed->expert.value_or(0) < 1'000'000'000);
  }
  const auto json = parse_json(whole.substr(0, end));
  if (!json) return 0;
  const auto check = [](const Error& why) {
    fuzz::require(why.id == "config.type" && !why.expected.empty() && !why.found.empty());
  };
  if (const auto facts = checkpoint::parse_config(*json)) {
    for (const checkpoint::QuantClaim& claim : facts->claims) {
      fuzz::require(!claim.fact.empty());
      claim.excluded.find("model.layers.0.mlp.experts.0.up_proj");
    }
  } else {
    check(facts.why());
  }
  const auto claim = checkpoint::parse_hf_quant_config(*json);
  if (!claim) check(claim.why());
  return 0;
}

}  // namespace fp4moe
