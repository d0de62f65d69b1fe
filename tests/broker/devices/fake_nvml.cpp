// A test double of libnvidia-ml.so.1: the entry points the inventory uses, scripted by the
// environment, so that lists, errors and other people's processes can be made up. FAKE_GPUS
// (count), FAKE_MEMORY (bytes), FAKE_FAULT (init | software | empty | uuid), FAKE_LOST
// (index of a GPU that is lost, or "all"), FAKE_LOST_FILE (a file that has such a word from some
// time on), FAKE_PROCESSES (count of
// processes on each GPU, pids from 1000, one byte more each; the caller's own comes last with
// FAKE_CONTEXT bytes once FAKE_OWN is set).
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

unsigned long long number(const char* name, unsigned long long fallback) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 0) : fallback;
}

bool fault(const char* name) {
  const char* text = std::getenv("FAKE_FAULT");
  return text != nullptr && std::strcmp(text, name) == 0;
}

bool lost(unsigned index) {
  const char* text = std::getenv("FAKE_LOST");
  char word[8] = "";
  if (const char* path = std::getenv("FAKE_LOST_FILE")) {
    if (std::FILE* file = std::fopen(path, "re")) {
      if (std::fgets(word, sizeof word, file) != nullptr) text = word;
      std::fclose(file);
    }
  }
  return text != nullptr &&
         (std::strcmp(text, "all") == 0 || std::strtoul(text, nullptr, 10) == index);
}

struct Memory {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

unsigned index_of(void* device) {
  return static_cast<unsigned>(reinterpret_cast<std::size_t>(device)) - 1;
}
void* device_of(unsigned index) { return reinterpret_cast<void*>(std::size_t{index} + 1); }

void uuid_write(unsigned index, char* text, unsigned length) {
  std::snprintf(text, length, "GPU-00000000-0000-4000-8000-0000000000%02x", index);
}

}  // namespace

extern "C" {

int nvmlInit_v2() { return fault("init") || fault("software") ? 9 : 0; }
const char* softgpu_fault() {
  return fault("software") ? "softgpu: no device: SOFTGPU_COUNT: \"99\" is no value" : "";
}
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int code) {
  return code == 9 ? "Driver Not Loaded" : code == 15 ? "GPU is lost" : "Some Error";
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = fault("empty") ? 0 : static_cast<unsigned>(number("FAKE_GPUS", 2));
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = device_of(index);
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  for (unsigned i = 0; i < number("FAKE_GPUS", 2); ++i) {
    char text[96];
    uuid_write(i, text, sizeof text);
    if (std::strcmp(text, uuid) == 0) {
      *device = device_of(i);
      return 0;
    }
  }
  return 6;
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned length) {
  if (fault("uuid")) {
    std::snprintf(text, length, "MIG-somewhere");
  } else {
    uuid_write(index_of(device), text, length);
  }
  return 0;
}
int nvmlDeviceGetName(void* device, char* text, unsigned length) {
  std::snprintf(text, length, index_of(device) == 0 ? "Software GPU (double)" : "Tesla Double");
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* out) {
  if (lost(index_of(device))) return 15;
  const unsigned long long total = number("FAKE_MEMORY", 4ull << 30);
  *out = {total, total - 1024, 1024};
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, ProcessInfo* out) {
  const auto others = static_cast<unsigned>(number("FAKE_PROCESSES", 0));
  const unsigned own = std::getenv("FAKE_OWN") != nullptr ? 1 : 0;
  const unsigned room = *count;
  *count = others + own;
  if (room < *count) return 7;
  for (unsigned i = 0; i < others; ++i) out[i] = {1000 + i, i + 1ull, 0, 0};
  if (own != 0)
    out[others] = {static_cast<unsigned>(getpid()), number("FAKE_CONTEXT", 32ull << 20), 0, 0};
  return 0;
}

}  // extern "C"
