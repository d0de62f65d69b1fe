// The number of software GPUs is fixed by the first process that uses them. softgpu-ctl knows
// whether processes use them still.
#include "broker/cli/soft_gpus.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/cli/paths.h"

namespace sluice::cli {
namespace {

constexpr const char* kVariable = "SOFTGPU_DIR";

std::string soft_gpus_directory() {
  const char* directory = getenv(kVariable);
  if (directory != nullptr && *directory != '\0') return directory;
  return "/dev/shm/softgpu-" + std::to_string(getuid());
}

/// softgpu-ctl reset, without a word. False where it refuses, or is not there.
bool soft_gpus_reset(const std::string& directory) {
  const std::string program = program_path("softgpu-ctl");
  const pid_t child = fork();
  if (child == 0) {
    const int null_fd = open("/dev/null", O_RDWR);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null_fd, fd);
    execl(program.c_str(), program.c_str(), "reset", "--dir", directory.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace

unsigned soft_gpus_count(const std::string& directory) {
  unsigned count = 0;
  struct stat status {};
  while (stat((directory + "/gpu" + std::to_string(count)).c_str(), &status) == 0) ++count;
  return count;
}

void soft_gpus_renew(unsigned count) {
  const std::string directory = soft_gpus_directory();
  const unsigned have = soft_gpus_count(directory);
  if (have == 0 || have == count || soft_gpus_reset(directory)) return;
  const std::string other = directory + "-" + std::to_string(count);
  const unsigned there = soft_gpus_count(other);
  if (there != 0 && there != count) soft_gpus_reset(other);
  setenv(kVariable, other.c_str(), 1);
}

}  // namespace sluice::cli
