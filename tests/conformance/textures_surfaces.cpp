// Rows of family `textures` about surface objects: arrays that kernels read and write.
#include "tests/conformance/textures.h"

namespace conformance {
namespace {

constexpr CUarray_format kWords = CU_AD_FORMAT_UNSIGNED_INT32;

CUarray words_of(std::size_t width, std::size_t height, const std::vector<unsigned>& values,
                 std::size_t depth = 0, unsigned flags = 0) {
  return array_of(shape_of(kWords, 1, width, height, depth, CUDA_ARRAY3D_SURFACE_LDST | flags),
                  values);
}

CUsurfObject surface_new(CUarray array) {
  const CUDA_RESOURCE_DESC resource = of_array(array);
  CUsurfObject surface = 0;
  EXPECT_EQ(cuSurfObjectCreate(&surface, &resource), CUDA_SUCCESS);
  return surface;
}

/// All bytes of an array, rows and slices one behind the other.
std::vector<unsigned> words_in(CUarray array, std::size_t width, std::size_t height,
                               std::size_t depth) {
  std::vector<unsigned> values(width * height * depth);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = values.data();
  copy.dstPitch = copy.WidthInBytes = 4 * width;
  copy.dstHeight = copy.Height = height;
  copy.Depth = depth;
  EXPECT_EQ(cuMemcpy3D(&copy), CUDA_SUCCESS);
  return values;
}

ROW(textures, surfaces_are_of_arrays) {
  const Context context;
  CUsurfObject surface = 0;
  const CUDA_RESOURCE_DESC memory = of_memory(device_new(1024), 1024, kWords);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(&surface, &memory));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(&surface, nullptr));
  CUDA_RESOURCE_DESC array = of_array(words_of(4, 1, {1, 2, 3, 4}));
  array.flags = 1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(&surface, &array));
}

ROW(textures, surfaces_of_arrays_without_the_flag) {
  const Context context;
  const CUDA_RESOURCE_DESC array =
      of_array(array_of<unsigned>(shape_of(kWords, 1, 4), {1, 2, 3, 4}));
  CUsurfObject surface = 0;
  ANSWERS(CUDA_SUCCESS, cuSurfObjectCreate(&surface, &array));
}

ROW(textures, surfaces_tell_their_array) {
  const Context context;
  const CUarray array = words_of(4, 1, {1, 2, 3, 4});
  const CUsurfObject surface = surface_new(array);
  CUDA_RESOURCE_DESC told{};
  MUST(cuSurfObjectGetResourceDesc(&told, surface));
  EXPECT_EQ(told.resType, CU_RESOURCE_TYPE_ARRAY);
  EXPECT_EQ(told.res.array.hArray, array);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuSurfObjectGetResourceDesc(nullptr, surface));
}

ROW(textures, surfaces_destroyed_again_are_no_error) {
  const Context context;
  const CUsurfObject surface = surface_new(words_of(4, 1, {1, 2, 3, 4}));
  ANSWERS(CUDA_SUCCESS, cuSurfObjectDestroy(surface));
  ANSWERS(CUDA_SUCCESS, cuSurfObjectDestroy(surface));
}

ROW(textures, surfaces_are_read_and_written) {
  const Context context;
  const CUarray from = words_of(4, 2, {1, 2, 3, 4, 11, 12, 13, 14});
  const CUarray to = words_of(4, 2, std::vector<unsigned>(8, 0));
  CUsurfObject source = surface_new(from), target = surface_new(to);
  MUST(launch(kernel("surface_move"), 2, 4, {&source, &target}));
  EXPECT_EQ(words_in(to, 4, 2, 1), (std::vector<unsigned>{2, 3, 4, 5, 12, 13, 14, 15}));
}

ROW(textures, what_a_surface_wrote_a_texture_reads) {
  const Context context;
  const CUarray array = words_of(4, 2, std::vector<unsigned>(8, 6));
  CUsurfObject surface = surface_new(array);
  const CUtexObject texture = texture_new(of_array(array), sampled(CU_TR_ADDRESS_MODE_CLAMP));
  MUST(launch(kernel("surface_move"), 2, 4, {&surface, &surface}));
  EXPECT_EQ(fetched<Words>("fetch_plane_words", texture, {{3, 1}})[0][0], 7U);
}

ROW(textures, outside_of_surfaces) {
  const Context context;
  const CUarray array = words_of(4, 0, {5, 6, 7, 8});
  CUsurfObject surface = surface_new(array);
  CUdeviceptr clamped = device_new(32), zero = device_new(32);
  MUST(launch(kernel("surface_outside"), 1, 8, {&surface, &clamped, &zero}));
  EXPECT_EQ(values_at<unsigned>(clamped, 8), (std::vector<unsigned>{5, 5, 5, 6, 7, 8, 8, 8}));
  EXPECT_EQ(values_at<unsigned>(zero, 8), (std::vector<unsigned>{0, 0, 5, 6, 7, 8, 0, 0}));
  EXPECT_EQ(words_in(array, 4, 1, 1), (std::vector<unsigned>{5, 6, 7, 8}));
}

ROW(textures, outside_of_surfaces_can_trap) {
  const Context context;
  CUsurfObject surface = surface_new(words_of(4, 0, {5, 6, 7, 8}));
  CUdeviceptr out = device_new(4);
  MUST(launch(kernel("surface_trap"), 1, 1, {&surface, &out}));
  EXPECT_NE(cuCtxSynchronize(), CUDA_SUCCESS);
}

ROW(textures, layers_of_surfaces) {
  const Context context;
  const CUarray array = words_of(2, 2, std::vector<unsigned>(12, 0), 3, CUDA_ARRAY3D_LAYERED);
  CUsurfObject surface = surface_new(array);
  MUST(launch(kernel("surface_layers"), 1, 3, {&surface}));
  EXPECT_EQ(words_in(array, 2, 2, 3), (std::vector<unsigned>{0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3}));
}

}  // namespace
}  // namespace conformance
