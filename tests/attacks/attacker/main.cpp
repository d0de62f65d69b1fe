// The attacker's command line:
//
//   attacker --way NAME --sizes BYTES,... --shape NAME [--trick NAME] [--seed N] [--device N]
//       attacks memory
//   attacker --launches PATTERN [--shape NAME]
//       attacks time
//   attacker --names
//       lists what there is
//
// --setenv NAME=VALUE and --unsetenv NAME change the environment before the first call of the
// driver. Every process that has taken what it can says "full PID TAKEN REFUSED" and sleeps until
// it is killed.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>

#include "tests/attacks/attacker/attack.h"

namespace attacks {

Options options;

namespace {

constexpr int kAttemptsMax = 1500;         // 0.2 MiB each fill any quota of the suite
constexpr int kRefusalsMax = 12;           // so many in a row end an attack
constexpr std::size_t kEnough = 1U << 30;  // more than any device of the suite has

std::vector<std::size_t> sizes_read(const std::string& text) {
  std::vector<std::size_t> sizes;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = text.find(',', at);
    if (end == std::string::npos) end = text.size();
    sizes.push_back(std::strtoull(text.substr(at, end - at).c_str(), nullptr, 0));
    at = end + 1;
  }
  return sizes;
}

void setting_apply(const std::string& name, const std::string& value) {
  if (name == "--way") options.way = value;
  if (name == "--shape") options.shape = value;
  if (name == "--trick") options.trick = value;
  if (name == "--launches") options.launches = value;
  if (name == "--sizes") options.sizes = sizes_read(value);
  if (name == "--seed")
    options.seed = static_cast<unsigned>(std::strtoul(value.c_str(), nullptr, 0));
  if (name == "--device") options.device = std::atoi(value.c_str());
  if (name == "--left") options.left = std::atoi(value.c_str());
  if (name == "--kernels") options.kernels = std::atoi(value.c_str());
  if (name == "--unsetenv") unsetenv(value.c_str());
  const std::size_t equals = value.find('=');
  if (name == "--setenv" && equals != std::string::npos)
    setenv(value.substr(0, equals).c_str(), value.substr(equals + 1).c_str(), 1);
}

/// Takes until the driver has refused often enough in a row.
void fill() {
  const Way* way = way_find(options.way);
  std::mt19937 random(options.seed + static_cast<unsigned>(getpid()));
  std::size_t taken = 0;
  int refused = 0;
  int row = 0;
  for (int n = 0; n < kAttemptsMax && row < kRefusalsMax && taken < kEnough; ++n) {
    const std::size_t bytes = options.sizes[random() % options.sizes.size()];
    const bool got = way->take(bytes) == CUDA_SUCCESS;
    taken += got ? bytes : 0;
    row = got ? 0 : row + 1;
    refused += got ? 0 : 1;
  }
  tell("full " + std::to_string(getpid()) + " " + std::to_string(taken) + " " +
       std::to_string(refused));
}

/// Once in every process, before its first call of the driver.
void partner_need() {
  static std::mutex mutex;
  static pid_t has = 0;
  const std::lock_guard lock(mutex);
  bool handed = false;
  for (const Way* way = kHandedWays; way->name != nullptr; ++way)
    handed |= options.way == way->name;
  if (handed && has != getpid()) partner_start();
  has = getpid();
}

void memory_attack() {
  partner_need();
  const CUresult opened = gpu_open();
  if (opened != CUDA_SUCCESS)
    tell("closed " + std::to_string(getpid()) + " " + std::to_string(opened));
  constexpr int kTricks = 8;
  for (int n = 0; n < kTricks && !options.trick.empty(); ++n) {
    if (!trick_play(options.trick)) std::exit(2);
    (void)gpu_open();
  }
  fill();
}

void names_list() {
  for (const Way* ways : {kPlainWays, kStreamWays, kOtherWays, kHandedWays})
    for (const Way* way = ways; way->name != nullptr; ++way) std::puts(way->name);
}

}  // namespace

const Way* way_find(const std::string& name) {
  for (const Way* ways : {kPlainWays, kStreamWays, kOtherWays, kHandedWays})
    for (const Way* way = ways; way->name != nullptr; ++way)
      if (name == way->name) return way;
  return nullptr;
}

void tell(const std::string& line) {
  const std::string whole = line + "\n";
  (void)!write(STDOUT_FILENO, whole.data(), whole.size());
}

void park() {
  for (;;) pause();
}

CUresult gpu_open() {
  CUresult result = cuInit(0);
  // What fails because of a passing lack of descriptors or threads is asked for again.
  for (int n = 0; n < 20 && result != CUDA_SUCCESS; ++n) {
    usleep(10000);
    result = cuInit(0);
  }
  CUcontext context = nullptr;
  CUdevice device = 0;
  if (result == CUDA_SUCCESS) result = cuDeviceGet(&device, options.device);
  if (result == CUDA_SUCCESS) result = cuDevicePrimaryCtxRetain(&context, device);
  return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

}  // namespace attacks

int main(int argc, char** argv) {
  using attacks::options;
  if (argc > 1 && std::strcmp(argv[1], "--names") == 0) {
    attacks::names_list();
    return 0;
  }
  options.program = argv[0];
  for (int i = 1; i + 1 < argc; i += 2) {
    options.words.insert(options.words.end(), {argv[i], argv[i + 1]});
    attacks::setting_apply(argv[i], argv[i + 1]);
  }
  if (attacks::way_find(options.way) == nullptr || options.sizes.empty()) {
    std::fprintf(stderr, "attacker: there is no way '%s', or no size; see --names\n",
                 options.way.c_str());
    return 2;
  }
  const bool timed = !options.launches.empty();
  const bool known = attacks::shape_run(options.shape, [timed] {
    if (!timed) return attacks::memory_attack();
    if (!attacks::launches_run(options.launches)) std::_Exit(2);
  });
  if (!known) std::fprintf(stderr, "attacker: there is no shape '%s'\n", options.shape.c_str());
  return known ? 0 : 2;
}
