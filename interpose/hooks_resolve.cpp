// How programs find the driver through the driver: cuInit, where a process's life with CUDA begins,
// and cuGetProcAddress at both its ABIs. The driver is asked first and its answer exchanged by
// pointer, so the version, the per-thread flag and symbolStatus keep the driver's meaning; asked
// for cuGetProcAddress itself it answers ours.
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "interpose/start.h"
#include "interpose/usage.h"

using namespace sluice::interpose;

namespace {

void answer_route(const char* symbol, void** pointer, int version, cuuint64_t flags) {
  if (symbol == nullptr || pointer == nullptr || *pointer == nullptr || symbol[0] == '\0') return;
  bool known;
  *pointer = route_pointer(symbol, *pointer, version, flags, &known);
  if (!known) unknown_count(symbol);
}

// A job that was moved to another GPU has children that are still shown the one before: the name
// that `sluice run` gave them. Anything else in the variable is the user's own.
void visible_gpu_renew() {
  constexpr char kVisible[] = "CUDA_VISIBLE_DEVICES";
  constexpr size_t kUuidLength = 40;
  const ErrnoGuard guard;
  if (load_acquire(process.alone) != 0 || process.gpu_count != 1) return;
  const char* shown = getenv(kVisible);
  char own[kUuidLength + 1];
  uuid_write(process.entry(0).gpu, own);
  if (shown == nullptr || strncmp(shown, own, 4) != 0 || strlen(shown) != kUuidLength ||
      strcmp(shown, own) == 0) {
    return;
  }
  // In place, and by the kernel: where the program keeps its environment it may not be written.
  const iovec from{own, kUuidLength};
  const iovec to{const_cast<char*>(shown), kUuidLength};
  (void)syscall(SYS_process_vm_writev, getpid(), &from, 1ul, &to, 1ul, 0ul);
}

}  // namespace

SLUICE_HOOK CUresult cuInit(unsigned int flags) {
  const Mode mode = process_enter();
  if (mode == Mode::kDenied) return CUDA_ERROR_NOT_PERMITTED;
  if (mode == Mode::kActive) visible_gpu_renew();
  const CUresult result = driver.cuInit(flags);
  if (result == CUDA_SUCCESS && !process_init_done()) return CUDA_ERROR_NOT_PERMITTED;
  return result;
}

SLUICE_HOOK CUresult cuGetProcAddress(const char* symbol, void** pointer, int version,
                                      cuuint64_t flags) {
  resolve_driver();
  const CUresult result = driver.cuGetProcAddress(symbol, pointer, version, flags);
  if (result == CUDA_SUCCESS) answer_route(symbol, pointer, version, flags);
  return result;
}

SLUICE_HOOK CUresult cuGetProcAddress_v2(const char* symbol, void** pointer, int version,
                                         cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  resolve_driver();
  const CUresult result = driver.cuGetProcAddress_v2(symbol, pointer, version, flags, status);
  if (result == CUDA_SUCCESS) answer_route(symbol, pointer, version, flags);
  return result;
}
