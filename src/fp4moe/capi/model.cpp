// fp4moe_model_*: a checkpoint or converted folder, opened.
#include <memory>
#include <string>
#include <utility>

#include "fp4moe/capi/border.hpp"
#include "fp4moe/runtime/describe.hpp"

namespace fp4moe::capi {
namespace {

Result<Done> open_model(const char* path, fp4moe_model** model) {
  if (const auto fine = clear(model, "the place for the model"); !fine) return fine.why();
  const Result<std::string> where = require_text(path, "the model's path");
  if (!where) return where.why();
  Result<runtime::Model> opened = runtime::Model::open(*where);
  if (!opened) return opened.why();
  *model = add(std::make_shared<const runtime::Model>(std::move(*opened)));
  return Done{};
}

Result<Done> count_layers(const fp4moe_model* model, std::uint64_t* count) {
  if (count == nullptr) return null_argument("the place for the count");
  *count = 0;
  const auto found = find(model);
  if (!found) return found.why();
  *count = (*found)->layers();
  return Done{};
}

Result<Done> describe_model(const fp4moe_model* model, char** json) {
  if (const auto fine = clear(json, "the place for the text"); !fine) return fine.why();
  const auto found = find(model);
  if (!found) return found.why();
  return give(runtime::describe(**found), json);
}

}  // namespace
}  // namespace fp4moe::capi

namespace capi = fp4moe::capi;

extern "C" {

fp4moe_status fp4moe_model_open(const char* path, fp4moe_model** model) {
  return capi::guarded([&] { return capi::open_model(path, model); });
}

void fp4moe_model_close(fp4moe_model* model) { capi::close(model); }

fp4moe_status fp4moe_model_layers(const fp4moe_model* model, uint64_t* count) {
  return capi::guarded([&] { return capi::count_layers(model, count); });
}

fp4moe_status fp4moe_model_info(const fp4moe_model* model, char** json) {
  return capi::guarded([&] { return capi::describe_model(model, json); });
}

}  // extern "C"
