// Microseconds of processor time that /bin/true takes from its start to its end, with nothing
// preloaded and with each of the given libraries, in turn; and the page faults of such a process.
//
//   interpose_load ROUNDS [[K=V...] LIBRARY]...
// where settings are of the library behind them alone; prints a line per library and one for none:
// name, median us, tenth percentile us, page faults (median)
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace {

struct Preload {
  std::string name;
  std::vector<std::string> settings;  // of the program's environment, LD_PRELOAD=... the last
  std::vector<double> us;
  std::vector<long> faults;
};

double us(const timeval& time) {
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
}

bool measure(Preload& preload) {
  char program[] = "/bin/true";
  char* arguments[] = {program, nullptr};
  std::vector<char*> environment;
  for (std::string& setting : preload.settings) environment.push_back(setting.data());
  environment.push_back(nullptr);
  pid_t child;
  int status = 0;
  rusage usage{};
  if (posix_spawn(&child, program, nullptr, nullptr, arguments, environment.data()) != 0)
    return false;
  if (wait4(child, &status, 0, &usage) != child || status != 0) return false;
  preload.us.push_back(us(usage.ru_utime) + us(usage.ru_stime));
  preload.faults.push_back(usage.ru_minflt);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const long rounds = argc > 1 ? atol(argv[1]) : 0;
  if (rounds <= 0) {
    fprintf(stderr, "interpose_load: usage: interpose_load ROUNDS [[K=V...] LIBRARY]...\n");
    return 2;
  }
  std::vector<Preload> preloads{{"none", {}, {}, {}}};
  std::vector<std::string> settings;
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.find('=') != std::string::npos) {
      settings.push_back(argument);
      continue;
    }
    preloads.push_back({argument, settings, {}, {}});
    settings.clear();
    preloads.back().settings.push_back("LD_PRELOAD=" + argument);
  }
  std::vector<size_t> order(preloads.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::minstd_rand random;  // the same orders on every run
  for (long round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);  // nobody always follows the same one
    for (const size_t i : order) {
      if (!measure(preloads[i])) {
        fprintf(stderr, "interpose_load: /bin/true did not run\n");
        return 1;
      }
    }
  }
  for (Preload& one : preloads) {
    std::sort(one.us.begin(), one.us.end());
    std::sort(one.faults.begin(), one.faults.end());
    printf("%s %.1f %.1f %ld\n", one.name.c_str(), one.us[one.us.size() / 2],
           one.us[one.us.size() / 10], one.faults[one.faults.size() / 2]);
  }
  return 0;
}
