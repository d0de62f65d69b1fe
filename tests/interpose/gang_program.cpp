// Two ranks on two GPUs that meet at every kernel, as threads or as processes that share a page,
// or, with one GPU, a neighbour that just launches, with pauses of so many milliseconds at most
// between bursts, for so long or until its input is closed. For tests of the whole: run by `sluice
// run`.
//
//   gang_program ranks ROUNDS | processes ROUNDS | neighbour MILLISECONDS | server PAUSE
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "tests/interpose/gang_ranks.h"

namespace {

using sluice::test::Rank;

std::atomic<int> failures{0};

void rank_run(const Rank& rank, unsigned rounds, unsigned seed) {
  std::mt19937 random(seed);
  if (cuCtxSetCurrent(rank.context) != CUDA_SUCCESS) ++failures;
  for (unsigned round = 1; round <= rounds; ++round) {
    if (sluice::test::rank_meet(rank, round) != CUDA_SUCCESS) ++failures;
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    if (random() % 16 == 0 && cuStreamSynchronize(rank.stream) != CUDA_SUCCESS) ++failures;
  }
  if (cuStreamSynchronize(rank.stream) != CUDA_SUCCESS) ++failures;
}

int ranks(unsigned rounds) {
  Rank a, b;
  if (!sluice::test::rank_make(0, &a) || !sluice::test::rank_make(1, &b) ||
      !sluice::test::ranks_join(&a, &b)) {
    return 1;
  }
  std::thread other(rank_run, std::cref(b), rounds, 2);
  rank_run(a, rounds, 1);
  other.join();
  return failures == 0 ? 0 : 1;
}

int rank_alone(int device, void* page, unsigned rounds) {
  Rank rank;
  if (cuInit(0) != CUDA_SUCCESS || !sluice::test::rank_make(device, &rank) ||
      !sluice::test::rank_join(&rank, device == 0, page)) {
    return 1;
  }
  rank_run(rank, rounds, static_cast<unsigned>(device) + 1);
  return failures == 0 ? 0 : 1;
}

// Each rank a process of its own from before the first CUDA call, as launchers start them.
int processes(unsigned rounds) {
  void* page = mmap(nullptr, sluice::test::kMeetBytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return 1;
  const pid_t other = fork();
  if (other < 0) return 1;
  if (other == 0) {
    const int result = rank_alone(1, page, rounds);
    fflush(stdout);
    _exit(result);
  }
  const int result = rank_alone(0, page, rounds);
  int status = 1;
  // A rank that failed is met by nobody.
  if (result != 0) kill(other, SIGKILL);
  waitpid(other, &status, 0);
  return result == 0 && status == 0 ? 0 : 1;
}

bool input_closed() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, 0) > 0;
}

// Kernels that meet themselves end at once.
int neighbour(const std::function<bool()>& over, int pause_ms) {
  Rank rank;
  if (!sluice::test::rank_make(0, &rank) || !sluice::test::ranks_join(&rank, &rank)) return 1;
  rank.other = rank.mine;
  std::mt19937 random(3);
  for (unsigned round = 1; !over(); ++round) {
    for (int i = 0; i < 20; ++i)
      if (sluice::test::rank_meet(rank, round) != CUDA_SUCCESS) return 1;
    if (cuStreamSynchronize(rank.stream) != CUDA_SUCCESS) return 1;
    if (pause_ms > 0)
      std::this_thread::sleep_for(
          std::chrono::microseconds(random() % (1000 * static_cast<unsigned>(pause_ms))));
  }
  return 0;
}

int run(const char* what, int n) {
  if (strcmp(what, "processes") == 0) return processes(static_cast<unsigned>(n));
  if (cuInit(0) != CUDA_SUCCESS) return 2;
  if (strcmp(what, "ranks") == 0) return ranks(static_cast<unsigned>(n));
  if (strcmp(what, "server") == 0) return neighbour(input_closed, n);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(n);
  return neighbour([end] { return std::chrono::steady_clock::now() >= end; }, 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int result = run(argv[1], atoi(argv[2]));
  printf("%s: %s\n", argv[1], result == 0 ? "done" : "failed");
  return result;
}
