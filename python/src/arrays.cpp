#include "arrays.hpp"

#include <bit>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "errors.hpp"

namespace fp4moe::python {
namespace {

using tensor::DType;

constexpr const char* kExpected = "an array (numpy, torch, or with the buffer protocol or DLPack)";

// Names of other packages that every call needs. Looked up once: an import costs more than a call.
struct Numpy {
  nb::object empty = nb::module_::import_("numpy").attr("empty");
  nb::object ndarray = nb::module_::import_("numpy").attr("ndarray");
};
const Numpy& numpy() {
  // Never torn down: the interpreter may be gone by then.
  static const Numpy& result = *new Numpy;
  return result;
}

bool is_instance(nb::handle object, nb::handle type) {
  if (object.type().is(type)) return true;
  const int found = PyObject_IsInstance(object.ptr(), type.ptr());
  if (found < 0) throw nb::python_error();
  return found == 1;
}

std::optional<DType> integer_type(bool is_signed, std::size_t bytes) {
  switch (bytes) {
    case 1:
      return is_signed ? DType::i8 : DType::u8;
    case 2:
      return is_signed ? DType::i16 : DType::u16;
    case 4:
      return is_signed ? DType::i32 : DType::u32;
    case 8:
      return is_signed ? DType::i64 : DType::u64;
    default:
      return std::nullopt;
  }
}
std::optional<DType> float_type(std::size_t bytes) {
  switch (bytes) {
    case 2:
      return DType::f16;
    case 4:
      return DType::f32;
    case 8:
      return DType::f64;
    default:
      return std::nullopt;
  }
}

// The letters of Python's struct module.
std::optional<DType> dtype_of_format(std::string_view format, std::size_t bytes) {
  if (format.starts_with('@') || format.starts_with('=') || format.starts_with('<'))
    format.remove_prefix(1);
  if (format.size() != 1) return std::nullopt;
  constexpr std::string_view kSigned = "bhilqn", kUnsigned = "BHILQN", kFloats = "efd";
  if (kSigned.find(format[0]) != std::string_view::npos) return integer_type(true, bytes);
  if (kUnsigned.find(format[0]) != std::string_view::npos) return integer_type(false, bytes);
  if (kFloats.find(format[0]) != std::string_view::npos) return float_type(bytes);
  if (format[0] == '?') return DType::boolean;
  return std::nullopt;
}
static_assert(std::endian::native == std::endian::little);

// Types that DLPack numbers (its enum DLDataTypeCode).
struct DlpackType {
  int code, bits;
  DType dtype;
};
constexpr DlpackType kDlpackTypes[] = {
    {4, 16, DType::bf16},        {6, 8, DType::boolean},  {10, 8, DType::f8_e4m3},
    {11, 8, DType::f8_e4m3fnuz}, {12, 8, DType::f8_e5m2}, {13, 8, DType::f8_e5m2fnuz},
    {14, 8, DType::f8_e8m0},
};
std::optional<DType> dtype_of_dlpack(nb::dlpack::dtype given) {
  if (given.lanes != 1) return std::nullopt;
  const std::size_t bytes = given.bits / 8u;
  if (given.code == 0) return integer_type(true, bytes);
  if (given.code == 1) return integer_type(false, bytes);
  if (given.code == 2) return float_type(bytes);
  for (const DlpackType& row : kDlpackTypes)
    if (row.code == given.code && row.bits == given.bits) return row.dtype;
  return std::nullopt;
}

// Types of the package ml_dtypes, which numpy does not export: seen through integers of their size.
struct ViewedType {
  const char* name;
  DType dtype;
  const char* view;
};
constexpr ViewedType kViewedTypes[] = {
    {"bfloat16", DType::bf16, "uint16"},
    {"float8_e4m3fn", DType::f8_e4m3, "uint8"},
    {"float8_e4m3fnuz", DType::f8_e4m3fnuz, "uint8"},
    {"float8_e5m2", DType::f8_e5m2, "uint8"},
    {"float8_e5m2fnuz", DType::f8_e5m2fnuz, "uint8"},
    {"float8_e8m0fnu", DType::f8_e8m0, "uint8"},
};

std::string text_of(nb::handle object) { return nb::cast<std::string>(nb::str(object)); }

[[noreturn]] void raise_read_only(const char* what) {
  raise(usage("rows.readonly", fmt::format("{} cannot be written", what))
            .expects("an array that may be written", "a read-only one"));
}

}  // namespace

Array::Array(Array&& other) noexcept
    : kind_(other.kind_),
      dtype_(other.dtype_),
      dtype_text_(std::move(other.dtype_text_)),
      shape_(other.shape_),
      strides_(other.strides_),
      data_(other.data_),
      use_(other.use_),
      device_(other.device_),
      object_(std::move(other.object_)),
      owner_(std::move(other.owner_)),
      buffer_(std::exchange(other.buffer_, std::nullopt)),
      held_(std::move(other.held_)),
      held_for_writing_(std::move(other.held_for_writing_)) {}

Array::~Array() {
  if (buffer_) PyBuffer_Release(&*buffer_);
}

Array Array::take(nb::handle object, const char* what, const Use& use) {
  Array result;
  result.use_ = use;
  if (PyObject_CheckBuffer(object.ptr()) != 0) {
    if (result.take_buffer(object, what) || result.take_view(object, what)) return result;
  } else if (const Torch* torch = Torch::imported(); torch != nullptr && torch->is_tensor(object)) {
    result.take_tensor(*torch, object, what);
    return result;
  } else if (result.take_dlpack(object, what)) {
    return result;
  }
  raise_type(what, kExpected, object);
}

bool Array::take_buffer(nb::handle object, const char* what) {
  Py_buffer view{};
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    PyErr_Clear();  // ml_dtypes' types, strings, objects
    return false;
  }
  buffer_ = view;
  if (is_instance(object, numpy().ndarray)) kind_ = Kind::numpy;
  if (use_.access == Access::write && view.readonly != 0) raise_read_only(what);
  read(view, what);
  return true;
}

bool Array::take_view(nb::handle object, const char* what) {
  if (!is_instance(object, numpy().ndarray)) return false;
  const std::string name = text_of(object.attr("dtype").attr("name"));
  for (const ViewedType& row : kViewedTypes) {
    if (name != row.name) continue;
    owner_ = object.attr("view")(row.view);
    if (!take_buffer(owner_, what)) return false;
    dtype_ = row.dtype;
    return true;
  }
  raise(usage("rows.type", fmt::format("{} have a type that is not computed with", what))
            .expects("numbers", name));
}

void Array::add_dimension(std::int64_t size, std::int64_t stride, const char* what) {
  if (shape_.add(size) && strides_.add(stride)) return;
  raise(usage("rows.dimensions", fmt::format("{} have too many dimensions", what))
            .expects(fmt::format("at most {}", Numbers::kMax), "more"));
}

void Array::read(const Py_buffer& buffer, const char* what) {
  data_ = buffer.buf;
  const std::string_view format = buffer.format == nullptr ? "B" : buffer.format;
  const auto bytes = static_cast<std::size_t>(buffer.itemsize);
  if (bytes > 1 && (format.starts_with('>') || format.starts_with('!')))
    raise(usage("rows.order", fmt::format("the bytes of {} are in another order", what))
              .expects("this machine's, little-endian", "big-endian")
              .try_this("convert them: a.astype(a.dtype.newbyteorder('='))"));
  dtype_ = dtype_of_format(format, bytes);
  if (!dtype_) dtype_text_ = fmt::format("'{}' of {} bytes", format, bytes);
  for (int i = 0; i < buffer.ndim; ++i) add_dimension(buffer.shape[i], buffer.strides[i], what);
}

void Array::refuse_gradients(const Torch& torch, nb::handle tensor, const char* what) {
  const bool may_have = !dtype_ || moe::is_activation_type(*dtype_);
  if (use_.records == false || !may_have) return;
  if (!use_.records) use_.records = torch.records_gradients();
  if (!*use_.records || !torch.wants_gradient(tensor)) return;
  raise(usage("rows.gradient", fmt::format("{} ask for a gradient, which a layer has not", what))
            .expects("a tensor without requires_grad, or torch.no_grad()", "requires_grad=True")
            .try_this("run it under torch.inference_mode()"));
}

void Array::take_tensor(const Torch& torch, nb::handle tensor, const char* what) {
  kind_ = Kind::torch;
  object_ = nb::borrow(tensor);
  Torch::Memory memory = torch.memory(tensor, what, use_.hold);
  owner_ = std::move(memory.held);
  read(memory.view, what);
  refuse_gradients(torch, tensor, what);
}

bool Array::take_dlpack(nb::handle object, const char* what) {
  if (!nb::hasattr(object, "__dlpack__")) return false;
  object_ = nb::borrow(object);
  if (use_.access == Access::write) {
    if (!nb::try_cast(object, held_for_writing_)) {
      nb::ndarray<nb::ro> readable;
      if (nb::try_cast(object, readable)) raise_read_only(what);
      return false;
    }
    read_held(held_for_writing_, what);
    return true;
  }
  if (!nb::try_cast(object, held_)) return false;
  read_held(held_, what);
  return true;
}

template <class Held>
void Array::read_held(const Held& held, const char* what) {
  // Const is what the view was asked for, not what the memory is; shape and strides are only read.
  read({.data = const_cast<void*>(static_cast<const void*>(held.data())),  // NOLINT
        .device = {held.device_type(), held.device_id()},
        .ndim = static_cast<std::int32_t>(held.ndim()),
        .dtype = held.dtype(),
        .shape = const_cast<std::int64_t*>(held.shape_ptr()),      // NOLINT
        .strides = const_cast<std::int64_t*>(held.stride_ptr())},  // NOLINT
       what);
}

void Array::read(const nb::dlpack::dltensor& view, const char* what) {
  const auto [device_type, number] = view.device;
  if (use_.where == Where::anywhere && device_type == nb::device::cuda::value)
    device_ = number;
  else if (device_type != nb::device::cpu::value)
    raise(usage("rows.device", fmt::format("{} are not where the layer computes", what))
              .expects("memory of the CPU",
                       kind_ == Kind::torch
                           ? text_of(object_.attr("device"))
                           : fmt::format("DLPack device {}:{}", device_type, number))
              .try_this("move them: x.cpu()"));
  dtype_ = dtype_of_dlpack(view.dtype);
  if (!dtype_)
    dtype_text_ = fmt::format("DLPack type {} of {} bits", view.dtype.code, view.dtype.bits);
  const std::int64_t bytes = view.dtype.bits / 8;
  bool is_empty = false;
  for (std::int32_t i = 0; i < view.ndim; ++i) {
    add_dimension(view.shape[i], view.strides[i] * bytes, what);
    is_empty = is_empty || view.shape[i] == 0;
  }
  // Tensors that only stand for others while a program is traced.
  if (view.data == nullptr && !is_empty)
    raise(usage("rows.memory", fmt::format("{} have no memory to read", what))
              .expects("an array that holds numbers", "an address of null"));
  data_ = static_cast<std::byte*>(view.data) + view.byte_offset;
}

std::string Array::dtype_text() const {
  return dtype_ ? std::string(tensor::name(*dtype_)) : dtype_text_;
}

std::string Array::shape_text() const {
  std::string text = "[";
  for (std::size_t i = 0; i < shape_.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", shape_[i]);
  return text + "]";
}

moe::MutableRows mutable_rows_of(const Array& array, const char* what) {
  if (array.dimensions() != 2)
    raise(usage("rows.dimensions", fmt::format("{} are not rows", what))
              .expects("an array of 2 dimensions", "shape " + array.shape_text()));
  if (!array.dtype() || !moe::is_activation_type(*array.dtype()))
    raise(usage("rows.type", fmt::format("{} have a type that is not computed with", what))
              .expects("BF16, F16, F32 or F64", array.dtype_text()));
  const auto element = static_cast<std::int64_t>(moe::element_bytes(*array.dtype()));
  const std::int64_t rows = array.shape(0), columns = array.shape(1);
  const bool is_empty = rows == 0 || columns == 0;
  if (columns > 1 && rows > 0 && array.stride(1) != element)
    raise(usage("rows.stride", fmt::format("elements of a row of {} are not neighbors", what))
              .expects(fmt::format("{} bytes from element to element", element),
                       fmt::format("{}", array.stride(1)))
              .try_this("copy them: numpy.ascontiguousarray(x), x.contiguous()"));
  std::int64_t stride = rows > 1 && !is_empty ? array.stride(0) : columns * element;
  if (stride < columns * element)
    raise(usage("rows.stride", fmt::format("rows of {} overlap or go backwards", what))
              .expects(fmt::format("at least {} bytes from row to row", columns * element),
                       fmt::format("{}", stride))
              .try_this("copy them: numpy.ascontiguousarray(x), x.contiguous()"));
  if (!is_empty &&
      (reinterpret_cast<std::uintptr_t>(array.data()) % static_cast<std::uintptr_t>(element) != 0 ||
       stride % element != 0))
    raise(usage("rows.alignment", fmt::format("{} are not aligned as their type is", what))
              .expects(fmt::format("multiples of {} bytes", element),
                       fmt::format("address {}, {} bytes from row to row", array.data(), stride)));
  return {static_cast<std::byte*>(array.data()), *array.dtype(), static_cast<std::uint64_t>(rows),
          static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(stride)};
}

moe::ConstRows rows_of(const Array& array, const char* what) {
  return mutable_rows_of(array, what);
}

bool overlap(const moe::ConstRows& a, const moe::ConstRows& b) {
  if (a.rows == 0 || b.rows == 0 || a.columns == 0 || b.columns == 0) return false;
  const auto width = [](const moe::ConstRows& rows) {
    return rows.columns * moe::element_bytes(rows.dtype);
  };
  const auto begin = [](const moe::ConstRows& rows) {
    return reinterpret_cast<std::uintptr_t>(rows.data);
  };
  const auto end = [&](const moe::ConstRows& rows) {
    return begin(rows) + (rows.rows - 1) * rows.stride + width(rows);
  };
  if (end(a) <= begin(b) || end(b) <= begin(a)) return false;
  // Columns of one matrix side by side.
  if (a.stride != b.stride || (a.rows == 1 && b.rows == 1)) return true;
  const std::uintptr_t ahead = begin(b) >= begin(a)
                                   ? (begin(b) - begin(a)) % a.stride
                                   : (a.stride - (begin(a) - begin(b)) % a.stride) % a.stride;
  return ahead < width(a) || ahead + width(b) > a.stride;
}

nb::object empty_like(nb::handle like, const Array& seen) {
  if (seen.kind() == Kind::torch) return Torch::imported()->empty_like(like);
  const nb::tuple shape = nb::make_tuple(seen.shape(0), seen.shape(1));
  if (seen.kind() == Kind::numpy) return numpy().empty(shape, like.attr("dtype"));
  switch (*seen.dtype()) {
    case DType::f64:
      return numpy().empty(shape, "float64");
    case DType::f16:
      return numpy().empty(shape, "float16");
    case DType::f32:
      return numpy().empty(shape, "float32");
    default:
      return numpy().empty(shape, nb::module_::import_("ml_dtypes").attr("bfloat16"));
  }
}

nb::object empty_of(nb::handle like, const Array& seen, const char* dtype, std::uint64_t rows,
                    std::uint64_t columns) {
  const nb::tuple shape = nb::make_tuple(rows, columns);
  if (seen.kind() != Kind::torch) return numpy().empty(shape, dtype);
  return Torch::imported()->empty(like, shape, dtype);
}

}  // namespace fp4moe::python
