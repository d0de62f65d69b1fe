// Rows of family `arrays`: which arrays there are, and what they tell of themselves. Copies from
// and to them are in arrays_copies.cpp.
#include "tests/conformance/copies.h"

namespace conformance {
namespace {

constexpr CUarray_format kFormats[] = {CU_AD_FORMAT_UNSIGNED_INT8,  CU_AD_FORMAT_UNSIGNED_INT16,
                                       CU_AD_FORMAT_UNSIGNED_INT32, CU_AD_FORMAT_SIGNED_INT8,
                                       CU_AD_FORMAT_SIGNED_INT16,   CU_AD_FORMAT_SIGNED_INT32,
                                       CU_AD_FORMAT_HALF,           CU_AD_FORMAT_FLOAT};

CUDA_ARRAY3D_DESCRIPTOR shape(std::size_t width, std::size_t height = 0, std::size_t depth = 0,
                              unsigned flags = 0) {
  CUDA_ARRAY3D_DESCRIPTOR d{};
  d.Width = width;
  d.Height = height;
  d.Depth = depth;
  d.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  d.NumChannels = 1;
  d.Flags = flags;
  return d;
}

/// Creates the array and destroys it again.
CUresult create(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  CUarray array = nullptr;
  const CUresult result = cuArray3DCreate(&array, &d);
  return result == CUDA_SUCCESS ? cuArrayDestroy(array) : result;
}

CUarray array_new(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  CUarray array = nullptr;
  EXPECT_EQ(cuArray3DCreate(&array, &d), CUDA_SUCCESS);
  return array;
}

void expect_shape(CUarray array, const CUDA_ARRAY3D_DESCRIPTOR& d) {
  CUDA_ARRAY3D_DESCRIPTOR told{};
  ASSERT_EQ(cuArray3DGetDescriptor(&told, array), CUDA_SUCCESS);
  EXPECT_EQ(told.Width, d.Width);
  EXPECT_EQ(told.Height, d.Height);
  EXPECT_EQ(told.Depth, d.Depth);
  EXPECT_EQ(told.Format, d.Format);
  EXPECT_EQ(told.NumChannels, d.NumChannels);
  EXPECT_EQ(told.Flags, d.Flags);
}

std::size_t most(CUdevice_attribute attribute) {
  int value = 0;
  EXPECT_EQ(cuDeviceGetAttribute(&value, attribute, 0), CUDA_SUCCESS);
  EXPECT_GT(value, 0);
  return static_cast<std::size_t>(value);
}

ROW(arrays, descriptor_told) {
  const Context context;
  for (const auto& d : {shape(100), shape(100, 50), shape(20, 10, 5)})
    expect_shape(array_new(d), d);
}

ROW(arrays, plain_descriptor_told) {
  const Context context;
  CUDA_ARRAY_DESCRIPTOR d{}, told{};
  d.Width = 64;
  d.Height = 32;
  d.Format = CU_AD_FORMAT_HALF;
  d.NumChannels = 4;
  CUarray array = nullptr;
  MUST(cuArrayCreate(&array, &d));
  MUST(cuArrayGetDescriptor(&told, array));
  EXPECT_EQ(told.Width, 64U);
  EXPECT_EQ(told.Height, 32U);
  EXPECT_EQ(told.Format, CU_AD_FORMAT_HALF);
  EXPECT_EQ(told.NumChannels, 4U);
}

ROW(arrays, plain_array_seen_as_deep) {
  const Context context;
  CUDA_ARRAY_DESCRIPTOR d{};
  d.Width = 64;
  d.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  d.NumChannels = 1;
  CUarray array = nullptr;
  MUST(cuArrayCreate(&array, &d));
  expect_shape(array, shape(64));
}

ROW(arrays, formats_and_channels) {
  const Context context;
  for (const CUarray_format format : kFormats) {
    for (const unsigned channels : {1U, 2U, 4U}) {
      CUDA_ARRAY3D_DESCRIPTOR d = shape(16, 16);
      d.Format = format;
      d.NumChannels = channels;
      EXPECT_EQ(create(d), CUDA_SUCCESS) << format << " x " << channels;
    }
  }
}

ROW(arrays, formats_with_their_own_channels) {
  const Context context;
  struct Fixed {
    CUarray_format format;
    unsigned channels;
  };
  for (const Fixed& fixed :
       {Fixed{CU_AD_FORMAT_UNORM_INT8X1, 1}, Fixed{CU_AD_FORMAT_UNORM_INT8X2, 2},
        Fixed{CU_AD_FORMAT_UNORM_INT16X4, 4}, Fixed{CU_AD_FORMAT_SNORM_INT8X4, 4},
        Fixed{CU_AD_FORMAT_SNORM_INT16X2, 2}}) {
    CUDA_ARRAY3D_DESCRIPTOR d = shape(16, 16);
    d.Format = fixed.format;
    d.NumChannels = fixed.channels;
    EXPECT_EQ(create(d), CUDA_SUCCESS) << fixed.format;
  }
}

ROW(arrays, channels_checked) {
  const Context context;
  for (const unsigned channels : {0U, 3U, 5U, 8U}) {
    CUDA_ARRAY3D_DESCRIPTOR d = shape(16, 16);
    d.NumChannels = channels;
    EXPECT_EQ(create(d), CUDA_ERROR_INVALID_VALUE) << channels;
  }
}

ROW(arrays, format_checked) {
  const Context context;
  for (const int format : {0, 0x7e}) {
    CUDA_ARRAY3D_DESCRIPTOR d = shape(16, 16);
    d.Format = no_such<CUarray_format>(format);
    EXPECT_EQ(create(d), CUDA_ERROR_INVALID_VALUE) << format;
  }
}

ROW(arrays, arguments_checked) {
  const Context context;
  CUarray array = nullptr;
  const CUDA_ARRAY3D_DESCRIPTOR d = shape(16);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(&array, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(nullptr, &d));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, create(shape(0)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, create(shape(0, 16)));
}

ROW(arrays, needs_a_context) {
  MUST(cuInit(0));
  CUarray array = nullptr;
  const CUDA_ARRAY3D_DESCRIPTOR d = shape(16);
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuArray3DCreate(&array, &d));
}

ROW(arrays, width_of_one_dimension) {
  const Context context;
  const std::size_t width = most(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH);
  ANSWERS(CUDA_SUCCESS, create(shape(width)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, create(shape(width + 1)));
}

ROW(arrays, extents_of_two_dimensions) {
  const Context context;
  const std::size_t width = most(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH);
  const std::size_t height = most(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT);
  ANSWERS(CUDA_SUCCESS, create(shape(width, 2)));
  ANSWERS(CUDA_SUCCESS, create(shape(2, height)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, create(shape(width + 1, 2)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, create(shape(2, height + 1)));
}

ROW(arrays, extents_of_three_dimensions) {
  const Context context;
  const std::size_t width = most(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH);
  const std::size_t depth = most(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH);
  const std::size_t other = most(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE);
  ANSWERS(CUDA_SUCCESS, create(shape(width, 2, 2)));
  ANSWERS(CUDA_SUCCESS, create(shape(2, 2, depth)));
  ANSWERS(CUDA_SUCCESS, create(shape(2, 2, other)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, create(shape(width + 1, 2, 2)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, create(shape(2, 2, std::max(depth, other) + 1)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, create(shape(width, 2, std::max(depth, other))));
}

ROW(arrays, depth_without_height_is_layered) {
  const Context context;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, create(shape(16, 0, 4)));
  const CUDA_ARRAY3D_DESCRIPTOR d = shape(16, 0, 4, CUDA_ARRAY3D_LAYERED);
  expect_shape(array_new(d), d);
}

ROW(arrays, layers_counted) {
  const Context context;
  const std::size_t layers = most(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS);
  const CUDA_ARRAY3D_DESCRIPTOR d = shape(4, 4, layers, CUDA_ARRAY3D_LAYERED);
  expect_shape(array_new(d), d);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, create(shape(4, 4, layers + 1, CUDA_ARRAY3D_LAYERED)));
}

ROW(arrays, cubemaps_have_six_square_faces) {
  const Context context;
  ANSWERS(CUDA_SUCCESS, create(shape(16, 16, 6, CUDA_ARRAY3D_CUBEMAP)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, create(shape(16, 8, 6, CUDA_ARRAY3D_CUBEMAP)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, create(shape(16, 16, 5, CUDA_ARRAY3D_CUBEMAP)));
  constexpr unsigned kLayered = CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED;
  ANSWERS(CUDA_SUCCESS, create(shape(16, 16, 12, kLayered)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, create(shape(16, 16, 13, kLayered)));
}

ROW(arrays, gather_is_two_dimensional) {
  const Context context;
  ANSWERS(CUDA_SUCCESS, create(shape(16, 16, 0, CUDA_ARRAY3D_TEXTURE_GATHER)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, create(shape(16, 16, 4, CUDA_ARRAY3D_TEXTURE_GATHER)));
}

ROW(arrays, surfaces_have_their_own_limits) {
  const Context context;
  const std::size_t width = most(CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH);
  const CUDA_ARRAY3D_DESCRIPTOR d = shape(width, 0, 0, CUDA_ARRAY3D_SURFACE_LDST);
  expect_shape(array_new(d), d);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, create(shape(width + 1, 0, 0, CUDA_ARRAY3D_SURFACE_LDST)));
}

ROW(arrays, take_device_memory) {
  const Context context;
  const std::size_t before = memory_free();
  CUDA_ARRAY3D_DESCRIPTOR d = shape(4096, 4096);
  d.NumChannels = 4;
  const CUarray array = array_new(d);
  EXPECT_LE(memory_free(), before - (64 << 20));
  MUST(cuArrayDestroy(array));
  EXPECT_GE(memory_free(), before);
}

ROW(arrays, too_large_is_out_of_memory) {
  const Context context;
  CUDA_ARRAY3D_DESCRIPTOR d = shape(most(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH),
                                    most(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT),
                                    most(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH));
  d.Format = CU_AD_FORMAT_FLOAT;
  d.NumChannels = 4;
  ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, create(d));
  ANSWERS(CUDA_SUCCESS, create(shape(16)));
}

ROW(arrays, no_handle_refused) {
  const Context context;
  CUDA_ARRAY3D_DESCRIPTOR d{};
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(nullptr));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuArray3DGetDescriptor(&d, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_HANDLE, cuMipmappedArrayDestroy(nullptr));
}

ROW(arrays, mipmap_levels_halve) {
  const Context context;
  const CUDA_ARRAY3D_DESCRIPTOR d = shape(40, 10, 4);
  CUmipmappedArray mipmaps = nullptr;
  MUST(cuMipmappedArrayCreate(&mipmaps, &d, 4));
  const CUDA_ARRAY3D_DESCRIPTOR expected[] = {d, shape(20, 5, 2), shape(10, 2, 1), shape(5, 1, 1)};
  for (unsigned level = 0; level < 4; ++level) {
    CUarray array = nullptr;
    MUST(cuMipmappedArrayGetLevel(&array, mipmaps, level));
    expect_shape(array, expected[level]);
  }
  CUarray array = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&array, mipmaps, 4));
  ANSWERS(CUDA_SUCCESS, cuMipmappedArrayDestroy(mipmaps));
}

ROW(arrays, mipmap_levels_are_clamped) {
  const Context context;
  const CUDA_ARRAY3D_DESCRIPTOR d = shape(16, 8);
  CUmipmappedArray mipmaps = nullptr;
  CUarray array = nullptr;
  MUST(cuMipmappedArrayCreate(&mipmaps, &d, 100));
  ANSWERS(CUDA_SUCCESS, cuMipmappedArrayGetLevel(&array, mipmaps, 4));  // 1 x 1
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&array, mipmaps, 5));
  MUST(cuMipmappedArrayCreate(&mipmaps, &d, 0));
  ANSWERS(CUDA_SUCCESS, cuMipmappedArrayGetLevel(&array, mipmaps, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&array, mipmaps, 1));
}

ROW(arrays, mipmap_layers_stay) {
  const Context context;
  const CUDA_ARRAY3D_DESCRIPTOR d = shape(16, 16, 5, CUDA_ARRAY3D_LAYERED);
  CUmipmappedArray mipmaps = nullptr;
  MUST(cuMipmappedArrayCreate(&mipmaps, &d, 3));
  CUarray array = nullptr;
  MUST(cuMipmappedArrayGetLevel(&array, mipmaps, 2));
  CUDA_ARRAY3D_DESCRIPTOR told{};
  MUST(cuArray3DGetDescriptor(&told, array));
  EXPECT_EQ(told.Width, 4U);
  EXPECT_EQ(told.Height, 4U);
  EXPECT_EQ(told.Depth, 5U);
}

ROW(arrays, mipmap_extents_checked) {
  const Context context;
  const std::size_t width = most(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH);
  CUmipmappedArray mipmaps = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR d = shape(width);
  ANSWERS(CUDA_SUCCESS, cuMipmappedArrayCreate(&mipmaps, &d, 2));
  d = shape(width + 1);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayCreate(&mipmaps, &d, 2));
  d = shape(0);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayCreate(&mipmaps, &d, 2));
}

ROW(arrays, video_formats_without_a_flag_refused) {
  const Context context;
  CUDA_ARRAY3D_DESCRIPTOR d = shape(64, 32);
  d.Format = CU_AD_FORMAT_NV12;
  d.NumChannels = 3;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, create(d));
}

ROW(arrays, planes_of_a_video_format) {
  const Context context;
  CUDA_ARRAY3D_DESCRIPTOR d = shape(64, 32, 0, CUDA_ARRAY3D_VIDEO_ENCODE_DECODE);
  d.Format = CU_AD_FORMAT_NV12;
  d.NumChannels = 3;
  const CUarray image = array_new(d);
  CUarray plane = nullptr;
  CUDA_ARRAY_DESCRIPTOR told{};
  MUST(cuArrayGetPlane(&plane, image, 0));
  MUST(cuArrayGetDescriptor(&told, plane));
  EXPECT_EQ(told.Width, 64U);
  EXPECT_EQ(told.Height, 32U);
  EXPECT_EQ(told.NumChannels, 1U);
  EXPECT_EQ(told.Format, CU_AD_FORMAT_UNSIGNED_INT8);
  MUST(cuArrayGetPlane(&plane, image, 1));
  MUST(cuArrayGetDescriptor(&told, plane));
  EXPECT_EQ(told.Width, 32U);
  EXPECT_EQ(told.Height, 16U);
  EXPECT_EQ(told.NumChannels, 2U);
  EXPECT_EQ(told.Format, CU_AD_FORMAT_UNSIGNED_INT8);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuArrayGetPlane(&plane, image, 2));
}

ROW(arrays, planes_of_other_formats_refused) {
  const Context context;
  CUarray plane = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuArrayGetPlane(&plane, array_new(shape(64, 32)), 0));
}

ROW(arrays, requirements_of_mapped_arrays_refused) {
  const Context context;
  CUDA_ARRAY_MEMORY_REQUIREMENTS requirements{};
  CUDA_ARRAY_SPARSE_PROPERTIES sparse{};
  const CUarray array = array_new(shape(64, 32));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuArrayGetMemoryRequirements(&requirements, array, context.device()));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties(&sparse, array));
}

ROW(arrays, requirements_of_mapped_mipmaps_refused) {
  const Context context;
  const CUDA_ARRAY3D_DESCRIPTOR d = shape(64, 32);
  CUmipmappedArray mipmaps = nullptr;
  MUST(cuMipmappedArrayCreate(&mipmaps, &d, 2));
  CUDA_ARRAY_MEMORY_REQUIREMENTS requirements{};
  CUDA_ARRAY_SPARSE_PROPERTIES sparse{};
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuMipmappedArrayGetMemoryRequirements(&requirements, mipmaps, context.device()));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetSparseProperties(&sparse, mipmaps));
  MUST(cuMipmappedArrayDestroy(mipmaps));
}

ROW(arrays, sparse_where_supported) {
  const Context context;
  int supported = 0;
  MUST(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED,
                            context.device()));
  const CUresult expected = supported != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  ANSWERS(expected, create(shape(1024, 1024, 0, CUDA_ARRAY3D_SPARSE)));
}

ROW(arrays, deferred_where_supported) {
  const Context context;
  int supported = 0;
  MUST(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED,
                            context.device()));
  const CUresult expected = supported != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  ANSWERS(expected, create(shape(1024, 1024, 0, CUDA_ARRAY3D_DEFERRED_MAPPING)));
}

}  // namespace
}  // namespace conformance
