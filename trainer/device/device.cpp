// See device.h. Destructors ignore errors: after a sticky CUDA error every call fails, and the
// process is ending anyway.
#include "trainer/device/device.h"

#include <filesystem>
#include <fstream>
#include <vector>

namespace sluice::train {
namespace {

std::vector<char> file_read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw Failure("cannot read the kernels at " + path +
                  "; the programs expect them in ../lib beside their own directory");
  }
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

int device_count() {
  int count = 0;
  driver_check(driver().cuDeviceGetCount(&count), "counting GPUs");
  return count;
}

std::string fatbin_path() {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  return (program.parent_path().parent_path() / "lib" / kernels::kFatbinName).string();
}

Device::Device(int ordinal) {
  driver_check(driver().cuDeviceGet(&device_, ordinal), "opening the GPU");
  char text[256] = "";
  driver_check(driver().cuDeviceGetName(text, sizeof text, device_), "asking the GPU's name");
  name_ = text;
  multiprocessors_ = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  driver_check(driver().cuDevicePrimaryCtxRetain(&context_, device_), "creating a context");
  try {
    driver_check(driver().cuCtxSetCurrent(context_), "entering the context");
    kernels_load();
  } catch (...) {
    driver().cuDevicePrimaryCtxRelease(device_);
    throw;
  }
}

Device::~Device() {
  driver().cuModuleUnload(module_);
  driver().cuDevicePrimaryCtxRelease(device_);
}

int Device::attribute(CUdevice_attribute which) const {
  int value = 0;
  driver_check(driver().cuDeviceGetAttribute(&value, which, device_),
               "asking the GPU's attributes");
  return value;
}

void Device::enter() const {
  driver_check(driver().cuCtxSetCurrent(context_), "entering the context");
}

void Device::kernels_load() {
  const std::vector<char> image = file_read(fatbin_path());
  driver_check(driver().cuModuleLoadData(&module_, image.data()), "loading the kernels");
}

CUfunction Device::function(kernels::Kernel kernel) const {
  CUfunction& function = functions_[static_cast<std::size_t>(kernel)];
  if (function == nullptr) {
    const char* name = kernels::kernel_name(kernel);
    driver_check(driver().cuModuleGetFunction(&function, module_, name), name);
  }
  return function;
}

Stream::Stream(const Device& device) : device_(device) {
  driver_check(driver().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "creating a stream");
}

Stream::~Stream() { driver().cuStreamDestroy(stream_); }

void Stream::launch(kernels::Launch launch) {
  std::array<void*, kernels::Launch::kArgumentsMax> arguments = launch.pointers();
  driver_check(driver().cuLaunchKernel(device_.function(launch.kernel), launch.grid.x,
                                       launch.grid.y, launch.grid.z, launch.block.x, launch.block.y,
                                       1, 0, stream_, arguments.data(), nullptr),
               kernels::kernel_name(launch.kernel));
}

void Stream::upload(CUdeviceptr to, const void* from, std::size_t bytes) {
  driver_check(driver().cuMemcpyHtoDAsync(to, from, bytes, stream_), "copying to the GPU");
}

void Stream::download(void* to, CUdeviceptr from, std::size_t bytes) {
  driver_check(driver().cuMemcpyDtoHAsync(to, from, bytes, stream_), "copying from the GPU");
}

void Stream::copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  driver_check(driver().cuMemcpyDtoDAsync(to, from, bytes, stream_), "copying within the GPU");
}

void Stream::wait(const Event& event) {
  driver_check(driver().cuStreamWaitEvent(stream_, event.handle(), CU_EVENT_WAIT_DEFAULT),
               "waiting for another stream");
}

void Stream::zero(CUdeviceptr at, std::size_t words) {
  driver_check(driver().cuMemsetD32Async(at, 0, words, stream_), "clearing device memory");
}

void Stream::link_delay(Nanos ns) {
  if (ns <= 0 || driver().stream_delay == nullptr) return;
  driver_check(driver().stream_delay(stream_, static_cast<unsigned long long>(ns)),
               "charging link time");
}

void Stream::peers_awaited() {
  if (driver().stream_go_on == nullptr) return;
  CUresult result = driver().stream_go_on(stream_);
  if (result == CUDA_ERROR_NOT_READY) {
    // Who measures this process from within may have put something behind its work.
    synchronize();
    result = driver().stream_go_on(stream_);
    // Then the wait is in the modelled time, which is all that it costs.
    if (result == CUDA_ERROR_NOT_READY) return;
  }
  driver_check(result, "going on after a wait for other ranks");
}

void Stream::synchronize() {
  driver_check(driver().cuStreamSynchronize(stream_), "waiting for the GPU");
}

Event::Event() {
  driver_check(driver().cuEventCreate(&event_, CU_EVENT_DEFAULT), "creating an event");
}

Event::~Event() { driver().cuEventDestroy(event_); }

void Event::record(const Stream& stream) {
  driver_check(driver().cuEventRecord(event_, stream.handle()), "recording an event");
}

void Event::synchronize() const {
  driver_check(driver().cuEventSynchronize(event_), "waiting for the GPU");
}

Nanos Event::since(const Event& earlier) const {
  float milliseconds = 0;
  driver_check(driver().cuEventElapsedTime(&milliseconds, earlier.event_, event_),
               "reading device time");
  return static_cast<Nanos>(static_cast<double>(milliseconds) * 1e6);
}

}  // namespace sluice::train
