// Finds the factors of an adapter among its tensors and proves their shapes; the work behind
// Adapter::open.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/checkpoint/lora/adapter.hpp"
#include "fp4moe/checkpoint/lora/adapter_name.hpp"

namespace fp4moe::checkpoint {

class AdapterBuilder {
 public:
  explicit AdapterBuilder(Adapter& adapter) : adapter_(adapter) {}
  Result<Done> build();

 private:
  // A and B of one module.
  struct Module {
    AdapterName name{};
    const tensor::StoredTensor* a = nullptr;
    const tensor::StoredTensor* b = nullptr;
    std::size_t layer = 0;
  };
  // Inputs and outputs of a matrix, and whether the stored factors have changed places.
  struct Sizes {
    StoredProjection projection = StoredProjection::up;
    std::uint64_t inputs = 0, outputs = 0;
    bool swapped = false;
  };
  // How a pair is stored for `experts` experts.
  struct Stored {
    std::uint64_t rank = 0;
    std::uint64_t a_experts = 0, b_experts = 0;  // 3-D: extents; 0: two dimensions
  };

  Error at(const tensor::StoredTensor& tensor, std::string_view id, std::string_view message) const;
  Result<Done> collect();
  Result<Done> find_layers();
  Result<std::size_t> find_layer(const Module& module) const;
  Result<Done> check_module(const Module& module) const;
  Sizes sizes_of(const AdapterTarget& target, StoredProjection projection) const;

  Result<Done> add_named(const Module& module);
  Result<Done> add_wrapped();
  Result<Sizes> wrapped_sizes(const Module& module, std::size_t wrappers,
                              std::optional<bool> swapped) const;
  Result<Stored> stored_form(const Module& module, const Sizes& sizes, LoraScale scale) const;
  Result<Done> add(const Module& module, const Sizes& sizes);
  Result<Done> put(const Module& module, Projection which, std::uint64_t expert,
                   const LowRankPlace& place);

  Adapter& adapter_;
  std::map<std::string_view, Module> modules_{};  // by the module's name
};

}  // namespace fp4moe::checkpoint
