// An argument as memory: whatever speaks the buffer protocol (numpy) or DLPack (torch). Nothing is
// copied, and the memory is held until the Array goes, which needs the GIL.
//
// torch's tensors are looked at through its C functions where it has them (torch.hpp).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nanobind/ndarray.h>

#include "bindings.hpp"
#include "fp4moe/moe/rows.hpp"
#include "fp4moe/tensor/dtype.hpp"
#include "torch.hpp"

namespace fp4moe::python {

enum class Access : std::uint8_t { read, write };
// The memory it may lie in. On a GPU only kernels read it.
enum class Where : std::uint8_t { host, anywhere };
// Who made it, and so who makes the result.
enum class Kind : std::uint8_t { numpy, torch, other };

// The use of an array.
struct Use {
  Access access = Access::read;
  Where where = Where::host;
  Hold hold = Hold::for_a_call;
  std::optional<bool> records{};  // whether torch records gradients; none: it is asked
};

class Array {
 public:
  // Errors: TypeError for what is no array, rows.device, rows.gradient, rows.readonly, rows.order,
  // rows.memory.
  static Array take(nb::handle object, const char* what, const Use& use = {});
  Array(Array&& other) noexcept;
  Array& operator=(Array&&) = delete;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array();

  Kind kind() const { return kind_; }
  // None for types that no file of ours has; dtype_text() says which.
  std::optional<tensor::DType> dtype() const { return dtype_; }
  std::string dtype_text() const;
  std::size_t dimensions() const { return shape_.size(); }
  std::int64_t shape(std::size_t dimension) const { return shape_[dimension]; }
  std::int64_t stride(std::size_t dimension) const { return strides_[dimension]; }  // in bytes
  std::string shape_text() const;
  void* data() const { return data_; }
  std::optional<int> device() const { return device_; }  // the GPU that it lies on
  // True if torch records gradients; absent: not asked.
  std::optional<bool> records() const { return use_.records; }

 private:
  Array() = default;
  bool take_buffer(nb::handle object, const char* what);
  bool take_view(nb::handle object, const char* what);
  bool take_dlpack(nb::handle object, const char* what);
  void take_tensor(const Torch& torch, nb::handle tensor, const char* what);
  void refuse_gradients(const Torch& torch, nb::handle tensor, const char* what);
  void read(const Py_buffer& buffer, const char* what);
  template <class Held>
  void read_held(const Held& held, const char* what);
  void read(const nb::dlpack::dltensor& view, const char* what);

  // At most this many dimensions need no memory of their own.
  class Numbers {
   public:
    static constexpr std::size_t kMax = 8;
    std::size_t size() const { return size_; }
    bool add(std::int64_t number) {
      if (size_ == kMax) return false;
      numbers_[size_++] = number;
      return true;
    }
    std::int64_t operator[](std::size_t at) const { return numbers_[at]; }

   private:
    std::int64_t numbers_[kMax]{};
    std::size_t size_ = 0;
  };
  void add_dimension(std::int64_t size, std::int64_t stride, const char* what);

  Kind kind_ = Kind::other;
  std::optional<tensor::DType> dtype_{};
  std::string dtype_text_{};  // where dtype_ is none
  Numbers shape_{}, strides_{};
  void* data_ = nullptr;
  Use use_{};
  std::optional<int> device_{};
  nb::object object_{}, owner_{};  // what was given, what holds its memory
  std::optional<Py_buffer> buffer_{};
  nb::ndarray<nb::ro> held_{};
  nb::ndarray<> held_for_writing_{};
};

// A 2-D array as rows. Errors: rows.dimensions, rows.type, rows.stride, rows.alignment.
moe::ConstRows rows_of(const Array& array, const char* what);
moe::MutableRows mutable_rows_of(const Array& array, const char* what);
// True if two sets of rows have bytes in common.
bool overlap(const moe::ConstRows& a, const moe::ConstRows& b);

// A new array of the same kind, type and shape [rows, columns] as `like`.
nb::object empty_like(nb::handle like, const Array& seen);
// The same with a type and a shape of its own: "int32", "float32".
nb::object empty_of(nb::handle like, const Array& seen, const char* dtype, std::uint64_t rows,
                    std::uint64_t columns);

}  // namespace fp4moe::python
