// What the rows about textures and surfaces share: descriptors of either, and an array with
// contents.
#pragma once

#include <array>
#include <vector>

#include "tests/conformance/copies.h"

namespace conformance {

inline constexpr CUarray_format kFloats = CU_AD_FORMAT_FLOAT;
inline constexpr CUaddress_mode kClamp = CU_TR_ADDRESS_MODE_CLAMP;

inline CUDA_RESOURCE_DESC of_array(CUarray array) {
  CUDA_RESOURCE_DESC d{};
  d.resType = CU_RESOURCE_TYPE_ARRAY;
  d.res.array.hArray = array;
  return d;
}

inline CUDA_RESOURCE_DESC of_memory(CUdeviceptr p, std::size_t bytes, CUarray_format format,
                                    unsigned channels = 1) {
  CUDA_RESOURCE_DESC d{};
  d.resType = CU_RESOURCE_TYPE_LINEAR;
  d.res.linear = {p, format, channels, bytes};
  return d;
}

inline CUDA_RESOURCE_DESC of_rows(CUdeviceptr p, std::size_t width, std::size_t height,
                                  std::size_t pitch, CUarray_format format, unsigned channels = 1) {
  CUDA_RESOURCE_DESC d{};
  d.resType = CU_RESOURCE_TYPE_PITCH2D;
  d.res.pitch2D = {p, format, channels, width, height, pitch};
  return d;
}

inline CUDA_TEXTURE_DESC sampled(CUaddress_mode mode,
                                 CUfilter_mode filter = CU_TR_FILTER_MODE_POINT,
                                 unsigned flags = 0) {
  CUDA_TEXTURE_DESC d{};
  for (CUaddress_mode& of_dimension : d.addressMode) of_dimension = mode;
  d.filterMode = filter;
  d.flags = flags;
  return d;
}

/// An array of that shape with these elements, rows and slices one behind the other.
template <typename T>
CUarray array_of(CUDA_ARRAY3D_DESCRIPTOR shape, const std::vector<T>& elements) {
  CUarray array = nullptr;
  EXPECT_EQ(cuArray3DCreate(&array, &shape), CUDA_SUCCESS);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = elements.data();
  const std::size_t rows = shape.Height == 0 ? 1 : shape.Height;
  const std::size_t slices = shape.Depth == 0 ? 1 : shape.Depth;
  copy.WidthInBytes = elements.size() * sizeof(T) / rows / slices;
  copy.srcPitch = copy.WidthInBytes;
  copy.srcHeight = rows;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.Height = rows;
  copy.Depth = slices;
  EXPECT_EQ(cuMemcpy3D(&copy), CUDA_SUCCESS);
  return array;
}

inline CUDA_ARRAY3D_DESCRIPTOR shape_of(CUarray_format format, unsigned channels, std::size_t width,
                                        std::size_t height = 0, std::size_t depth = 0,
                                        unsigned flags = 0) {
  CUDA_ARRAY3D_DESCRIPTOR d{};
  d.Width = width;
  d.Height = height;
  d.Depth = depth;
  d.Format = format;
  d.NumChannels = channels;
  d.Flags = flags;
  return d;
}

inline CUtexObject texture_new(const CUDA_RESOURCE_DESC& resource,
                               const CUDA_TEXTURE_DESC& sampling) {
  CUtexObject texture = 0;
  EXPECT_EQ(cuTexObjectCreate(&texture, &resource, &sampling, nullptr), CUDA_SUCCESS);
  return texture;
}

/// Creates the texture and destroys it again.
inline CUresult texture_try(const CUDA_RESOURCE_DESC& resource, const CUDA_TEXTURE_DESC& sampling,
                            const CUDA_RESOURCE_VIEW_DESC* view = nullptr) {
  CUtexObject texture = 0;
  const CUresult result = cuTexObjectCreate(&texture, &resource, &sampling, view);
  return result == CUDA_SUCCESS ? cuTexObjectDestroy(texture) : result;
}

template <typename T>
std::vector<T> values_at(CUdeviceptr p, std::size_t count) {
  std::vector<T> values(count);
  EXPECT_EQ(cuMemcpyDtoH(values.data(), p, count * sizeof(T)), CUDA_SUCCESS);
  return values;
}

template <typename T>
CUdeviceptr device_with(const std::vector<T>& values) {
  const CUdeviceptr p = device_new(values.size() * sizeof(T));
  EXPECT_EQ(cuMemcpyHtoD(p, values.data(), values.size() * sizeof(T)), CUDA_SUCCESS);
  return p;
}

using Texel = std::array<float, 4>;
using Words = std::array<unsigned, 4>;
struct Point {
  float x = 0, y = 0, z = 0;
  unsigned layer = 0;
};

/// What the kernel of that name fetches from a texture at each point.
template <typename T = Texel>
std::vector<T> fetched(const char* name, CUtexObject texture, const std::vector<Point>& points) {
  unsigned count = static_cast<unsigned>(points.size());
  CUdeviceptr at = device_with(points), out = device_new(count * sizeof(T));
  EXPECT_EQ(launch(kernel(name), 1, count, {&texture, &at, &out}), CUDA_SUCCESS);
  return values_at<T>(out, count);
}

/// The first channel of each of them.
inline std::vector<float> fetched_first(const char* name, CUtexObject texture,
                                        const std::vector<Point>& points) {
  std::vector<float> first;
  for (const Texel& texel : fetched(name, texture, points)) first.push_back(texel[0]);
  return first;
}

}  // namespace conformance
