// Arrays and mipmapped arrays: see array.h. Copies to and from them are in copy_array.cpp.
#include "softgpu/runtime/array.h"

using namespace softgpu::runtime;

namespace {

struct Format {
  CUarray_format format;
  int bits;
  cudaChannelFormatKind kind;
};
constexpr Format kFormats[] = {
    {CU_AD_FORMAT_UNSIGNED_INT8, 8, cudaChannelFormatKindUnsigned},
    {CU_AD_FORMAT_UNSIGNED_INT16, 16, cudaChannelFormatKindUnsigned},
    {CU_AD_FORMAT_UNSIGNED_INT32, 32, cudaChannelFormatKindUnsigned},
    {CU_AD_FORMAT_SIGNED_INT8, 8, cudaChannelFormatKindSigned},
    {CU_AD_FORMAT_SIGNED_INT16, 16, cudaChannelFormatKindSigned},
    {CU_AD_FORMAT_SIGNED_INT32, 32, cudaChannelFormatKindSigned},
    {CU_AD_FORMAT_HALF, 16, cudaChannelFormatKindFloat},
    {CU_AD_FORMAT_FLOAT, 32, cudaChannelFormatKindFloat},
};

/// Channels of equal width, x first; the driver says which numbers of them there are.
cudaError_t to_driver(const cudaChannelFormatDesc* channels, CUDA_ARRAY3D_DESCRIPTOR* out) {
  if (channels == nullptr || channels->x <= 0) return cudaErrorInvalidChannelDescriptor;
  const int bits[] = {channels->x, channels->y, channels->z, channels->w};
  unsigned count = 0;
  while (count < 4 && bits[count] == channels->x) ++count;
  for (unsigned i = count; i < 4; ++i)
    if (bits[i] != 0) return cudaErrorInvalidChannelDescriptor;
  for (const Format& known : kFormats) {
    if (known.bits != channels->x || known.kind != channels->f) continue;
    out->Format = known.format;
    out->NumChannels = count;
    return cudaSuccess;
  }
  return cudaErrorInvalidChannelDescriptor;
}

cudaChannelFormatDesc from_driver(const CUDA_ARRAY3D_DESCRIPTOR& array) {
  cudaChannelFormatDesc channels{0, 0, 0, 0, cudaChannelFormatKindNone};
  for (const Format& known : kFormats) {
    if (known.format != array.Format) continue;
    const auto bits = [&](unsigned i) { return i < array.NumChannels ? known.bits : 0; };
    channels = {bits(0), bits(1), bits(2), bits(3), known.kind};
  }
  return channels;
}

cudaError_t describe(const cudaChannelFormatDesc* channels, cudaExtent extent, unsigned flags,
                     CUDA_ARRAY3D_DESCRIPTOR* out) {
  *out = {};
  out->Width = extent.width;
  out->Height = extent.height;
  out->Depth = extent.depth;
  out->Flags = flags;  // one numbering in both headers
  return to_driver(channels, out);
}

}  // namespace

static_assert(cudaArrayLayered == CUDA_ARRAY3D_LAYERED &&
                  cudaArraySurfaceLoadStore == CUDA_ARRAY3D_SURFACE_LDST &&
                  cudaArrayCubemap == CUDA_ARRAY3D_CUBEMAP &&
                  cudaArrayTextureGather == CUDA_ARRAY3D_TEXTURE_GATHER,
              "one numbering in both headers");

namespace softgpu::runtime {

cudaError_t element_bytes(cudaArray_const_t array, size_t* bytes) {
  CUDA_ARRAY3D_DESCRIPTOR found = {};
  const CUresult result = driver().Array3DGetDescriptor(&found, to_array(array));
  if (result != CUDA_SUCCESS) return to_error(result);
  const cudaChannelFormatDesc channels = from_driver(found);
  *bytes = static_cast<size_t>(channels.x + channels.y + channels.z + channels.w) / 8;
  return *bytes == 0 ? cudaErrorInvalidValue : cudaSuccess;
}

}  // namespace softgpu::runtime

cudaError_t CUDARTAPI cudaMalloc3DArray(cudaArray_t* array,
                                        const struct cudaChannelFormatDesc* channels,
                                        struct cudaExtent extent, unsigned int flags) {
  return in_context([&](const Driver& api) {
    CUDA_ARRAY3D_DESCRIPTOR description;
    if (array == nullptr) return cudaErrorInvalidValue;
    const cudaError_t error = describe(channels, extent, flags, &description);
    if (error != cudaSuccess) return error;
    return to_error(api.Array3DCreate(reinterpret_cast<CUarray*>(array), &description));
  });
}

cudaError_t CUDARTAPI cudaMallocArray(cudaArray_t* array,
                                      const struct cudaChannelFormatDesc* channels, size_t width,
                                      size_t height, unsigned int flags) {
  return cudaMalloc3DArray(array, channels, {width, height, 0}, flags);
}

cudaError_t CUDARTAPI cudaFreeArray(cudaArray_t array) {
  return in_context([&](const Driver& api) {
    return array == nullptr ? CUDA_SUCCESS : api.ArrayDestroy(to_array(array));
  });
}

cudaError_t CUDARTAPI cudaArrayGetInfo(struct cudaChannelFormatDesc* channels,
                                       struct cudaExtent* extent, unsigned int* flags,
                                       cudaArray_t array) {
  return in_context([&](const Driver& api) {
    CUDA_ARRAY3D_DESCRIPTOR found = {};
    const CUresult result = api.Array3DGetDescriptor(&found, to_array(array));
    if (result != CUDA_SUCCESS) return result;
    if (channels != nullptr) *channels = from_driver(found);
    if (extent != nullptr) *extent = {found.Width, found.Height, found.Depth};
    if (flags != nullptr) *flags = found.Flags;
    return result;
  });
}

cudaError_t CUDARTAPI cudaGetChannelDesc(struct cudaChannelFormatDesc* channels,
                                         cudaArray_const_t array) {
  return cudaArrayGetInfo(channels, nullptr, nullptr, const_cast<cudaArray_t>(array));
}

cudaError_t CUDARTAPI cudaMallocMipmappedArray(cudaMipmappedArray_t* array,
                                               const struct cudaChannelFormatDesc* channels,
                                               struct cudaExtent extent, unsigned int levels,
                                               unsigned int flags) {
  return in_context([&](const Driver& api) {
    CUDA_ARRAY3D_DESCRIPTOR description;
    if (array == nullptr) return cudaErrorInvalidValue;
    const cudaError_t error = describe(channels, extent, flags, &description);
    if (error != cudaSuccess) return error;
    return to_error(
        api.MipmappedArrayCreate(reinterpret_cast<CUmipmappedArray*>(array), &description, levels));
  });
}

cudaError_t CUDARTAPI cudaGetMipmappedArrayLevel(cudaArray_t* level_array,
                                                 cudaMipmappedArray_const_t array,
                                                 unsigned int level) {
  return in_context([&](const Driver& api) {
    return api.MipmappedArrayGetLevel(
        reinterpret_cast<CUarray*>(level_array),
        reinterpret_cast<CUmipmappedArray>(const_cast<cudaMipmappedArray_t>(array)), level);
  });
}

cudaError_t CUDARTAPI cudaFreeMipmappedArray(cudaMipmappedArray_t array) {
  return in_context([&](const Driver& api) {
    return array == nullptr ? CUDA_SUCCESS
                            : api.MipmappedArrayDestroy(reinterpret_cast<CUmipmappedArray>(array));
  });
}
