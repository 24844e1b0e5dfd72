// The NVIDIA driver, found when the program runs: libcuda.so.1 is opened by name, so that one build
// runs with and without it. Kernels were compiled by nvcc and lie in this library as bytes; the driver
// loads those of one family:
//
//   family   runs on                 what it is
//   sm90     9.0                     machine code for sm_90a
//   sm80     8.0 and newer           machine code for several architectures, and PTX, which the driver
//                                    compiles for the others
//
// Everything happens in a device's primary context, the one that the CUDA runtime and frameworks
// use: streams and pointers of either side are valid on the other.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"

namespace fp4moe::kernels::cuda {

// A cudaStream_t or CUstream; null is the default stream.
using Stream = void*;
using Function = void*;

enum class Family : std::uint8_t { sm90, sm80 };  // the faster one first
std::string_view name(Family family);

struct DeviceFacts {
  std::string name{};
  int ordinal = 0, major = 0, minor = 0, multiprocessors = 0;
  int driver_version = 0;  // 13000: CUDA 13.0
  std::uint64_t memory_bytes = 0, shared_bytes = 0, l2_bytes = 0;
  int clock_khz = 0;
  int pci_domain = 0, pci_bus = 0, pci_device = 0;
  bool launches_cooperatively = false;
};

// A launch of one kernel whose only parameter is a struct.
struct Launch {
  Function function = nullptr;
  std::uint32_t blocks = 1, threads = 1;  // one dimension each
  std::uint32_t shared_bytes = 0;         // dynamic
  bool is_cooperative = false;
  bool has_pdl = false;  // programmatic dependent launch: may start before the previous kernel ends
  const void* params = nullptr;
};

// The code of one file of kernels: a cubin, or a fat binary of several and PTX.
struct Cubin {
  std::string_view name{};
  std::span<const std::byte> code{};
  Family family = Family::sm90;
};

// Names of the kernels whose instructions it holds, each once.
std::vector<std::string> kernel_names(const Cubin& cubin);

// The kernels in this library; none where it was built without (FP4MOE_CUDA=OFF).
std::span<const Cubin> cubins();
// True if this build holds the kernels.
bool is_built();

// Where the driver and the kernels come from. Tests give their own.
struct DriverFrom {
  std::string library = "libcuda.so.1";
  std::span<const Cubin> kernels = cubins();
  // None: that of FP4MOE_CUDA_KERNELS, else the fastest that runs on the device.
  std::optional<Family> family{};
  // Facts of another device, for tests of plans: shared memory of a block, SMs. 0: its own.
  std::uint64_t shared_bytes = 0;
  int multiprocessors = 0;
};

class Device;
struct EntryPoints;

// Makes the device's context current in this thread while this object lives. If it is current
// already, nothing is pushed.
class Current {
 public:
  Current(const EntryPoints& driver, void* context);
  Current(Current&& other) noexcept;
  Current& operator=(Current&&) = delete;
  ~Current();
  int code() const { return code_; }  // the driver's; not 0: it could not be done

 private:
  const EntryPoints& driver_;
  int code_ = 0;
  bool is_pushed_ = false;
};

// Device memory, freed with its owner. `data` is no address for the host.
class Memory {
 public:
  Memory() = default;
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  friend class Device;
  std::shared_ptr<const Device> device_{};
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Pinned memory of the host.
class Pinned {
 public:
  Pinned() = default;
  Pinned(Pinned&& other) noexcept;
  Pinned& operator=(Pinned&& other) noexcept;
  ~Pinned();
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  friend class Device;
  std::shared_ptr<const Device> device_{};
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The devices of this machine. Errors: cuda.build (built without), cuda.driver (no libcuda.so.1, or
// one that does not work or is too old), cuda.device (none).
Result<std::vector<DeviceFacts>> devices(const DriverFrom& from = {});
// The kernels that run on it. Errors: cuda.architecture (before 8.0, or not of the family that was asked
// for, or the build has none for it), settings.cuda_kernels.
Result<Family> choose_family(const DeviceFacts& facts, const DriverFrom& from = {});

class Device : public std::enable_shared_from_this<Device> {
 public:
  // Opens a device and loads the kernels. While an ordinal is in use, all callers share one object.
  // Errors: those of devices() and choose_family(), cuda.ordinal, cuda.load.
  static Result<std::shared_ptr<const Device>> open(int ordinal);
  // A new object, of another driver or with other kernels.
  static Result<std::shared_ptr<const Device>> open(int ordinal, const DriverFrom& from);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceFacts& facts() const { return facts_; }
  Family family() const { return family_; }
  // A kernel by its name. Errors: cuda.kernel.
  Result<Function> function(std::string_view name) const;
  // Allows the kernel that much dynamic shared memory.
  Result<Done> allow_shared(Function function, std::uint32_t bytes) const;

  // Errors of all below: cuda.memory (no memory is left: ErrorCode::exhausted, with the bytes that
  // are wanted and free), cuda.failed with the driver's words.
  Result<Memory> allocate(std::size_t bytes) const;
  Result<Pinned> pin(std::size_t bytes) const;
  Result<std::uint64_t> free_bytes() const;
  Result<Done> launch(const Launch& launch, Stream stream) const;
  // For several launches: the context is made current once, then each launch is one driver call.
  Result<Current> enter() const;
  Result<Done> launch(const Launch& launch, Stream stream, const Current& inside) const;
  Result<Done> upload(std::byte* to, std::span<const std::byte> from, Stream stream) const;
  Result<Done> download(std::span<std::byte> to, const std::byte* from, Stream stream) const;
  Result<Done> copy(std::byte* to, const std::byte* from, std::size_t bytes, Stream stream) const;
  Result<Done> clear(std::byte* at, std::uint8_t value, std::size_t bytes, Stream stream) const;
  Result<Done> wait(Stream stream) const;
  // Errors: cuda.pointer, unless `at` is memory of this device, managed or pinned: null, the host's
  // own, another device's. `what` names it in the sentence.
  Result<Done> check_pointer(const void* at, const char* what) const;

  Result<Stream> make_stream() const;
  void drop_stream(Stream stream) const;

  // Work on a stream becomes a graph: begin, enqueue, end.
  Result<Done> begin_capture(Stream stream) const;
  Result<void*> end_capture(Stream stream) const;  // an executable graph
  Result<Done> replay(void* graph, Stream stream) const;
  void drop_graph(void* graph) const;
  // Times: events are made, recorded, read after a wait.
  Result<void*> make_event() const;
  Result<Done> record(void* event, Stream stream) const;
  Result<float> microseconds(void* begin, void* end) const;
  void drop_event(void* event) const;

 private:
  struct State;  // of the driver's handles
  Device();
  DeviceFacts facts_{};
  Family family_ = Family::sm90;
  std::unique_ptr<State> state_{};
  friend class Memory;
  friend class Pinned;
};

}  // namespace fp4moe::kernels::cuda
