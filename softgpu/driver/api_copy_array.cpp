// Entry points: copies between linear memory and one-dimensional arrays, by byte offset.
#include "softgpu/driver/array.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/memory.h"

using namespace softgpu::driver;

namespace {

/// Points to `bytes` bytes at `offset` of an array; the elements of a 2-D one are taken row by row.
CUresult array_bytes(CUarray handle, std::size_t offset, std::size_t bytes, std::byte*& p) {
  CUresult result = enter_any();
  ArrayRef array;
  if (result == CUDA_SUCCESS) result = Array::find(handle, array);
  if (result != CUDA_SUCCESS) return result;
  const std::size_t element = array->element().bytes;
  const std::uintptr_t base = array->address;
  if (base == 0 || element == 0 || offset > array->bytes() || bytes > array->bytes() - offset)
    return CUDA_ERROR_INVALID_VALUE;
  p = reinterpret_cast<std::byte*>(base) + offset;
  return CUDA_SUCCESS;
}

struct Request {
  CUarray array;
  std::size_t offset;
  std::size_t bytes;
  bool wait;
};

CUresult into_array(const Request& r, const void* from, Side side, CUstream stream,
                    const char* name) {
  CopyRequest request;
  const CUresult result = array_bytes(r.array, r.offset, r.bytes, request.copy.to);
  if (result != CUDA_SUCCESS) return result;
  request.copy.from = static_cast<const std::byte*>(from);
  request.copy.width = r.bytes;
  request.from = side;
  request.to = Side::kDevice;
  request.wait = r.wait;
  return copy_submit(std::move(request), stream, name);
}

CUresult from_array(const Request& r, void* to, Side side, CUstream stream, const char* name) {
  CopyRequest request;
  std::byte* from = nullptr;
  const CUresult result = array_bytes(r.array, r.offset, r.bytes, from);
  if (result != CUDA_SUCCESS) return result;
  request.copy.from = from;
  request.copy.to = static_cast<std::byte*>(to);
  request.copy.width = r.bytes;
  request.from = Side::kDevice;
  request.to = side;
  request.wait = r.wait;
  return copy_submit(std::move(request), stream, name);
}

}  // namespace

CUresult cuMemcpyDtoA_v2(CUarray to, std::size_t offset, CUdeviceptr from, std::size_t bytes) {
  return into_array({to, offset, bytes, true}, pointer_of(from), Side::kDevice, nullptr, __func__);
}
CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, std::size_t offset, std::size_t bytes) {
  return from_array({from, offset, bytes, true}, pointer_of(to), Side::kDevice, nullptr, __func__);
}
CUresult cuMemcpyHtoA_v2(CUarray to, std::size_t offset, const void* from, std::size_t bytes) {
  return into_array({to, offset, bytes, true}, from, Side::kHost, nullptr, __func__);
}
CUresult cuMemcpyAtoH_v2(void* to, CUarray from, std::size_t offset, std::size_t bytes) {
  return from_array({from, offset, bytes, true}, to, Side::kHost, nullptr, __func__);
}
CUresult cuMemcpyHtoAAsync_v2(CUarray to, std::size_t offset, const void* from, std::size_t bytes,
                              CUstream stream) {
  return into_array({to, offset, bytes, false}, from, Side::kHost, stream, __func__);
}
CUresult cuMemcpyAtoHAsync_v2(void* to, CUarray from, std::size_t offset, std::size_t bytes,
                              CUstream stream) {
  return from_array({from, offset, bytes, false}, to, Side::kHost, stream, __func__);
}
CUresult cuMemcpyAtoA_v2(CUarray to, std::size_t to_offset, CUarray from, std::size_t from_offset,
                         std::size_t bytes) {
  std::byte* source = nullptr;
  CUresult result = array_bytes(from, from_offset, bytes, source);
  ArrayRef target, origin;
  if (result == CUDA_SUCCESS) result = Array::find(to, target);
  if (result == CUDA_SUCCESS) result = Array::find(from, origin);
  if (result != CUDA_SUCCESS) return result;
  if (target->element().bytes != origin->element().bytes) return CUDA_ERROR_INVALID_VALUE;
  return into_array({to, to_offset, bytes, true}, source, Side::kDevice, nullptr, __func__);
}
