// Thousands of calls that make little sense: nulls, closed handles, wild sizes, types and words.
// Each ends with a status, and with words where it fails; the sanitizers see to the rest.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"
#include "support/c_api.hpp"
#include "support/c_weights.hpp"

namespace fp4moe::capi {
namespace random_calls_test {

using namespace testing;

constexpr std::uint64_t kMaxTokens = 4;

class RandomCaller {
 public:
  explicit RandomCaller(std::uint64_t seed) : random_(seed) {
    for (float& value : memory_) value = 2.0f * random_.unit() - 1.0f;
  }
  ~RandomCaller() {
    for (fp4moe_adapters* adapters : adapters_) fp4moe_adapters_close(adapters);
    for (fp4moe_layer* layer : layers_) fp4moe_layer_destroy(layer);
    for (fp4moe_model* model : models_) fp4moe_model_close(model);
  }
  RandomCaller(const RandomCaller&) = delete;
  RandomCaller& operator=(const RandomCaller&) = delete;

  void step() {
    const Calls call = kCalls[random_.next() % kCalls.size()];
    const fp4moe_status status = (this->*call)();
    ++(status == FP4MOE_OK ? fine : refused);
    ASSERT_STRNE(fp4moe_status_name(status), "unknown");
    if (status != FP4MOE_OK) {
      ASSERT_STRNE(fp4moe_last_error(), "");
      ASSERT_STRNE(fp4moe_last_error_id(), "");
    }
    // Closed handles stay in the lists for a while: they are to be used again.
    if (layers_.size() > 12) forget();
  }

  std::uint64_t fine = 0, refused = 0;

 private:
  using Calls = fp4moe_status (RandomCaller::*)();

  bool chance(std::uint64_t one_in) { return random_.next() % one_in == 0; }
  template <class T, std::size_t kCount>
  T any(const std::array<T, kCount>& all) {
    return all[random_.next() % kCount];
  }

  const char* word() {
    return any(std::array<const char*, 14>{nullptr, nullptr, nullptr, nullptr, "auto", "cpu", "CPU",
                                           "MARLIN", "reference", "exact", "mapped", "h100", "",
                                           "\xff\x01 no such word"});
  }
  std::uint64_t number() {
    return any(std::array<std::uint64_t, 9>{0, 0, 0, 1, 2, 3, 7, 1u << 20, UINT64_MAX});
  }
  std::size_t size_of(std::size_t right) {
    return chance(8) ? static_cast<std::size_t>(random_.next() % (right + 1)) : right;
  }
  fp4moe_model* model() {
    if (chance(10)) return nullptr;
    if (chance(20)) return reinterpret_cast<fp4moe_model*>(layer());
    return models_.empty() ? nullptr : models_[random_.next() % models_.size()];
  }
  fp4moe_layer* layer() {
    if (chance(20)) return nullptr;
    if (chance(20)) return reinterpret_cast<fp4moe_layer*>(memory_.data());
    return layers_.empty() ? nullptr : layers_[random_.next() % layers_.size()];
  }

  fp4moe_adapters* adapters() {
    if (chance(4)) return nullptr;
    if (chance(12)) return reinterpret_cast<fp4moe_adapters*>(layer());
    return adapters_.empty() ? nullptr : adapters_[random_.next() % adapters_.size()];
  }

  // Rows that claim no more memory than there is, unless the claim can be seen to be wrong.
  template <class Rows>
  Rows rows(std::uint64_t columns, float* data) {
    Rows result{sizeof(Rows), data, FP4MOE_F32, random_.next() % (kMaxTokens + 1), columns, 0};
    if (!chance(3)) result.rows = 2;
    if (chance(12)) result.dtype = number();
    if (chance(12)) result.columns = number();
    if (chance(12))
      result.stride = any(std::array<std::uint64_t, 4>{1, columns * 4, columns * 8, 3});
    if (chance(20)) result.rows = UINT64_MAX / 4;
    if (chance(12)) result.data = nullptr;
    if (chance(12)) result.data = reinterpret_cast<char*>(data) + 1;
    result.size = size_of(sizeof(Rows));
    return result;
  }
  float* input() { return memory_.data(); }
  float* output() { return memory_.data() + memory_.size() / 2; }

  fp4moe_status open() {
    fp4moe_model* opened = nullptr;
    const char* path = chance(3) ? word() : model_path().c_str();
    const fp4moe_status status = fp4moe_model_open(path, chance(10) ? nullptr : &opened);
    if (opened != nullptr) models_.push_back(opened);
    return status;
  }
  fp4moe_status from_tensors() {
    fp4moe_tensors given = read_.tensors();
    std::vector<fp4moe_tensor> changed = read_.all;
    fp4moe_tensor& one = changed[random_.next() % changed.size()];
    if (chance(6)) one.name = word();
    if (chance(6)) one.dtype = any(std::array<const char*, 4>{nullptr, "", "F32", "MXFP4"});
    if (chance(6)) one.shape = nullptr;
    if (chance(6)) one.dimensions = any(std::array<std::uint64_t, 3>{0, 1, UINT64_MAX});
    if (chance(6)) one.data = nullptr;
    if (chance(6)) one.bytes = one.bytes / 2;
    if (chance(6)) one.size = size_of(sizeof one);
    given.tensors = chance(12) ? nullptr : changed.data();
    if (chance(8)) given.count = chance(2) ? UINT64_MAX : random_.next() % (changed.size() + 1);
    if (chance(8)) given.config = any(std::array<const char*, 3>{nullptr, "{", "{}"});
    if (chance(8)) given.quant_config = "[]";
    given.size = size_of(sizeof given);
    fp4moe_model* result = nullptr;
    const fp4moe_status status =
        fp4moe_model_from_tensors(chance(20) ? nullptr : &given, chance(20) ? nullptr : &result);
    if (result != nullptr) models_.push_back(result);
    return status;
  }
  fp4moe_status close() {
    if (chance(3)) fp4moe_model_close(model());
    if (chance(3)) fp4moe_layer_destroy(layer());
    if (chance(3)) fp4moe_adapters_close(adapters());
    return FP4MOE_OK;
  }
  fp4moe_status describe() {
    std::uint64_t count = 0;
    char* json = nullptr;
    const bool given = !chance(8);
    const fp4moe_status status = chance(3) ? fp4moe_model_layers(model(), given ? &count : nullptr)
                                 : chance(2) ? fp4moe_model_info(model(), given ? &json : nullptr)
                                             : fp4moe_layer_info(layer(), given ? &json : nullptr);
    EXPECT_EQ(json != nullptr && status != FP4MOE_OK, false);
    fp4moe_free_string(json);
    return status;
  }
  fp4moe_status create() {
    fp4moe_layer_options options = layer_options();
    if (chance(4)) options.engine = word();
    if (chance(4)) options.backend = word();
    if (chance(6)) options.policy = word();
    if (chance(6)) options.numerics = word();
    if (chance(6)) options.weights = word();
    if (chance(8)) options.ep_rank = number();
    if (chance(8)) options.ep_size = number();
    if (chance(8)) options.tp_size = number();
    if (chance(12)) options.threads = any(std::array<std::uint64_t, 3>{2, 5000, UINT64_MAX});
    options.size = size_of(sizeof options);
    fp4moe_layer* result = nullptr;
    const fp4moe_status status = fp4moe_layer_create(model(), chance(6) ? number() : 0, &options,
                                                     chance(12) ? nullptr : &result);
    if (result != nullptr) layers_.push_back(result);
    return status;
  }
  // A matrix that claims no more memory than there is, unless the claim can be seen to be wrong.
  fp4moe_matrix matrix(fp4moe_matrix result) {
    if (chance(16)) result.codes = nullptr;
    if (chance(16)) result.codes_bytes = chance(2) ? result.codes_bytes / 2 : UINT64_MAX;
    if (chance(16)) result.codes_row_stride = number();
    if (chance(16)) result.scales_expert_stride = number();
    if (chance(16)) result.scales = nullptr;
    if (chance(16)) result.bias_dtype = any(std::array<std::uint64_t, 3>{FP4MOE_F16, 4, 99});
    if (chance(16)) result.bias_bytes = result.bias_bytes / 2;
    if (chance(16)) result.global_scales_count = number();
    if (chance(16)) result.input_scales = input();
    result.size = size_of(sizeof result);
    return result;
  }
  fp4moe_routing routing() {
    fp4moe_routing result{};
    result.method = chance(6) ? word() : "Renormalize";
    if (chance(8)) result.method = "DeepSeekV3";
    if (chance(4)) result.experts = kExperts;
    if (chance(4)) result.top_k = number();
    if (chance(8)) result.groups = number();
    if (chance(8)) result.bias = input();
    if (chance(8)) result.scale = any(std::array<double, 3>{-1.0, 2.5, 1e300});
    if (chance(8)) result.renormalize = number();
    if (chance(12)) result.zero_experts = number();
    if (chance(12)) result.shared_experts = number();
    if (chance(12)) result.table_rows = number();
    result.size = size_of(sizeof result);
    return result;
  }
  fp4moe_status from_weights() {
    const fp4moe_matrix w13 = matrix(memory_weights_.w13), w2 = matrix(memory_weights_.w2);
    fp4moe_weights given = memory_weights_.given();
    given.w13 = chance(16) ? nullptr : &w13;
    given.w2 = chance(16) ? nullptr : &w2;
    if (chance(16)) given.up = &w2;
    if (chance(12)) given.format = word();
    if (chance(12)) given.row_order = chance(2) ? "interleaved" : word();
    if (chance(12)) given.experts = number();
    if (chance(12)) given.hidden = number();
    if (chance(12)) given.intermediate = number();
    given.size = size_of(sizeof given);
    fp4moe_layer* result = nullptr;
    if (chance(3)) return fp4moe_layer_load_weights(layer(), chance(12) ? nullptr : &given);
    fp4moe_layer_description description{};
    const double constant = any(std::array<double, 4>{0.0, -1.0, 7.0, 1e300});
    const fp4moe_routing router = routing();
    description.activation = chance(8) ? word() : chance(2) ? "swigluoai" : "silu";
    description.top_k = chance(8) ? number() : 2;
    description.routing = chance(3) ? nullptr : &router;
    if (chance(6)) description.alpha = &constant;
    if (chance(6)) description.limit = &constant;
    if (chance(12)) description.experts = number();
    if (chance(12)) description.intermediate = number();
    if (chance(6)) description.weight_on_input = 1;
    description.size = size_of(sizeof description);
    fp4moe_layer_options options = layer_options();
    if (chance(6)) options.weights = "mapped";
    if (chance(6)) options.tp_size = number();
    if (chance(6)) options.ep_size = number();
    const fp4moe_status status = fp4moe_layer_from_weights(chance(20) ? nullptr : &description,
                                                           chance(20) ? nullptr : &given, &options,
                                                           chance(12) ? nullptr : &result);
    if (result != nullptr) layers_.push_back(result);
    return status;
  }
  fp4moe_status route() {
    const fp4moe_routing router = routing();
    const auto logits = rows<fp4moe_rows>(kExperts, input());
    std::array<std::int32_t, (kMaxTokens + 1) * kExperts> ids{};
    fp4moe_route_call call{};
    call.logits = chance(12) ? nullptr : &logits;
    call.ids = chance(12) ? nullptr : ids.data();
    call.weights = chance(12) ? nullptr : output();
    call.slots = chance(4) ? number() : 2 + 2 * (random_.next() % 2);
    if (chance(8)) call.token_ids = ids.data();
    if (chance(8)) call.is_padding = reinterpret_cast<const std::uint8_t*>(input());
    if (chance(4)) call.identity_weights = output() + memory_.size() / 4;
    call.size = size_of(sizeof call);
    return chance(2) ? fp4moe_route(chance(20) ? nullptr : &router, &call)
                     : fp4moe_layer_route(layer(), chance(20) ? nullptr : &call);
  }
  fp4moe_status make_adapters() {
    fp4moe_lora_pair pair{sizeof pair, input(),           kHidden * 4,
                          input(),     kIntermediate * 4, FP4MOE_F32};
    if (chance(8)) pair.a = nullptr;
    if (chance(8)) pair.b_bytes = number();
    if (chance(8)) pair.dtype = number();
    pair.size = size_of(sizeof pair);
    fp4moe_lora lora{sizeof lora, chance(8) ? number() : 1, 0.5, nullptr, nullptr, &pair, nullptr};
    if (chance(8)) lora.w2 = &pair;
    if (chance(8)) lora.gate = &pair;
    lora.size = size_of(sizeof lora);
    const char* folders[] = {word()};
    fp4moe_adapters* result = nullptr;
    fp4moe_adapters** const place = chance(12) ? nullptr : &result;
    const std::uint64_t count = chance(8) ? any(std::array<std::uint64_t, 2>{0, UINT64_MAX}) : 1;
    const fp4moe_status status =
        chance(4)
            ? fp4moe_adapters_open(layer(), folders, count, place)
            : fp4moe_adapters_from_memory(layer(), chance(12) ? nullptr : &lora, count, place);
    if (result != nullptr) adapters_.push_back(result);
    return status;
  }
  fp4moe_status call_with_all() {
    const auto x = rows<fp4moe_rows>(kHidden, input());
    const auto logits = rows<fp4moe_rows>(kExperts, input());
    const auto out = rows<fp4moe_output>(kHidden, output());
    std::array<std::int32_t, kMaxTokens * kExperts> ids{};
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random_.next() % 8) - 1;
    const fp4moe_routes routes{sizeof routes, ids.data(), input(), x.rows, 2};
    fp4moe_call given{};
    given.x = chance(20) ? nullptr : &x;
    given.out = chance(20) ? nullptr : &out;
    if (chance(2)) given.logits = &logits;
    if (given.logits == nullptr || chance(12)) given.routes = &routes;
    given.adapters = adapters();
    const std::array<std::int32_t, kMaxTokens> numbers{0, -1, 0,
                                                       static_cast<std::int32_t>(number())};
    if (chance(3)) given.adapter_of_token = numbers.data();
    if (chance(8)) given.on_device = 1;
    if (chance(16)) given.stream = input();
    given.size = size_of(sizeof given);
    if (chance(12)) return fp4moe_layer_reserve(layer(), number(), number());
    return fp4moe_layer_call(layer(), chance(20) ? nullptr : &given);
  }
  fp4moe_status load() { return fp4moe_layer_load(layer()); }
  fp4moe_status load_expert() { return fp4moe_layer_load_expert(layer(), number()); }
  fp4moe_status process() { return fp4moe_layer_process(layer()); }
  fp4moe_status shape() {
    fp4moe_shape result{};
    result.size = size_of(sizeof result);
    return fp4moe_layer_shape(layer(), chance(8) ? nullptr : &result);
  }
  fp4moe_status apply() {
    const auto x = rows<fp4moe_rows>(kHidden, input());
    const auto out = rows<fp4moe_output>(kHidden, output());
    std::array<std::int32_t, kMaxTokens * kExperts> ids{};
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random_.next() % 12) - 3;
    if (chance(4)) ids[0] = any(std::array<std::int32_t, 2>{INT32_MAX, INT32_MIN});
    fp4moe_routes routes{sizeof routes, ids.data(), input(), x.rows, 1 + random_.next() % kExperts};
    if (chance(8)) routes.ids = nullptr;
    if (chance(8)) routes.weights = nullptr;
    if (chance(8)) routes.top_k = number();
    if (chance(8)) routes.tokens = number();
    routes.size = size_of(sizeof routes);
    return fp4moe_layer_apply(layer(), chance(20) ? nullptr : &x, chance(20) ? nullptr : &routes,
                              chance(20) ? nullptr : &out);
  }
  fp4moe_status run() {
    const auto x = rows<fp4moe_rows>(kHidden, input());
    const auto logits = rows<fp4moe_rows>(kExperts, input());
    const auto out = rows<fp4moe_output>(kHidden, output());
    const auto function = chance(3) ? fp4moe_layer_apply_monolithic : fp4moe_layer_run;
    return function(layer(), chance(20) ? nullptr : &x, chance(20) ? nullptr : &logits,
                    chance(20) ? nullptr : &out);
  }
  fp4moe_status explain() {
    char* record = nullptr;
    const char* request = any(std::array<const char*, 7>{
        R"({"device": "h100"})", R"({"device": "b200", "tp": 8, "ep": true})", R"({"tp": 1e99})",
        R"({"layer": {"hidden_dim": -1}})", "\xff", "", R"({"layer": {"hidden_dim": 1}})"});
    const fp4moe_status status = fp4moe_explain(request, chance(10) ? nullptr : &record);
    fp4moe_free_string(record);
    return status;
  }
  fp4moe_status convert() {
    fp4moe_convert_options options{};
    options.backend = word();
    options.layout = chance(2) ? "no.such" : word();
    options.device = word();
    options.tp_rank = number();
    options.size = size_of(sizeof options);
    // A folder that cannot be made: this is about refusals.
    return fp4moe_convert(chance(2) ? model_path().c_str() : word(), "/proc/no/such/folder",
                          chance(8) ? nullptr : &options, nullptr);
  }

  void forget() {
    fp4moe_layer_destroy(layers_.front());
    layers_.erase(layers_.begin());
    while (adapters_.size() > 6) {
      fp4moe_adapters_close(adapters_.front());
      adapters_.erase(adapters_.begin());
    }
    while (models_.size() > 6) {
      fp4moe_model_close(models_.front());
      models_.erase(models_.begin());
    }
  }

  static constexpr std::array<Calls, 32> kCalls{
      &RandomCaller::open,          &RandomCaller::close,         &RandomCaller::describe,
      &RandomCaller::create,        &RandomCaller::create,        &RandomCaller::load,
      &RandomCaller::load,          &RandomCaller::load,          &RandomCaller::load_expert,
      &RandomCaller::process,       &RandomCaller::process,       &RandomCaller::process,
      &RandomCaller::shape,         &RandomCaller::apply,         &RandomCaller::apply,
      &RandomCaller::apply,         &RandomCaller::run,           &RandomCaller::run,
      &RandomCaller::run,           &RandomCaller::run,           &RandomCaller::explain,
      &RandomCaller::convert,       &RandomCaller::from_tensors,  &RandomCaller::from_weights,
      &RandomCaller::from_weights,  &RandomCaller::from_weights,  &RandomCaller::route,
      &RandomCaller::route,         &RandomCaller::make_adapters, &RandomCaller::make_adapters,
      &RandomCaller::call_with_all, &RandomCaller::call_with_all};

  SplitMix64 random_;
  ReadTensors read_{};
  CWeights memory_weights_{model_path()};
  std::vector<float> memory_ = std::vector<float>(4 * (kMaxTokens + 1) * kHidden);
  std::vector<fp4moe_model*> models_{};
  std::vector<fp4moe_layer*> layers_{};
  std::vector<fp4moe_adapters*> adapters_{};
};

TEST(CApi, SurvivesThousandsOfRandomCalls) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    RandomCaller caller(seed);
    for (int step = 0; step < 1000 && !HasFatalFailure(); ++step) caller.step();
    EXPECT_GT(caller.fine, 100u);
    EXPECT_GT(caller.refused, 100u);
  }
}

}  // namespace random_calls_test
}  // namespace fp4moe::capi
