// Entry points: copies and memsets, in one, two and three dimensions. Every form becomes one
// CopyCommand or SetCommand.
#include <cstring>

#include "softgpu/driver/command.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/memory.h"

using namespace softgpu::driver;
namespace device = softgpu::device;

namespace {

/// Pageable sources up to this size are copied when the call is made, larger ones are waited for.
constexpr std::size_t kStagedMax = 64 * 1024;

enum class Side { kAny, kHost, kDevice };

struct Request {
  CopyCommand copy;
  Side from = Side::kAny, to = Side::kAny;
  bool wait = false;  // the synchronous forms
};

std::byte* pointer(CUdeviceptr address) { return reinterpret_cast<std::byte*>(address); }

std::size_t extent(std::size_t width, std::size_t height, std::size_t depth, std::size_t pitch,
                   std::size_t plane) {
  return width + (height - 1) * pitch + (depth - 1) * plane;
}

/// Where one side of a copy lies. False: it must be device memory and is not.
bool classify(const std::byte* p, std::size_t bytes, Side side, bool& device, bool& pageable) {
  const auto allocation = MemoryMap::get().find(address_of(p));
  if (side == Side::kDevice && (!allocation || !MemoryMap::get().covers(address_of(p), bytes)))
    return false;
  if (allocation && side == Side::kAny && !MemoryMap::get().covers(address_of(p), bytes))
    return false;
  device = allocation && allocation->on_device();
  pageable = !allocation;
  return true;
}

/// Fills in which engine the copy takes. False: an end is not the memory it is said to be.
bool place(Request& request, bool& from_device, bool& to_device, bool& from_pageable,
           bool& to_pageable) {
  CopyCommand& copy = request.copy;
  const std::size_t from_bytes =
      extent(copy.width, copy.height, copy.depth, copy.from_pitch, copy.from_plane);
  const std::size_t to_bytes =
      extent(copy.width, copy.height, copy.depth, copy.to_pitch, copy.to_plane);
  if (!classify(copy.from, from_bytes, request.from, from_device, from_pageable) ||
      !classify(copy.to, to_bytes, request.to, to_device, to_pageable))
    return false;
  copy.on_device = from_device || to_device;
  copy.kind = from_device && to_device ? device::WorkKind::kCopyInside
              : to_device              ? device::WorkKind::kCopyIn
                                       : device::WorkKind::kCopyOut;
  return true;
}

CUresult copy_submit(Request request, CUstream stream_handle, const char* name) {
  ContextRef context;
  CUresult result = enter(context, name);
  StreamRef stream;
  if (result == CUDA_SUCCESS) result = stream_find(stream_handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  CopyCommand& copy = request.copy;
  if (copy.width == 0 || copy.height == 0 || copy.depth == 0) return CUDA_SUCCESS;
  if (copy.to == nullptr || copy.from == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool from_device = false, to_device = false, from_pageable = false, to_pageable = false;
  if (!place(request, from_device, to_device, from_pageable, to_pageable))
    return CUDA_ERROR_INVALID_VALUE;
  const std::size_t from_bytes =
      extent(copy.width, copy.height, copy.depth, copy.from_pitch, copy.from_plane);
  const bool capturing = stream->capture != nullptr;
  bool wait = request.wait && !(from_device && to_device);
  if (!capturing && !wait && from_pageable && to_device && from_bytes <= kStagedMax)
    copy.staged = std::make_shared<std::vector<std::byte>>(copy.from, copy.from + from_bytes);
  else if (!capturing && (from_pageable || to_pageable))
    wait = true;
  OpRef op;
  result = command_submit(stream, std::move(copy), &op);
  if (result != CUDA_SUCCESS || !wait) return result;
  result = Stream::wait(op);
  context->print_flush();
  return result;
}

Request line(std::byte* to, const void* from, std::size_t bytes, Side to_side, Side from_side,
             bool wait) {
  Request request;
  request.copy.to = to;
  request.copy.from = static_cast<const std::byte*>(from);
  request.copy.width = bytes;
  request.to = to_side;
  request.from = from_side;
  request.wait = wait;
  return request;
}

/// One end of a 2-D or 3-D description. False: arrays, which this device has not.
bool end_resolve(CUmemorytype type, const void* host, CUdeviceptr device, std::byte*& p,
                 Side& side) {
  switch (type) {
    case CU_MEMORYTYPE_HOST:
      p = static_cast<std::byte*>(const_cast<void*>(host));
      side = Side::kHost;
      return true;
    case CU_MEMORYTYPE_DEVICE:
      p = pointer(device);
      side = Side::kDevice;
      return true;
    case CU_MEMORYTYPE_UNIFIED:
      p = pointer(device);
      side = Side::kAny;
      return true;
    default:
      return false;
  }
}

CUresult copy_2d(const CUDA_MEMCPY2D* d, CUstream stream, bool wait, const char* name) {
  if (d == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Request request;
  std::byte *from = nullptr, *to = nullptr;
  if (!end_resolve(d->srcMemoryType, d->srcHost, d->srcDevice, from, request.from) ||
      !end_resolve(d->dstMemoryType, d->dstHost, d->dstDevice, to, request.to))
    return CUDA_ERROR_NOT_SUPPORTED;
  const std::size_t from_pitch = d->srcPitch != 0 ? d->srcPitch : d->WidthInBytes + d->srcXInBytes;
  const std::size_t to_pitch = d->dstPitch != 0 ? d->dstPitch : d->WidthInBytes + d->dstXInBytes;
  if (from_pitch < d->WidthInBytes + d->srcXInBytes || to_pitch < d->WidthInBytes + d->dstXInBytes)
    return CUDA_ERROR_INVALID_VALUE;
  CopyCommand& c = request.copy;
  c.from = from + d->srcY * from_pitch + d->srcXInBytes;
  c.to = to + d->dstY * to_pitch + d->dstXInBytes;
  c.from_pitch = from_pitch;
  c.to_pitch = to_pitch;
  c.width = d->WidthInBytes;
  c.height = d->Height;
  request.wait = wait;
  return copy_submit(std::move(request), stream, name);
}

/// CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER name these fields alike.
template <typename D>
CUresult describe_3d(const D& d, Request& request) {
  std::byte *from = nullptr, *to = nullptr;
  if (!end_resolve(d.srcMemoryType, d.srcHost, d.srcDevice, from, request.from) ||
      !end_resolve(d.dstMemoryType, d.dstHost, d.dstDevice, to, request.to))
    return CUDA_ERROR_NOT_SUPPORTED;
  CopyCommand& c = request.copy;
  c.from_pitch = d.srcPitch != 0 ? d.srcPitch : d.WidthInBytes + d.srcXInBytes;
  c.to_pitch = d.dstPitch != 0 ? d.dstPitch : d.WidthInBytes + d.dstXInBytes;
  c.from_plane = c.from_pitch * (d.srcHeight != 0 ? d.srcHeight : d.Height + d.srcY);
  c.to_plane = c.to_pitch * (d.dstHeight != 0 ? d.dstHeight : d.Height + d.dstY);
  if (c.from_pitch < d.WidthInBytes + d.srcXInBytes || c.to_pitch < d.WidthInBytes + d.dstXInBytes)
    return CUDA_ERROR_INVALID_VALUE;
  c.from = from + d.srcZ * c.from_plane + d.srcY * c.from_pitch + d.srcXInBytes;
  c.to = to + d.dstZ * c.to_plane + d.dstY * c.to_pitch + d.dstXInBytes;
  c.width = d.WidthInBytes;
  c.height = d.Height;
  c.depth = d.Depth;
  return CUDA_SUCCESS;
}

template <typename D>
CUresult copy_3d(const D* d, CUstream stream, bool wait, const char* name) {
  if (d == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Request request;
  const CUresult result = describe_3d(*d, request);
  if (result != CUDA_SUCCESS) return result;
  request.wait = wait;
  return copy_submit(std::move(request), stream, name);
}

CUresult set_submit(SetCommand set, CUstream stream_handle, const char* name) {
  ContextRef context;
  CUresult result = enter(context, name);
  StreamRef stream;
  if (result == CUDA_SUCCESS) result = stream_find(stream_handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  if (set.width == 0 || set.height == 0) return CUDA_SUCCESS;
  const std::size_t row = set.width * set.element;
  if (set.height > 1 && set.pitch < row) return CUDA_ERROR_INVALID_VALUE;
  const std::uintptr_t at = address_of(set.to);
  if (at % set.element != 0 || (set.height > 1 && set.pitch % set.element != 0))
    return CUDA_ERROR_INVALID_VALUE;
  if (!MemoryMap::get().covers(at, extent(row, set.height, 1, set.pitch, 0)))
    return CUDA_ERROR_INVALID_VALUE;
  return command_submit(stream, set);
}

SetCommand rows(CUdeviceptr to, std::size_t pitch, unsigned value, unsigned element,
                std::size_t width, std::size_t height) {
  return SetCommand{pointer(to), pitch, width, height, value, element};
}

}  // namespace

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return copy_submit(line(pointer(to), pointer(from), bytes, Side::kAny, Side::kAny, true), nullptr,
                     __func__);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return copy_submit(line(pointer(to), pointer(from), bytes, Side::kAny, Side::kAny, false), stream,
                     __func__);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
  return copy_submit(line(pointer(to), from, bytes, Side::kDevice, Side::kHost, true), nullptr,
                     __func__);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes,
                              CUstream stream) {
  return copy_submit(line(pointer(to), from, bytes, Side::kDevice, Side::kHost, false), stream,
                     __func__);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
  return copy_submit(
      line(static_cast<std::byte*>(to), pointer(from), bytes, Side::kHost, Side::kDevice, true),
      nullptr, __func__);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return copy_submit(
      line(static_cast<std::byte*>(to), pointer(from), bytes, Side::kHost, Side::kDevice, false),
      stream, __func__);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return copy_submit(line(pointer(to), pointer(from), bytes, Side::kDevice, Side::kDevice, true),
                     nullptr, __func__);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                              CUstream stream) {
  return copy_submit(line(pointer(to), pointer(from), bytes, Side::kDevice, Side::kDevice, false),
                     stream, __func__);
}
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, std::size_t bytes) {
  return copy_submit(line(pointer(to), pointer(from), bytes, Side::kDevice, Side::kDevice, true),
                     nullptr, __func__);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext,
                           std::size_t bytes, CUstream stream) {
  return copy_submit(line(pointer(to), pointer(from), bytes, Side::kDevice, Side::kDevice, false),
                     stream, __func__);
}
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* d) { return copy_2d(d, nullptr, true, __func__); }
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* d) {
  return copy_2d(d, nullptr, true, __func__);
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* d, CUstream stream) {
  return copy_2d(d, stream, false, __func__);
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* d) { return copy_3d(d, nullptr, true, __func__); }
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* d, CUstream stream) {
  return copy_3d(d, stream, false, __func__);
}
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* d) { return copy_3d(d, nullptr, true, __func__); }
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* d, CUstream stream) {
  return copy_3d(d, stream, false, __func__);
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, std::size_t n) {
  return set_submit(rows(to, 0, value, 1, n, 1), nullptr, __func__);
}
CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, std::size_t n) {
  return set_submit(rows(to, 0, value, 2, n, 1), nullptr, __func__);
}
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, std::size_t n) {
  return set_submit(rows(to, 0, value, 4, n, 1), nullptr, __func__);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t n, CUstream stream) {
  return set_submit(rows(to, 0, value, 1, n, 1), stream, __func__);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t n, CUstream stream) {
  return set_submit(rows(to, 0, value, 2, n, 1), stream, __func__);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, std::size_t n, CUstream stream) {
  return set_submit(rows(to, 0, value, 4, n, 1), stream, __func__);
}
CUresult cuMemsetD2D8_v2(CUdeviceptr to, std::size_t pitch, unsigned char value, std::size_t w,
                         std::size_t h) {
  return set_submit(rows(to, pitch, value, 1, w, h), nullptr, __func__);
}
CUresult cuMemsetD2D16_v2(CUdeviceptr to, std::size_t pitch, unsigned short value, std::size_t w,
                          std::size_t h) {
  return set_submit(rows(to, pitch, value, 2, w, h), nullptr, __func__);
}
CUresult cuMemsetD2D32_v2(CUdeviceptr to, std::size_t pitch, unsigned int value, std::size_t w,
                          std::size_t h) {
  return set_submit(rows(to, pitch, value, 4, w, h), nullptr, __func__);
}
CUresult cuMemsetD2D8Async(CUdeviceptr to, std::size_t pitch, unsigned char value, std::size_t w,
                           std::size_t h, CUstream s) {
  return set_submit(rows(to, pitch, value, 1, w, h), s, __func__);
}
CUresult cuMemsetD2D16Async(CUdeviceptr to, std::size_t pitch, unsigned short value, std::size_t w,
                            std::size_t h, CUstream s) {
  return set_submit(rows(to, pitch, value, 2, w, h), s, __func__);
}
CUresult cuMemsetD2D32Async(CUdeviceptr to, std::size_t pitch, unsigned int value, std::size_t w,
                            std::size_t h, CUstream s) {
  return set_submit(rows(to, pitch, value, 4, w, h), s, __func__);
}

namespace softgpu::driver {

CUresult copy_describe(const CUDA_MEMCPY3D& description, CopyCommand& command) {
  Request request;
  const CUresult result = describe_3d(description, request);
  if (result != CUDA_SUCCESS) return result;
  bool from_device = false, to_device = false, from_pageable = false, to_pageable = false;
  CopyCommand& c = request.copy;
  if (!place(request, from_device, to_device, from_pageable, to_pageable))
    return CUDA_ERROR_INVALID_VALUE;
  command = std::move(c);
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver
