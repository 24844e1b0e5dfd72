#include "fp4moe/checkpoint/origin.hpp"

#include <array>
#include <variant>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe::checkpoint {
namespace {

struct OriginKey {
  const char* key;
  std::string Origin::*member;
};

constexpr std::array<OriginKey, 6> kOriginKeys{{{"prefix", &Origin::prefix},
                                                {"projections", &Origin::projections},
                                                {"quark_grouping", &Origin::quark_grouping},
                                                {"modelopt_grouping", &Origin::modelopt_grouping},
                                                {"bias_dtype", &Origin::bias_dtype},
                                                {"input_dtype", &Origin::input_dtype}}};

const std::string* origin_text(const tensor::Store& store) {
  for (const tensor::Metadata& metadata : store.metadata()) {
    const auto found = metadata.find(std::string(kOriginKey));
    if (found != metadata.end()) return &found->second;
  }
  for (const tensor::GgufField& field : store.gguf_fields())
    if (field.key == kOriginKey) return std::get_if<std::string>(&field.value);
  return nullptr;
}

// Names become parts of tensor names: refuse what no name has.
bool is_plain_text(const std::string& text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '/') return false;
  return text.size() < 200 && is_utf8(text);
}

}  // namespace

std::string to_text(const Origin& origin) {
  Json object = Json::object();
  for (const OriginKey& row : kOriginKeys)
    if (!(origin.*row.member).empty()) object[row.key] = origin.*row.member;
  Json names = Json::object();
  for (const auto& [gguf, own] : origin.names)
    if (is_plain_text(gguf) && is_plain_text(own)) names[gguf] = own;
  if (!names.empty()) object["names"] = std::move(names);
  Json dtypes = Json::object();
  for (const auto& [gguf, dtype] : origin.dtypes)
    if (is_plain_text(gguf)) dtypes[gguf] = dtype;
  if (!dtypes.empty()) object["dtypes"] = std::move(dtypes);
  return object.dump();
}

Result<Origin> read_origin(const tensor::Store& store) {
  Origin origin;
  const std::string* text = origin_text(store);
  if (text == nullptr) return origin;
  const Result<Json> object = parse_json(*text);
  const auto malformed = [&] {
    return invalid("transcode.origin", "the record of the checkpoint's origin is malformed")
        .in(store.files()[0].path())
        .at(kOriginKey)
        .expects("an object of short texts", printable(*text));
  };
  if (!object || !object->is_object()) return malformed();
  for (const OriginKey& row : kOriginKeys) {
    const auto found = object->find(row.key);
    if (found == object->end()) continue;
    if (!found->is_string() || !is_plain_text(found->string())) return malformed();
    origin.*row.member = found->string();
  }
  struct {
    const char* key;
    std::map<std::string, std::string>& map;
  } maps[] = {{"names", origin.names}, {"dtypes", origin.dtypes}};
  for (const auto& [key, map] : maps) {
    const auto found = object->find(key);
    if (found == object->end()) continue;
    if (!found->is_object()) return malformed();
    for (const auto& [gguf, own] : found->items()) {
      if (!is_plain_text(gguf) || !own.is_string() || !is_plain_text(own.string()))
        return malformed();
      map[gguf] = own.string();
    }
  }
  const std::size_t hole = origin.prefix.find("{}");
  if (!origin.prefix.empty() && hole == std::string::npos) return malformed();
  if (!origin.projections.empty() && split(origin.projections, ',').size() != 3) return malformed();
  return origin;
}

std::string projections_text(const ProjectionNames& names) {
  return std::string(names.gate) + "," + std::string(names.up) + "," + std::string(names.down);
}

}  // namespace fp4moe::checkpoint
