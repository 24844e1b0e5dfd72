#include "fp4moe/base/json.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fp4moe {
namespace json_test {

TEST(Json, KeepsTheOrderOfMembersAndReplacesInPlace) {
  Json json{{"z", 1}, {"a", 2}};
  json["m"] = 3;
  json["z"] = "first";
  json.update({{"a", nullptr}, {"n", true}});

  EXPECT_EQ(json.dump(), R"({"z":"first","a":null,"m":3,"n":true})");
  EXPECT_EQ(json.erase("a"), 1u);
  EXPECT_EQ(json.erase("a"), 0u);
  EXPECT_EQ(json.dump(), R"({"z":"first","m":3,"n":true})");
}

TEST(Json, ABracedListOfTextsAndValuesIsAnObjectAnyOtherAnArray) {
  EXPECT_EQ(Json({{"a", 1}, {"b", {2, 3}}}).dump(), R"({"a":1,"b":[2,3]})");
  EXPECT_EQ(Json({{"a", 1}, {2, 3}}).dump(), R"([["a",1],[2,3]])");
  EXPECT_EQ(Json::array({{"a", 1}}).dump(), R"([["a",1]])");
  EXPECT_EQ(Json::array().dump() + Json::object().dump(), "[]{}");
}

TEST(Json, TakesListsMapsAndNumbersOfEveryType) {
  const std::vector<bool> flags{true, false};
  const std::map<std::string, std::vector<float>> map{{"x", {0.5f}}, {"y", {}}};

  EXPECT_EQ(Json(flags).dump(), "[true,false]");
  EXPECT_EQ(Json(map).dump(), R"({"x":[0.5],"y":[]})");
  EXPECT_EQ(Json(std::int8_t{-3}).get<int>(), -3);
  EXPECT_EQ(Json(~std::uint64_t{0}).get<std::uint64_t>(), ~std::uint64_t{0});
  EXPECT_EQ(Json(std::array{1, 2}).get<std::vector<double>>(), (std::vector<double>{1, 2}));
}

TEST(Json, WritesNumbersAsTheyAreReadAgain) {
  for (const double value : {0.1, 1e-5, 1e300, 5e-324, -0.0, 1.0, 123456789.125}) {
    const std::string text = Json(value).dump();
    ASSERT_TRUE(parse_json(text)) << text;
    EXPECT_EQ(std::bit_cast<std::uint64_t>(parse_json(text)->get<double>()),
              std::bit_cast<std::uint64_t>(value))
        << text;
    EXPECT_TRUE(parse_json(text)->is_number_float()) << text;
  }
  EXPECT_EQ(Json(1.0).dump() + " " + Json(1e-5).dump(), "1.0 1e-05");
  EXPECT_EQ(Json(std::numeric_limits<double>::quiet_NaN()).dump(), "null");
  EXPECT_EQ(Json(std::numeric_limits<std::int64_t>::min()).dump(), "-9223372036854775808");
}

TEST(Json, EscapesTextsAndReplacesWhatIsNotUtf8) {
  EXPECT_EQ(Json("a\"b\\c\n\t\x01\x7f\u00e9").dump(), "\"a\\\"b\\\\c\\n\\t\\u0001\x7f\u00e9\"");
  EXPECT_EQ(Json("bad \xff end").dump(), "\"bad \xef\xbf\xbd end\"");
  EXPECT_EQ(quoted_json("k\"y"), R"("k\"y")");
  EXPECT_EQ(Json({{"k\"y", "v"}}).dump(), R"({"k\"y":"v"})");
}

TEST(Json, IndentsWhatHoldsSomething) {
  const Json json{{"a", {1, 2}}, {"none", Json::array()}, {"o", {{"x", Json::object()}}}};

  EXPECT_EQ(json.dump(2), R"({
  "a": [
    1,
    2
  ],
  "none": [],
  "o": {
    "x": {}
  }
})");
}

TEST(Json, NumbersAreEqualByValueAndObjectsInOrder) {
  EXPECT_EQ(Json(1), Json(1u));
  EXPECT_EQ(Json(1), Json(1.0));
  EXPECT_NE(Json(-1), Json(~std::uint64_t{0}));
  EXPECT_NE(Json(1), Json(true));
  EXPECT_NE(Json(nullptr), Json(false));
  EXPECT_EQ(Json({{"a", 1}, {"b", 2}}), Json({{"a", 1.0}, {"b", 2u}}));
  EXPECT_NE(Json({{"a", 1}, {"b", 2}}), Json({{"b", 2}, {"a", 1}}));
}

TEST(Json, CopiesAreDeepAndMovesLeaveNull) {
  Json json{{"a", {1, {{"b", "text"}}}}};
  const Json copy = json;
  json["a"][1]["b"] = 7;
  EXPECT_EQ(copy["a"][1]["b"], "text");
  const Json moved = std::move(json);
  EXPECT_TRUE(json.is_null());  // NOLINT(bugprone-use-after-move): that is the question
  EXPECT_EQ(moved["a"][1]["b"], 7);
}

TEST(Json, ItsPartsAreWalkedAndFound) {
  Json json{{"a", 1}, {"b", "two"}};
  std::string keys;
  for (const auto& [key, value] : json.items()) keys += key + value.dump();
  EXPECT_EQ(keys, "a1b\"two\"");
  for (Json& value : json) value = 0;
  EXPECT_EQ(json, Json({{"a", 0}, {"b", 0}}));
  EXPECT_EQ(json.find("b").key(), "b");
  EXPECT_EQ(json.find("c"), json.end());
  EXPECT_EQ(json.value("a", 5) + json.value("c", 5), 5);
  EXPECT_TRUE(Json().items().empty());
}

TEST(Json, WhatCannotBeThrows) {
  const Json number = 1, object{{"a", 1}}, array = Json::array({1});

  EXPECT_THROW((void)number.string(), std::logic_error);
  EXPECT_THROW((void)object.at("b"), std::out_of_range);
  EXPECT_THROW((void)array.at(1), std::out_of_range);
  EXPECT_THROW((void)array.at("a"), std::logic_error);
  EXPECT_THROW((void)object.get<int>(), std::logic_error);
  EXPECT_THROW(Json(number).push_back(2), std::logic_error);
}

std::string id_of(std::string_view text) {
  const Result<Json> document = parse_json(text);
  return document ? "ok" : document.why().id;
}

TEST(Json, ReadsEveryKindOfValue) {
  const Result<Json> document =
      parse_json(R"({"a":[1,-2,3.5,true,false,null,"\u00e9\ud83c\udf89"],"b":{"c":{}}} )");
  ASSERT_TRUE(document);
  EXPECT_EQ(document->dump(), R"({"a":[1,-2,3.5,true,false,null,"é🎉"],"b":{"c":{}}})");
}

TEST(Json, KeepsTheOrderOfKeys) {
  const Result<Json> document = parse_json(R"({"z":1,"a":2,"m":3})");
  ASSERT_TRUE(document);
  EXPECT_EQ(document->dump(), R"({"z":1,"a":2,"m":3})");
  EXPECT_EQ(document->at("m"), 3);
}

TEST(Json, ReadsADocumentThatIsNoObject) {
  EXPECT_EQ(parse_json("7")->get<int>(), 7);
  EXPECT_EQ(parse_json("[]")->size(), 0u);
}

TEST(Json, KeepsSixtyFourBitNumbers) {
  const Result<Json> document = parse_json("[18446744073709551615,-9223372036854775808]");
  ASSERT_TRUE(document);
  EXPECT_EQ(document->at(0).get<std::uint64_t>(), UINT64_MAX);
  EXPECT_EQ(document->at(1).get<std::int64_t>(), INT64_MIN);
}

TEST(Json, RefusesDuplicateKeysAtAnyDepth) {
  EXPECT_EQ(id_of(R"({"a":1,"a":2})"), "json.duplicate_key");
  EXPECT_EQ(id_of(R"([{"b":{"a":1,"\u0061":2}}])"), "json.duplicate_key");
  EXPECT_EQ(id_of(R"({"a":{"a":1},"b":{"a":1}})"), "ok");
  EXPECT_EQ(parse_json(R"({"a":1,"a":2})").why().tensor, "a");
}

TEST(Json, RefusesDepthBeyondTheLimit) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(id_of(nested(kMaxJsonDepth)), "ok");
  EXPECT_EQ(id_of(nested(kMaxJsonDepth + 1)), "json.depth");
  EXPECT_EQ(id_of(std::string(10'000'000, '[')), "json.depth");
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "nul", "{\"a\":}", "[1,]", "{\"a\":1}x", "'a'", "NaN", "01",
                           "1e999", "\"\xff\"", "\"\\ud800\"", "\"a\nb\"", "{1:2}", "// c\n1"})
    EXPECT_EQ(id_of(text), "json.syntax") << text;
}

TEST(Json, RefusesNulBytesAndWhatMayHideBehindThem) {
  EXPECT_EQ(id_of(std::string_view("{}\0", 3)), "json.syntax");
  EXPECT_EQ(id_of(std::string_view("{}\0[[[", 6)), "json.syntax");
  EXPECT_EQ(id_of(R"("a\u0000b")"), "ok");
}

TEST(Json, SaysWhereReadingStopped) {
  EXPECT_NE(parse_json("[1, 2, x]").why().message.find("byte 8"), std::string::npos)
      << parse_json("[1, 2, x]").why().message;
}

TEST(Json, ReadsManyKeysWithoutQuadraticWork) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i)
    text += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  text.back() = '}';
  const Result<Json> document = parse_json(text);
  ASSERT_TRUE(document);
  EXPECT_EQ(document->size(), 200'000u);
}

class JsonFile : public ::testing::Test {
 protected:
  void write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  void TearDown() override { std::remove(path_.c_str()); }
  std::string path_ = ::testing::TempDir() + "json_test." + std::to_string(getpid()) + ".json";
};

TEST_F(JsonFile, IsRead) {
  write(R"({"a":1})");
  const Result<Json> document = read_json_file(path_);
  ASSERT_TRUE(document);
  EXPECT_EQ(document->at("a"), 1);
}

TEST_F(JsonFile, ErrorsNameTheFile) {
  write("{");
  EXPECT_EQ(read_json_file(path_).why().id, "json.syntax");
  EXPECT_EQ(read_json_file(path_).why().path, path_);
}

TEST_F(JsonFile, IsRefusedWhenTooLarge) {
  write(std::string(1001, ' '));
  EXPECT_EQ(read_json_file(path_, 1000).why().id, "json.too_large");
  EXPECT_EQ(read_json_file(path_, 1001).why().id, "json.syntax");
}

TEST_F(JsonFile, IsRefusedWhenAbsentOrAFolder) {
  EXPECT_EQ(read_json_file(path_ + ".absent").why().id, "json.open");
  EXPECT_EQ(read_json_file(::testing::TempDir()).why().id, "file.not_regular");
}

TEST_F(JsonFile, IsRefusedWithoutWaitingWhenItIsAPipe) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const Result<Json> document = read_json_file(path_);  // no writer will ever come
  ASSERT_FALSE(document);
  EXPECT_EQ(document.why().id, "file.not_regular");
  EXPECT_EQ(document.why().path, path_);
  EXPECT_EQ(read_json_file("/dev/zero").why().id, "file.not_regular");
}

// Walks without building, as the readers of large headers do.
struct KeyCounter final : JsonEvents {
  std::size_t keys = 0, errors = 0;
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t) override { return true; }
  bool number_unsigned(std::uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool start_object() override { return true; }
  bool start_array() override { return true; }
  bool end_object() override { return true; }
  bool end_array() override { return true; }
  bool key(std::string&) override { return ++keys < 3; }
  bool parse_error(std::size_t, const std::string&) override {
    ++errors;
    return false;
  }
};

TEST(WalkJson, StopsWhenTheHandlerDoes) {
  KeyCounter counter;
  EXPECT_FALSE(walk_json(R"({"a":1,"b":2,"c":3,"d":4})", counter));
  EXPECT_EQ(counter.keys, 3u);
  EXPECT_EQ(counter.errors, 0u);
}

TEST(WalkJson, TellsTheHandlerOfErrors) {
  KeyCounter counter;
  EXPECT_FALSE(walk_json(R"({"a":1,)", counter));
  EXPECT_EQ(counter.errors, 1u);
  KeyCounter whole;
  EXPECT_TRUE(walk_json(R"({"a":1,"b":[]})", whole));
}

}  // namespace json_test
}  // namespace fp4moe
