// Device, constant and managed variables reached by their host names.
#include "checks.h"

namespace {
__device__ int d_numbers[8] = {1, 2, 3, 4, 5, 6, 7, 8};
__constant__ float c_scale = 2.0f;
__managed__ int m_total = 5;

__global__ void use(int* out) {
  int sum = 0;
  for (int number : d_numbers) sum += number;
  *out = static_cast<int>(static_cast<float>(sum) * c_scale);
  m_total += sum;
}

int run() {
  int* out = nullptr;
  int host = -1;
  CHECK_OK(cudaMalloc(&out, sizeof(int)));
  use<<<1, 1>>>(out);
  CHECK_OK(cudaMemcpy(&host, out, sizeof(host), cudaMemcpyDeviceToHost));
  CHECK_OK(cudaFree(out));
  return host;
}
}  // namespace

void check_symbols() {
  CHECK(m_total == 5);
  CHECK(run() == 72);
  CHECK(m_total == 41);

  const int hundred = 100;
  const float scale = 3.0f;
  CHECK_OK(cudaMemcpyToSymbol(d_numbers, &hundred, sizeof(hundred), 7 * sizeof(int)));
  CHECK_OK(cudaMemcpyToSymbol(c_scale, &scale, sizeof(scale)));
  CHECK(run() == (28 + 100) * 3);

  int back[8] = {};
  CHECK_OK(cudaMemcpyFromSymbol(back, d_numbers, sizeof(back)));
  CHECK(back[0] == 1 && back[7] == 100);
  size_t size_bytes = 0;
  CHECK_OK(cudaGetSymbolSize(&size_bytes, d_numbers));
  CHECK(size_bytes == sizeof(back));
  void* address = nullptr;
  CHECK_OK(cudaGetSymbolAddress(&address, d_numbers));
  CHECK_OK(cudaMemset(address, 0, sizeof(int)));
  CHECK(run() == (27 + 100) * 3);

  CHECK_ERROR(cudaErrorInvalidValue, cudaMemcpyToSymbol(d_numbers, back, sizeof(back), 4));
  CHECK_ERROR(cudaErrorInvalidSymbol,
              cudaGetSymbolSize(&size_bytes, static_cast<const void*>(&hundred)));
  (void)cudaGetLastError();
}
