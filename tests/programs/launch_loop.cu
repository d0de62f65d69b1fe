// Launches kernels of about a millisecond for ever, or for --seconds S; prints how many when it
// stops (SIGTERM ends it cleanly). --linger keeps it there, idle, until SIGTERM;
// --burst N queues N kernels before it waits for them.
#include "student.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

__global__ void busy(float* data, int rounds) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float x = data[i];
  for (int r = 0; r < rounds; r++) x = x * 0.999f + 0.5f;
  data[i] = x;
}

static volatile sig_atomic_t stop = 0;
static void onSignal(int) { stop = 1; }

static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char** argv) {
  double seconds = 1e9;
  bool linger = false;
  int burst = 4;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) seconds = atof(argv[i + 1]);
    if (strcmp(argv[i], "--burst") == 0 && i + 1 < argc) burst = atoi(argv[i + 1]);
    if (strcmp(argv[i], "--linger") == 0) linger = true;
  }
  signal(SIGTERM, onSignal);
  const int blocks = 64, threads = 128;
  float* data;
  CUDA_CHECK(cudaMalloc(&data, blocks * threads * sizeof(float)));
  CUDA_CHECK(cudaMemset(data, 0, blocks * threads * sizeof(float)));
  printf("launch_loop: started\n");
  fflush(stdout);

  long launches = 0;
  double end = now() + seconds;
  while (!stop && now() < end) {
    for (int i = 0; i < burst; i++) busy<<<blocks, threads>>>(data, 40);
    CUDA_CHECK(cudaDeviceSynchronize());
    launches += burst;
  }
  if (linger) {
    printf("launch_loop: idle\n");
    fflush(stdout);
    while (!stop) usleep(10000);
  }
  CUDA_CHECK(cudaFree(data));
  printf("launch_loop: %ld launches\n", launches);
  return launches > 0 ? 0 : 1;
}
