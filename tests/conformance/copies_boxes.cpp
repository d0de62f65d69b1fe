// Rows of family `copies`: boxes in two and three dimensions: pitches, offsets, kinds of memory.
// Arrays as ends of them are in arrays_copies.cpp.
#include "tests/conformance/copies.h"

namespace conformance {
namespace {

/// Host memory to device memory, both packed: 8 bytes by 4 rows.
CUDA_MEMCPY2D plane(const void* from, CUdeviceptr to) {
  CUDA_MEMCPY2D c{};
  c.srcMemoryType = CU_MEMORYTYPE_HOST;
  c.srcHost = from;
  c.srcPitch = 8;
  c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  c.dstDevice = to;
  c.dstPitch = 8;
  c.WidthInBytes = 8;
  c.Height = 4;
  return c;
}

/// The same with a depth of 2.
CUDA_MEMCPY3D box(const void* from, CUdeviceptr to) {
  CUDA_MEMCPY3D c{};
  c.srcMemoryType = CU_MEMORYTYPE_HOST;
  c.srcHost = from;
  c.srcPitch = 8;
  c.srcHeight = 4;
  c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  c.dstDevice = to;
  c.dstPitch = 8;
  c.dstHeight = 4;
  c.WidthInBytes = 8;
  c.Height = 4;
  c.Depth = 2;
  return c;
}

ROW(copies, plane_with_pitches) {
  const Context context;
  const Bytes source = bytes_counted(40);
  const CUdeviceptr p = device_new(Bytes(64, 0xff));
  CUDA_MEMCPY2D c = plane(source.data(), p);
  c.srcPitch = 10;
  c.dstPitch = 16;
  MUST(cuMemcpy2D(&c));
  Bytes expected(64, 0xff);
  for (int y = 0; y < 4; ++y) std::copy_n(source.begin() + y * 10, 8, expected.begin() + y * 16);
  EXPECT_EQ(contents(p, 64), expected);
}

ROW(copies, plane_with_offsets) {
  const Context context;
  const Bytes source = bytes_counted(80);
  const CUdeviceptr p = device_new(Bytes(96, 0xff));
  CUDA_MEMCPY2D c = plane(source.data(), p);
  c.srcPitch = 10;
  c.srcXInBytes = 2;
  c.srcY = 3;
  c.dstPitch = 16;
  c.dstXInBytes = 5;
  c.dstY = 1;
  MUST(cuMemcpy2D(&c));
  Bytes expected(96, 0xff);
  for (int y = 0; y < 4; ++y)
    std::copy_n(source.begin() + (y + 3) * 10 + 2, 8, expected.begin() + (y + 1) * 16 + 5);
  EXPECT_EQ(contents(p, 96), expected);
}

ROW(copies, plane_in_every_direction) {
  const Context context;
  const Bytes source = bytes_counted(32);
  const CUdeviceptr first = device_new(32), second = device_new(32);
  CUDA_MEMCPY2D c = plane(source.data(), first);
  MUST(cuMemcpy2D(&c));
  c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  c.srcDevice = first;
  c.dstDevice = second;
  MUST(cuMemcpy2D(&c));
  Bytes back(32), again(32);
  c.srcDevice = second;
  c.dstMemoryType = CU_MEMORYTYPE_HOST;
  c.dstHost = back.data();
  MUST(cuMemcpy2D(&c));
  EXPECT_EQ(back, source);
  c.srcMemoryType = CU_MEMORYTYPE_HOST;
  c.srcHost = back.data();
  c.dstHost = again.data();
  MUST(cuMemcpy2D(&c));
  EXPECT_EQ(again, source);
}

ROW(copies, plane_of_unified_memory) {
  const Context context;
  const Bytes source = bytes_counted(32);
  const CUdeviceptr p = device_new(32);
  Bytes back(32);
  CUDA_MEMCPY2D c = plane(nullptr, p);
  c.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.srcDevice = address_of(source.data());
  MUST(cuMemcpy2D(&c));
  c.srcDevice = p;
  c.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.dstDevice = address_of(back.data());
  MUST(cuMemcpy2D(&c));
  EXPECT_EQ(back, source);
}

ROW(copies, plane_pitch_checked) {
  const Context context;
  const Bytes source(64);
  const CUdeviceptr p = device_new(64);
  CUDA_MEMCPY2D c = plane(source.data(), p);
  c.srcPitch = 7;  // smaller than a row
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&c));
  c = plane(source.data(), p);
  c.dstPitch = 8;
  c.dstXInBytes = 1;  // smaller than a row with its offset
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&c));
}

ROW(copies, plane_pitch_has_a_maximum) {
  const Context context;
  int most = 0;
  MUST(cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_PITCH, context.device()));
  const Bytes source(64);
  const CUdeviceptr p = device_new(64);
  CUDA_MEMCPY2D c = plane(source.data(), p);
  c.Height = 1;
  c.srcPitch = std::size_t{static_cast<unsigned>(most)} + 1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&c));
  CUDA_MEMCPY3D deep = box(source.data(), p);
  deep.Height = deep.Depth = 1;
  deep.dstPitch = c.srcPitch;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&deep));
}

ROW(copies, plane_memory_type_checked) {
  const Context context;
  const Bytes source(64);
  const CUdeviceptr p = device_new(64);
  CUDA_MEMCPY2D c = plane(source.data(), p);
  c.srcMemoryType = no_such<CUmemorytype>(77);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&c));
  c = plane(source.data(), p);
  c.dstMemoryType = no_such<CUmemorytype>(0);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&c));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(nullptr));
}

ROW(copies, plane_past_the_end_refused) {
  const Context context;
  constexpr std::size_t kSize = 32 << 20;
  const Bytes source(64);
  const CUdeviceptr p = device_new(kSize);
  CUDA_MEMCPY2D c = plane(source.data(), p);
  c.dstPitch = kSize / 2;  // its last row lies behind the allocation
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&c));
  c.Height = 2;
  ANSWERS(CUDA_SUCCESS, cuMemcpy2D(&c));
}

ROW(copies, plane_unaligned) {
  const Context context;
  const CUdeviceptr from = device_new(bytes_counted(64)), to = device_new(Bytes(64, 0xff));
  CUDA_MEMCPY2D c = plane(nullptr, to + 1);
  c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  c.srcDevice = from + 3;
  c.srcPitch = 13;
  c.dstPitch = 9;
  MUST(cuMemcpy2DUnaligned(&c));
  Bytes expected(64, 0xff);
  const Bytes source = bytes_counted(64);
  for (int y = 0; y < 4; ++y)
    std::copy_n(source.begin() + 3 + y * 13, 8, expected.begin() + 1 + y * 9);
  EXPECT_EQ(contents(to, 64), expected);
}

ROW(copies, plane_of_pitched_memory) {
  const Context context;
  CUdeviceptr p = 0;
  std::size_t pitch = 0;
  MUST(cuMemAllocPitch(&p, &pitch, 8, 4, 4));
  const Bytes source = bytes_counted(32);
  CUDA_MEMCPY2D c = plane(source.data(), p);
  c.dstPitch = pitch;
  MUST(cuMemcpy2D(&c));
  const CUdeviceptr packed = device_new(32);
  c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  c.srcDevice = p;
  c.srcPitch = pitch;
  c.dstDevice = packed;
  c.dstPitch = 8;
  MUST(cuMemcpy2D(&c));
  EXPECT_EQ(contents(packed, 32), source);
}

ROW(copies, plane_async_in_stream_order) {
  const Context context;
  unsigned char* pinned = pinned_new(32);
  const CUdeviceptr p = device_new(Bytes(32, 0));
  const CUstream stream = stream_new();
  MUST(cuCtxSynchronize());
  Gate gate;
  MUST(gate.hold(stream));
  const CUDA_MEMCPY2D c = plane(pinned, p);
  MUST(cuMemcpy2DAsync(&c, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  std::memset(pinned, 6, 32);
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(contents(p, 32), Bytes(32, 6));
}

ROW(copies, box_with_heights_and_offsets) {
  const Context context;
  const Bytes source = bytes_counted(250);
  const CUdeviceptr p = device_new(Bytes(300, 0xff));
  CUDA_MEMCPY3D c = box(source.data(), p);
  c.srcPitch = 10;
  c.srcHeight = 6;
  c.srcXInBytes = 1;
  c.srcY = 2;
  c.srcZ = 1;
  c.dstPitch = 12;
  c.dstHeight = 5;
  c.dstXInBytes = 3;
  c.dstY = 1;
  c.dstZ = 2;
  MUST(cuMemcpy3D(&c));
  Bytes expected(300, 0xff);
  for (int z = 0; z < 2; ++z) {
    for (int y = 0; y < 4; ++y)
      std::copy_n(source.begin() + ((z + 1) * 6 + y + 2) * 10 + 1, 8,
                  expected.begin() + ((z + 2) * 5 + y + 1) * 12 + 3);
  }
  EXPECT_EQ(contents(p, 300), expected);
}

ROW(copies, box_height_checked) {
  const Context context;
  const Bytes source(256);
  const CUdeviceptr p = device_new(256);
  CUDA_MEMCPY3D c = box(source.data(), p);
  c.srcHeight = 3;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&c));
  c = box(source.data(), p);
  c.dstY = 1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&c));
}

ROW(copies, box_in_stream_order) {
  const Context context;
  const CUdeviceptr from = device_new(bytes_counted(64)), to = device_new(Bytes(64, 0));
  CUDA_MEMCPY3D c = box(nullptr, to);
  c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  c.srcDevice = from;
  Gate gate;
  const CUstream stream = stream_new();
  MUST(gate.hold(stream));
  ANSWERS(CUDA_SUCCESS, cuMemcpy3DAsync(&c, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(contents(to, 64), bytes_counted(64));
  c.dstLOD = 1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DAsync(&c, stream));
}

ROW(copies, box_lod_must_be_zero) {
  const Context context;
  const Bytes source(64);
  CUDA_MEMCPY3D c = box(source.data(), device_new(64));
  c.srcLOD = 1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&c));
}

ROW(copies, box_on_the_device_does_not_wait) {
  const Context context;
  const CUdeviceptr from = device_new(bytes_counted(64)), to = device_new(Bytes(64, 0));
  CUDA_MEMCPY3D c = box(nullptr, to);
  c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  c.srcDevice = from;
  Gate gate;
  const CUstream stream = stream_new(CU_STREAM_DEFAULT);
  MUST(gate.hold(stream));
  MUST(cuMemcpy3D(&c));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_LEGACY));
  gate.open();
  EXPECT_EQ(contents(to, 64), bytes_counted(64));
}

ROW(copies, box_between_contexts) {
  const Context context;
  const CUdeviceptr from = device_new(bytes_counted(64));
  const Context other;
  const CUdeviceptr to = device_new(64);
  CUDA_MEMCPY3D_PEER c{};
  c.srcMemoryType = c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  c.srcDevice = from;
  c.srcContext = context;
  c.dstDevice = to;
  c.dstContext = other;
  c.srcPitch = c.dstPitch = c.WidthInBytes = 8;
  c.srcHeight = c.dstHeight = c.Height = 4;
  c.Depth = 2;
  MUST(cuMemcpy3DPeer(&c));
  EXPECT_EQ(contents(to, 64), bytes_counted(64));
  MUST(cuMemsetD8(to, 0, 64));
  const CUstream stream = stream_new();
  MUST(cuCtxSynchronize());
  MUST(cuMemcpy3DPeerAsync(&c, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(contents(to, 64), bytes_counted(64));
}

}  // namespace
}  // namespace conformance
