#include "fp4moe/vllm/ask.hpp"

#include <string>

#include <gtest/gtest.h>

namespace fp4moe::vllm {
namespace ask_test {

Json asked(std::string_view text) {
  const auto request = parse_json(text);
  EXPECT_TRUE(request) << text;
  const auto answer = ask(*request);
  EXPECT_TRUE(answer) << fp4moe::text(answer.why());
  return answer ? *answer : Json();
}

// The id and the place of a refusal.
std::string refused(std::string_view text) {
  const auto request = parse_json(text);
  EXPECT_TRUE(request) << text;
  const auto answer = ask(*request);
  return answer ? "answered" : answer.why().id + " " + answer.why().tensor;
}

TEST(Ask, AnswersInJson) {
  EXPECT_EQ(asked(R"({"ask": "map", "format": "mxfp4", "backend": "marlin",
                      "context": {"policy": "2026-04-24", "device": "h100"}})")
                .dump(),
            R"(["MARLIN"])");
  EXPECT_EQ(asked(R"({"ask": "round_up", "format": "mxfp4", "backend": "MARLIN",
                      "context": {"policy": "2026-04-24", "device": "h100"},
                      "config": {"hidden_dim": 2880, "intermediate_size_per_partition": 2880}})")
                .dump(),
            "[3072,2944]");
  const Json format = asked(R"({"ask": "kernel_format", "format": "mxfp4", "backend": "MARLIN",
                                "context": {"policy": "2026-04-24", "device": "h100"},
                                "config": {"num_local_experts": 2, "hidden_dim": 256,
                                           "intermediate_size_per_partition": 128}})");
  EXPECT_EQ(format["layout"].string(), "marlin.mxfp4");
  EXPECT_EQ(format["tensors"][0]["shape"].dump(), "[2,16,512]");
  EXPECT_EQ(format["tensors"][0]["bytes"].get<std::uint64_t>(), 65536u);
}

TEST(Ask, AnswersARefusalWithItsRecord) {
  const Json answer = asked(R"({"ask": "select", "format": "mxfp4",
                                "context": {"policy": "2026-04-24", "device": "a100"},
                                "config": {"moe_backend": "triton"}})");
  EXPECT_EQ(answer["id"].string(), "vllm.refused");
  EXPECT_TRUE(answer["refused"].string().starts_with("Mxfp4 MoE backend 'TRITON' does not"));
  EXPECT_FALSE(answer["record"]["candidates"].size() == 0);
}

TEST(Ask, RefusesWhatItDoesNotUnderstand) {
  EXPECT_EQ(refused("{}"), "vllm.ask ask");
  EXPECT_EQ(refused("[]"), "vllm.ask ask");
  EXPECT_EQ(refused(R"({"ask": "everything"})"), "vllm.ask ask");
  EXPECT_EQ(refused(R"({"ask": "map", "format": "fp8"})"), "vllm.ask format");
  EXPECT_EQ(refused(R"({"ask": "map", "format": "mxfp4", "config": 3})"), "vllm.ask config");
  EXPECT_EQ(refused(R"({"ask": "map", "format": "mxfp4", "config": {"topk_group": -1}})"),
            "vllm.ask topk_group");
  EXPECT_EQ(refused(R"({"ask": "map", "format": "mxfp4", "config": {"no_such_field": 1}})"),
            "layer.field no_such_field");
  EXPECT_EQ(refused(R"({"ask": "map", "format": "mxfp4",
                        "context": {"environment": {"HOME": "/"}}})"),
            "vllm.ask HOME");
  EXPECT_EQ(refused(R"({"ask": "map", "format": "mxfp4", "context": {"mode": "loose"}})"),
            "vllm.ask mode");
  EXPECT_EQ(refused(R"({"ask": "kernel_format", "format": "mxfp4", "backend": "MARLIN",
                        "options": {"w13_order": "backwards"}})"),
            "vllm.ask w13_order");
}

}  // namespace ask_test
}  // namespace fp4moe::vllm
