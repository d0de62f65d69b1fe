// See row_broker.h.
#include "tests/interpose/row_broker.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "softgpu/device/directory.h"

namespace sluice::test {

using protocol::ClaimsGpu;
using protocol::ClaimsSlot;
using softgpu::device::Device;

std::vector<std::unique_ptr<Device>> row_gpus(const char* directory) {
  std::vector<std::unique_ptr<Device>> gpus;
  std::string error;
  for (auto* segment : softgpu::device::directory_open(directory, error))
    gpus.push_back(std::make_unique<Device>(segment));
  return gpus;
}

void row_gpus_name(TestBroker& broker, const char* directory) {
  setenv("SOFTGPU_DIR", directory, 1);
  setenv("SOFTGPU_COUNT", std::to_string(kRowGpus).c_str(), 1);
  const auto gpus = row_gpus(directory);
  if (gpus.size() != kRowGpus) {
    fprintf(stderr, "%zu GPUs in %s\n", gpus.size(), directory);
    exit(2);
  }
  broker.gpu_uuid_set(gpus[0]->settings().uuid);
  for (size_t i = 1; i < gpus.size(); ++i) broker.gpu_add(gpus[i]->settings().uuid);
  // The row makes its own, with settings of its own.
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    std::filesystem::remove_all(entry.path());
  unsetenv("SOFTGPU_COUNT");
}

pid_t row_start(const TestBroker& broker, const char* preload, const char* directory,
                char** program) {
  broker.environment_set();
  setenv("CONFORMANCE_DIRECTORY", directory, 1);
  setenv("LD_PRELOAD", preload, 1);
  pid_t pid = -1;
  const bool started = posix_spawn(&pid, program[0], nullptr, nullptr, program, environ) == 0;
  unsetenv("LD_PRELOAD");
  return started ? pid : -1;
}

std::string row_left_over(TestBroker& broker, const char* directory) {
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    text.clear();
    std::uint64_t ledger = 0;
    for (const ClaimsSlot& slot : broker.claims().slots) {
      for (const ClaimsGpu& account : slot.gpus)
        ledger += account.held_bytes.load() + account.reserved_bytes.load() +
                  account.asked_bytes.load() + account.swapped_bytes.load();
    }
    if (ledger != 0) text = "the ledger has " + std::to_string(ledger) + " bytes of the dead\n";
    for (const auto& gpu : row_gpus(directory)) {
      const std::uint64_t used = gpu->snapshot().used_bytes;
      if (used != 0) text += "a GPU has " + std::to_string(used) + " bytes of the dead\n";
    }
    if (text.empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return text;
}

int row_exit_code(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace sluice::test
