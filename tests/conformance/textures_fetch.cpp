// Rows of family `textures`: what kernels fetch. The values are those of the formulas in the CUDA
// C++ Programming Guide, "Texture Fetching", worked out by hand or written down again here; weights
// of interpolations are multiples of 1/256, so that their rounding is no part of a rule.
#include <cmath>

#include "tests/conformance/textures.h"

namespace conformance {
namespace {

constexpr auto kBorder = CU_TR_ADDRESS_MODE_BORDER, kWrap = CU_TR_ADDRESS_MODE_WRAP,
               kMirror = CU_TR_ADDRESS_MODE_MIRROR;
constexpr auto kPoint = CU_TR_FILTER_MODE_POINT, kLinear = CU_TR_FILTER_MODE_LINEAR;
constexpr unsigned kNormalized = CU_TRSF_NORMALIZED_COORDINATES,
                   kIntegers = CU_TRSF_READ_AS_INTEGER;

using Floats = std::vector<float>;

/// Four texels in a line: 10, 20, 40, 80.
CUtexObject line_new(CUaddress_mode mode, CUfilter_mode filter, unsigned flags = 0) {
  const CUarray array = array_of<float>(shape_of(kFloats, 1, 4), {10, 20, 40, 80});
  CUDA_TEXTURE_DESC sampling = sampled(mode, filter, flags);
  sampling.borderColor[0] = 0;
  return texture_new(of_array(array), sampling);
}

ROW(textures, point_is_the_floor) {
  const Context context;
  const CUtexObject line = line_new(kClamp, kPoint);
  EXPECT_EQ(fetched_first("fetch_line", line, {{0}, {0.99F}, {1}, {2.5F}, {3}}),
            (Floats{10, 10, 20, 40, 80}));
}

ROW(textures, coordinates_clamp) {
  const Context context;
  const CUtexObject line = line_new(kClamp, kPoint);
  EXPECT_EQ(fetched_first("fetch_line", line, {{-0.5F}, {-100}, {4}, {1e9F}}),
            (Floats{10, 10, 80, 80}));
}

ROW(textures, border_is_zero) {
  const Context context;
  const CUtexObject line = line_new(kBorder, kPoint);
  EXPECT_EQ(fetched_first("fetch_line", line, {{-0.5F}, {0}, {3.9F}, {4}, {-100}}),
            (Floats{0, 10, 80, 0, 0}));
}

ROW(textures, border_has_its_colour) {
  const Context context;
  CUDA_TEXTURE_DESC sampling = sampled(kBorder);
  sampling.borderColor[0] = -2.5F;
  const CUarray line = array_of<float>(shape_of(kFloats, 1, 2), {1, 2});
  EXPECT_EQ(
      fetched_first("fetch_line", texture_new(of_array(line), sampling), {{-1}, {0}, {2}, {3}}),
      (Floats{-2.5F, 1, -2.5F, -2.5F}));
  // Integers are given in the bits of a float.
  const unsigned colour[] = {1, 200, 3, 4};
  std::memcpy(sampling.borderColor, colour, sizeof colour);
  sampling.flags = kIntegers;
  const auto bytes =
      array_of<unsigned char>(shape_of(CU_AD_FORMAT_UNSIGNED_INT8, 4, 1, 1), {9, 9, 9, 9});
  EXPECT_EQ(
      fetched<Words>("fetch_plane_words", texture_new(of_array(bytes), sampling), {{4, 0}})[0],
      (Words{1, 200, 3, 4}));
}

ROW(textures, normalized_coordinates_span_the_texture) {
  const Context context;
  const CUtexObject line = line_new(kClamp, kPoint, kNormalized);
  EXPECT_EQ(fetched_first("fetch_line", line, {{0}, {0.25F}, {0.74F}, {0.75F}, {2}, {-1}}),
            (Floats{10, 20, 40, 80, 80, 10}));
}

ROW(textures, normalized_coordinates_wrap) {
  const Context context;
  const CUtexObject line = line_new(kWrap, kPoint, kNormalized);
  EXPECT_EQ(fetched_first("fetch_line", line, {{0.5F}, {1}, {1.25F}, {-0.25F}, {-1}, {7.5F}}),
            (Floats{40, 10, 20, 80, 10, 40}));
}

ROW(textures, normalized_coordinates_mirror) {
  const Context context;
  const CUtexObject line = line_new(kMirror, kPoint, kNormalized);
  EXPECT_EQ(fetched_first("fetch_line", line,
                          {{0.125F}, {1.125F}, {1.875F}, {-0.125F}, {2.375F}, {3.625F}}),
            (Floats{10, 80, 10, 10, 20, 20}));
}

ROW(textures, without_normalization_wrapping_is_clamping) {
  const Context context;
  for (const CUaddress_mode mode : {kWrap, kMirror}) {
    const CUtexObject line = line_new(mode, kPoint);
    EXPECT_EQ(fetched_first("fetch_line", line, {{-1}, {1}, {5}}), (Floats{10, 20, 80}));
  }
}

ROW(textures, line_interpolated) {
  const Context context;
  const CUtexObject line = line_new(kClamp, kLinear);
  // x - 0.5 between texels; the first and the last go on.
  EXPECT_EQ(fetched_first("fetch_line", line, {{0.5F}, {1}, {1.75F}, {3.5F}, {0}, {9}}),
            (Floats{10, 15, 25, 80, 10, 80}));
}

ROW(textures, interpolation_wraps) {
  const Context context;
  const CUtexObject line = line_new(kWrap, kLinear, kNormalized);
  EXPECT_EQ(fetched_first("fetch_line", line, {{0}, {1}, {0.9375F}}), (Floats{45, 45, 62.5F}));
}

ROW(textures, interpolation_mirrors) {
  const Context context;
  const CUtexObject line = line_new(kMirror, kLinear, kNormalized);
  EXPECT_EQ(fetched_first("fetch_line", line, {{0}, {1}, {0.25F}, {1.75F}}),
            (Floats{10, 80, 15, 15}));
}

ROW(textures, interpolation_reaches_into_the_border) {
  const Context context;
  // A line is the first row of a plane, fetched at its upper edge: half of what is read is border.
  const CUtexObject line = line_new(kBorder, kLinear);
  EXPECT_EQ(fetched_first("fetch_line", line, {{0}, {0.25F}, {4}, {-0.5F}}),
            (Floats{2.5F, 3.75F, 20, 0}));
}

/// 4 x 4 texels with the value 16 * row + column squared.
Floats plane_values() {
  Floats values;
  for (int y = 0; y < 4; ++y)
    for (int x = 0; x < 4; ++x) values.push_back(static_cast<float>(16 * y + x * x));
  return values;
}

ROW(textures, plane_interpolated) {
  const Context context;
  const Floats values = plane_values();
  const CUtexObject plane = texture_new(
      of_array(array_of<float>(shape_of(kFloats, 1, 4, 4), values)), sampled(kClamp, kLinear));
  std::vector<Point> points;
  Floats expected;
  const auto texel = [&values](int x, int y) {
    return values[static_cast<std::size_t>(4 * y + x)];
  };
  for (int y = 0; y < 3; ++y) {
    for (int x = 0; x < 3; ++x) {
      const float a = static_cast<float>(x + 1) / 8, b = static_cast<float>(3 - y) / 4;
      points.push_back({static_cast<float>(x) + 0.5F + a, static_cast<float>(y) + 0.5F + b});
      expected.push_back((1 - a) * (1 - b) * texel(x, y) + a * (1 - b) * texel(x + 1, y) +
                         (1 - a) * b * texel(x, y + 1) + a * b * texel(x + 1, y + 1));
    }
  }
  EXPECT_EQ(fetched_first("fetch_plane", plane, points), expected);
}

ROW(textures, weights_of_a_plane_are_whole) {
  const Context context;
  const CUtexObject plane =
      texture_new(of_array(array_of<float>(shape_of(kFloats, 1, 2, 2), {0, 0, 0, 1})),
                  sampled(kClamp, kLinear));
  const float a = 143 / 256.0F, b = 16 / 256.0F;
  EXPECT_EQ(fetched_first("fetch_plane", plane, {{0.5F + a, 0.5F + b}, {0.5F + a, 1}}),
            (Floats{9 / 256.0F, 72 / 256.0F}));
}

ROW(textures, box_interpolated) {
  const Context context;
  const CUtexObject box = texture_new(
      of_array(array_of<float>(shape_of(kFloats, 1, 2, 2, 2), {0, 8, 16, 24, 64, 72, 80, 88})),
      sampled(kClamp, kLinear));
  // The values are 8 x + 16 y + 64 z, and so is what lies between.
  EXPECT_EQ(fetched_first("fetch_box", box, {{1, 0.5F, 0.5F}, {0.75F, 1.25F, 1}, {2, 2, 0}}),
            (Floats{4, 2 + 12 + 32, 24}));
}

ROW(textures, box_by_points) {
  const Context context;
  const CUtexObject box = texture_new(
      of_array(array_of<float>(shape_of(kFloats, 1, 2, 2, 2), {0, 1, 2, 3, 4, 5, 6, 7})),
      sampled(kClamp));
  EXPECT_EQ(fetched_first("fetch_box", box, {{1, 0, 0}, {0, 1.5F, 0}, {1, 1, 1}, {-3, 9, 9}}),
            (Floats{1, 2, 7, 6}));
}

ROW(textures, layers_are_apart) {
  const Context context;
  const CUarray lines =
      array_of<float>(shape_of(kFloats, 1, 2, 0, 3, CUDA_ARRAY3D_LAYERED), {0, 1, 10, 11, 20, 21});
  EXPECT_EQ(
      fetched_first("fetch_line_layer", texture_new(of_array(lines), sampled(kClamp, kLinear)),
                    {{1, 0, 0, 0}, {1, 0, 0, 1}, {1.5F, 0, 0, 2}}),
      (Floats{0.5F, 10.5F, 21}));
  const CUarray planes = array_of<float>(shape_of(kFloats, 1, 2, 2, 2, CUDA_ARRAY3D_LAYERED),
                                         {0, 1, 2, 3, 100, 101, 102, 103});
  EXPECT_EQ(fetched_first("fetch_plane_layer", texture_new(of_array(planes), sampled(kClamp)),
                          {{1, 1, 0, 0}, {1, 1, 0, 1}, {0, 1, 0, 1}}),
            (Floats{3, 103, 102}));
}

ROW(textures, one_level_is_the_first) {
  const Context context;
  const CUtexObject plane = texture_new(
      of_array(array_of<float>(shape_of(kFloats, 1, 4, 4), plane_values())), sampled(kClamp));
  EXPECT_EQ(fetched_first("fetch_level", plane, {{3, 2}, {1, 1}}), (Floats{41, 17}));
}

ROW(textures, four_texels_gathered) {
  const Context context;
  std::vector<float> pairs;
  for (const float value : plane_values()) {
    pairs.push_back(value);
    pairs.push_back(-value);
  }
  const CUtexObject plane = texture_new(
      of_array(array_of<float>(shape_of(kFloats, 2, 4, 4, 0, CUDA_ARRAY3D_TEXTURE_GATHER), pairs)),
      sampled(kClamp));
  // Around (2, 1): columns 1 and 2 of rows 0 and 1, from the lower left and counterclockwise.
  EXPECT_EQ(fetched("gather_first", plane, {{2, 1}})[0], (Texel{17, 20, 4, 1}));
  EXPECT_EQ(fetched("gather_second", plane, {{2, 1}})[0], (Texel{-17, -20, -4, -1}));
}

ROW(textures, integers_promoted_to_real_numbers) {
  const Context context;
  const auto bytes =
      array_of<unsigned char>(shape_of(CU_AD_FORMAT_UNSIGNED_INT8, 4, 1, 1), {0, 51, 128, 255});
  EXPECT_EQ(fetched("fetch_plane", texture_new(of_array(bytes), sampled(kClamp)), {{0, 0}})[0],
            (Texel{0, 51 / 255.0F, 128 / 255.0F, 1}));
  const auto chars =
      array_of<signed char>(shape_of(CU_AD_FORMAT_SIGNED_INT8, 4, 1, 1), {-128, -127, 64, 127});
  EXPECT_EQ(fetched("fetch_plane", texture_new(of_array(chars), sampled(kClamp)), {{0, 0}})[0],
            (Texel{-1, -1, 64 / 127.0F, 1}));
  const auto words =
      array_of<std::uint16_t>(shape_of(CU_AD_FORMAT_UNSIGNED_INT16, 2, 1, 1), {13107, 65535});
  const Texel of_words =
      fetched("fetch_plane", texture_new(of_array(words), sampled(kClamp)), {{0, 0}})[0];
  EXPECT_EQ(of_words[0], 13107 / 65535.0F);
  EXPECT_EQ(of_words[1], 1);
}

ROW(textures, integers_as_they_are) {
  const Context context;
  const auto bytes =
      array_of<unsigned char>(shape_of(CU_AD_FORMAT_UNSIGNED_INT8, 4, 1, 1), {0, 1, 128, 255});
  const CUtexObject of_bytes = texture_new(of_array(bytes), sampled(kClamp, kPoint, kIntegers));
  EXPECT_EQ(fetched<Words>("fetch_plane_words", of_bytes, {{0, 0}})[0], (Words{0, 1, 128, 255}));
  const auto shorts =
      array_of<std::int16_t>(shape_of(CU_AD_FORMAT_SIGNED_INT16, 4, 1, 1), {-1, 1, -32768, 32767});
  const CUtexObject of_shorts = texture_new(of_array(shorts), sampled(kClamp, kPoint, kIntegers));
  EXPECT_EQ(fetched<Words>("fetch_plane_words", of_shorts, {{0, 0}})[0],
            (Words{0xffffffff, 1, 0xffff8000, 32767}));
}

ROW(textures, integers_of_32_bits_never_promoted) {
  const Context context;
  const auto words = array_of<unsigned>(shape_of(CU_AD_FORMAT_UNSIGNED_INT32, 4, 1, 1),
                                        {0, 1, 0x80000000, 0xffffffff});
  const CUtexObject texture = texture_new(of_array(words), sampled(kClamp));
  EXPECT_EQ(fetched<Words>("fetch_plane_words", texture, {{0, 0}})[0],
            (Words{0, 1, 0x80000000, 0xffffffff}));
}

ROW(textures, promoted_integers_interpolated) {
  const Context context;
  const auto bytes =
      array_of<unsigned char>(shape_of(CU_AD_FORMAT_UNSIGNED_INT8, 1, 2, 1), {0, 255});
  const CUtexObject texture = texture_new(of_array(bytes), sampled(kClamp, kLinear));
  // Rounded to the nearest of 65535 steps.
  EXPECT_EQ(fetched_first("fetch_plane", texture, {{0.5F, 0}, {0.75F, 0}, {1, 0}, {1.5F, 0}}),
            (Floats{0, 16384 / 65535.0F, 32768 / 65535.0F, 1}));
}

ROW(textures, halves_are_real_numbers) {
  const Context context;
  const auto halves = array_of<std::uint16_t>(shape_of(CU_AD_FORMAT_HALF, 4, 1, 1),
                                              {0x3c00, 0xc500, 0x0001, 0x7c00});
  const CUtexObject texture = texture_new(of_array(halves), sampled(kClamp));
  EXPECT_EQ(fetched("fetch_plane", texture, {{0, 0}})[0],
            (Texel{1, -5, std::ldexp(1.0F, -24), INFINITY}));
}

ROW(textures, memory_by_index) {
  const Context context;
  const CUdeviceptr floats = device_with<float>({1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(fetched_first("fetch_index", texture_new(of_memory(floats, 32, kFloats), {}),
                          {{0}, {3}, {7}}),
            (Floats{1, 4, 8}));
  const CUdeviceptr words = device_with<std::int16_t>({1, -2, 3, -4, 5, -6, 7, -8});
  const CUtexObject pairs = texture_new(of_memory(words, 16, CU_AD_FORMAT_SIGNED_INT16, 2),
                                        sampled(kClamp, kPoint, kIntegers));
  const Words second = fetched<Words>("fetch_index_words", pairs, {{1}})[0];
  EXPECT_EQ(second[0], 3U);
  EXPECT_EQ(second[1], 0xfffffffcU);
}

ROW(textures, memory_ignores_modes) {
  const Context context;
  const CUdeviceptr floats = device_with<float>({1, 2, 3, 4});
  const CUDA_TEXTURE_DESC sampling = sampled(kMirror, kLinear);
  EXPECT_EQ(fetched_first("fetch_index", texture_new(of_memory(floats, 16, kFloats), sampling),
                          {{0}, {1}, {3}}),
            (Floats{1, 2, 4}));
}

ROW(textures, rows_of_pitched_memory) {
  const Context context;
  Floats values(16 * 3, -1);  // 64 bytes a row, of which three texels count
  for (std::size_t y = 0; y < 3; ++y)
    for (std::size_t x = 0; x < 3; ++x) values[16 * y + x] = static_cast<float>(10 * y + x);
  const CUDA_RESOURCE_DESC rows = of_rows(device_with(values), 3, 3, 64, kFloats);
  EXPECT_EQ(fetched_first("fetch_plane", texture_new(rows, sampled(kClamp)),
                          {{0, 0}, {2, 1}, {1, 2.5F}, {7, 9}}),
            (Floats{0, 12, 21, 22}));
  EXPECT_EQ(fetched_first("fetch_plane", texture_new(rows, sampled(kClamp, kLinear)),
                          {{1, 1}, {2.5F, 2}, {9, 9}}),
            (Floats{5.5F, 17, 22}));
}

ROW(textures, later_contents_seen) {
  const Context context;
  const CUdeviceptr p = device_with<float>({1, 2, 3, 4});
  const CUtexObject texture = texture_new(of_memory(p, 16, kFloats), {});
  EXPECT_EQ(fetched_first("fetch_index", texture, {{2}}), (Floats{3}));
  MUST(cuMemsetD32(p, 0x41200000, 4));  // 10.0F
  EXPECT_EQ(fetched_first("fetch_index", texture, {{2}}), (Floats{10}));
}

ROW(textures, views_read_another_format) {
  const Context context;
  const auto bytes = array_of<unsigned char>(shape_of(CU_AD_FORMAT_UNSIGNED_INT8, 4, 1, 1),
                                             {0x78, 0x56, 0x34, 0x12});
  const CUDA_RESOURCE_DESC resource = of_array(bytes);
  const CUDA_TEXTURE_DESC sampling = sampled(kClamp);
  CUDA_RESOURCE_VIEW_DESC view{};
  view.format = CU_RES_VIEW_FORMAT_UINT_1X32;
  view.width = view.height = 1;
  CUtexObject texture = 0;
  MUST(cuTexObjectCreate(&texture, &resource, &sampling, &view));
  EXPECT_EQ(fetched<Words>("fetch_plane_words", texture, {{0, 0}})[0][0], 0x12345678U);
}

ROW(textures, views_begin_at_a_layer) {
  const Context context;
  const CUarray lines =
      array_of<float>(shape_of(kFloats, 1, 2, 0, 3, CUDA_ARRAY3D_LAYERED), {0, 1, 10, 11, 20, 21});
  const CUDA_RESOURCE_DESC resource = of_array(lines);
  const CUDA_TEXTURE_DESC sampling = sampled(kClamp);
  CUDA_RESOURCE_VIEW_DESC view{};
  view.format = CU_RES_VIEW_FORMAT_FLOAT_1X32;
  view.width = 2;
  view.depth = 3;
  view.firstLayer = 1;
  view.lastLayer = 2;
  CUtexObject texture = 0;
  MUST(cuTexObjectCreate(&texture, &resource, &sampling, &view));
  EXPECT_EQ(fetched_first("fetch_line_layer", texture, {{1, 0, 0, 0}, {1, 0, 0, 1}}),
            (Floats{11, 21}));
}

}  // namespace
}  // namespace conformance
