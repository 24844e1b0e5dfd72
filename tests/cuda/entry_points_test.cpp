// Our spelling of the driver's functions against the toolkit's: the same number of parameters, each
// of the same size and class of register, and the same numbers for what we name.
#include "fp4moe/kernels/cuda/entry_points.hpp"

#include <type_traits>

#include <cuda.h>
#include <gtest/gtest.h>

namespace fp4moe::kernels::cuda {
namespace entry_points_test {

template <class Ours, class Theirs>
constexpr bool is_passed_alike() {
  return sizeof(Ours) == sizeof(Theirs) &&
         std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>;
}

template <class Ours, class Theirs>
struct IsCalledAlike : std::false_type {};
template <class Ours, class Theirs, class... OurParameters, class... TheirParameters>
requires(sizeof...(OurParameters) ==
         sizeof...(TheirParameters)) struct IsCalledAlike<Ours (*)(OurParameters...),
                                                          Theirs (*)(TheirParameters...)>
    : std::bool_constant<is_passed_alike<Ours, Theirs>() &&
                         (is_passed_alike<OurParameters, TheirParameters>() && ...)> {
};

// `member` and the toolkit's function, whose name cuda.h leads to the version it means.
template <class Ours, class Theirs>
constexpr bool agree(Ours EntryPoints::*, Theirs) {
  return IsCalledAlike<Ours, Theirs>::value;
}

// clang-format off
static_assert(agree(&EntryPoints::init, decltype(&cuInit){}));
static_assert(agree(&EntryPoints::driver_version, decltype(&cuDriverGetVersion){}));
static_assert(agree(&EntryPoints::error_name, decltype(&cuGetErrorName){}));
static_assert(agree(&EntryPoints::error_string, decltype(&cuGetErrorString){}));
static_assert(agree(&EntryPoints::device_count, decltype(&cuDeviceGetCount){}));
static_assert(agree(&EntryPoints::device, decltype(&cuDeviceGet){}));
static_assert(agree(&EntryPoints::device_name, decltype(&cuDeviceGetName){}));
static_assert(agree(&EntryPoints::device_memory, decltype(&cuDeviceTotalMem){}));
static_assert(agree(&EntryPoints::device_attribute, decltype(&cuDeviceGetAttribute){}));
static_assert(agree(&EntryPoints::retain_context, decltype(&cuDevicePrimaryCtxRetain){}));
static_assert(agree(&EntryPoints::release_context, decltype(&cuDevicePrimaryCtxRelease){}));
static_assert(agree(&EntryPoints::current_context, decltype(&cuCtxGetCurrent){}));
static_assert(agree(&EntryPoints::push_context, decltype(&cuCtxPushCurrent){}));
static_assert(agree(&EntryPoints::pop_context, decltype(&cuCtxPopCurrent){}));
static_assert(agree(&EntryPoints::load_module, decltype(&cuModuleLoadData){}));
static_assert(agree(&EntryPoints::unload_module, decltype(&cuModuleUnload){}));
static_assert(agree(&EntryPoints::module_function, decltype(&cuModuleGetFunction){}));
static_assert(agree(&EntryPoints::load_function, decltype(&cuFuncLoad){}));
static_assert(agree(&EntryPoints::set_function_attribute, decltype(&cuFuncSetAttribute){}));
static_assert(agree(&EntryPoints::launch, decltype(&cuLaunchKernelEx){}));
static_assert(agree(&EntryPoints::allocate, decltype(&cuMemAlloc){}));
static_assert(agree(&EntryPoints::free, decltype(&cuMemFree){}));
static_assert(agree(&EntryPoints::memory_info, decltype(&cuMemGetInfo){}));
static_assert(agree(&EntryPoints::allocate_host, decltype(&cuMemHostAlloc){}));
static_assert(agree(&EntryPoints::free_host, decltype(&cuMemFreeHost){}));
static_assert(agree(&EntryPoints::pointer_attributes, decltype(&cuPointerGetAttributes){}));
static_assert(agree(&EntryPoints::copy_to_device, decltype(&cuMemcpyHtoDAsync){}));
static_assert(agree(&EntryPoints::copy_to_host, decltype(&cuMemcpyDtoHAsync){}));
static_assert(agree(&EntryPoints::copy_on_device, decltype(&cuMemcpyDtoDAsync){}));
static_assert(agree(&EntryPoints::fill, decltype(&cuMemsetD8Async){}));
static_assert(agree(&EntryPoints::make_stream, decltype(&cuStreamCreate){}));
static_assert(agree(&EntryPoints::drop_stream, decltype(&cuStreamDestroy){}));
static_assert(agree(&EntryPoints::wait_for_stream, decltype(&cuStreamSynchronize){}));
static_assert(agree(&EntryPoints::begin_capture, decltype(&cuStreamBeginCapture){}));
static_assert(agree(&EntryPoints::end_capture, decltype(&cuStreamEndCapture){}));
static_assert(agree(&EntryPoints::instantiate, decltype(&cuGraphInstantiate){}));
static_assert(agree(&EntryPoints::drop_captured, decltype(&cuGraphDestroy){}));
static_assert(agree(&EntryPoints::launch_graph, decltype(&cuGraphLaunch){}));
static_assert(agree(&EntryPoints::drop_graph, decltype(&cuGraphExecDestroy){}));
static_assert(agree(&EntryPoints::make_event, decltype(&cuEventCreate){}));
static_assert(agree(&EntryPoints::record, decltype(&cuEventRecord){}));
static_assert(agree(&EntryPoints::wait_for_event, decltype(&cuEventSynchronize){}));
static_assert(agree(&EntryPoints::elapsed, decltype(&cuEventElapsedTime){}));
static_assert(agree(&EntryPoints::drop_event, decltype(&cuEventDestroy){}));
// clang-format on
static_assert(!agree(&EntryPoints::init, decltype(&cuMemAlloc){}));
static_assert(!agree(&EntryPoints::device, decltype(&cuModuleUnload){}));

static_assert(sizeof(Address) == sizeof(CUdeviceptr));
static_assert(sizeof(LaunchAttribute) == sizeof(CUlaunchAttribute));
static_assert(offsetof(LaunchAttribute, value) == offsetof(CUlaunchAttribute, value));
static_assert(sizeof(LaunchConfig) == sizeof(CUlaunchConfig));
static_assert(offsetof(LaunchConfig, block) == offsetof(CUlaunchConfig, blockDimX));
static_assert(offsetof(LaunchConfig, shared_bytes) == offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(LaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(LaunchConfig, attributes) == offsetof(CUlaunchConfig, attrs));
static_assert(offsetof(LaunchConfig, num_attributes) == offsetof(CUlaunchConfig, numAttrs));

template <class Ours>
void expect_equal(Ours ours, long long theirs) {
  EXPECT_EQ(static_cast<long long>(ours), theirs);
}

TEST(EntryPoints, NumbersAreThoseOfTheToolkit) {
  expect_equal(code_success, CUDA_SUCCESS);
  expect_equal(code_out_of_memory, CUDA_ERROR_OUT_OF_MEMORY);
  expect_equal(code_no_device, CUDA_ERROR_NO_DEVICE);
  expect_equal(code_not_found, CUDA_ERROR_NOT_FOUND);
  expect_equal(DeviceAttribute::clock_rate, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  expect_equal(DeviceAttribute::multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  expect_equal(DeviceAttribute::l2_bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  expect_equal(DeviceAttribute::major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  expect_equal(DeviceAttribute::minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  expect_equal(DeviceAttribute::cooperative_launch, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
  expect_equal(DeviceAttribute::shared_bytes_opt_in,
               CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  expect_equal(PointerAttribute::memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
  expect_equal(PointerAttribute::is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED);
  expect_equal(PointerAttribute::device_ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
  expect_equal(MemoryType::host, CU_MEMORYTYPE_HOST);
  expect_equal(MemoryType::device, CU_MEMORYTYPE_DEVICE);
  expect_equal(FunctionAttribute::max_dynamic_shared_bytes,
               CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  expect_equal(CaptureMode::of_this_thread, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  expect_equal(LaunchAttributeId::cooperative, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  expect_equal(LaunchAttributeId::programmatic_stream_serialization,
               CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
  expect_equal(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
  expect_equal(kPinnedPortable, CU_MEMHOSTALLOC_PORTABLE);
}

}  // namespace entry_points_test
}  // namespace fp4moe::kernels::cuda
