// What sluice-watch costs: looking through the descriptors of all processes, and system calls while
// their ends are watched, with and without in turns. Times are printed and not tested.
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exporter/bpf/sight.h"
#include "exporter/bypass/held.h"

namespace {

using sluice::exporter::HeldScan;
using sluice::exporter::Sight;
using sluice::exporter::SightSetup;

constexpr int kSkipped = 77;
constexpr int kTurns = 7;
constexpr int kCalls = 200'000;
constexpr std::uint32_t kMajor = 1;  // mem: /dev/null stands for a GPU's device

double processor_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void held_measure() {
  std::vector<double> each;
  std::size_t entries = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    HeldScan scan;
    std::vector<sluice::exporter::ProcessName> out;
    const double begin = processor_ns();
    entries = scan.look({kMajor}, std::size_t{1} << 20, out);
    each.push_back((processor_ns() - begin) / static_cast<double>(entries));
  }
  printf("descriptors: %zu entries, %.0f ns each (least %.0f)\n", entries, median(each),
         *std::min_element(each.begin(), each.end()));
}

double call_ns(const std::function<void()>& call) {
  const double begin = processor_ns();
  for (int i = 0; i < kCalls; ++i) call();
  return (processor_ns() - begin) / kCalls;
}

bool calls_measure() {
  const int device = open("/dev/null", O_RDWR | O_CLOEXEC);
  int ends[2], bytes = 0;
  if (device < 0 || pipe(ends) != 0) return false;
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"another call", [] { syscall(SYS_getppid); }},
      {"ioctl, not of the device", [&] { ioctl(ends[0], FIONREAD, &bytes); }},
      {"ioctl of the device", [&] { ioctl(device, FIONREAD, &bytes); }}};
  for (const auto& [name, call] : calls) {
    std::vector<double> without, with;
    for (int turn = 0; turn < kTurns; ++turn) {
      without.push_back(call_ns(call));
      std::string reason;
      const auto sight = sluice::exporter::sight_open(SightSetup{"", {kMajor}}, &reason);
      if (sight == nullptr) {
        printf("skipped: %s\n", reason.c_str());
        return false;
      }
      with.push_back(call_ns(call));
    }
    printf("%-25s %.0f ns, watched %.0f ns (medians of %d turns)\n", name, median(without),
           median(with), kTurns);
  }
  return true;
}

}  // namespace

int main() {
  held_measure();
  return calls_measure() ? 0 : kSkipped;
}
