// Layer.from_weights: a layer of stacked matrices in arrays, described in words, without a
// checkpoint around it. The arrays are packed and released.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "arrays.hpp"
#include "errors.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/checkpoint/layer_weights_view.hpp"
#include "fp4moe/runtime/layer_description.hpp"
#include "layer.hpp"

namespace fp4moe::python {
namespace {

using checkpoint::MatrixWeights;
using checkpoint::RowOrder;
using tensor::DType;

constexpr std::array<RowOrder, 3> kOrders{RowOrder::interleaved, RowOrder::halves,
                                          RowOrder::single};

// A mapping's values by their names; unknown names are an error.
class Words {
 public:
  Words(nb::handle given, const char* what) : what_(what), given_(dict_of(given, what)) {}

  // None where it is missing or None.
  nb::object take(const char* name) {
    taken_.emplace_back(name);
    const nb::object key = nb::str(name);
    return given_.contains(key) ? nb::object(given_[key]) : nb::none();
  }
  std::optional<double> number(const char* name) {
    const nb::object found = take(name);
    if (found.is_none()) return std::nullopt;
    return nb::cast<double>(nb::float_(found));
  }
  std::string text(const char* name) {
    const nb::object found = take(name);
    if (!nb::isinstance<nb::str>(found))
      raise_type(fmt::format("{}: {}", what_, name), "str", found);
    return nb::cast<std::string>(found);
  }
  std::uint64_t count(const char* name) {
    const nb::object found = take(name);
    const auto value = found.is_none() ? 0 : nb::cast<std::int64_t>(nb::int_(found));
    if (value < 0)
      raise(usage("options.negative", fmt::format("{} is negative", name))
                .expects("0 or more", fmt::format("{}", value)));
    return static_cast<std::uint64_t>(value);
  }
  void check_all_taken() const {
    for (const auto& [key, value] : given_) {
      const auto name = nb::cast<std::string>(nb::str(key));
      if (std::find(taken_.begin(), taken_.end(), name) == taken_.end())
        raise(usage("weights.word", fmt::format("unknown key in {}", what_))
                  .expects(fmt::format("one of {}", fmt::join(taken_, ", ")), name));
    }
  }

 private:
  static nb::dict dict_of(nb::handle given, const char* what) {
    if (PyMapping_Check(given.ptr()) == 0 || !nb::hasattr(given, "items"))
      raise_type(what, "a mapping from names to values", given);
    nb::dict result;
    for (nb::handle item : given.attr("items")()) result[item[0]] = item[1];
    return result;
  }

  const char* what_;
  nb::dict given_;
  std::vector<std::string> taken_{};
};

// The arrays of one call, held until it ends.
struct Given {
  std::vector<Array> arrays{};
  checkpoint::LayerWeights weights{};

  // Dense, with as many dimensions. Errors: weights.array.
  const Array* take(Words& words, const std::string& name, std::size_t dimensions) {
    const nb::object found = words.take(name.c_str());
    if (found.is_none()) return nullptr;
    arrays.push_back(Array::take(found, name.c_str()));
    const Array& array = arrays.back();
    std::int64_t step = bytes_of(array);
    bool is_dense = array.dimensions() == dimensions && step != 0;
    for (std::size_t i = array.dimensions(); is_dense && i-- > 0;) {
      is_dense = array.shape(i) <= 1 || array.stride(i) == step;
      step *= std::max<std::int64_t>(1, array.shape(i));
    }
    if (!is_dense)
      raise(usage("weights.array", "weights cannot be read as they lie")
                .at(name)
                .expects(fmt::format("a contiguous array of {} dimensions", dimensions),
                         fmt::format("{} of {}", array.shape_text(), array.dtype_text())));
    return &array;
  }
  static std::int64_t bytes_of(const Array& array) {
    return array.dtype() ? static_cast<std::int64_t>(tensor::row(*array.dtype()).block_bytes) : 0;
  }
  static std::span<const std::byte> span_of(const Array& array) {
    std::int64_t bytes = bytes_of(array);
    for (std::size_t i = 0; i < array.dimensions(); ++i) bytes *= array.shape(i);
    return {static_cast<const std::byte*>(array.data()), static_cast<std::size_t>(bytes)};
  }
  // One for all, one for each expert, or two for each expert.
  std::span<const float> floats(Words& words, const std::string& name) {
    const nb::object found = words.take(name.c_str());
    if (found.is_none()) return {};
    arrays.push_back(Array::take(found, name.c_str()));
    if (arrays.back().dtype() != DType::f32)
      raise(usage("weights.array", "scales are of another type")
                .at(name)
                .expects("F32", arrays.back().dtype_text()));
    const auto bytes = span_of(arrays.back());
    return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  }
  // Its codes, whose shape is the matrix's.
  const Array& matrix(Words& words, const std::string& name, MatrixWeights& to) {
    const Array* codes = take(words, name, 3);
    if (codes == nullptr)
      raise(
          usage("weights.missing", "a matrix is not given").at(name).expects("its codes", "none"));
    to.codes.bytes = span_of(*codes);
    if (const Array* scales = take(words, name + "_scale", 3)) to.scales.bytes = span_of(*scales);
    to.global_scales = floats(words, name + "_global_scale");
    if (const Array* bias = take(words, name + "_bias", 2)) {
      to.bias.bytes = span_of(*bias);
      to.bias.dtype = *bias->dtype();
    }
    return *codes;
  }
};

template <class Value, class Name, std::size_t count>
Value word_of(const std::string& given, const char* what, const std::array<Value, count>& all,
              const Name& name_of) {
  std::vector<std::string_view> known;
  for (const Value one : all) {
    if (name_of(one) == given) return one;
    known.push_back(name_of(one));
  }
  raise(usage("weights.word", fmt::format("unknown {}", what))
            .expects(fmt::format("one of {}", fmt::join(known, ", ")), given));
}

void take_weights(nb::handle given, const std::string& format, const std::string& order,
                  Given& to) {
  Words words(given, "weights");
  to.arrays.reserve(8);
  checkpoint::MoeShape& shape = to.weights.shape;
  using Format = checkpoint::WeightFormat;
  shape.format = word_of(format, "weight format", std::array{Format::mxfp4, Format::nvfp4},
                         [](Format one) { return formats::name(one); });
  shape.order = word_of(order, "row order of w13", kOrders,
                        [](RowOrder one) { return checkpoint::name(one); });
  const Array& w13 = to.matrix(words, "w13", to.weights.w13);
  const Array& w2 = to.matrix(words, "w2", to.weights.w2);
  words.check_all_taken();
  shape.experts = static_cast<std::uint64_t>(w13.shape(0));
  shape.hidden = static_cast<std::uint64_t>(w13.shape(2)) * 2;
  shape.intermediate = static_cast<std::uint64_t>(w2.shape(2)) * 2;
  // Refuses matrices that a view of memory cannot describe: transposed ones, or those of other
  // layers.
  const std::uint64_t rows = shape.intermediate * (shape.gated() ? 2 : 1);
  if (static_cast<std::uint64_t>(w13.shape(1)) != rows || w2.shape(0) != w13.shape(0) ||
      static_cast<std::uint64_t>(w2.shape(1)) != shape.hidden)
    raise(usage("weights.shape", "w13 and w2 are not of one layer")
              .expects(fmt::format("w13 [{0}, {1}, {2} / 2], w2 [{0}, {2}, {3} / 2]", shape.experts,
                                   rows, shape.hidden, shape.intermediate),
                       fmt::format("{} and {}", w13.shape_text(), w2.shape_text())));
}

struct Description {
  runtime::LayerDescription layer{};
  std::string format{}, order{};
};

Description take_description(nb::handle given) {
  Words words(given, "the description");
  Description result;
  result.format = words.text("format");
  result.order = words.text("row_order");
  const std::string activation = words.text("activation");
  result.layer.activation = oracle::activation_from_name(activation);
  if (!result.layer.activation)
    raise(usage("description.activation", "there is no such activation")
              .expects("one of docs/run.md, such as silu or swigluoai", activation));
  result.layer.alpha = words.number("alpha");
  result.layer.beta = words.number("beta");
  result.layer.limit = words.number("limit");
  result.layer.situ_beta = words.number("situ_beta");
  result.layer.situ_linear_beta = words.number("situ_linear_beta");
  result.layer.top_k = words.count("top_k");
  result.layer.experts = words.count("experts");
  words.check_all_taken();
  return result;
}

Result<Done> load(runtime::MoeLayer& layer, const checkpoint::LayerWeightsView& view) {
  const InterruptGuard guard;
  if (const auto done = layer.load(view); !done) return done.why();
  return layer.process();
}

Layer from_weights(nb::handle given, nb::handle description, const LayerWords& words) {
  const Description wanted = take_description(description);
  Given arrays;
  take_weights(given, wanted.format, wanted.order, arrays);
  return Layer::of(value_or_raise(without_gil([&]() -> Result<std::shared_ptr<OpenLayer>> {
    const auto view = checkpoint::LayerWeightsView::make(arrays.weights);
    if (!view) return view.why();
    Result<runtime::LayerOptions> options = options_of(words);
    if (!options) return options.why();
    take_threads(words.threads, *options);
    auto result = runtime::MoeLayer::create(wanted.layer, *view, std::move(*options));
    if (!result) return result.why();
    if (const auto done = load(*result, *view); !done) return done.why();
    return std::make_shared<OpenLayer>(Model{}, 0, std::move(*result));
  })));
}

void load_weights(const Layer& layer, nb::handle given) {
  const std::shared_ptr<OpenLayer> open = layer.get();
  if (open->model.open)
    raise(usage("layer.source", "the layer reads the weights of its model")
              .expects("a layer of from_weights", "one of a model")
              .try_this("load them again with load()"));
  const moe::ExpertsProblem& problem = open->layer.problem();
  Given arrays;
  take_weights(given, std::string(formats::name(problem.shape.format)),
               std::string(checkpoint::name(open->layer.weights().packer().problem().order)),
               arrays);
  done_or_raise(without_gil([&]() -> Result<Done> {
    const auto view = checkpoint::LayerWeightsView::make(arrays.weights);
    if (!view) return view.why();
    const std::lock_guard lock(open->mutex);
    open->session.reset();  // it has the weights of before
    return load(open->layer, *view);
  }));
}

}  // namespace

void bind_weights(nb::class_<Layer>& layer) {
  const std::pair<std::int64_t, std::int64_t> alone{0, 1};
  layer
      .def_static(
          "from_weights",
          [](nb::handle tensors, nb::handle description, std::string engine, std::string backend,
             std::string policy, std::string device, std::string numerics, std::string activations,
             std::int64_t threads, std::pair<std::int64_t, std::int64_t> ep) {
            return from_weights(tensors, description,
                                {.engine = std::move(engine),
                                 .backend = std::move(backend),
                                 .policy = std::move(policy),
                                 .device = std::move(device),
                                 .numerics = std::move(numerics),
                                 .activations = std::move(activations),
                                 .weights = "packed",
                                 .threads = threads,
                                 .ep = ep});
          },
          nb::arg("tensors"), nb::arg("description"), nb::kw_only(), nb::arg("engine") = "auto",
          nb::arg("backend") = "auto", nb::arg("policy") = "native", nb::arg("device") = "auto",
          nb::arg("numerics") = "", nb::arg("activations") = "", nb::arg("threads") = 0,
          nb::arg("ep") = alone,
          nb::sig(
              "def from_weights(tensors: collections.abc.Mapping[str, typing.Any], "
              "description: collections.abc.Mapping[str, typing.Any], *, "
              "engine: str = 'auto', backend: str = 'auto', policy: str = 'native', "
              "device: str = 'auto', numerics: str = '', activations: str = '', threads: int = 0, "
              "ep: tuple[int, int] = (0, 1)) -> Layer"),
          "A layer of stacked matrices: w13 [experts, rows, hidden / 2] and w2, their _scale, "
          "_global_scale and _bias. The description has format, row_order, activation, top_k, and "
          "where they are not the activation's own alpha, beta, limit. The arrays are packed and "
          "released.")
      .def("load_weights", &load_weights, nb::arg("tensors"),
           nb::sig("def load_weights(self, tensors: collections.abc.Mapping[str, typing.Any]) -> "
                   "None"),
           "Other weights for a layer of from_weights; addresses stay.");
}

}  // namespace fp4moe::python
