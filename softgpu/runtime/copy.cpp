// Copies: linear, 2D, 3D and between devices; each waiting or in a stream. The driver decides how a
// copy runs; this file says what is on which side. Device variables are in copy_symbol.cpp.
#include "softgpu/runtime/copy.h"

#include "softgpu/runtime/array.h"

namespace softgpu::runtime {

bool copy_sides(cudaMemcpyKind kind, CUmemorytype* source, CUmemorytype* target) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      *source = *target = CU_MEMORYTYPE_HOST;
      return true;
    case cudaMemcpyHostToDevice:
      *source = CU_MEMORYTYPE_HOST;
      *target = CU_MEMORYTYPE_DEVICE;
      return true;
    case cudaMemcpyDeviceToHost:
      *source = CU_MEMORYTYPE_DEVICE;
      *target = CU_MEMORYTYPE_HOST;
      return true;
    case cudaMemcpyDeviceToDevice:
      *source = *target = CU_MEMORYTYPE_DEVICE;
      return true;
    case cudaMemcpyDefault:
      *source = *target = CU_MEMORYTYPE_UNIFIED;
      return true;
  }
  return false;
}

namespace {

template <class Description>
void set_source(Description* copy, CUmemorytype type, const void* pointer) {
  copy->srcMemoryType = type;
  if (type == CU_MEMORYTYPE_HOST) {
    copy->srcHost = pointer;
  } else {
    copy->srcDevice = to_address(pointer);
  }
}

template <class Description>
void set_target(Description* copy, CUmemorytype type, void* pointer) {
  copy->dstMemoryType = type;
  if (type == CU_MEMORYTYPE_HOST) {
    copy->dstHost = pointer;
  } else {
    copy->dstDevice = to_address(pointer);
  }
}

/// The part of a 3D copy that both descriptions of the runtime (with and without devices) have in
/// common.
template <class From, class To>
cudaError_t fill_geometry(const From& from, To* to) {
  // Where an array takes part, widths and positions in it are counted in its elements.
  size_t element = 1;
  const cudaArray_t array = from.srcArray != nullptr ? from.srcArray : from.dstArray;
  if (array != nullptr) {
    if (const cudaError_t error = element_bytes(array, &element); error != cudaSuccess)
      return error;
  }
  if (from.srcArray != nullptr) {
    to->srcMemoryType = CU_MEMORYTYPE_ARRAY;
    to->srcArray = to_array(from.srcArray);
  }
  if (from.dstArray != nullptr) {
    to->dstMemoryType = CU_MEMORYTYPE_ARRAY;
    to->dstArray = to_array(from.dstArray);
  }
  to->srcXInBytes = from.srcPos.x * (from.srcArray != nullptr ? element : 1);
  to->srcY = from.srcPos.y;
  to->srcZ = from.srcPos.z;
  to->srcPitch = from.srcPtr.pitch;
  to->srcHeight = from.srcPtr.ysize;
  to->dstXInBytes = from.dstPos.x * (from.dstArray != nullptr ? element : 1);
  to->dstY = from.dstPos.y;
  to->dstZ = from.dstPos.z;
  to->dstPitch = from.dstPtr.pitch;
  to->dstHeight = from.dstPtr.ysize;
  to->WidthInBytes = from.extent.width * element;
  to->Height = from.extent.height;
  to->Depth = from.extent.depth;
  return cudaSuccess;
}

struct Copy2D {
  void* target;
  size_t target_pitch;
  const void* source;
  size_t source_pitch;
  size_t width;
  size_t height;
  cudaMemcpyKind kind;
};

cudaError_t to_driver(const Copy2D& copy, CUDA_MEMCPY2D* out) {
  CUmemorytype source = CU_MEMORYTYPE_UNIFIED;
  CUmemorytype target = CU_MEMORYTYPE_UNIFIED;
  if (!copy_sides(copy.kind, &source, &target)) return cudaErrorInvalidMemcpyDirection;
  if (copy.height > 0 && (copy.target_pitch < copy.width || copy.source_pitch < copy.width)) {
    return cudaErrorInvalidPitchValue;
  }
  *out = {};
  set_source(out, source, copy.source);
  set_target(out, target, copy.target);
  out->srcPitch = copy.source_pitch;
  out->dstPitch = copy.target_pitch;
  out->WidthInBytes = copy.width;
  out->Height = copy.height;
  return cudaSuccess;
}

bool kind_known(cudaMemcpyKind kind) {
  CUmemorytype source = CU_MEMORYTYPE_UNIFIED;
  CUmemorytype target = CU_MEMORYTYPE_UNIFIED;
  return copy_sides(kind, &source, &target);
}

cudaError_t to_driver(const cudaMemcpy3DPeerParms& parameters, CUDA_MEMCPY3D_PEER* out) {
  *out = {};
  set_source(out, CU_MEMORYTYPE_DEVICE, parameters.srcPtr.ptr);
  set_target(out, CU_MEMORYTYPE_DEVICE, parameters.dstPtr.ptr);
  cudaError_t error = fill_geometry(parameters, out);
  if (error == cudaSuccess) error = primary_context(parameters.srcDevice, &out->srcContext);
  if (error == cudaSuccess) error = primary_context(parameters.dstDevice, &out->dstContext);
  return error;
}

}  // namespace

CUresult copy_now(const Driver& api, void* target, const void* source, size_t size_bytes,
                  cudaMemcpyKind kind) {
  if (size_bytes == 0) return CUDA_SUCCESS;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return api.MemcpyHtoD(to_address(target), source, size_bytes);
    case cudaMemcpyDeviceToHost:
      return api.MemcpyDtoH(target, to_address(source), size_bytes);
    case cudaMemcpyDeviceToDevice:
      return api.MemcpyDtoD(to_address(target), to_address(source), size_bytes);
    default:
      return api.Memcpy(to_address(target), to_address(source), size_bytes);
  }
}

CUresult copy_in_stream(const Driver& api, void* target, const void* source, size_t size_bytes,
                        cudaMemcpyKind kind, cudaStream_t stream) {
  if (size_bytes == 0) return CUDA_SUCCESS;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return api.MemcpyHtoDAsync(to_address(target), source, size_bytes, stream);
    case cudaMemcpyDeviceToHost:
      return api.MemcpyDtoHAsync(target, to_address(source), size_bytes, stream);
    case cudaMemcpyDeviceToDevice:
      return api.MemcpyDtoDAsync(to_address(target), to_address(source), size_bytes, stream);
    default:
      return api.MemcpyAsync(to_address(target), to_address(source), size_bytes, stream);
  }
}

cudaError_t to_driver(const cudaMemcpy3DParms& parameters, CUDA_MEMCPY3D* out) {
  CUmemorytype source = CU_MEMORYTYPE_UNIFIED;
  CUmemorytype target = CU_MEMORYTYPE_UNIFIED;
  if (!copy_sides(parameters.kind, &source, &target)) return cudaErrorInvalidMemcpyDirection;
  *out = {};
  set_source(out, source, parameters.srcPtr.ptr);
  set_target(out, target, parameters.dstPtr.ptr);
  return fill_geometry(parameters, out);
}

cudaError_t linear_copy(void* target, const void* source, size_t size_bytes, cudaMemcpyKind kind,
                        CUDA_MEMCPY3D* out) {
  cudaMemcpy3DParms parameters = {};
  parameters.srcPtr = {const_cast<void*>(source), size_bytes, size_bytes, 1};
  parameters.dstPtr = {target, size_bytes, size_bytes, 1};
  parameters.extent = {size_bytes, 1, 1};
  parameters.kind = kind;
  return to_driver(parameters, out);
}

}  // namespace softgpu::runtime

using namespace softgpu::runtime;

cudaError_t CUDARTAPI cudaMemcpy(void* target, const void* source, size_t size_bytes,
                                 enum cudaMemcpyKind kind) {
  return in_context([&](const Driver& api) {
    if (!kind_known(kind)) return cudaErrorInvalidMemcpyDirection;
    return to_error(copy_now(api, target, source, size_bytes, kind));
  });
}

cudaError_t CUDARTAPI cudaMemcpyAsync(void* target, const void* source, size_t size_bytes,
                                      enum cudaMemcpyKind kind, cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    if (!kind_known(kind)) return cudaErrorInvalidMemcpyDirection;
    return to_error(copy_in_stream(api, target, source, size_bytes, kind, stream));
  });
}

cudaError_t CUDARTAPI cudaMemcpy2D(void* target, size_t target_pitch, const void* source,
                                   size_t source_pitch, size_t width, size_t height,
                                   enum cudaMemcpyKind kind) {
  return in_context([&](const Driver& api) {
    CUDA_MEMCPY2D copy;
    const cudaError_t error =
        to_driver({target, target_pitch, source, source_pitch, width, height, kind}, &copy);
    if (error != cudaSuccess || width == 0 || height == 0) return error;
    return to_error(api.Memcpy2DUnaligned(&copy));
  });
}

cudaError_t CUDARTAPI cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source,
                                        size_t source_pitch, size_t width, size_t height,
                                        enum cudaMemcpyKind kind, cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    CUDA_MEMCPY2D copy;
    const cudaError_t error =
        to_driver({target, target_pitch, source, source_pitch, width, height, kind}, &copy);
    if (error != cudaSuccess || width == 0 || height == 0) return error;
    return to_error(api.Memcpy2DAsync(&copy, stream));
  });
}

cudaError_t CUDARTAPI cudaMemcpy3D(const struct cudaMemcpy3DParms* parameters) {
  return in_context([&](const Driver& api) {
    CUDA_MEMCPY3D copy;
    if (parameters == nullptr) return cudaErrorInvalidValue;
    const cudaError_t error = to_driver(*parameters, &copy);
    return error != cudaSuccess ? error : to_error(api.Memcpy3D(&copy));
  });
}

cudaError_t CUDARTAPI cudaMemcpy3DAsync(const struct cudaMemcpy3DParms* parameters,
                                        cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    CUDA_MEMCPY3D copy;
    if (parameters == nullptr) return cudaErrorInvalidValue;
    const cudaError_t error = to_driver(*parameters, &copy);
    return error != cudaSuccess ? error : to_error(api.Memcpy3DAsync(&copy, stream));
  });
}

cudaError_t CUDARTAPI cudaMemcpy3DPeer(const struct cudaMemcpy3DPeerParms* parameters) {
  return in_context([&](const Driver& api) {
    CUDA_MEMCPY3D_PEER copy;
    if (parameters == nullptr) return cudaErrorInvalidValue;
    const cudaError_t error = to_driver(*parameters, &copy);
    return error != cudaSuccess ? error : to_error(api.Memcpy3DPeer(&copy));
  });
}

cudaError_t CUDARTAPI cudaMemcpy3DPeerAsync(const struct cudaMemcpy3DPeerParms* parameters,
                                            cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    CUDA_MEMCPY3D_PEER copy;
    if (parameters == nullptr) return cudaErrorInvalidValue;
    const cudaError_t error = to_driver(*parameters, &copy);
    return error != cudaSuccess ? error : to_error(api.Memcpy3DPeerAsync(&copy, stream));
  });
}

cudaError_t CUDARTAPI cudaMemcpyPeer(void* target, int target_device, const void* source,
                                     int source_device, size_t size_bytes) {
  return in_context([&](const Driver& api) {
    CUcontext to = nullptr;
    CUcontext from = nullptr;
    cudaError_t error = primary_context(target_device, &to);
    if (error == cudaSuccess) error = primary_context(source_device, &from);
    if (error != cudaSuccess || size_bytes == 0) return error;
    return to_error(api.MemcpyPeer(to_address(target), to, to_address(source), from, size_bytes));
  });
}

cudaError_t CUDARTAPI cudaMemcpyPeerAsync(void* target, int target_device, const void* source,
                                          int source_device, size_t size_bytes,
                                          cudaStream_t stream) {
  return in_context([&](const Driver& api) {
    CUcontext to = nullptr;
    CUcontext from = nullptr;
    cudaError_t error = primary_context(target_device, &to);
    if (error == cudaSuccess) error = primary_context(source_device, &from);
    if (error != cudaSuccess || size_bytes == 0) return error;
    return to_error(
        api.MemcpyPeerAsync(to_address(target), to, to_address(source), from, size_bytes, stream));
  });
}
