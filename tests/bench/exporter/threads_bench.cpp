// What watching threads costs: the share of one core that the observer takes while a process
// switches between threads at a given rate, and how much slower two threads that only hand a byte
// to and fro become. Times are printed and not tested.
#include <bpf/bpf.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "exporter/idle/thread_watch.h"

namespace {

using sluice::exporter::OffCpu;
using sluice::exporter::ThreadWatch;

constexpr char kUsage[] =
    "usage: threads_bench [--rate SWITCHES_PER_S] [--seconds S] [--reads PER_S] [--pairs N] "
    "[--proc]\n"
    "\n"
    "Two processes' worth of threads hand a byte to and fro through pipes while an observer of "
    "threads\n"
    "(exporter/idle) watches them: first paced, to tell the observer's share of one core, then as "
    "fast\n"
    "as they can, with and without it in turns. Needs root.\n"
    "\n"
    "  --rate     context switches per second that the paced part aims at (default 10000)\n"
    "  --seconds  length of each measurement (default 5)\n"
    "  --reads    how often per second the periods are read (default 4)\n"
    "  --pairs    pairs of threads that share the rate (default 1)\n"
    "  --proc     the observer that samples /proc every 20 ms, instead of BPF\n"
    "  --paced    only the paced part\n";

constexpr int kSkipped = 77;
constexpr int kTurns = 5;  // of the fast part, with and without; medians are printed

struct Options {
  double rate = 10'000;
  double seconds = 5;
  double reads = 4;
  int pairs = 1;
  bool proc = false;
  bool paced = false;
};

double clock_s(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// A pair's round, a byte there and back and a pause, is three switches, or four where nobody was
/// quick enough to find the byte there already.
constexpr double kSwitchesPerPacedRound = 3;

void echo(int in, int out) {
  for (char c; read(in, &c, 1) == 1;) (void)!write(out, &c, 1);
}

void hand_over(std::atomic<std::uint64_t>& rounds, double rounds_per_s) {
  int there[2], back[2];
  if (pipe(there) != 0 || pipe(back) != 0) abort();
  std::thread other(echo, there[0], back[1]);
  timespec next{};
  clock_gettime(CLOCK_MONOTONIC, &next);
  const long pause_ns = rounds_per_s > 0 ? static_cast<long>(1e9 / rounds_per_s) : 0;
  for (char c = 'b';; ++rounds) {
    (void)!write(there[1], &c, 1);
    (void)!read(back[0], &c, 1);
    if (pause_ns == 0) continue;
    next.tv_nsec += pause_ns;
    for (; next.tv_nsec >= 1'000'000'000; next.tv_nsec -= 1'000'000'000) ++next.tv_sec;
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, nullptr);
  }
}

/// A child process with pairs of threads at work, until destroyed.
class Work {
 public:
  Work(int pairs, double rounds_per_s) {
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) abort();
    rounds_ = new (page) std::atomic<std::uint64_t>(0);
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 1; i < pairs; ++i)
      std::thread(hand_over, std::ref(*rounds_), rounds_per_s).detach();
    hand_over(*rounds_, rounds_per_s);
  }
  ~Work() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    munmap(rounds_, 4096);
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  std::uint32_t pid() const { return static_cast<std::uint32_t>(pid_); }
  std::uint64_t rounds() const { return *rounds_; }

  /// Context switches of all threads so far.
  std::uint64_t switches() const {
    std::uint64_t sum = 0;
    char name[128], line[256];
    const std::string list = "ls /proc/" + std::to_string(pid_) + "/task";
    FILE* threads = popen(list.c_str(), "r");
    for (unsigned thread; threads != nullptr && fscanf(threads, "%u", &thread) == 1;) {
      snprintf(name, sizeof name, "/proc/%d/task/%u/status", pid_, thread);
      FILE* status = fopen(name, "r");
      while (status != nullptr && fgets(line, sizeof line, status) != nullptr) {
        const char* field = strstr(line, "ctxt_switches:");
        if (field != nullptr) sum += strtoull(field + 14, nullptr, 10);
      }
      if (status != nullptr) fclose(status);
    }
    if (threads != nullptr) pclose(threads);
    return sum;
  }

 private:
  std::atomic<std::uint64_t>* rounds_;
  pid_t pid_;
};

std::set<std::uint32_t> programs() {
  std::set<std::uint32_t> ids;
  for (std::uint32_t id = 0; bpf_prog_get_next_id(id, &id) == 0;) ids.insert(id);
  return ids;
}

struct Cost {
  double run_s = 0;
  double runs = 0;
};

/// What the kernel counted of these programs (BPF_ENABLE_STATS), by name.
std::map<std::string, Cost> programs_cost(const std::set<std::uint32_t>& ids) {
  std::map<std::string, Cost> costs;
  for (const std::uint32_t id : ids) {
    const int fd = bpf_prog_get_fd_by_id(id);
    bpf_prog_info info{};
    std::uint32_t size = sizeof info;
    if (fd >= 0 && bpf_obj_get_info_by_fd(fd, &info, &size) == 0) {
      costs[info.name] = {static_cast<double>(info.run_time_ns) * 1e-9,
                          static_cast<double>(info.run_cnt)};
    }
    if (fd >= 0) close(fd);
  }
  return costs;
}

/// Reads as an exporter would; how many periods there were.
std::size_t read_for(ThreadWatch& watch, const Options& options) {
  std::vector<OffCpu> periods;
  std::size_t count = 0;
  const double end = clock_s(CLOCK_MONOTONIC) + options.seconds;
  while (clock_s(CLOCK_MONOTONIC) < end) {
    usleep(static_cast<useconds_t>(1e6 / options.reads));
    periods.clear();
    watch.periods_read(periods);
    count += periods.size();
  }
  return count;
}

void paced(ThreadWatch& watch, const std::set<std::uint32_t>& ours, const Options& options) {
  const Work work(options.pairs, options.rate / kSwitchesPerPacedRound / options.pairs);
  usleep(50'000);
  watch.processes_set({work.pid()});
  const std::uint64_t switches = work.switches();
  const int stats = bpf_enable_stats(BPF_STATS_RUN_TIME);
  const auto before = programs_cost(ours);
  const double begin = clock_s(CLOCK_MONOTONIC), cpu = clock_s(CLOCK_PROCESS_CPUTIME_ID);
  const std::uint64_t lost = watch.lost();
  const std::size_t periods = read_for(watch, options);
  const double span = clock_s(CLOCK_MONOTONIC) - begin;
  const double reader = (clock_s(CLOCK_PROCESS_CPUTIME_ID) - cpu) / span;
  const auto after = programs_cost(ours);
  if (stats >= 0) close(stats);
  const double rate = static_cast<double>(work.switches() - switches) / span;
  printf("watched: %.0f context switches/s, %.0f periods/s, lost %llu\n", rate,
         static_cast<double>(periods) / span, static_cast<unsigned long long>(watch.lost() - lost));
  double run = 0, machine_rate = 0;
  for (const auto& [name, cost] : after) {
    const Cost& was = before.at(name);
    if (cost.runs == was.runs) continue;
    run += (cost.run_s - was.run_s) / span;
    if (name == "threads_switch") machine_rate = (cost.runs - was.runs) / span;
    printf("  %-16s %7.0f runs/s for the whole machine, %4.0f ns each\n", name.c_str(),
           (cost.runs - was.runs) / span, 1e9 * (cost.run_s - was.run_s) / (cost.runs - was.runs));
  }
  printf("observer: %.2f %% of a core = reading %.2f %% + programs %.2f %%\n", 100 * (reader + run),
         100 * reader, 100 * run);
  // What the kernel counts (vmstat's cs): a watched thread that leaves its CPU and one that comes
  // to a CPU are a switch each. A thread's own count has only those that it leaves by.
  printf(
      "for 10,000 switches/s of the machine that is %.2f %% of a core, for 10,000/s of watched "
      "threads %.2f %%\n",
      1e6 * (reader + run) / machine_rate, 1e6 * (reader + run) / rate);
}

double rounds_per_s(ThreadWatch& watch, bool watched, const Options& options) {
  const Work work(options.pairs, 0);
  watch.processes_set(watched ? std::vector{work.pid()} : std::vector<std::uint32_t>{});
  usleep(50'000);
  const std::uint64_t before = work.rounds();
  const double begin = clock_s(CLOCK_MONOTONIC);
  read_for(watch, options);
  return static_cast<double>(work.rounds() - before) / (clock_s(CLOCK_MONOTONIC) - begin);
}

void fast(const std::function<std::unique_ptr<ThreadWatch>()>& open, const Options& options) {
  std::array<std::vector<double>, 3> rates;  // nobody watches, others are watched, watched
  struct Nobody : ThreadWatch {
    void processes_set(const std::vector<std::uint32_t>&) override {}
    std::uint64_t periods_read(std::vector<OffCpu>&) override { return 0; }
    std::uint64_t lost() const override { return 0; }
    std::uint32_t root_of(std::uint32_t) override { return 0; }
    char letter_of(sluice::exporter::HostThread) override { return '\0'; }
    bool is_coarse() const override { return false; }
  } nobody;
  for (int turn = 0; turn < kTurns; ++turn) {
    rates[0].push_back(rounds_per_s(nobody, false, options));
    const auto watch = open();
    rates[1].push_back(rounds_per_s(*watch, false, options));
    rates[2].push_back(rounds_per_s(*watch, true, options));
  }
  const char* const names[] = {"no observer", "others watched", "watched"};
  for (std::size_t i = 0; i < rates.size(); ++i) {
    std::nth_element(rates[i].begin(), rates[i].begin() + kTurns / 2, rates[i].end());
    const double median = rates[i][kTurns / 2];
    printf("as fast as they can, %-14s: %.0f rounds/s, %.0f ns a round\n", names[i], median,
           1e9 / median);
  }
}

Options options_read(int argc, char** argv) {
  Options options;
  static const option kLong[] = {{"rate", 1, nullptr, 'r'},  {"seconds", 1, nullptr, 's'},
                                 {"reads", 1, nullptr, 'e'}, {"pairs", 1, nullptr, 'n'},
                                 {"proc", 0, nullptr, 'p'},  {"paced", 0, nullptr, 'a'},
                                 {"help", 0, nullptr, 'h'},  {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", kLong, nullptr)) != -1;) {
    if (c == 'r') options.rate = atof(optarg);
    if (c == 's') options.seconds = atof(optarg);
    if (c == 'e') options.reads = atof(optarg);
    if (c == 'n') options.pairs = atoi(optarg);
    if (c == 'p') options.proc = true;
    if (c == 'a') options.paced = true;
    if (c == 'h' || c == '?') {
      fputs(kUsage, c == 'h' ? stdout : stderr);
      exit(c == 'h' ? 0 : 2);
    }
  }
  if (optind == argc && options.rate > 0 && options.seconds > 0 && options.reads > 0 &&
      options.pairs > 0)
    return options;
  fputs("threads_bench: every number has to be positive, and nothing else is taken\n", stderr);
  exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = options_read(argc, argv);
  std::string reason;
  const auto open = [&] {
    return options.proc ? sluice::exporter::thread_watch_proc(20'000'000)
                        : sluice::exporter::thread_watch_bpf(&reason);
  };
  std::set<std::uint32_t> ours;
  const std::set<std::uint32_t> others = programs();
  auto watch = open();
  if (watch == nullptr) {
    printf("skipped: %s\n", reason.c_str());
    return kSkipped;
  }
  for (const std::uint32_t id : programs()) {
    if (others.count(id) == 0) ours.insert(id);
  }
  paced(*watch, ours, options);
  watch.reset();
  if (!options.paced) fast(open, options);
}
