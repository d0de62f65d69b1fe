// See library.h.
#include "tests/conformance/nvml/library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace conformance {

void* nvml_symbol(const char* name) {
  static void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const symbol = library == nullptr ? nullptr : dlsym(library, name);
  if (symbol != nullptr) return symbol;
  std::fprintf(stderr, "conformance: libnvidia-ml.so.1: no %s: %s\n", name, dlerror());
  std::exit(1);
}

Library::Library() { EXPECT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS); }
Library::~Library() { EXPECT_EQ(NVML(nvmlShutdown)(), NVML_SUCCESS); }

nvmlDevice_t Library::device(int ordinal) const {
  nvmlDevice_t device = nullptr;
  EXPECT_EQ(NVML(nvmlDeviceGetHandleByUUID)(uuid_text(ordinal).c_str(), &device), NVML_SUCCESS);
  return device;
}

nvmlDevice_t Library::first() const {
  nvmlDevice_t device = nullptr;
  EXPECT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &device), NVML_SUCCESS);
  return device;
}

std::string uuid_text(int ordinal) {
  CUuuid uuid{};
  CUdevice device = 0;
  EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceGet(&device, ordinal), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceGetUuid(&uuid, device), CUDA_SUCCESS);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += digits;
  }
  return text;
}

std::vector<nvmlProcessInfo_t> processes(nvmlDevice_t device) {
  std::vector<nvmlProcessInfo_t> infos(1024);
  auto count = static_cast<unsigned>(infos.size());
  EXPECT_EQ(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, infos.data()),
            NVML_SUCCESS);
  infos.resize(count);
  return infos;
}

bool pid_is_global() {
  constexpr char kInitial[] = "pid:[4026531836]";  // PROC_PID_INIT_INO of the kernel
  char target[64] = {};
  const ssize_t length = readlink("/proc/self/ns/pid", target, sizeof target - 1);
  return !on_hardware() || (length > 0 && std::string(target) == kInitial);
}

Busy::Busy() {
  EXPECT_EQ(cuMemHostAlloc(reinterpret_cast<void**>(&words_), 64, 0), CUDA_SUCCESS);
  words_[0] = words_[1] = 0;
  auto flag = reinterpret_cast<CUdeviceptr>(words_), seen = flag + sizeof(unsigned);
  EXPECT_EQ(launch(kernel("wait_flag"), 1, 1, {&flag, &seen}), CUDA_SUCCESS);
}

Busy::~Busy() {
  std::atomic_ref(words_[0]).store(1);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  cuMemFreeHost(words_);
}

bool becomes_true(const std::function<bool()>& ask, int seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!ask()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

}  // namespace conformance
