// An adapter's configuration, and after a zero byte names of tensors, one to a line.
#include <algorithm>
#include <string>

#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/lora/adapter_config.hpp"
#include "fp4moe/checkpoint/lora/adapter_name.hpp"
#include "fuzz.hpp"

namespace fp4moe {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view whole(reinterpret_cast<const char*>(data), size);
  const std::size_t end = std::min(whole.find('\0'), whole.size());
  const std::string_view names = whole.substr(std::min(end + 1, whole.size()));
  const auto json = parse_json(whole.substr(0, end));
  checkpoint::AdapterConfig config{.rank = 1, .alpha = 1};
  if (json) {
    const auto parsed = checkpoint::parse_adapter_config(*json, "adapter_config.json");
    if (parsed) {
      config = *parsed;
      fuzz::require(config.rank >= 1 && config.rank <= checkpoint::kMaxLoraRank);
    } else {
      fuzz::require_complete(parsed.why(), "adapter.");
      fuzz::require(!parsed.why().expected.empty() && !parsed.why().found.empty());
    }
  }
  for (const std::string_view name : split(names, '\n')) {
    const auto parsed = checkpoint::parse_adapter_name(name);
    if (!parsed) continue;
    fuzz::require(name.find(parsed->module) != std::string_view::npos);
    fuzz::require(parsed->module.starts_with(parsed->prefix));
    fuzz::require(checkpoint::adapter_mentions_experts(name));
    fuzz::require(parsed->layer < 1'000'000'000 && parsed->expert.value_or(0) < 1'000'000'000);
    const checkpoint::LoraScale scale = checkpoint::lora_scale(config, parsed->module);
    fuzz::require(scale.rank >= 1 && scale.rank <= checkpoint::kMaxLoraRank);
  }
  return 0;
}

}  // namespace fp4moe
