// Built with --default-stream per-thread: the same source reaches the _ptsz and _ptds names, and
// two threads' default streams do not wait for each other.
#include <atomic>
#include <thread>

#include "checks.h"

int g_failures = 0;

namespace {
__global__ void count_up(int* cells) { atomicAdd(cells, 1); }

void launch_and_read(int* cells, int rounds, int* host) {
  for (int i = 0; i < rounds; ++i) count_up<<<4, 32>>>(cells);
  CHECK_OK(cudaGetLastError());
  CHECK_OK(cudaMemcpyAsync(host, cells, sizeof(*host), cudaMemcpyDeviceToHost, 0));
  CHECK_OK(cudaStreamSynchronize(0));
}

void work(int rounds) {
  int* cells = nullptr;
  int host = -1;
  CHECK_OK(cudaMalloc(&cells, sizeof(int)));
  CHECK_OK(cudaMemset(cells, 0, sizeof(int)));
  launch_and_read(cells, rounds, &host);
  CHECK(host == rounds * 128);
  CHECK_OK(cudaFree(cells));
}

void CUDART_CB wait_for_release(void* released) {
  while (!static_cast<std::atomic<bool>*>(released)->load()) std::this_thread::yield();
}

/// This thread's default stream is held up until another thread's default stream has finished its
/// launches.
void check_independence() {
  std::atomic<bool> released{false};
  int* cells = nullptr;
  int host = -1;
  CHECK_OK(cudaMalloc(&cells, sizeof(int)));
  CHECK_OK(cudaMemset(cells, 0, sizeof(int)));
  CHECK_OK(cudaStreamSynchronize(0));
  CHECK_OK(cudaLaunchHostFunc(0, wait_for_release, &released));
  std::thread(launch_and_read, cells, 2, &host).join();
  CHECK(host == 256);
  released = true;
  CHECK_OK(cudaStreamSynchronize(0));
  CHECK_OK(cudaFree(cells));
}
}  // namespace

int main() {
  std::thread other(work, 20);
  work(30);
  other.join();
  check_independence();
  if (g_failures == 0) std::printf("threads: all checks hold\n");
  return g_failures == 0 ? 0 : 1;
}
