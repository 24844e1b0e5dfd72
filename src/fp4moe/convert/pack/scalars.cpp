#include "fp4moe/convert/pack/scalars.hpp"

#include <cmath>

#include <fmt/format.h>

namespace fp4moe::convert {

Scalars scalar_tensors(const ScalarTransform* transform, const ScalarProblem& problem,
                       std::uint64_t experts) {
  return transform == nullptr ? Scalars{} : transform->tensors(problem, experts);
}

Result<Scalars> make_scalars(const ScalarTransform* transform, const ScalarProblem& problem,
                             layout::ExpertList experts) {
  Scalars tensors = scalar_tensors(transform, problem, experts.size());
  if (transform == nullptr) return tensors;
  if (const auto filled = transform->fill(problem, experts, tensors); !filled) return filled.why();
  for (const ScalarTensor& tensor : tensors)
    for (const float value : tensor.values)
      if (!std::isfinite(value))
        return invalid("scale.global", "a scale overflows in this layout")
            .at(tensor.name)
            .expects("a finite number", fmt::format("{}", value))
            .try_this("choose a backend with float32 global scales");
  return tensors;
}

}  // namespace fp4moe::convert
