// CUDA calls where threads and the process end: destructors of thread_local objects and of pthread
// keys, captures that a thread leaves open, handlers and destructors of the exit.
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "checks.h"

int g_failures = 0;

namespace {
std::atomic<int> g_works{0};
int g_works_expected = 0;

__global__ void add(int* cells, int value) { cells[threadIdx.x] += value; }

/// An argument of a launch that launches, too.
int two(int* cells) {
  add<<<1, 32>>>(cells, 1);
  return 2;
}

void work() {
  int* cells = nullptr;
  int host[32] = {};
  CHECK_OK(cudaMalloc(&cells, sizeof host));
  CHECK_OK(cudaMemset(cells, 0, sizeof host));
  for (int i = 0; i < 3; ++i) add<<<1, 32>>>(cells, two(cells));
  add<<<1, 32, 0, cudaStreamPerThread>>>(cells, 0);
  CHECK_OK(cudaGetLastError());
  CHECK_OK(cudaMemcpy(host, cells, sizeof host, cudaMemcpyDeviceToHost));
  CHECK(host[0] == 9 && host[31] == 9);
  CHECK_OK(cudaStreamSynchronize(cudaStreamPerThread));
  CHECK_OK(cudaFree(cells));
  ++g_works;
}

struct WorksAtEnd {
  bool armed = false;
  ~WorksAtEnd() {
    if (armed) work();
  }
};
thread_local WorksAtEnd made_before, made_after;

/// Destroyed last of all: the driver has ended by then, and says so.
struct LastOfAll {
  ~LastOfAll() {
    int* cells = nullptr;
    CHECK_ERROR(cudaErrorCudartUnloading, cudaMalloc(&cells, 4));
    add<<<1, 32>>>(cells, 1);
    CHECK_ERROR(cudaErrorCudartUnloading, cudaGetLastError());
    CHECK(g_works == g_works_expected);
    if (g_failures != 0) _exit(1);
    std::printf("endings: all checks hold\n");
  }
} last_of_all;

/// A key's destructor that works in every round there is.
void works_each_round(void* rounds) {
  const pthread_key_t* key = static_cast<pthread_key_t*>(rounds);
  pthread_setspecific(*key, key);
  work();
}

void check_thread_objects() {
  for (int i = 0; i < 4; ++i) {
    std::thread([] {
      made_before.armed = true;
      work();
      made_after.armed = true;
    }).join();
    g_works_expected += 3;
  }
  // The first call of a thread may be one of its last.
  std::thread([] { made_before.armed = true; }).join();
  ++g_works_expected;
}

void check_keys(pthread_key_t* earlier) {
  static pthread_key_t later;
  CHECK(pthread_key_create(&later, works_each_round) == 0);
  for (pthread_key_t* key : {earlier, &later}) {
    for (int i = 0; i < 4; ++i) {
      std::thread([key, i] {
        pthread_setspecific(*key, key);
        if (i % 2 == 0) work();
        made_after.armed = i == 3;
      }).join();
      g_works_expected += 4 + (i % 2 == 0) + (i == 3);
    }
  }
}

void check_open_captures() {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  CHECK_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (cudaStream_t captured : {cudaStreamPerThread, stream}) {
    std::thread([captured] {
      CHECK_OK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
      add<<<1, 32, 0, captured>>>(nullptr, 1);
      CHECK_OK(cudaGetLastError());
    }).join();
  }
  CHECK_ERROR(cudaErrorStreamCaptureWrongThread, cudaStreamEndCapture(stream, &graph));
  CHECK_OK(cudaStreamDestroy(stream));
  (void)cudaGetLastError();
  work();
  ++g_works_expected;
}
}  // namespace

int main() {
  static pthread_key_t earlier;
  CHECK(pthread_key_create(&earlier, works_each_round) == 0);
  check_thread_objects();
  check_keys(&earlier);
  check_open_captures();
  CHECK(std::atexit(work) == 0);
  made_before.armed = true;
  g_works_expected += 2;
  return 0;
}
