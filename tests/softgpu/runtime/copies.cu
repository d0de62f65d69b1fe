// Copies and fills, linear, pitched and in three dimensions, checked cell by cell on the host.
#include <cstring>
#include <vector>

#include "checks.h"

namespace {

void check_linear() {
  std::vector<int> source(5000);
  std::vector<int> back(5000, -1);
  for (int i = 0; i < 5000; ++i) source[i] = i * 7;
  const size_t size_bytes = source.size() * sizeof(int);
  int* first = nullptr;
  int* second = nullptr;
  CHECK_OK(cudaMalloc(&first, size_bytes));
  CHECK_OK(cudaMalloc(&second, size_bytes));
  CHECK_OK(cudaMemcpy(first, source.data(), size_bytes, cudaMemcpyHostToDevice));
  CHECK_OK(cudaMemcpy(second, first, size_bytes, cudaMemcpyDeviceToDevice));
  CHECK_OK(cudaMemcpy(back.data(), second, size_bytes, cudaMemcpyDefault));
  CHECK(back == source);
  CHECK_OK(cudaMemset(second, 0xff, size_bytes / 2));
  CHECK_OK(cudaMemcpy(back.data(), second, size_bytes, cudaMemcpyDeviceToHost));
  CHECK(back[0] == -1 && back[2499] == -1 && back[2500] == 2500 * 7);
  std::vector<int> other(5000);
  CHECK_OK(cudaMemcpy(other.data(), source.data(), size_bytes, cudaMemcpyHostToHost));
  CHECK(other == source);
  CHECK_OK(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyHostToDevice));
  CHECK_ERROR(cudaErrorInvalidMemcpyDirection,
              cudaMemcpy(first, second, 4, static_cast<cudaMemcpyKind>(9)));
  CHECK_ERROR(cudaErrorInvalidMemcpyDirection, cudaGetLastError());
  CHECK_OK(cudaFree(first));
  CHECK_OK(cudaFree(second));
}

void check_pitched() {
  constexpr size_t kWidth = 30;
  constexpr size_t kHeight = 11;
  unsigned char host[kHeight][kWidth];
  unsigned char back[kHeight][64] = {};
  for (size_t y = 0; y < kHeight; ++y) {
    for (size_t x = 0; x < kWidth; ++x) host[y][x] = static_cast<unsigned char>(y * kWidth + x);
  }
  void* image = nullptr;
  size_t pitch = 0;
  CHECK_OK(cudaMallocPitch(&image, &pitch, kWidth, kHeight));
  CHECK(pitch >= kWidth);
  CHECK_OK(cudaMemset2D(image, pitch, 0x5a, kWidth, kHeight));
  CHECK_OK(cudaMemcpy2D(image, pitch, host, kWidth, kWidth / 2, kHeight, cudaMemcpyHostToDevice));
  CHECK_OK(
      cudaMemcpy2DAsync(back, 64, image, pitch, kWidth, kHeight, cudaMemcpyDeviceToHost, nullptr));
  CHECK_OK(cudaDeviceSynchronize());
  for (size_t y = 0; y < kHeight; ++y) {
    CHECK(std::memcmp(back[y], host[y], kWidth / 2) == 0);
    CHECK(back[y][kWidth / 2] == 0x5a && back[y][kWidth - 1] == 0x5a && back[y][kWidth] == 0);
  }
  CHECK_ERROR(cudaErrorInvalidPitchValue,
              cudaMemcpy2D(image, 4, host, kWidth, kWidth, 2, cudaMemcpyHostToDevice));
  (void)cudaGetLastError();
  CHECK_OK(cudaFree(image));
}

void check_volume() {
  const cudaExtent extent = make_cudaExtent(16, 5, 4);
  cudaPitchedPtr volume = {};
  CHECK_OK(cudaMalloc3D(&volume, extent));
  CHECK_OK(cudaMemset3D(volume, 3, extent));
  unsigned char host[4][5][16];
  for (size_t i = 0; i < sizeof(host); ++i) (&host[0][0][0])[i] = static_cast<unsigned char>(i);
  cudaMemcpy3DParms in = {};
  in.srcPtr = make_cudaPitchedPtr(host, 16, 16, 5);
  in.dstPtr = volume;
  in.extent = make_cudaExtent(16, 5, 2);  // the last two slices keep their fill
  in.kind = cudaMemcpyHostToDevice;
  CHECK_OK(cudaMemcpy3D(&in));
  unsigned char back[4][5][16] = {};
  cudaMemcpy3DParms out = {};
  out.srcPtr = volume;
  out.dstPtr = make_cudaPitchedPtr(back, 16, 16, 5);
  out.extent = extent;
  out.kind = cudaMemcpyDeviceToHost;
  CHECK_OK(cudaMemcpy3D(&out));
  CHECK(std::memcmp(back, host, sizeof(host) / 2) == 0);
  CHECK(back[2][0][0] == 3 && back[3][4][15] == 3);
  CHECK_OK(cudaFree(volume.ptr));
}

}  // namespace

void check_copies() {
  check_linear();
  check_pitched();
  check_volume();
}
