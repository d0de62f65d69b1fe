// Forks before it uses CUDA; then parent and child both take all the memory they can get at the
// same time. First they fill the GPU together, 1 MiB at a time, and say what each got; then they
// give half back and fight over the rest.
#include "student.h"

#include <sys/wait.h>
#include <unistd.h>

#include <vector>

static int to_other, from_other;

// Both get here before either goes on.
static void meet() {
  char c = 'm';
  if (write(to_other, &c, 1) != 1 || read(from_other, &c, 1) != 1) _exit(1);
}

static int work(const char* who) {
  const size_t step = 1 << 20;
  CUDA_CHECK(cudaFree(0));
  std::vector<void*> blocks;
  void* block;
  for (int i = 0; i < 32; i++) {
    CUDA_CHECK(cudaMalloc(&block, step));
    blocks.push_back(block);
  }
  meet();
  while (cudaMalloc(&block, step) == cudaSuccess) blocks.push_back(block);
  if (cudaGetLastError() != cudaErrorMemoryAllocation) return 1;
  meet();
  printf("%s got %zu bytes\n", who, blocks.size() * step);
  fflush(stdout);
  meet();
  sleep(1);  // full: time to look at it from outside
  meet();
  const size_t half = blocks.size() / 2;
  for (int round = 0; round < 200; round++) {
    while (blocks.size() > half) {
      CUDA_CHECK(cudaFree(blocks.back()));
      blocks.pop_back();
    }
    for (int i = 0; i < 60 && cudaMalloc(&block, step + 4096 * (round % 7)) == cudaSuccess; i++)
      blocks.push_back(block);
    cudaGetLastError();
  }
  for (void* b : blocks) CUDA_CHECK(cudaFree(b));
  printf("%s is done\n", who);
  return 0;
}

int main() {
  int down[2], up[2];
  if (pipe(down) != 0 || pipe(up) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) {
    to_other = up[1], from_other = down[0];
    return work("child");
  }
  to_other = down[1], from_other = up[0];
  const int result = work("parent");
  int status = 1;
  waitpid(child, &status, 0);
  return result != 0 || status != 0;
}
