// See trace.h. SOFTGPU_TRACE names the file; without it the library does nothing.
#include "softgpu/trace/trace.h"

#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "softgpu/device/descriptor.h"

namespace softgpu::trace {
namespace {

CUresult (*real_lookup)(const char*, void**, int, cuuint64_t) = nullptr;
CUresult (*real_lookup_v2)(const char*, void**, int, cuuint64_t,
                           CUdriverProcAddressQueryResult*) = nullptr;

int trace_file() {
  static const int file = [] {
    const char* path = std::getenv("SOFTGPU_TRACE");
    if (path == nullptr || *path == '\0') return -1;
    const int opened =
        device::above_standard(open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (opened < 0) std::fprintf(stderr, "softgpu: the trace file %s cannot be opened\n", path);
    return opened;
  }();
  return file;
}

void line_write(const char* line, int length) {
  if (length <= 0) return;
  // A line is one write, so that lines of several threads do not mix. What is lost on a full disk
  // is lost: the program must not notice.
  [[maybe_unused]] const ssize_t written =
      write(trace_file(), line, static_cast<std::size_t>(length));
}

const Entry* entry_by_symbol(const char* symbol) {
  for (unsigned i = 0; i < kEntryCount; ++i)
    if (std::strcmp(kEntries[i].symbol, symbol) == 0) return &kEntries[i];
  return nullptr;
}

/// What the driver means by a base name and a version: the latest form that is not later.
const Entry* entry_by_request(const char* base, int version, bool per_thread) {
  const Entry* plain = nullptr;
  const Entry* own = nullptr;
  for (unsigned i = 0; i < kEntryCount; ++i) {
    const Entry& entry = kEntries[i];
    if (entry.since > version || std::strcmp(entry.base, base) != 0) continue;
    const Entry*& best = entry.per_thread ? own : plain;
    if (best == nullptr || best->since <= entry.since) best = &entry;
  }
  return per_thread && own != nullptr ? own : plain;
}

/// The wrapper in place of a function that was found.
void* wrapped(const Entry* entry, void* found) {
  if (entry == nullptr || found == nullptr || found == entry->wrapper) return found;
  *entry->real = found;
  return entry->wrapper;
}

void lookup_write(const char* symbol, CUresult result, const char* name, int version,
                  cuuint64_t flags) {
  char line[256];
  const int length = std::snprintf(
      line, sizeof line, "%s %d %s@%d%s\n", symbol, result, name == nullptr ? "" : name, version,
      flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? "+p" : "");
  line_write(line, length < static_cast<int>(sizeof line) ? length : sizeof line - 1);
}

void found_wrap(CUresult result, const char* name, void** found, int version, cuuint64_t flags) {
  if (result != CUDA_SUCCESS || name == nullptr || found == nullptr) return;
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  *found = wrapped(entry_by_request(name, version, per_thread), *found);
}

CUresult wrap_lookup(const char* name, void** found, int version, cuuint64_t flags) {
  const CUresult result = real_lookup(name, found, version, flags);
  found_wrap(result, name, found, version, flags);
  lookup_write("cuGetProcAddress", result, name, version, flags);
  return result;
}

CUresult wrap_lookup_v2(const char* name, void** found, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult* status) {
  const CUresult result = real_lookup_v2(name, found, version, flags, status);
  found_wrap(result, name, found, version, flags);
  lookup_write("cuGetProcAddress_v2", result, name, version, flags);
  return result;
}

}  // namespace

void call_write(const char* symbol, int result) {
  char line[128];
  line_write(line, std::snprintf(line, sizeof line, "%s %d\n", symbol, result));
}

void** lookup_real(const char* symbol) {
  return std::strcmp(symbol, "cuGetProcAddress") == 0 ? reinterpret_cast<void**>(&real_lookup)
                                                      : reinterpret_cast<void**>(&real_lookup_v2);
}

void* lookup_wrapper(const char* symbol) {
  return std::strcmp(symbol, "cuGetProcAddress") == 0 ? reinterpret_cast<void*>(&wrap_lookup)
                                                      : reinterpret_cast<void*>(&wrap_lookup_v2);
}

}  // namespace softgpu::trace

using namespace softgpu::trace;

extern "C" {

void* (*softgpu_trace_dlsym)(void*, const char*) = nullptr;

/// For the trampoline: the wrapper of a driver function, or nullptr for everything else. libc's own
/// dlsym is found by its version, since any other way would lead back here.
void* softgpu_trace_pick(void* handle, const char* name) {
  if (softgpu_trace_dlsym == nullptr) {
    void* found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (found == nullptr) found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (found == nullptr) std::abort();
    std::memcpy(&softgpu_trace_dlsym, &found, sizeof found);
  }
  if (name == nullptr || std::strncmp(name, "cu", 2) != 0 || trace_file() < 0) return nullptr;
  const Entry* entry = entry_by_symbol(name);
  return entry == nullptr ? nullptr : wrapped(entry, softgpu_trace_dlsym(handle, name));
}

/// libc looks at the return address of dlsym to know who asks (RTLD_NEXT, RTLD_DEFAULT), so all
/// other look-ups go on to it by a jump that leaves the caller's frame as it was.
__attribute__((visibility("default"), naked)) void* dlsym(void*, const char*) noexcept {
  asm volatile(
      "pushq %rdi\n\t"
      "pushq %rsi\n\t"
      "subq $8, %rsp\n\t"
      "call softgpu_trace_pick\n\t"
      "addq $8, %rsp\n\t"
      "popq %rsi\n\t"
      "popq %rdi\n\t"
      "testq %rax, %rax\n\t"
      "jnz 1f\n\t"
      "movq softgpu_trace_dlsym(%rip), %rax\n\t"
      "jmp *%rax\n\t"
      "1: ret\n\t");
}
}
