// A test double of libcuda.so.1: the entry points the probe uses, on the GPUs of fake_nvml.cpp.
// FAKE_GPUS, FAKE_MEMORY, FAKE_CONTEXT (bytes that a context takes), FAKE_FAULT (hang | crash |
// driver), FAKE_VERSION. The checkpoint calls are in fake_checkpoint.cpp.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

namespace {

unsigned long long number(const char* name, unsigned long long fallback) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 0) : fallback;
}

bool fault(const char* name) {
  const char* text = std::getenv("FAKE_FAULT");
  return text != nullptr && std::strcmp(text, name) == 0;
}

bool retained = false;

}  // namespace

extern "C" {

int cuInit(unsigned) {
  if (fault("crash")) std::raise(SIGABRT);
  while (fault("hang")) pause();
  return fault("driver") ? 999 : 0;
}
int cuDriverGetVersion(int* version) {
  *version = static_cast<int>(number("FAKE_VERSION", 13000));
  return 0;
}
int cuGetErrorName(int code, const char** name) {
  constexpr struct {
    int code;
    const char* name;
  } kNames[] = {{1, "CUDA_ERROR_INVALID_VALUE"},      {2, "CUDA_ERROR_OUT_OF_MEMORY"},
                {304, "CUDA_ERROR_OPERATING_SYSTEM"}, {401, "CUDA_ERROR_ILLEGAL_STATE"},
                {600, "CUDA_ERROR_NOT_READY"},        {800, "CUDA_ERROR_NOT_PERMITTED"},
                {801, "CUDA_ERROR_NOT_SUPPORTED"},    {999, "CUDA_ERROR_UNKNOWN"}};
  *name = nullptr;
  for (const auto& known : kNames)
    if (known.code == code) *name = known.name;
  return *name != nullptr ? 0 : 1;
}
int cuDeviceGetCount(int* count) {
  // What CUDA_VISIBLE_DEVICES does to a real driver, as far as the tests need it.
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  *count = visible != nullptr && *visible == '\0' ? 0 : static_cast<int>(number("FAKE_GPUS", 2));
  return 0;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}
int cuDeviceGetUuid(char uuid[16], int device) {
  const unsigned char bytes[16] = {0,    0, 0, 0, 0, 0, 0x40, 0,
                                   0x80, 0, 0, 0, 0, 0, 0,    static_cast<unsigned char>(device)};
  std::memcpy(uuid, bytes, sizeof bytes);
  return 0;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = number("FAKE_MEMORY", 4ull << 30);
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  static int anything;
  *context = &anything;
  retained = true;
  return 0;
}
int cuCtxSetCurrent(void*) { return 0; }
int cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  *total_bytes = number("FAKE_MEMORY", 4ull << 30);
  *free_bytes = *total_bytes - (retained ? number("FAKE_CONTEXT", 32ull << 20) : 0);
  return 0;
}

}  // extern "C"
