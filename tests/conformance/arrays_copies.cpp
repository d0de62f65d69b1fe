// Rows of family `arrays`: copies from and to arrays.
#include <array>

#include "tests/conformance/copies.h"

namespace conformance {
namespace {

/// An array of elements of `channels` bytes.
CUarray array_new(std::size_t width, std::size_t height = 0, std::size_t depth = 0,
                  unsigned channels = 1, unsigned flags = 0) {
  CUDA_ARRAY3D_DESCRIPTOR d{};
  d.Width = width;
  d.Height = height;
  d.Depth = depth;
  d.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  d.NumChannels = channels;
  d.Flags = flags;
  CUarray array = nullptr;
  EXPECT_EQ(cuArray3DCreate(&array, &d), CUDA_SUCCESS);
  return array;
}

/// A box between memory and an array, or two arrays; the sides are filled in by the row.
CUDA_MEMCPY3D box(std::size_t width, std::size_t height, std::size_t depth) {
  CUDA_MEMCPY3D c{};
  c.WidthInBytes = width;
  c.Height = height;
  c.Depth = depth;
  return c;
}

void from_host(CUDA_MEMCPY3D& c, const void* p) {
  c.srcMemoryType = CU_MEMORYTYPE_HOST;
  c.srcHost = p;
  c.srcPitch = c.WidthInBytes;
  c.srcHeight = c.Height;
}
void to_host(CUDA_MEMCPY3D& c, void* p) {
  c.dstMemoryType = CU_MEMORYTYPE_HOST;
  c.dstHost = p;
  c.dstPitch = c.WidthInBytes;
  c.dstHeight = c.Height;
}
void from_array(CUDA_MEMCPY3D& c, CUarray array) {
  c.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  c.srcArray = array;
}
void to_array(CUDA_MEMCPY3D& c, CUarray array) {
  c.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  c.dstArray = array;
}

/// What is in a box of an array.
Bytes array_contents(CUarray array, std::size_t width, std::size_t height, std::size_t depth) {
  Bytes back(width * height * depth, 0xee);
  CUDA_MEMCPY3D c = box(width, height, depth);
  from_array(c, array);
  to_host(c, back.data());
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_SUCCESS);
  return back;
}

void array_fill(CUarray array, std::size_t width, std::size_t height, std::size_t depth,
                const Bytes& bytes) {
  CUDA_MEMCPY3D c = box(width, height, depth);
  from_host(c, bytes.data());
  to_array(c, array);
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_SUCCESS);
}

ROW(arrays, line_there_and_back) {
  const Context context;
  const CUarray array = array_new(100);
  const Bytes source = bytes_counted(100);
  MUST(cuMemcpyHtoA(array, 0, source.data(), 100));
  const Bytes part(10, 0xaa);
  MUST(cuMemcpyHtoA(array, 20, part.data(), 10));
  Bytes back(90);
  MUST(cuMemcpyAtoH(back.data(), array, 5, 90));
  Bytes expected(source.begin() + 5, source.begin() + 95);
  std::copy(part.begin(), part.end(), expected.begin() + 15);
  EXPECT_EQ(back, expected);
}

ROW(arrays, line_from_and_to_device_memory) {
  const Context context;
  const CUarray array = array_new(64);
  const CUdeviceptr from = device_new(bytes_counted(64)), to = device_new(Bytes(64, 0));
  MUST(cuMemcpyDtoA(array, 0, from, 64));
  MUST(cuMemcpyAtoD(to + 4, array, 8, 16));
  Bytes expected(64, 0);
  std::iota(expected.begin() + 4, expected.begin() + 20, static_cast<unsigned char>(8));
  EXPECT_EQ(contents(to, 64), expected);
}

ROW(arrays, line_between_arrays) {
  const Context context;
  const CUarray from = array_new(64), to = array_new(32);
  const Bytes source = bytes_counted(64), zero(32, 0);
  MUST(cuMemcpyHtoA(from, 0, source.data(), 64));
  MUST(cuMemcpyHtoA(to, 0, zero.data(), 32));
  MUST(cuMemcpyAtoA(to, 4, from, 40, 10));
  Bytes back(32), expected(32, 0);
  MUST(cuMemcpyAtoH(back.data(), to, 0, 32));
  std::iota(expected.begin() + 4, expected.begin() + 14, static_cast<unsigned char>(40));
  EXPECT_EQ(back, expected);
}

ROW(arrays, line_past_the_end_refused) {
  const Context context;
  const CUarray array = array_new(64);
  Bytes host(128);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA(array, 0, host.data(), 65));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA(array, 60, host.data(), 8));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpyAtoH(host.data(), array, 64, 1));
}

ROW(arrays, line_async_in_stream_order) {
  const Context context;
  const CUarray array = array_new(64);
  unsigned char* pinned = pinned_new(128);
  std::memset(pinned, 5, 64);
  const CUstream stream = stream_new();
  MUST(cuCtxSynchronize());
  Gate gate;
  MUST(gate.hold(stream));
  MUST(cuMemcpyHtoAAsync(array, 0, pinned, 64, stream));
  MUST(cuMemcpyAtoHAsync(pinned + 64, array, 0, 64, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  EXPECT_EQ(pinned[64], 0U);
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(Bytes(pinned + 64, pinned + 128), Bytes(64, 5));
}

ROW(arrays, plane_there_and_back) {
  const Context context;
  const CUarray array = array_new(24, 10);
  const Bytes source = bytes_counted(240);
  CUDA_MEMCPY2D c{};
  c.srcMemoryType = CU_MEMORYTYPE_HOST;
  c.srcHost = source.data();
  c.srcPitch = 24;
  c.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  c.dstArray = array;
  c.WidthInBytes = 24;
  c.Height = 10;
  MUST(cuMemcpy2D(&c));
  Bytes back(15);
  CUDA_MEMCPY2D part{};
  part.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  part.srcArray = array;
  part.srcXInBytes = 7;
  part.srcY = 2;
  part.dstMemoryType = CU_MEMORYTYPE_HOST;
  part.dstHost = back.data();
  part.dstPitch = 5;
  part.WidthInBytes = 5;
  part.Height = 3;
  MUST(cuMemcpy2D(&part));
  for (std::size_t y = 0; y < 3; ++y) {
    for (std::size_t x = 0; x < 5; ++x) EXPECT_EQ(back[y * 5 + x], source[(y + 2) * 24 + x + 7]);
  }
}

ROW(arrays, plane_from_and_to_pitched_memory) {
  const Context context;
  const CUarray array = array_new(24, 10);
  array_fill(array, 24, 10, 1, bytes_counted(240));
  CUdeviceptr p = 0;
  std::size_t pitch = 0;
  MUST(cuMemAllocPitch(&p, &pitch, 24, 10, 4));
  CUDA_MEMCPY2D c{};
  c.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  c.srcArray = array;
  c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  c.dstDevice = p;
  c.dstPitch = pitch;
  c.WidthInBytes = 24;
  c.Height = 10;
  MUST(cuMemcpy2D(&c));
  const CUarray other = array_new(24, 10);
  CUDA_MEMCPY2D back{};
  back.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  back.srcDevice = p;
  back.srcPitch = pitch;
  back.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  back.dstArray = other;
  back.WidthInBytes = 24;
  back.Height = 10;
  MUST(cuMemcpy2D(&back));
  EXPECT_EQ(array_contents(other, 24, 10, 1), bytes_counted(240));
}

ROW(arrays, box_in_a_deep_array) {
  const Context context;
  const CUarray array = array_new(8, 6, 4);
  array_fill(array, 8, 6, 4, Bytes(192, 0));
  const Bytes source = bytes_counted(12, 1);
  CUDA_MEMCPY3D c = box(3, 2, 2);
  from_host(c, source.data());
  to_array(c, array);
  c.dstXInBytes = 4;
  c.dstY = 3;
  c.dstZ = 1;
  MUST(cuMemcpy3D(&c));
  Bytes expected(192, 0);
  for (std::size_t z = 0; z < 2; ++z) {
    for (std::size_t y = 0; y < 2; ++y) {
      for (std::size_t x = 0; x < 3; ++x)
        expected[((z + 1) * 6 + y + 3) * 8 + x + 4] = source[(z * 2 + y) * 3 + x];
    }
  }
  EXPECT_EQ(array_contents(array, 8, 6, 4), expected);
}

ROW(arrays, box_between_arrays) {
  const Context context;
  const CUarray from = array_new(8, 6, 4), to = array_new(4, 3, 2);
  array_fill(from, 8, 6, 4, bytes_counted(192));
  CUDA_MEMCPY3D c = box(4, 3, 2);
  from_array(c, from);
  to_array(c, to);
  c.srcXInBytes = 2;
  c.srcY = 1;
  c.srcZ = 2;
  MUST(cuMemcpy3D(&c));
  const Bytes back = array_contents(to, 4, 3, 2);
  for (std::size_t i = 0; i < back.size(); ++i)
    EXPECT_EQ(back[i], ((i / 12 + 2) * 6 + i / 4 % 3 + 1) * 8 + i % 4 + 2) << i;
}

ROW(arrays, layers_are_slices) {
  const Context context;
  const CUarray array = array_new(8, 0, 5, 1, CUDA_ARRAY3D_LAYERED);
  array_fill(array, 8, 1, 5, bytes_counted(40));
  Bytes back(8);
  CUDA_MEMCPY3D c = box(8, 1, 1);
  from_array(c, array);
  c.srcZ = 3;
  to_host(c, back.data());
  MUST(cuMemcpy3D(&c));
  EXPECT_EQ(back, bytes_counted(8, 24));
}

ROW(arrays, mipmap_levels_are_apart) {
  const Context context;
  CUDA_ARRAY3D_DESCRIPTOR d{};
  d.Width = d.Height = 16;
  d.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  d.NumChannels = 1;
  CUmipmappedArray mipmaps = nullptr;
  MUST(cuMipmappedArrayCreate(&mipmaps, &d, 3));
  std::array<CUarray, 3> levels{};
  for (unsigned level = 0; level < 3; ++level) {
    MUST(cuMipmappedArrayGetLevel(&levels[level], mipmaps, level));
    const std::size_t edge = std::size_t{16} >> level;
    array_fill(levels[level], edge, edge, 1, Bytes(edge * edge, static_cast<unsigned char>(level)));
  }
  for (unsigned level = 0; level < 3; ++level) {
    const std::size_t edge = std::size_t{16} >> level;
    EXPECT_EQ(array_contents(levels[level], edge, edge, 1),
              Bytes(edge * edge, static_cast<unsigned char>(level)));
  }
}

ROW(arrays, bytes_within_an_element_are_copied) {
  const Context context;
  const CUarray array = array_new(8, 0, 0, 4);
  array_fill(array, 32, 1, 1, Bytes(32, 99));
  const Bytes host = bytes_counted(8);
  CUDA_MEMCPY3D c = box(7, 1, 1);
  from_host(c, host.data());
  to_array(c, array);
  c.dstXInBytes = 2;
  ANSWERS(CUDA_SUCCESS, cuMemcpy3D(&c));
  const Bytes back = array_contents(array, 32, 1, 1);
  EXPECT_EQ(back[1], 99);
  EXPECT_EQ(back[2], host[0]);
  EXPECT_EQ(back[8], host[6]);
  EXPECT_EQ(back[9], 99);
  ANSWERS(CUDA_SUCCESS, cuMemcpyHtoA(array, 3, host.data(), 3));
}

ROW(arrays, box_outside_refused) {
  const Context context;
  const CUarray array = array_new(8, 6, 4);
  const Bytes host(512);
  const auto answers = [&](CUDA_MEMCPY3D c) {
    from_host(c, host.data());
    to_array(c, array);
    return cuMemcpy3D(&c);
  };
  ANSWERS(CUDA_ERROR_INVALID_VALUE, answers(box(9, 1, 1)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, answers(box(1, 7, 1)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, answers(box(1, 1, 5)));
  CUDA_MEMCPY3D c = box(4, 1, 1);
  c.dstXInBytes = 5;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, answers(c));
}

ROW(arrays, batch_with_an_array) {
  const Context context;
  const CUarray array = array_new(8, 6, 0, 2);
  array_fill(array, 16, 6, 1, Bytes(96, 0));
  const CUdeviceptr from = device_new(bytes_counted(24));
  const CUstream stream = stream_new();
  MUST(cuCtxSynchronize());
  CUDA_MEMCPY3D_BATCH_OP op{};
  op.src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  op.src.op.ptr.ptr = from;
  op.dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
  op.dst.op.array.array = array;
  op.dst.op.array.offset = {1, 2, 0};
  op.extent = {4, 3, 1};  // elements of 2 bytes
  op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  MUST(cuMemcpy3DBatchAsync(1, &op, 0, stream));
  MUST(cuStreamSynchronize(stream));
  Bytes expected(96, 0);
  for (std::size_t y = 0; y < 3; ++y)
    std::iota(expected.begin() + static_cast<std::ptrdiff_t>((y + 2) * 16 + 2),
              expected.begin() + static_cast<std::ptrdiff_t>((y + 2) * 16 + 10),
              static_cast<unsigned char>(y * 8));
  EXPECT_EQ(array_contents(array, 16, 6, 1), expected);
}

}  // namespace
}  // namespace conformance
