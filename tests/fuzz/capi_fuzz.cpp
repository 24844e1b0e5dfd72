// Sequences of calls of the C API: each byte is a call, the next ones its arguments. Handles are
// used in any order, also after they were closed.
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "choices.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "fp4moe/fp4moe.h"
#include "fuzz.hpp"
#include "support/temporary_folder.hpp"

namespace fp4moe {
namespace {

constexpr std::uint64_t kExperts = 4, kHidden = 64, kMaxTokens = 3;
constexpr std::size_t kMaxCalls = 40;

const std::string& model_path() {
  static const testing::TemporaryFolder kFolder;
  static const std::string kPath = [] {
    const auto result = checkpoint::synth(
        {.model = "gpt-oss-20b", .experts = kExperts, .hidden = kHidden, .intermediate = 64},
        kFolder / "model");
    fuzz::require(static_cast<bool>(result));
    return kFolder / "model";
  }();
  return kPath;
}

class Caller {
 public:
  explicit Caller(fuzz::Choices choices) : choices_(choices) {}
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  ~Caller() {
    for (fp4moe_layer* layer : layers_) fp4moe_layer_destroy(layer);
    for (fp4moe_model* model : models_) fp4moe_model_close(model);
  }

  void run() {
    for (std::size_t i = 0; i < kMaxCalls && !choices_.is_over(); ++i) {
      const fp4moe_status status = call();
      fuzz::require(std::strcmp(fp4moe_status_name(status), "unknown") != 0);
      if (status == FP4MOE_OK) continue;
      fuzz::require(*fp4moe_last_error() != '\0' && *fp4moe_last_error_id() != '\0');
    }
  }

 private:
  const char* word() {
    return choices_.any(std::array<const char*, 12>{nullptr, nullptr, nullptr, "auto", "CPU",
                                                    "MARLIN", "reference", "exact", "mapped",
                                                    "h100", "", "\xff\x01 no such word"});
  }
  std::uint64_t number() {
    return choices_.any(
        std::array<std::uint64_t, 8>{0, 0, 1, 2, 3, 7, 1u << 20, ~std::uint64_t{0}});
  }
  std::size_t size_of(std::size_t right) {
    return choices_.one_in(16) ? choices_.byte() % (right + 1) : right;
  }
  template <class T>
  T* one_of(const std::vector<T*>& all) {
    const std::uint8_t which = choices_.byte();
    if (which >= 250 || all.empty()) return nullptr;
    return which == 249 ? reinterpret_cast<T*>(memory_.data()) : all[which % all.size()];
  }

  // Rows that claim no more memory than there is, unless the claim can be seen to be wrong.
  template <class Rows>
  Rows rows(std::uint64_t columns, std::size_t at) {
    Rows result{sizeof(Rows), memory_.data() + at,
                FP4MOE_F32,   choices_.byte() % (kMaxTokens + 1),
                columns,      0};
    const std::uint8_t wrong = choices_.byte();
    if (wrong == 1) result.dtype = number();
    if (wrong == 2) result.columns = number();
    if (wrong == 3) result.stride = choices_.any(std::array<std::uint64_t, 3>{1, 3, columns * 4});
    if (wrong == 4) result.rows = ~std::uint64_t{0} / 4;
    if (wrong == 5) result.data = nullptr;
    if (wrong == 6) result.size = size_of(sizeof(Rows));
    return result;
  }

  fp4moe_status call() {
    switch (choices_.byte() % 14) {
      case 0:
        return open();
      case 1:
        fp4moe_model_close(one_of(models_));  // the handle stays in the list
        return FP4MOE_OK;
      case 2:
        fp4moe_layer_destroy(one_of(layers_));
        return FP4MOE_OK;
      case 3:
        return describe();
      case 4:
      case 5:
        return create();
      case 6:
        return fp4moe_layer_load(one_of(layers_));
      case 7:
        return fp4moe_layer_load_expert(one_of(layers_), number());
      case 8:
      case 9:
        return fp4moe_layer_process(one_of(layers_));
      case 10:
        return apply();
      case 11:
      case 12:
        return run_layer();
      default:
        return explain();
    }
  }

  fp4moe_status open() {
    fp4moe_model* opened = nullptr;
    const char* path = choices_.one_in(4) ? word() : model_path().c_str();
    const fp4moe_status status = fp4moe_model_open(path, &opened);
    if (opened != nullptr) models_.push_back(opened);
    return status;
  }
  fp4moe_status describe() {
    std::uint64_t count = 0;
    char* json = nullptr;
    const std::uint8_t what = choices_.byte() % 3;
    const fp4moe_status status = what == 0   ? fp4moe_model_layers(one_of(models_), &count)
                                 : what == 1 ? fp4moe_model_info(one_of(models_), &json)
                                             : fp4moe_layer_info(one_of(layers_), &json);
    fuzz::require(json == nullptr || status == FP4MOE_OK);
    fp4moe_free_string(json);
    return status;
  }
  fp4moe_status create() {
    fp4moe_layer_options options{};
    options.engine = word();
    options.backend = word();
    options.threads = 1;
    const std::uint8_t wrong = choices_.byte();
    if (wrong == 1) options.policy = word();
    if (wrong == 2) options.numerics = word();
    if (wrong == 3) options.weights = word();
    if (wrong == 4) options.ep_rank = number();
    if (wrong == 5) options.ep_size = number();
    if (wrong == 6) options.tp_size = number();
    options.size = size_of(sizeof options);
    fp4moe_layer* result = nullptr;
    const std::uint64_t layer = choices_.one_in(8) ? number() : 0;
    const fp4moe_status status = fp4moe_layer_create(one_of(models_), layer, &options, &result);
    if (result != nullptr) layers_.push_back(result);
    return status;
  }
  fp4moe_status apply() {
    const auto x = rows<fp4moe_rows>(kHidden, 0);
    const auto out = rows<fp4moe_output>(kHidden, memory_.size() / 2);
    std::array<std::int32_t, kMaxTokens * kExperts> ids{};
    for (std::int32_t& id : ids) id = static_cast<std::int8_t>(choices_.byte()) % 8;
    fp4moe_routes routes{sizeof routes, ids.data(), memory_.data(), x.rows,
                         1 + choices_.byte() % kExperts};
    if (choices_.one_in(16)) routes.top_k = number();
    if (choices_.one_in(16)) routes.tokens = number();
    return fp4moe_layer_apply(one_of(layers_), &x, &routes, &out);
  }
  fp4moe_status run_layer() {
    const auto x = rows<fp4moe_rows>(kHidden, 0);
    const auto logits = rows<fp4moe_rows>(kExperts, 0);
    const auto out = rows<fp4moe_output>(kHidden, memory_.size() / 2);
    const auto function = choices_.one_in(4) ? fp4moe_layer_apply_monolithic : fp4moe_layer_run;
    return function(one_of(layers_), &x, &logits, &out);
  }
  fp4moe_status explain() {
    const auto bytes = choices_.rest().first(std::min<std::size_t>(choices_.rest().size(), 64));
    const std::string request(bytes.begin(), bytes.end());
    char* record = nullptr;
    const fp4moe_status status = fp4moe_explain(
        choices_.one_in(2) ? request.c_str() : R"({"device": "h100", "tp": 2})", &record);
    fp4moe_free_string(record);
    return status;
  }

  fuzz::Choices choices_;
  std::vector<float> memory_ = std::vector<float>(4 * (kMaxTokens + 1) * kHidden, 0.5f);
  std::vector<fp4moe_model*> models_{};
  std::vector<fp4moe_layer*> layers_{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Caller(fuzz::Choices(data, size)).run();
  return 0;
}

}  // namespace fp4moe
