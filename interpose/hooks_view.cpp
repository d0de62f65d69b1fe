// The memory a program is told about: the vGPU's. The driver is asked first, so errors and null
// arguments behave as they do without us.
#include "interpose/account.h"
#include "interpose/view.h"

using namespace sluice::interpose;

namespace {

// The GPU of the calling thread's context; -1 = leave the driver's answer alone.
int current_gpu() {
  if (process_enter() != Mode::kActive) return -1;
  ThreadRecord* thread = thread_record();
  if (thread == nullptr || thread->depth != 0 || !thread_context(thread)) return -1;
  return thread->gpu;
}

SLUICE_NOINLINE void pools_of_thread_read() {
  const DepthScope depth(this_thread);
  pools_read(this_thread->device);
}

template <class Size, class Call>
CUresult memory_info(Size* free_bytes, Size* total_bytes, Call call) {
  const int gpu = current_gpu();
  if (gpu < 0) return call(free_bytes, total_bytes);
  if (SLUICE_UNLIKELY(load_relaxed(pools_seen) != 0)) pools_of_thread_read();
  // Both are needed to compute either; a program may ask for one.
  Size real_free = 0, real_total = 0;
  const CUresult result =
      call(free_bytes == nullptr ? nullptr : &real_free,
           free_bytes == nullptr && total_bytes == nullptr ? nullptr : &real_total);
  if (result != CUDA_SUCCESS) return result;
  const MemoryView view = gpu_memory_view(gpu, real_total, real_free);
  if (free_bytes != nullptr) *free_bytes = static_cast<Size>(view.free_bytes);
  if (total_bytes != nullptr) *total_bytes = static_cast<Size>(view.total_bytes);
  return result;
}

template <class Size>
void total_narrow(Size* bytes, CUdevice device) {
  const int gpu = process_mode() == Mode::kActive ? device_gpu(device) : -1;
  if (gpu < 0 || bytes == nullptr) return;
  *bytes = static_cast<Size>(memory_view(process.memory_max(gpu), 0, *bytes, *bytes).total_bytes);
}

}  // namespace

SLUICE_HOOK CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  return memory_info(free_bytes, total_bytes,
                     [](size_t* f, size_t* t) { return driver.cuMemGetInfo_v2(f, t); });
}

SLUICE_HOOK CUresult cuMemGetInfo(unsigned int* free_bytes, unsigned int* total_bytes) {
  return memory_info(free_bytes, total_bytes,
                     [](unsigned int* f, unsigned int* t) { return driver.cuMemGetInfo(f, t); });
}

SLUICE_HOOK CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  process_enter();
  const CUresult result = driver.cuDeviceTotalMem_v2(bytes, device);
  if (result == CUDA_SUCCESS) total_narrow(bytes, device);
  return result;
}

SLUICE_HOOK CUresult cuDeviceTotalMem(unsigned int* bytes, CUdevice device) {
  process_enter();
  const CUresult result = driver.cuDeviceTotalMem(bytes, device);
  if (result == CUDA_SUCCESS) total_narrow(bytes, device);
  return result;
}
