// Rows of family `textures`: texture objects, and what they can be made of. What kernels fetch from
// them is in textures_fetch.cpp, surfaces are in textures_surfaces.cpp.
#include "tests/conformance/textures.h"

namespace conformance {
namespace {

constexpr CUarray_format kBytes = CU_AD_FORMAT_UNSIGNED_INT8;

std::size_t limit_of(CUdevice_attribute attribute) {
  int value = 0;
  EXPECT_EQ(cuDeviceGetAttribute(&value, attribute, 0), CUDA_SUCCESS);
  EXPECT_GT(value, 0);
  return static_cast<std::size_t>(value);
}

CUarray array_blank(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  CUarray array = nullptr;
  EXPECT_EQ(cuArray3DCreate(&array, &d), CUDA_SUCCESS);
  return array;
}

CUDA_RESOURCE_VIEW_DESC view_of(CUresourceViewFormat format, std::size_t width, std::size_t height,
                                std::size_t depth = 0) {
  CUDA_RESOURCE_VIEW_DESC view{};
  view.format = format;
  view.width = width;
  view.height = height;
  view.depth = depth;
  return view;
}

ROW(textures, needs_a_context) {
  { const Context context; }
  const CUDA_RESOURCE_DESC resource = of_memory(0x1000, 64, kBytes);
  const CUDA_TEXTURE_DESC sampling = sampled(kClamp);
  CUtexObject texture = 0;
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuTexObjectCreate(&texture, &resource, &sampling, nullptr));
}

ROW(textures, arguments_checked) {
  const Context context;
  const CUDA_RESOURCE_DESC resource = of_memory(device_new(64), 64, kBytes);
  const CUDA_TEXTURE_DESC sampling = sampled(kClamp);
  CUtexObject texture = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(nullptr, &resource, &sampling, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&texture, nullptr, &sampling, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&texture, &resource, nullptr, nullptr));
  ANSWERS(CUDA_SUCCESS, texture_try(resource, sampling));
}

ROW(textures, resource_flags_are_zero) {
  const Context context;
  CUDA_RESOURCE_DESC resource = of_memory(device_new(64), 64, kBytes);
  resource.flags = 1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, texture_try(resource, sampled(kClamp)));
}

ROW(textures, resource_types_checked) {
  const Context context;
  CUDA_RESOURCE_DESC resource = of_memory(device_new(64), 64, kBytes);
  resource.resType = no_such<CUresourcetype>(7);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, texture_try(resource, sampled(kClamp)));
}

ROW(textures, memory_is_aligned) {
  const Context context;
  const std::size_t align = limit_of(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  const CUdeviceptr p = device_new(4 * align);
  const CUdeviceptr first = (p + align - 1) / align * align;
  ANSWERS(CUDA_SUCCESS, texture_try(of_memory(first, align, kBytes), sampled(kClamp)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          texture_try(of_memory(first + align / 2, align, kBytes), sampled(kClamp)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          texture_try(of_rows(first + align / 2, 8, 2, 32, kBytes), sampled(kClamp)));
}

ROW(textures, rows_have_an_aligned_pitch) {
  const Context context;
  const std::size_t align = limit_of(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT);
  const CUdeviceptr p = device_new(16 * align);
  ANSWERS(CUDA_SUCCESS, texture_try(of_rows(p, 8, 4, align, kBytes), sampled(kClamp)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          texture_try(of_rows(p, 8, 4, align + align / 2, kBytes), sampled(kClamp)));
}

ROW(textures, rows_keep_their_limits) {
  const Context context;
  const std::size_t width = limit_of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH);
  const std::size_t height = limit_of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT);
  const std::size_t align = limit_of(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT);
  const std::size_t pitch = limit_of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH);
  const CUdeviceptr p = device_new(std::max(pitch + align, align * (height + 1)) + width);
  const CUDA_TEXTURE_DESC sampling = sampled(kClamp);
  const std::size_t row = (width + align - 1) / align * align;
  ANSWERS(CUDA_SUCCESS, texture_try(of_rows(p, width, 1, row, kBytes), sampling));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          texture_try(of_rows(p, width + 1, 1, row + align, kBytes), sampling));
  ANSWERS(CUDA_SUCCESS, texture_try(of_rows(p, 8, height, align, kBytes), sampling));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          texture_try(of_rows(p, 8, height + 1, align, kBytes), sampling));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          texture_try(of_rows(p, 8, 1, pitch / align * align + align, kBytes), sampling));
}

ROW(textures, memory_formats_and_channels) {
  const Context context;
  const CUdeviceptr p = device_new(1024);
  for (const CUarray_format format :
       {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_UNSIGNED_INT32,
        CU_AD_FORMAT_SIGNED_INT8, CU_AD_FORMAT_SIGNED_INT16, CU_AD_FORMAT_SIGNED_INT32,
        CU_AD_FORMAT_HALF, CU_AD_FORMAT_FLOAT}) {
    for (const unsigned channels : {1U, 2U, 4U}) {
      EXPECT_EQ(texture_try(of_memory(p, 256, format, channels), sampled(kClamp)), CUDA_SUCCESS);
      EXPECT_EQ(texture_try(of_rows(p, 4, 4, 64, format, channels), sampled(kClamp)), CUDA_SUCCESS);
    }
    ANSWERS(CUDA_ERROR_INVALID_VALUE, texture_try(of_memory(p, 256, format, 3), sampled(kClamp)));
  }
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          texture_try(of_memory(p, 256, no_such<CUarray_format>(0x7e)), sampled(kClamp)));
}

ROW(textures, longest_line_of_memory) {
  const Context context;
  std::size_t elements = 0;
  MUST(cuDeviceGetTexture1DLinearMaxWidth(&elements, kBytes, 1, context.device()));
  EXPECT_GE(elements, std::size_t{1} << 27);  // programming guide, technical specifications
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuDeviceGetTexture1DLinearMaxWidth(nullptr, kBytes, 1, context.device()));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuDeviceGetTexture1DLinearMaxWidth(&elements, kBytes, 3, context.device()));
  ANSWERS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetTexture1DLinearMaxWidth(&elements, kBytes, 1, 99));
}

ROW(textures, arrays_that_are_none_refused) {
  const Context context;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, texture_try(of_array(nullptr), sampled(kClamp)));
}

ROW(textures, modes_checked) {
  const Context context;
  const CUDA_RESOURCE_DESC resource = of_array(array_blank(shape_of(kFloats, 1, 8, 8)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, texture_try(resource, sampled(no_such<CUaddress_mode>(9))));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          texture_try(resource, sampled(kClamp, no_such<CUfilter_mode>(5))));
  ANSWERS(CUDA_SUCCESS, texture_try(resource, sampled(kClamp, CU_TR_FILTER_MODE_LINEAR)));
}

ROW(textures, seamless_filtering_is_of_cubemaps) {
  const Context context;
  const CUDA_RESOURCE_DESC resource = of_array(array_blank(shape_of(kFloats, 1, 8, 8)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, texture_try(resource, sampled(kClamp, CU_TR_FILTER_MODE_LINEAR,
                                                                  CU_TRSF_SEAMLESS_CUBEMAP)));
}

ROW(textures, descriptors_told) {
  const Context context;
  const CUDA_RESOURCE_DESC resource = of_rows(device_new(4096), 16, 8, 64, kFloats);
  CUDA_TEXTURE_DESC sampling = sampled(CU_TR_ADDRESS_MODE_BORDER, CU_TR_FILTER_MODE_LINEAR);
  sampling.borderColor[2] = 0.25F;
  const CUtexObject texture = texture_new(resource, sampling);
  CUDA_RESOURCE_DESC told{};
  CUDA_TEXTURE_DESC told_sampling{};
  MUST(cuTexObjectGetResourceDesc(&told, texture));
  MUST(cuTexObjectGetTextureDesc(&told_sampling, texture));
  EXPECT_EQ(told.resType, CU_RESOURCE_TYPE_PITCH2D);
  EXPECT_EQ(told.res.pitch2D.devPtr, resource.res.pitch2D.devPtr);
  EXPECT_EQ(told.res.pitch2D.width, 16U);
  EXPECT_EQ(told.res.pitch2D.height, 8U);
  EXPECT_EQ(told.res.pitch2D.pitchInBytes, 64U);
  EXPECT_EQ(told_sampling.addressMode[1], CU_TR_ADDRESS_MODE_BORDER);
  EXPECT_EQ(told_sampling.filterMode, CU_TR_FILTER_MODE_LINEAR);
  EXPECT_EQ(told_sampling.borderColor[2], 0) << "no colour is told";
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuTexObjectGetTextureDesc(nullptr, texture));
}

ROW(textures, views_are_told) {
  const Context context;
  const CUDA_RESOURCE_DESC resource = of_array(array_blank(shape_of(kBytes, 4, 8, 8)));
  const CUDA_TEXTURE_DESC sampling = sampled(kClamp);
  const CUDA_RESOURCE_VIEW_DESC view = view_of(CU_RES_VIEW_FORMAT_UINT_1X32, 8, 8);
  CUtexObject texture = 0;
  MUST(cuTexObjectCreate(&texture, &resource, &sampling, &view));
  CUDA_RESOURCE_VIEW_DESC told{};
  MUST(cuTexObjectGetResourceViewDesc(&told, texture));
  EXPECT_EQ(told.format, CU_RES_VIEW_FORMAT_UINT_1X32);
  EXPECT_EQ(told.width, 8U);
  told.width = 77;
  ANSWERS(CUDA_SUCCESS, cuTexObjectGetResourceViewDesc(&told, texture_new(resource, sampling)));
  EXPECT_EQ(told.width, 77U) << "nothing is told where there is none";
}

ROW(textures, memory_takes_a_view) {
  const Context context;
  const CUDA_RESOURCE_DESC resource = of_memory(device_new(64), 64, kBytes);
  const CUDA_RESOURCE_VIEW_DESC view = view_of(CU_RES_VIEW_FORMAT_UINT_1X8, 64, 0);
  ANSWERS(CUDA_SUCCESS, texture_try(resource, sampled(kClamp), &view));
}

ROW(textures, views_keep_the_extent) {
  const Context context;
  const CUDA_RESOURCE_DESC resource = of_array(array_blank(shape_of(kBytes, 4, 8, 8)));
  for (const auto& [width, height] : {std::pair(4U, 8U), std::pair(8U, 16U)}) {
    const CUDA_RESOURCE_VIEW_DESC view = view_of(CU_RES_VIEW_FORMAT_UINT_4X8, width, height);
    ANSWERS(CUDA_ERROR_INVALID_VALUE, texture_try(resource, sampled(kClamp), &view));
  }
  CUDA_RESOURCE_VIEW_DESC view = view_of(CU_RES_VIEW_FORMAT_UINT_4X8, 8, 8);
  ANSWERS(CUDA_SUCCESS, texture_try(resource, sampled(kClamp), &view));
  view.lastMipmapLevel = 1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, texture_try(resource, sampled(kClamp), &view));
}

ROW(textures, destroyed_again_is_no_error) {
  const Context context;
  const CUDA_RESOURCE_DESC resource = of_memory(device_new(64), 64, kBytes);
  const CUtexObject texture = texture_new(resource, sampled(kClamp));
  CUDA_RESOURCE_DESC told{};
  ANSWERS(CUDA_SUCCESS, cuTexObjectDestroy(texture));
  ANSWERS(CUDA_SUCCESS, cuTexObjectDestroy(texture));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuTexObjectGetResourceDesc(&told, texture));
  ANSWERS(CUDA_SUCCESS, cuTexObjectDestroy(0));
}

ROW(textures, take_no_memory) {
  const Context context;
  const CUDA_RESOURCE_DESC resource = of_memory(device_new(1 << 20), 1 << 20, kBytes);
  const CUtexObject first = texture_new(resource, sampled(kClamp));  // whatever the first takes
  const std::size_t before = memory_free();
  const CUtexObject second = texture_new(resource, sampled(kClamp));
  EXPECT_EQ(memory_free(), before);
  ANSWERS(CUDA_SUCCESS, cuTexObjectDestroy(first));
  ANSWERS(CUDA_SUCCESS, cuTexObjectDestroy(second));
}

ROW(textures, mipmapped_arrays) {
  const Context context;
  const CUDA_ARRAY3D_DESCRIPTOR d = shape_of(kFloats, 1, 8, 8);
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  MUST(cuMipmappedArrayCreate(&resource.res.mipmap.hMipmappedArray, &d, 3));
  ANSWERS(on_hardware() ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED,
          texture_try(resource,
                      sampled(kClamp, CU_TR_FILTER_MODE_POINT, CU_TRSF_NORMALIZED_COORDINATES)));
}

ROW(textures, cubemaps) {
  const Context context;
  const auto d = shape_of(kFloats, 1, 8, 8, 6, CUDA_ARRAY3D_CUBEMAP);
  ANSWERS(on_hardware() ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED,
          texture_try(of_array(array_blank(d)), sampled(kClamp)));
}

}  // namespace
}  // namespace conformance
