// Entry points: copies of linear memory, of boxes in two and three dimensions, and between
// contexts. Every form becomes one CopyRequest.
#include "softgpu/driver/copy.h"
#include "softgpu/driver/memory.h"

using namespace softgpu::driver;

namespace {

CopyRequest line(std::byte* to, const void* from, std::size_t bytes, Side to_side, Side from_side,
                 bool wait) {
  CopyRequest request;
  request.copy.to = to;
  request.copy.from = static_cast<const std::byte*>(from);
  request.copy.width = bytes;
  request.to = to_side;
  request.from = from_side;
  request.wait = wait;
  return request;
}

/// A 2-D description as a 3-D one of depth 1.
CUDA_MEMCPY3D deepen(const CUDA_MEMCPY2D& d) {
  CUDA_MEMCPY3D deep{};
  deep.srcXInBytes = d.srcXInBytes;
  deep.srcY = d.srcY;
  deep.srcMemoryType = d.srcMemoryType;
  deep.srcHost = d.srcHost;
  deep.srcDevice = d.srcDevice;
  deep.srcArray = d.srcArray;
  deep.srcPitch = d.srcPitch;
  deep.dstXInBytes = d.dstXInBytes;
  deep.dstY = d.dstY;
  deep.dstMemoryType = d.dstMemoryType;
  deep.dstHost = d.dstHost;
  deep.dstDevice = d.dstDevice;
  deep.dstArray = d.dstArray;
  deep.dstPitch = d.dstPitch;
  deep.WidthInBytes = d.WidthInBytes;
  deep.Height = d.Height;
  deep.Depth = 1;
  return deep;
}

template <typename D>
CUresult copy_3d(const D& d, CUstream stream, bool wait, const char* name) {
  ContextRef context;
  CUresult result = enter(context, name);
  if (result != CUDA_SUCCESS) return result;
  CopyRequest request;
  result = copy_describe(d, request);
  if (result != CUDA_SUCCESS) return result;
  request.wait = wait;
  return copy_submit(std::move(request), stream, name);
}

CUresult copy_2d(const CUDA_MEMCPY2D* d, CUstream stream, bool wait, const char* name) {
  return d == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_3d(deepen(*d), stream, wait, name);
}

/// What other contexts still do comes before a copy that names them.
CUresult peer_enter(CUcontext handle, const char* name) {
  ContextRef current;
  const CUresult result = enter(current, name);
  if (result != CUDA_SUCCESS) return result;
  ContextRef peer;
  if (handle == nullptr || context_find(handle, peer) != CUDA_SUCCESS)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (peer != current) context_idle(peer);
  return peer->status();
}

CUresult copy_peer(CopyRequest request, CUcontext to, CUcontext from, CUstream stream,
                   const char* name) {
  CUresult result = peer_enter(to, name);
  if (result == CUDA_SUCCESS) result = peer_enter(from, name);
  return result == CUDA_SUCCESS ? copy_submit(std::move(request), stream, name) : result;
}

CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER* d, CUstream stream, bool wait, const char* name) {
  if (d == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = CUDA_SUCCESS;
  // The context of host memory and of arrays is not looked at.
  if (d->srcMemoryType == CU_MEMORYTYPE_DEVICE) result = peer_enter(d->srcContext, name);
  if (result == CUDA_SUCCESS && d->dstMemoryType == CU_MEMORYTYPE_DEVICE)
    result = peer_enter(d->dstContext, name);
  return result == CUDA_SUCCESS ? copy_3d(*d, stream, wait, name) : result;
}

}  // namespace

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return copy_submit(line(pointer_of(to), pointer_of(from), bytes, Side::kAny, Side::kAny, true),
                     nullptr, __func__);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return copy_submit(line(pointer_of(to), pointer_of(from), bytes, Side::kAny, Side::kAny, false),
                     stream, __func__);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
  return copy_submit(line(pointer_of(to), from, bytes, Side::kDevice, Side::kHost, true), nullptr,
                     __func__);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes,
                              CUstream stream) {
  return copy_submit(line(pointer_of(to), from, bytes, Side::kDevice, Side::kHost, false), stream,
                     __func__);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
  return copy_submit(
      line(static_cast<std::byte*>(to), pointer_of(from), bytes, Side::kHost, Side::kDevice, true),
      nullptr, __func__);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return copy_submit(
      line(static_cast<std::byte*>(to), pointer_of(from), bytes, Side::kHost, Side::kDevice, false),
      stream, __func__);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return copy_submit(
      line(pointer_of(to), pointer_of(from), bytes, Side::kDevice, Side::kDevice, true), nullptr,
      __func__);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                              CUstream stream) {
  return copy_submit(
      line(pointer_of(to), pointer_of(from), bytes, Side::kDevice, Side::kDevice, false), stream,
      __func__);
}

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                      CUcontext from_context, std::size_t bytes) {
  return copy_peer(
      line(pointer_of(to), pointer_of(from), bytes, Side::kDevice, Side::kDevice, true), to_context,
      from_context, nullptr, __func__);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, std::size_t bytes, CUstream stream) {
  return copy_peer(
      line(pointer_of(to), pointer_of(from), bytes, Side::kDevice, Side::kDevice, false),
      to_context, from_context, stream, __func__);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* d) { return copy_2d(d, nullptr, true, __func__); }
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* d) {
  return copy_2d(d, nullptr, true, __func__);
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* d, CUstream stream) {
  return copy_2d(d, stream, false, __func__);
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* d) {
  return d == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_3d(*d, nullptr, true, __func__);
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* d, CUstream stream) {
  return d == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_3d(*d, stream, false, __func__);
}
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* d) {
  return copy_3d_peer(d, nullptr, true, __func__);
}
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* d, CUstream stream) {
  return copy_3d_peer(d, stream, false, __func__);
}
