// Runs a conformance program as a tenant's whose memory is movable, under a broker that moves it
// out and in again and again: swap_row SHIM DIRECTORY PROGRAM ARGUMENT... In the end neither the
// ledger nor the GPUs' own account may have anything left.
// The program's software GPUs are those of the directory, whose names follow from its path.
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "softgpu/device/device.h"
#include "softgpu/device/directory.h"
#include "tests/interpose/test_broker.h"

namespace {

using namespace sluice::protocol;
using sluice::test::TestBroker;

constexpr int kGpus = 4;  // more than any row uses
constexpr std::uint64_t kContext = 32ull << 20;

void gpus_name(TestBroker& broker, const char* directory) {
  setenv("SOFTGPU_DIR", directory, 1);
  setenv("SOFTGPU_COUNT", std::to_string(kGpus).c_str(), 1);
  std::string error;
  int index = 0;
  for (auto* segment : softgpu::device::directory_open(directory, error)) {
    const softgpu::device::Device device(segment);
    if (index++ == 0) {
      broker.gpu_uuid_set(device.settings().uuid);
    } else {
      broker.gpu_add(device.settings().uuid);
    }
  }
  if (index != kGpus) {
    fprintf(stderr, "swap_row: %s\n", error.c_str());
    exit(2);
  }
  // The row makes its own, with settings of its own.
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    std::filesystem::remove_all(entry.path());
  unsetenv("SOFTGPU_COUNT");
}

// An order's answer, as long as there is somebody to give it: a hold that ends with memory outside
// lets the program have more than there is, so a slow host gets its time.
bool carried_out(TestBroker& broker, const std::atomic<bool>& ends, std::uint32_t order) {
  const std::uint32_t word = broker.order_store(order);
  for (int i = 0; i < 1500 && !ends; ++i) {
    if (broker.wait_moved(word, 20)) return true;
  }
  return false;
}

// Moves the memory of GPU 0 out and in until told to end. A hold that is not acknowledged in time
// (a capture is in progress, a process has ended) is taken back. Returns how often it went well.
int move_about(TestBroker& broker, const std::atomic<bool>& ends) {
  int rounds = 0;
  while (!ends) {
    broker.lease_store(0);
    broker.hold_store(true);
    if (broker.registrations() > 0 && broker.wait_held(50) && carried_out(broker, ends, kHoldOut) &&
        carried_out(broker, ends, kHoldIn)) {
      ++rounds;
    }
    broker.hold_store(false);
    broker.lease_store(kLeaseOpen);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return rounds;
}

// What both accounts have left of processes that have ended, as text; empty = nothing. The broker
// hears of an end a moment later.
std::string left_over(TestBroker& broker, const char* directory) {
  std::string text, error;
  for (int i = 0; i < 5000; ++i) {
    text.clear();
    std::uint64_t ledger = 0;
    for (const ClaimsSlot& slot : broker.claims().slots) {
      for (const ClaimsGpu& account : slot.gpus)
        ledger += account.held_bytes.load() + account.reserved_bytes.load() +
                  account.asked_bytes.load() + account.swapped_bytes.load();
    }
    if (ledger != 0) text = "the ledger has " + std::to_string(ledger) + " bytes of the dead\n";
    for (auto* segment : softgpu::device::directory_open(directory, error)) {
      softgpu::device::Device device(segment);
      const std::uint64_t used = device.snapshot().used_bytes;
      if (used != 0) text += "a GPU has " + std::to_string(used) + " bytes of the dead\n";
    }
    if (text.empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  TestBroker broker(0, kContext);
  gpus_name(broker, argv[2]);
  broker.swap_set();
  broker.environment_set();
  setenv("CONFORMANCE_DIRECTORY", argv[2], 1);
  setenv("LD_PRELOAD", argv[1], 1);
  pid_t pid = -1;
  if (posix_spawn(&pid, argv[3], nullptr, nullptr, argv + 3, environ) != 0) return 2;
  std::atomic<bool> ends{false};
  int rounds = 0;
  std::thread mover([&] { rounds = move_about(broker, ends); });
  int status = 0;
  waitpid(pid, &status, 0);
  ends = true;
  mover.join();
  printf("moved %d times\n", rounds);
  const std::string left = left_over(broker, argv[2]);
  printf("%s", left.c_str());
  if (!left.empty()) return 1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
