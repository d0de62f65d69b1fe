// How programs find the driver through the driver: cuInit, where a process's life with CUDA begins,
// and cuGetProcAddress at both its ABIs. The driver is asked first and its answer exchanged by
// pointer, so the version, the per-thread flag and symbolStatus keep the driver's meaning; asked
// for cuGetProcAddress itself it answers ours.
#include "interpose/start.h"

using namespace sluice::interpose;

namespace {

void answer_route(const char* symbol, void** pointer, int version, cuuint64_t flags) {
  if (symbol == nullptr || pointer == nullptr || *pointer == nullptr || symbol[0] == '\0') return;
  bool known;
  *pointer = route_pointer(symbol, *pointer, version, flags, &known);
  if (!known) unknown_count(symbol);
}

}  // namespace

SLUICE_HOOK CUresult cuInit(unsigned int flags) {
  if (process_enter() == Mode::kDenied) return CUDA_ERROR_NOT_PERMITTED;
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
