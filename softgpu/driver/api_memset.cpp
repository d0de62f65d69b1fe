// Entry points: memsets of every width, in one and two dimensions.
#include "softgpu/driver/command.h"
#include "softgpu/driver/memory.h"

using namespace softgpu::driver;

namespace {

/// The forms without Async wait for host and managed memory, and where SYNC_MEMOPS says so.
bool host_waits(std::uintptr_t at) {
  const auto allocation = MemoryMap::get().find(at);
  return allocation &&
         (!allocation->on_device() || allocation->is_managed() || allocation->sync_memops);
}

CUresult set_submit(SetCommand set, CUstream stream_handle, bool async, const char* name) {
  ContextRef context;
  CUresult result = enter(context, name);
  StreamRef stream;
  if (result == CUDA_SUCCESS) result = stream_find(stream_handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  if (set.width == 0 || set.height == 0) return CUDA_SUCCESS;
  if (set.width > SIZE_MAX / set.element) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t row = set.width * set.element;
  if (set.height > 1 && (set.pitch < row || set.height - 1 > (SIZE_MAX - row) / set.pitch))
    return CUDA_ERROR_INVALID_VALUE;
  const std::uintptr_t at = address_of(set.to);
  if (at % set.element != 0 || (set.height > 1 && set.pitch % set.element != 0))
    return CUDA_ERROR_INVALID_VALUE;
  if (!MemoryMap::get().covers(at, row + (set.height - 1) * set.pitch,
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
    return CUDA_ERROR_INVALID_VALUE;
  OpRef op;
  result = command_submit(stream, set, &op);
  if (result != CUDA_SUCCESS || async || !host_waits(at)) return result;
  return Stream::wait(op);
}

SetCommand rows(CUdeviceptr to, std::size_t pitch, unsigned value, unsigned element,
                std::size_t width, std::size_t height) {
  return SetCommand{reinterpret_cast<std::byte*>(to), pitch, width, height, value, element};
}

}  // namespace

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, std::size_t n) {
  return set_submit(rows(to, 0, value, 1, n, 1), nullptr, false, __func__);
}
CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, std::size_t n) {
  return set_submit(rows(to, 0, value, 2, n, 1), nullptr, false, __func__);
}
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, std::size_t n) {
  return set_submit(rows(to, 0, value, 4, n, 1), nullptr, false, __func__);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t n, CUstream stream) {
  return set_submit(rows(to, 0, value, 1, n, 1), stream, true, __func__);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t n, CUstream stream) {
  return set_submit(rows(to, 0, value, 2, n, 1), stream, true, __func__);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, std::size_t n, CUstream stream) {
  return set_submit(rows(to, 0, value, 4, n, 1), stream, true, __func__);
}
CUresult cuMemsetD2D8_v2(CUdeviceptr to, std::size_t pitch, unsigned char value, std::size_t w,
                         std::size_t h) {
  return set_submit(rows(to, pitch, value, 1, w, h), nullptr, false, __func__);
}
CUresult cuMemsetD2D16_v2(CUdeviceptr to, std::size_t pitch, unsigned short value, std::size_t w,
                          std::size_t h) {
  return set_submit(rows(to, pitch, value, 2, w, h), nullptr, false, __func__);
}
CUresult cuMemsetD2D32_v2(CUdeviceptr to, std::size_t pitch, unsigned int value, std::size_t w,
                          std::size_t h) {
  return set_submit(rows(to, pitch, value, 4, w, h), nullptr, false, __func__);
}
CUresult cuMemsetD2D8Async(CUdeviceptr to, std::size_t pitch, unsigned char value, std::size_t w,
                           std::size_t h, CUstream stream) {
  return set_submit(rows(to, pitch, value, 1, w, h), stream, true, __func__);
}
CUresult cuMemsetD2D16Async(CUdeviceptr to, std::size_t pitch, unsigned short value, std::size_t w,
                            std::size_t h, CUstream stream) {
  return set_submit(rows(to, pitch, value, 2, w, h), stream, true, __func__);
}
CUresult cuMemsetD2D32Async(CUdeviceptr to, std::size_t pitch, unsigned int value, std::size_t w,
                            std::size_t h, CUstream stream) {
  return set_submit(rows(to, pitch, value, 4, w, h), stream, true, __func__);
}
