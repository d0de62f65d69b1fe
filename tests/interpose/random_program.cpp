// A random program (random_world.h): random_program SEED STEPS [WITHOUT]. WITHOUT lists steps that
// are left out ("3,7-9"). The trace is on stdout. Every thirty steps or so the program comes to
// rest: captures are ended and contexts waited for, which is where ledger_points.c has the accounts
// compared. RANDOM_QUOTA ("bytes" or "bytes,bytes") is the quota of each device that it runs under;
// then what the program is shown of its memory must be the device's own account at these points,
// and at its end the most that a device ever held within the quota. With RANDOM_AT_ONCE two to four
// programs are at work at once: what each of them does depends on no other's timing, and between
// stretches all come to rest. The exit code is 1 for whatever is wrong by itself.
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <set>

#include "tests/interpose/random_run.h"

namespace sluice::test {
namespace {

constexpr std::size_t kStretch = 30;  // steps between two rests

std::set<std::size_t> steps_of(const char* list) {
  std::set<std::size_t> steps;
  while (*list != '\0') {
    char* rest = nullptr;
    const std::size_t first = strtoull(list, &rest, 10);
    const std::size_t last = *rest == '-' ? strtoull(rest + 1, &rest, 10) : first;
    for (std::size_t step = first; step <= last; ++step) steps.insert(step);
    list = *rest == ',' ? rest + 1 : rest;
    if (rest == list && *rest != '\0') exit(2);
  }
  return steps;
}

bool run_alone(Program& program, std::size_t steps, const std::set<std::size_t>& without) {
  program.begin();
  for (std::size_t number = 1; number <= steps; ++number) {
    if (!without.contains(number)) program.step(number);
    if (number % kStretch == 0) program.rest(number);
  }
  program.end();
  return program.faulty();
}

/// While several programs are at work the accounts are not compared.
class Unpointed {
 public:
  Unpointed() {
    if (path_.empty()) return;
    unsetenv(kVariable);
  }
  ~Unpointed() {
    if (!path_.empty()) setenv(kVariable, path_.c_str(), 1);
  }
  Unpointed(const Unpointed&) = delete;
  Unpointed& operator=(const Unpointed&) = delete;

 private:
  static constexpr char kVariable[] = "LEDGER_POINTS";
  const std::string path_ = getenv(kVariable) == nullptr ? "" : getenv(kVariable);
};

/// In stretches, between which all come to rest one after the other.
bool run_at_once(std::deque<Program>& programs, std::size_t steps,
                 const std::set<std::size_t>& without) {
  const auto trace_print = [&] {
    for (std::size_t i = 0; i < programs.size(); ++i)
      programs[i].trace_print((std::to_string(i) + " ").c_str());
  };
  (void)Accounts::get().used(0);
  for (Program& program : programs) program.begin();
  for (std::size_t first = 1; first <= steps; first += kStretch) {
    {
      const Unpointed unpointed;
      std::vector<std::thread> threads;
      for (Program& program : programs) {
        threads.emplace_back(
            [&program, &without, first, last = std::min(steps, first + kStretch - 1)] {
              program.stretch(first, last, without);
            });
      }
      for (std::thread& thread : threads) thread.join();
    }
    for (Program& program : programs) program.captures_end();
    for (Program& program : programs) program.rest(first + kStretch - 1);
    trace_print();
  }
  for (Program& program : programs) program.end();
  trace_print();
  return std::any_of(programs.begin(), programs.end(), [](const Program& p) { return p.faulty(); });
}

}  // namespace
}  // namespace sluice::test

int main(int argc, char** argv) {
  using namespace sluice::test;
  if (argc < 3) return 2;
  const std::uint64_t seed = strtoull(argv[1], nullptr, 10);
  const std::size_t steps = strtoull(argv[2], nullptr, 10);
  const std::set<std::size_t> without = steps_of(argc > 3 ? argv[3] : "");
  setenv("SOFTGPU_COUNT", "2", 1);
  setenv("SOFTGPU_MEMORY", "4GiB", 1);
  setenv("SOFTGPU_PACING", "0", 1);
  setenv("CUDA_MODULE_LOADING", seed % 2 == 0 ? "LAZY" : "EAGER", 1);
  const char* at_once = getenv("RANDOM_AT_ONCE");
  std::deque<Program> programs;
  const std::size_t count = at_once == nullptr ? 1 : 2 + seed % 3;
  for (std::size_t i = 0; i < count; ++i) programs.emplace_back(seed + i * 100'000, count);
  bool faulty =
      count == 1 ? run_alone(programs[0], steps, without) : run_at_once(programs, steps, without);
  faulty |= peaks_exceeded(programs);
  return faulty ? 1 : 0;
}
