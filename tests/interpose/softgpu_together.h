// Threads and processes that do things at one moment.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <thread>
#include <vector>

namespace sluice::test {

/// Where so many threads or processes meet, as often as they like. In shared memory.
class Together {
 public:
  explicit Together(size_t count) {
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&barrier_, &shared, static_cast<unsigned>(count));
  }
  void meet() { pthread_barrier_wait(&barrier_); }

 private:
  pthread_barrier_t barrier_;
};

inline void together(size_t count, const std::function<void(size_t, Together&)>& work) {
  Together others(count);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) threads.emplace_back([&, i] { work(i, others); });
  for (std::thread& thread : threads) thread.join();
}

/// What `work` returns (-128 to 127) in each of so many children of a process that has not used
/// CUDA. A child that does not end as it should counts as -1.
inline std::vector<int> processes_together(size_t count,
                                           const std::function<int(Together&)>& work) {
  void* const room =
      mmap(nullptr, sizeof(Together), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(room, MAP_FAILED);
  auto* const others = new (room) Together(count);
  std::vector<pid_t> children;
  for (size_t i = 0; i < count; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(static_cast<unsigned char>(work(*others)));
    children.push_back(child);
  }
  std::vector<int> results;
  for (const pid_t child : children) {
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    results.push_back(WIFEXITED(status) ? static_cast<signed char>(WEXITSTATUS(status)) : -1);
  }
  munmap(room, sizeof(Together));
  return results;
}

}  // namespace sluice::test
