// vLLM's functions by name: requests in JSON, conversion into the caller's arrays, kernels on what
// was converted. The package fp4moe.vllm.oracle gives them their names.
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "call_arguments.hpp"
#include "errors.hpp"
#include "fp4moe/vllm/ask.hpp"
#include "fp4moe/vllm/mxfp4.hpp"
#include "fp4moe/vllm/nvfp4.hpp"
#include "layer.hpp"

namespace fp4moe::python {
namespace {

using tensor::DType;
using tensor::TensorView;
using vllm::KernelWeights;
using vllm::MoeKernel;
using vllm::NvFp4KernelWeights;

Json selection_request(const std::string& text) { return value_or_raise(parse_json(text)); }

std::string vllm_ask(const std::string& request) {
  const Json asked = selection_request(request);
  return value_or_raise(without_gil([&] { return vllm::ask(asked); })).dump();
}

// An array without gaps as a tensor. Errors: vllm.tensor.
TensorView dense_view(const Array& array, const std::string& name) {
  if (!array.dtype())
    raise(usage("vllm.tensor", "a tensor has another type")
              .at(name)
              .expects("a type of weights, scales or biases", array.dtype_text()));
  TensorView result{.dtype = *array.dtype()};
  std::int64_t step = static_cast<std::int64_t>(tensor::row(result.dtype).block_bytes);
  std::size_t bytes = static_cast<std::size_t>(step);
  bool is_dense = true;
  for (std::size_t i = array.dimensions(); i-- > 0;) {
    is_dense = is_dense && (array.shape(i) <= 1 || array.stride(i) == step);
    step *= std::max<std::int64_t>(1, array.shape(i));
    bytes *= static_cast<std::size_t>(array.shape(i));
    result.shape.insert(result.shape.begin(), static_cast<std::uint64_t>(array.shape(i)));
  }
  if (bytes != 0 && !is_dense)
    raise(usage("vllm.tensor", "a tensor has gaps or another order")
              .at(name)
              .expects("a contiguous array", "strides of another order")
              .try_this("copy it: numpy.ascontiguousarray(x), x.contiguous()"));
  result.bytes = {static_cast<const std::byte*>(array.data()), bytes};
  return result;
}

// Arrays that go with the GIL held.
struct Arrays {
  std::vector<Array> all{};
};
void let_arrays_go(Arrays* arrays) {
  if (Py_IsInitialized() == 0) return;
  const nb::gil_scoped_acquire acquired;
  delete arrays;
}

struct Loaded {
  Arrays arrays{};
  std::vector<std::pair<std::string, TensorView>> named{};

  explicit Loaded(const nb::dict& tensors) {
    arrays.all.reserve(tensors.size());
    for (const auto& [key, value] : tensors) {
      if (value.is_none()) continue;
      const auto name = nb::cast<std::string>(key);
      arrays.all.push_back(Array::take(value, name.c_str()));
      named.emplace_back(name, dense_view(arrays.all.back(), name));
    }
  }
  TensorView operator()(std::string_view name) const {
    for (const auto& [known, view] : named)
      if (known == name) return view;
    return {};
  }
};

// Converted weights: the arrays they lie in, and what unpacking them needs to know.
struct Converted {
  std::shared_ptr<Arrays> arrays{};
  std::variant<KernelWeights, NvFp4KernelWeights> weights;

  const KernelWeights& packed() const {
    const auto* nvfp4 = std::get_if<NvFp4KernelWeights>(&weights);
    return nvfp4 != nullptr ? nvfp4->packed : std::get<KernelWeights>(weights);
  }
  std::vector<float> numbers(const std::string& name) const {
    const auto* nvfp4 = std::get_if<NvFp4KernelWeights>(&weights);
    if (nvfp4 != nullptr && name == "w13_scale_2") return nvfp4->w13_scale_2;
    if (nvfp4 != nullptr && name == "w2_scale_2") return nvfp4->w2_scale_2;
    if (nvfp4 != nullptr && name == "a13_scale") return nvfp4->a13_scale;
    if (nvfp4 != nullptr && name == "a2_scale") return nvfp4->a2_scale;
    return packed().numbers(name);
  }
  std::vector<std::string> warnings() const { return packed().packer().warnings(); }
};

vllm::Mxfp4Tensors mxfp4_tensors(const Loaded& loaded) {
  return {.w13_weight = loaded("w13_weight"),
          .w2_weight = loaded("w2_weight"),
          .w13_weight_scale = loaded("w13_weight_scale"),
          .w2_weight_scale = loaded("w2_weight_scale"),
          .w13_bias = loaded("w13_bias"),
          .w2_bias = loaded("w2_bias")};
}
vllm::NvFp4Tensors nvfp4_tensors(const Loaded& loaded) {
  return {.w13 = loaded("w13"),
          .w13_scale = loaded("w13_scale"),
          .w13_scale_2 = loaded("w13_scale_2"),
          .a13_scale = loaded("a13_scale"),
          .w2 = loaded("w2"),
          .w2_scale = loaded("w2_scale"),
          .w2_scale_2 = loaded("w2_scale_2"),
          .a2_scale = loaded("a2_scale")};
}

std::string text_of(const Json& request, std::string_view key) {
  const auto found = request.find(key);
  return found != request.end() && found->is_string() ? found->string() : std::string();
}

Converted convert(const std::string& text, const nb::dict& tensors, const nb::sequence& out) {
  const Json request = selection_request(text);
  const auto format = value_or_raise(vllm::format_from(request));
  const vllm::MoeConfig config = value_or_raise(vllm::config_from(request));
  vllm::ConversionOptions options = value_or_raise(vllm::options_from(request));
  const Loaded loaded(tensors);
  std::shared_ptr<Arrays> held(new Arrays, &let_arrays_go);
  std::vector<std::span<std::byte>> targets;
  for (const nb::handle array : out) {
    held->all.push_back(
        Array::take(array, "out", {.access = Access::write, .hold = Hold::for_long}));
    const TensorView view = dense_view(held->all.back(), "out");
    targets.emplace_back(static_cast<std::byte*>(held->all.back().data()), view.bytes.size());
  }
  options.out = targets;
  const std::string backend = text_of(request, "backend");
  const bool is_interleaved = options.w13_order == checkpoint::RowOrder::interleaved;
  if (format == formats::WeightFormat::mxfp4) {
    const auto member = value_or_raise(vllm::parse_mxfp4_moe_backend(backend));
    const vllm::Mxfp4Tensors given = mxfp4_tensors(loaded);
    return {held, value_or_raise(without_gil([&] {
              return is_interleaved ? vllm::convert_gpt_oss_weight_to_mxfp4_moe_kernel_format(
                                          member, given, config.context, options)
                                    : vllm::convert_weight_to_mxfp4_moe_kernel_format(
                                          member, given, config.context, options);
            }))};
  }
  const auto member = value_or_raise(vllm::parse_nvfp4_moe_backend(backend));
  const vllm::NvFp4Tensors given = nvfp4_tensors(loaded);
  return {held, value_or_raise(without_gil([&] {
            return vllm::convert_to_nvfp4_moe_kernel_format(member, given, options.is_act_and_mul,
                                                            config.context, options);
          }))};
}

// A kernel and the arrays that it reads. Calls wait for each other.
struct PythonKernel {
  std::shared_ptr<Arrays> arrays{};
  std::unique_ptr<MoeKernel> kernel;
  std::unique_ptr<std::mutex> mutex = std::make_unique<std::mutex>();
};

// By name among those of the backend; an empty one is the first.
Result<vllm::ExpertsClass> class_of(const Result<std::vector<vllm::ExpertsClass>>& classes,
                                    const std::string& name) {
  if (!classes) return classes.why();
  for (const vllm::ExpertsClass one : *classes)
    if (name.empty() || one->name == name) return one;
  std::vector<std::string_view> known;
  for (const vllm::ExpertsClass one : *classes) known.push_back(one->name);
  return usage("vllm.no_class", "the backend has no such class of experts")
      .expects(fmt::format("one of {}", fmt::join(known, ", ")), name);
}

std::optional<double> constant(const Json& request, std::string_view key) {
  const auto found = request.find(key);
  if (found == request.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

Result<MoeKernel> make_moe_kernel(const Converted& converted, const Json& request,
                                  const vllm::MoeConfig& config,
                                  const vllm::KernelOptions& options) {
  const std::string backend = text_of(request, "backend"), name = text_of(request, "experts_cls");
  const auto alpha = constant(request, "gemm1_alpha"), beta = constant(request, "gemm1_beta"),
             limit = constant(request, "gemm1_clamp_limit");
  if (const auto* nvfp4 = std::get_if<NvFp4KernelWeights>(&converted.weights)) {
    const auto member = vllm::parse_nvfp4_moe_backend(backend);
    if (!member) return member.why();
    const auto experts = class_of(vllm::backend_to_kernel_cls(*member, config.context), name);
    if (!experts) return experts.why();
    vllm::NvFp4Scales scales = vllm::scales_of(*nvfp4);
    scales.swiglu_alpha = alpha;
    scales.swiglu_beta = beta;
    scales.swiglu_limit = limit;
    const auto quant = vllm::make_nvfp4_moe_quant_config(*member, scales, config);
    if (!quant) return quant.why();
    return vllm::make_nvfp4_moe_kernel(*quant, config, *experts, *member, *nvfp4, options);
  }
  const auto member = vllm::parse_mxfp4_moe_backend(backend);
  if (!member) return member.why();
  const auto experts = class_of(vllm::backend_to_kernel_cls(*member, config.context), name);
  if (!experts) return experts.why();
  const KernelWeights& packed = converted.packed();
  const auto quant = vllm::make_mxfp4_moe_quant_config(*member,
                                                       {.w1_scale = packed.tensor("w13_scale"),
                                                        .w2_scale = packed.tensor("w2_scale"),
                                                        .w1_bias = packed.tensor("w13_bias"),
                                                        .w2_bias = packed.tensor("w2_bias"),
                                                        .gemm1_alpha = alpha,
                                                        .gemm1_beta = beta,
                                                        .swiglu_limit = limit},
                                                       config);
  if (!quant) return quant.why();
  return vllm::make_mxfp4_moe_kernel(*quant, config, *experts, *member, packed, options);
}

PythonKernel make_kernel(const Converted& converted, const std::string& text) {
  const Json request = selection_request(text);
  const vllm::MoeConfig config = value_or_raise(vllm::config_from(request));
  vllm::KernelOptions options;
  options.engine = value_or_raise(runtime::engine_from_name(text_of(request, "engine")));
  if (const auto threads = request.find("threads");
      threads != request.end() && threads->is_number_unsigned())
    options.threads = threads->get<std::size_t>();
  options.pool = shared_pool(options.threads, options.threads != 0);
  MoeKernel result = value_or_raise(
      without_gil([&] { return make_moe_kernel(converted, request, config, options); }));
  return {converted.arrays, std::make_unique<MoeKernel>(std::move(result))};
}

// Rows without gaps of one type.
template <class T>
std::span<const T> dense_of(const Array& array, const char* what, DType dtype,
                            std::uint64_t tokens) {
  if (array.dimensions() != 2 || array.dtype() != dtype ||
      array.shape(0) != static_cast<std::int64_t>(tokens))
    raise(usage("vllm.routes", "routes do not fit the tokens")
              .at(what)
              .expects(fmt::format("[{}, top_k] of {}", tokens, tensor::name(dtype)),
                       fmt::format("{} of {}", array.shape_text(), array.dtype_text())));
  const TensorView view = dense_view(array, what);
  return {static_cast<const T*>(array.data()), view.bytes.size() / sizeof(T)};
}

nb::object kernel_apply(const PythonKernel& self, nb::handle x, nb::handle weights, nb::handle ids,
                        nb::handle out) {
  const Array tokens = Array::take(x, "hidden_states");
  const moe::ConstRows rows = rows_of(tokens, "hidden_states");
  const Array weight_array = Array::take(weights, "topk_weights");
  const Array id_array = Array::take(ids, "topk_ids");
  const auto topk_weights = dense_of<float>(weight_array, "topk_weights", DType::f32, rows.rows);
  const auto topk_ids = dense_of<std::int32_t>(id_array, "topk_ids", DType::i32, rows.rows);
  Output output = take_output(x, tokens, rows, out);
  check_no_overlap(rows, output.rows, "the tokens");
  done_or_raise(without_gil([&] {
    const std::lock_guard lock(*self.mutex);
    return self.kernel->apply(rows, topk_weights, topk_ids, output.rows);
  }));
  return std::move(output.object);
}

nb::object kernel_apply_monolithic(const PythonKernel& self, nb::handle x, nb::handle logits,
                                   nb::handle out) {
  const Array tokens = Array::take(x, "hidden_states");
  const moe::ConstRows rows = rows_of(tokens, "hidden_states");
  const Array scores = Array::take(logits, "router_logits");
  const moe::ConstRows score_rows = rows_of(scores, "router_logits");
  Output output = take_output(x, tokens, rows, out);
  check_no_overlap(rows, output.rows, "the tokens");
  check_no_overlap(score_rows, output.rows, "the logits");
  done_or_raise(without_gil([&] {
    const std::lock_guard lock(*self.mutex);
    return self.kernel->apply_monolithic(rows, score_rows, output.rows);
  }));
  return std::move(output.object);
}

}  // namespace

void bind_vllm(nb::module_& module) {
  module.def("vllm_ask", &vllm_ask, nb::arg("request"),
             nb::sig("def vllm_ask(request: str) -> str"),
             "A request about backends, in JSON, and its answer.");
  nb::class_<Converted>(module, "ConvertedWeights",
                        "Weights in a backend's layout, in the arrays they were put into.")
      .def_static("convert", &convert, nb::arg("request"), nb::arg("tensors"), nb::arg("out"),
                  nb::sig("def convert(request: str, tensors: dict[str, typing.Any], out: "
                          "typing.Sequence[typing.Any]) -> ConvertedWeights"),
                  "Loaded tensors by vLLM's names into `out`, as kernel_format asks for it.")
      .def("numbers", &Converted::numbers, nb::arg("name"),
           nb::sig("def numbers(self, name: str) -> list[float]"), "The numbers of a small tensor.")
      .def("warnings", &Converted::warnings, nb::sig("def warnings(self) -> list[str]"),
           "What is odd about the weights.");
  nb::class_<PythonKernel>(module, "MoeKernel", "A kernel on converted weights.")
      .def_static("make", &make_kernel, nb::arg("weights"), nb::arg("request"),
                  nb::sig("def make(weights: ConvertedWeights, request: str) -> MoeKernel"),
                  "By the engines of this machine, with the backend's numbers.")
      .def_prop_ro(
          "is_monolithic", [](const PythonKernel& self) { return self.kernel->is_monolithic(); },
          nb::sig("def is_monolithic(self) -> bool"), "It is given logits and routes by itself.")
      .def("apply", &kernel_apply, nb::arg("hidden_states"), nb::arg("topk_weights"),
           nb::arg("topk_ids"), nb::arg("out").none() = nb::none(),
           nb::sig("def apply(self, hidden_states: typing.Any, topk_weights: typing.Any, topk_ids: "
                   "typing.Any, out: typing.Any = None) -> typing.Any"),
           "Tokens through the experts that they were routed to.")
      .def("apply_monolithic", &kernel_apply_monolithic, nb::arg("hidden_states"),
           nb::arg("router_logits"), nb::arg("out").none() = nb::none(),
           nb::sig("def apply_monolithic(self, hidden_states: typing.Any, router_logits: "
                   "typing.Any, out: typing.Any = None) -> typing.Any"),
           "Tokens through the experts that their logits choose.");
}

}  // namespace fp4moe::python
