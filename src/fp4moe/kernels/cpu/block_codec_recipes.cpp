#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/formats/mxfp8.hpp"
#include "fp4moe/formats/nvfp4.hpp"
#include "fp4moe/kernels/cpu/block_codec.hpp"

namespace fp4moe::kernels::cpu {
namespace {

struct Row {
  formats::Mxfp4Rule rule;
  Mxfp4Recipe recipe;
};

using enum formats::Mxfp4Rule;

constexpr Row kRows[] = {
    // rule        divisor  added  lowered  away
    {floor4_rne, {4.0f, 0, 0, false}},       {ceil6_rne, {6.0f, 0x7FFFFF, 0, false}},
    {ceil6_away, {6.0f, 0x7FFFFF, 0, true}}, {floor6_away, {6.0f, 0, 0, true}},
    {even_rne, {1.0f, 0x200000, 2, false}},
};

}  // namespace

const Mxfp4Recipe* mxfp4_recipe(formats::Mxfp4Rule rule) noexcept {
  for (const Row& row : kRows)
    if (row.rule == rule) return &row.recipe;
  return nullptr;
}

bool is_ceil448(formats::Mxfp8Rule rule) noexcept { return rule == formats::Mxfp8Rule::ceil448; }
bool is_reference(formats::Nvfp4Rule rule) noexcept {
  return rule == formats::Nvfp4Rule::reference;
}

}  // namespace fp4moe::kernels::cpu
