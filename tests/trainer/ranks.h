// The ranks of a job as threads of one test: each has a communicator of its own, and they meet over
// loopback as processes do.
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace sluice::tests {

/// Where ranks wait for each other at their end: who goes first would close the connections through
/// which the others still speak. Waits when it is destroyed, so make it after the communicator; a
/// rank that never made one is not waited for.
class Together {
 public:
  static void begin(std::barrier<>* all) { here() = all; }
  static void end() {
    if (here() != nullptr) here()->arrive_and_drop();
    here() = nullptr;
  }
  Together() : all_(std::exchange(here(), nullptr)) {}
  ~Together() {
    if (all_ != nullptr) all_->arrive_and_wait();
  }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;

 private:
  static std::barrier<>*& here() {
    thread_local std::barrier<>* all = nullptr;
    return all;
  }
  std::barrier<>* all_;
};

/// Runs `work(rank, directory)` in a thread per rank; what one throws fails the test.
inline void ranks_run(int count, const std::function<void(int, const std::string&)>& work) {
  std::string directory = (std::filesystem::temp_directory_path() / "sluice-ranks-XXXXXX").string();
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::vector<std::string> failures;
  std::barrier<> all(count);
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      Together::begin(&all);
      try {
        work(rank, directory);
      } catch (const std::exception& failure) {
        const std::lock_guard lock(mutex);
        failures.push_back("rank " + std::to_string(rank) + ": " + failure.what());
      }
      Together::end();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::filesystem::remove_all(directory);
  for (const std::string& failure : failures) ADD_FAILURE() << failure;
}

}  // namespace sluice::tests
