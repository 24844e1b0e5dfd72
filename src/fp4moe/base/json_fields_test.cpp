#include "fp4moe/base/json_fields.hpp"

#include <string>

#include <gtest/gtest.h>

namespace fp4moe {
namespace json_fields_test {

class Fields : public JsonFields {
 public:
  using JsonFields::JsonFields;
  std::string problem{};

 private:
  void wrong(std::string_view key, std::string_view expected, const Json* found) override {
    if (problem.empty())
      problem = std::string(key) + ": " + std::string(expected) + ", found " +
                (found == nullptr ? "none" : found->dump());
  }
};

const Json kDocument{{"yes", true},           {"seven", 7},          {"minus", -1},
                     {"half", 0.5},           {"word", "w"},         {"none", nullptr},
                     {"list", Json::array()}, {"in", Json::object()}};

TEST(JsonFields, GiveWhatHasItsType) {
  Fields fields(kDocument);
  EXPECT_EQ(fields.get<bool>("yes"), true);
  EXPECT_EQ(fields.get<std::uint64_t>("seven"), 7u);
  EXPECT_EQ(fields.get<double>("half"), 0.5);
  EXPECT_EQ(fields.get<double>("minus"), -1.0);
  EXPECT_EQ(fields.get<std::string>("word"), "w");
  EXPECT_NE(fields.object("in"), nullptr);
  EXPECT_NE(fields.array("list"), nullptr);
  EXPECT_EQ(fields.problem, "");
}

TEST(JsonFields, NullAndAbsentAreTheSame) {
  Fields fields(kDocument);
  for (const char* const key : {"none", "nothing"}) {
    EXPECT_EQ(fields.get<bool>(key), std::nullopt);
    EXPECT_EQ(fields.object(key), nullptr);
    EXPECT_EQ(fields.array(key), nullptr);
  }
  EXPECT_EQ(fields.problem, "");
  EXPECT_EQ(fields.need<std::uint64_t>("none"), 0u);
  EXPECT_EQ(fields.problem, "none: a whole number, found none");
}

TEST(JsonFields, TheFirstWrongTypeIsTold) {
  const auto problem = [](const auto& read) {
    Fields fields(kDocument);
    read(fields);
    fields.template need<bool>("nothing");
    return fields.problem;
  };
  EXPECT_EQ(problem([](Fields& f) { EXPECT_EQ(f.get<std::uint64_t>("minus"), std::nullopt); }),
            "minus: a whole number, found -1");
  EXPECT_EQ(problem([](Fields& f) { EXPECT_EQ(f.get<std::uint64_t>("half"), std::nullopt); }),
            "half: a whole number, found 0.5");
  EXPECT_EQ(problem([](Fields& f) { EXPECT_EQ(f.get<double>("word"), std::nullopt); }),
            "word: a number, found \"w\"");
  EXPECT_EQ(problem([](Fields& f) { EXPECT_EQ(f.need<std::string>("seven"), ""); }),
            "seven: a string, found 7");
  EXPECT_EQ(problem([](Fields& f) { EXPECT_EQ(f.array("in"), nullptr); }), "in: a list, found {}");
  EXPECT_EQ(problem([](Fields& f) { EXPECT_EQ(f.object("list"), nullptr); }),
            "list: an object, found []");
}

TEST(JsonFields, TheInnerObjectIsAskedFirst) {
  const Json inner{{"seven", 8}, {"word", nullptr}};
  Fields fields(kDocument, &inner);
  EXPECT_EQ(fields.get<std::uint64_t>("seven"), 8u);
  EXPECT_EQ(fields.get<std::string>("word"), "w");
}

TEST(JsonFields, WhatIsNoObjectHasNone) {
  const Json number = 3;
  Fields fields(number);
  EXPECT_EQ(fields.find("seven"), nullptr);
}

}  // namespace json_fields_test
}  // namespace fp4moe
