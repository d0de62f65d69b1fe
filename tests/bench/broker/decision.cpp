// What one decision of the broker's core costs: core::step alone, fed by a small world in virtual
// time in which a thousand tenants of every class want their GPUs, drain, end and are replaced from
// a queue that is always full. The same seed gives the same events, so the rounds of a run differ
// by what the machine did and not by what was decided; the digest of all actions says so.
//
//   broker_decision [--tenants N] [--gpus N] [--steps N] [--rounds N] [--mix all|plain] [--json]
//                   [--count KIND]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <queue>
#include <string>
#include <string_view>
#include <unordered_map>

#include "broker/core/core.h"
#include "broker/protocol/pages.h"
#include "broker/sim/random.h"

namespace {

using namespace sluice::core;
using sluice::sim::Random;

constexpr Nanos kUs = 1'000;
constexpr Nanos kMs = 1'000'000;
constexpr Nanos kForever = INT64_MAX / 2;
constexpr Bytes kMiB = Bytes{1} << 20;
constexpr std::uint32_t kQueueMin = 64;  // requests that wait at any time
constexpr std::uint32_t kPerUser = 32;   // tenants of one user
constexpr double kReplacedPerStep = 0.005;

struct Options {
  std::uint32_t tenants = 1000;
  std::uint32_t gpus = 8;
  std::size_t steps = 60'000;
  std::size_t rounds = 5;
  bool plain = false;  // batch tenants in best-effort mode alone: nothing changes by time
  bool json = false;
  std::string_view count;  // of this kind only are the instructions counted; empty = of all
};

/// What a step was asked, for the table; the names of events are too many.
enum Kind : std::uint8_t { kAsked, kEnded, kWant, kIdle, kDrained, kUsage, kTick, kKinds };
constexpr const char* kKindNames[kKinds] = {"asked",   "ended", "want", "idle",
                                            "drained", "usage", "tick"};

struct Sample {
  Kind kind;
  std::int64_t ns;
};

GpuUuid uuid_of(std::uint32_t n) {
  GpuUuid uuid{};
  uuid.bytes[0] = static_cast<std::uint8_t>(n + 1);
  return uuid;
}

std::int64_t clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

/// Not inlined: callgrind counts in here (broker_bench.py names it).
[[gnu::noinline]] std::vector<Action> decision_measured(State& state, const Event& event,
                                                        Nanos now) {
  return step(state, event, now);
}

class World {
 public:
  explicit World(const Options& options)
      : options_(options), random_(7), state_(state_create(policy())) {
    const std::uint32_t shared =
        std::max(1U, options.gpus - (options.gpus > 1 && !options.plain ? 1U : 0U));
    const std::uint32_t parts = gangs() ? 115 : 100;  // of GPUs in use, for 100 tenants
    const Bytes capacity = Bytes{options.tenants} * 64 * kMiB * parts / 100 / shared + 64 * kMiB;
    for (std::uint32_t g = 0; g < options.gpus; ++g)
      feed(kTick, GpuAdded{uuid_of(g), capacity, 32 * kMiB});
    if (options.gpus > 1 && !options.plain)  // one GPU is a trainer's, and another waits for it
      for (int i = 0; i < 2; ++i) ask(TenantClass::kExclusive, 1);
    while (living_ < options.tenants && queued_.size() < kQueueMin) ask();
    while (queued_.size() < kQueueMin) ask();
  }

  void run() {
    samples_.clear();
    samples_.reserve(options_.steps);
    measuring_ = true;
    while (samples_.size() < options_.steps) turn();
  }

  const std::vector<Sample>& samples() const { return samples_; }
  std::uint64_t digest() const { return digest_; }
  std::size_t living() const { return living_; }
  std::size_t queued() const { return queued_.size(); }

 private:
  struct Job {
    std::vector<std::uint32_t> epochs;  // by GPU index
    std::vector<Nanos> busy_ns;
    std::vector<Nanos> opened_at;
    std::uint32_t place = 0;  // in living list
  };
  struct Due {
    Nanos at;
    std::uint64_t order;
    Kind kind;
    TenantId tenant;
    std::uint32_t gpu;
    std::uint32_t epoch;
    bool operator>(const Due& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  static Policy policy() {
    Policy policy;
    policy.tenants_per_user_max = kPerUser;
    policy.tenants_max = 1 << 20;
    for (ClassPolicy& of_class : policy.classes) {
      of_class.window_ns = 4 * kMs;
      of_class.placement = PlacementRule::kPack;  // some GPUs full and some free, for the gangs
    }
    return policy;
  }

  TenantClass class_random() {
    if (options_.plain) return TenantClass::kBatch;
    constexpr TenantClass kClasses[] = {TenantClass::kInference, TenantClass::kDebug,
                                        TenantClass::kBatch, TenantClass::kBatch};
    return kClasses[below(4)];
  }

  std::uint64_t below(std::uint64_t n) { return random_.next() % n; }

  bool gangs() const { return !options_.plain && options_.gpus > 2; }

  void ask() {
    const TenantClass tenant_class = class_random();
    const bool gang = gangs() && random_.chance(0.1);
    ask(tenant_class, gang ? 2 + static_cast<std::uint32_t>(below(2)) : 1);
  }

  void ask(TenantClass tenant_class, std::uint32_t gpus) {
    TenantAsked asked;
    asked.request = ++requests_;
    asked.uid = static_cast<std::uint32_t>(1000 + requests_ / (kPerUser / 2));
    asked.tenant_class = tenant_class;
    constexpr SmMode kModes[] = {SmMode::kBestEffort, SmMode::kEqual, SmMode::kFixed};
    asked.sm_mode_given = true;
    asked.sm_mode = options_.plain ? SmMode::kBestEffort : kModes[below(3)];
    asked.sm_percent = 1 + static_cast<std::uint32_t>(below(5));
    asked.memory_max = 64 * kMiB;
    asked.gpu_count = gpus;
    if (tenant_class == TenantClass::kExclusive) asked.pinned = {uuid_of(0)};
    asked.name = "job-" + std::to_string(requests_);
    queued_.emplace(asked.request, true);
    feed(kAsked, asked);
  }

  void end(TenantId tenant) {
    feed(kEnded, FounderGone{tenant});
    feed(kEnded, ProcessGone{tenant});
  }

  void turn() {
    if (queued_.size() < kQueueMin) {
      ask();
      return;
    }
    if (random_.chance(kReplacedPerStep) && !list_.empty()) {
      end(list_[below(list_.size())]);
      ask();
      return;
    }
    if (due_.empty() || due_.top().at >= alarm_) {
      now_ = std::max(now_, alarm_);
      alarm_ = kForever;
      feed(kTick, Tick{});
      return;
    }
    const Due due = due_.top();
    due_.pop();
    const auto found = jobs_.find(due.tenant);
    if (found == jobs_.end()) return;
    now_ = std::max(now_, due.at);
    if (found->second.epochs[due.gpu] != due.epoch) return;
    if (due.kind == kWant) feed(kWant, GateWanted{due.tenant, due.gpu, due.epoch});
    if (due.kind == kIdle) feed(kIdle, GateIdle{due.tenant, due.gpu, due.epoch});
    if (due.kind == kDrained) {
      feed(kDrained, Drained{due.tenant, due.gpu, due.epoch});
      // Four of five have more to do at once.
      const Nanos pause = random_.chance(0.8) ? 20 * kUs : 50 * kMs;
      later(pause, kWant, due.tenant, due.gpu, due.epoch);
    }
  }

  void later(Nanos after, Kind kind, TenantId tenant, std::uint32_t gpu, std::uint32_t epoch) {
    due_.push(Due{now_ + after, ++order_, kind, tenant, gpu, epoch});
  }

  void feed(Kind kind, const Event& event) {
    const std::int64_t start = clock_ns();
    const bool counts = options_.count.empty() || options_.count == kKindNames[kind];
    const std::vector<Action> actions =
        counts ? decision_measured(*state_, event, now_) : step(*state_, event, now_);
    const std::int64_t taken = clock_ns() - start;
    if (measuring_) samples_.push_back(Sample{kind, taken});
    std::vector<UsageWanted> asked;
    for (const Action& action : actions) {
      digest_mix(action.index());
      if (const auto* wanted = std::get_if<UsageWanted>(&action)) asked.push_back(*wanted);
      std::visit([this](const auto& what) { carry_out(what); }, action);
    }
    for (const UsageWanted& wanted : asked) usage(wanted);
    now_ += kUs;
    while (!joins_.empty()) {
      const TenantId tenant = joins_.back();
      joins_.pop_back();
      feed(kAsked, ProcessJoined{tenant, tenant});
    }
  }

  void usage(const UsageWanted& wanted) {
    const auto found = jobs_.find(wanted.tenant);
    if (found == jobs_.end()) return;
    Job& job = found->second;
    if (job.opened_at[wanted.gpu_index] != 0) {
      job.busy_ns[wanted.gpu_index] += (now_ - job.opened_at[wanted.gpu_index]) * 9 / 10;
      job.opened_at[wanted.gpu_index] = now_;
    }
    feed(kUsage, UsageSeen{wanted.tenant, wanted.gpu_index, job.busy_ns[wanted.gpu_index]});
  }

  void carry_out(const TenantAdmitted& action) {
    queued_.erase(action.request);
    Job job;
    job.epochs.assign(action.gpus.size(), 1);
    job.busy_ns.assign(action.gpus.size(), 0);
    job.opened_at.assign(action.gpus.size(), 0);
    ++living_;
    const bool exclusive = action.gpus.size() == 1 && action.gpus[0] == uuid_of(0) &&
                           options_.gpus > 1 && !options_.plain;
    if (!exclusive) {
      job.place = static_cast<std::uint32_t>(list_.size());
      list_.push_back(action.tenant);
    }
    for (std::uint32_t g = 0; g < action.gpus.size(); ++g)
      later(static_cast<Nanos>(below(10'000)) * kUs, kWant, action.tenant, g, 1);
    jobs_.emplace(action.tenant, std::move(job));
    joins_.push_back(action.tenant);
    digest_mix(action.tenant);
  }
  void carry_out(const TenantEnded& action) {
    const auto found = jobs_.find(action.tenant);
    if (found == jobs_.end()) return;
    const std::uint32_t place = found->second.place;
    if (place < list_.size() && list_[place] == action.tenant) {
      list_[place] = list_.back();
      jobs_.at(list_[place]).place = place;
      list_.pop_back();
    }
    jobs_.erase(action.tenant);
    --living_;
  }
  void carry_out(const LeaseSet& action) {
    digest_mix(action.tenant * 8 + action.gpu_index);
    digest_mix(action.word);
    const auto found = jobs_.find(action.tenant);
    if (found == jobs_.end()) return;
    Job& job = found->second;
    const std::uint32_t g = action.gpu_index;
    const std::uint32_t epoch = sluice::protocol::lease_epoch(action.word);
    if (epoch == job.epochs[g]) return;
    job.epochs[g] = epoch;
    if ((action.word & sluice::protocol::kLeaseOpen) != 0) {
      job.opened_at[g] = now_;
      if ((action.word & sluice::protocol::kLeaseExclusive) == 0)
        later(static_cast<Nanos>(1 + below(15)) * kMs, kIdle, action.tenant, g, epoch);
    } else {
      if (job.opened_at[g] != 0) job.busy_ns[g] += (now_ - job.opened_at[g]) * 9 / 10;
      job.opened_at[g] = 0;
      later(static_cast<Nanos>(50 + below(500)) * kUs, kDrained, action.tenant, g, epoch);
    }
  }
  void carry_out(const TenantRefused& action) { queued_.erase(action.request); }
  void carry_out(const TenantQueued& action) { digest_mix(action.position); }
  void carry_out(const AlarmSet& action) {
    alarm_ = action.at;
    digest_mix(static_cast<std::uint64_t>(action.at));
  }
  template <class T>
  void carry_out(const T&) {}  // nothing that this world does depends on it
  void carry_out(const UsageWanted& action) { digest_mix(action.tenant); }

  void digest_mix(std::uint64_t value) {
    digest_ = (digest_ ^ value) * 0x100000001b3ULL;  // FNV-1a by words
  }

  Options options_;
  Random random_;
  std::unique_ptr<State, void (*)(State*)> state_;
  std::unordered_map<TenantId, Job> jobs_;
  std::vector<TenantId> list_;  // those that can be ended
  std::unordered_map<RequestId, bool> queued_;
  std::vector<TenantId> joins_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::vector<Sample> samples_;
  RequestId requests_ = 0;
  std::uint64_t order_ = 0;
  std::uint64_t digest_ = 0xcbf29ce484222325ULL;
  std::size_t living_ = 0;
  Nanos now_ = 1'000'000'000;
  Nanos alarm_ = kForever;
  bool measuring_ = false;
};

struct Figures {
  std::size_t count = 0;
  std::int64_t p50 = 0;
  std::int64_t p99 = 0;
  std::int64_t p999 = 0;
  std::int64_t most = 0;
};

Figures figures_of(std::vector<std::int64_t> ns) {
  if (ns.empty()) return {};
  std::ranges::sort(ns);
  const auto at = [&](double part) {
    return ns[std::min(ns.size() - 1,
                       static_cast<std::size_t>(part * static_cast<double>(ns.size())))];
  };
  return {ns.size(), at(0.5), at(0.99), at(0.999), ns.back()};
}

/// Of each step the fastest of the rounds: what the decision costs when nobody else has the core.
std::vector<Sample> fastest(const std::vector<std::vector<Sample>>& rounds) {
  std::vector<Sample> best = rounds.front();
  for (const std::vector<Sample>& round : rounds)
    for (std::size_t i = 0; i < best.size(); ++i) best[i].ns = std::min(best[i].ns, round[i].ns);
  return best;
}

std::vector<std::int64_t> ns_of(const std::vector<Sample>& samples, int kind) {
  std::vector<std::int64_t> ns;
  for (const Sample& sample : samples)
    if (kind == kKinds || sample.kind == kind) ns.push_back(sample.ns);
  return ns;
}

double us(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

void table_print(const std::vector<std::vector<Sample>>& rounds) {
  const std::vector<Sample> best = fastest(rounds);
  std::vector<Sample> all;
  for (const std::vector<Sample>& round : rounds) all.insert(all.end(), round.begin(), round.end());
  std::printf("%-10s %8s | %8s %8s %8s %8s | %8s %8s %8s\n", "us", "steps", "p50", "p99", "p99.9",
              "max", "raw p50", "raw p99", "raw max");
  for (int kind = 0; kind <= kKinds; ++kind) {
    const Figures quiet = figures_of(ns_of(best, kind));
    const Figures raw = figures_of(ns_of(all, kind));
    if (quiet.count == 0) continue;
    std::printf("%-10s %8zu | %8.2f %8.2f %8.2f %8.2f | %8.2f %8.2f %8.2f\n",
                kind == kKinds ? "all" : kKindNames[kind], quiet.count, us(quiet.p50),
                us(quiet.p99), us(quiet.p999), us(quiet.most), us(raw.p50), us(raw.p99),
                us(raw.most));
  }
}

void json_print(const Options& options, const std::vector<std::vector<Sample>>& rounds,
                std::uint64_t digest) {
  const std::vector<Sample> best = fastest(rounds);
  std::printf("{\"tenants\":%u,\"gpus\":%u,\"mix\":\"%s\",\"rounds\":%zu,\"digest\":\"%016llx\"",
              options.tenants, options.gpus, options.plain ? "plain" : "all", rounds.size(),
              static_cast<unsigned long long>(digest));
  for (int kind = 0; kind <= kKinds; ++kind) {
    const Figures f = figures_of(ns_of(best, kind));
    std::printf(
        ",\"%s\":{\"steps\":%zu,\"p50_ns\":%lld,\"p99_ns\":%lld,\"p999_ns\":%lld,"
        "\"max_ns\":%lld}",
        kind == kKinds ? "all" : kKindNames[kind], f.count, static_cast<long long>(f.p50),
        static_cast<long long>(f.p99), static_cast<long long>(f.p999),
        static_cast<long long>(f.most));
  }
  std::printf("}\n");
}

[[noreturn]] void usage_exit(std::string_view wrong) {
  std::fprintf(stderr,
               "broker_decision: '%.*s' is not understood\nusage: broker_decision [--tenants N] "
               "[--gpus N] [--steps N] [--rounds N] [--mix all|plain] [--count KIND] [--json]\n",
               static_cast<int>(wrong.size()), wrong.data());
  std::exit(2);
}

Options options_parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--json") {
      options.json = true;
      continue;
    }
    if (++i == argc) usage_exit(word);
    const std::string_view value = argv[i];
    if (word == "--count") {
      if (std::ranges::find(kKindNames, value) == std::end(kKindNames)) usage_exit(value);
      options.count = value;
      continue;
    }
    if (word == "--mix") {
      if (value != "all" && value != "plain") usage_exit(value);
      options.plain = value == "plain";
      continue;
    }
    char* end = nullptr;
    const unsigned long number = std::strtoul(argv[i], &end, 10);
    if (*end != '\0' || number == 0 || number > 10'000'000) usage_exit(value);
    if (word == "--tenants")
      options.tenants = static_cast<std::uint32_t>(number);
    else if (word == "--gpus")
      options.gpus = static_cast<std::uint32_t>(std::min(number, 64UL));
    else if (word == "--steps")
      options.steps = number;
    else if (word == "--rounds")
      options.rounds = number;
    else
      usage_exit(word);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = options_parse(argc, argv);
  std::vector<std::vector<Sample>> rounds;
  std::uint64_t digest = 0;
  for (std::size_t r = 0; r < options.rounds; ++r) {
    World world(options);
    world.run();
    if (r == 0 && !options.json)
      std::printf("%zu tenants on %u GPUs, %zu requests in the queue; digest %016llx\n",
                  world.living(), options.gpus, world.queued(),
                  static_cast<unsigned long long>(world.digest()));
    if (r > 0 && world.digest() != digest) {
      std::fprintf(stderr, "broker_decision: the same events led to other decisions\n");
      return 1;
    }
    digest = world.digest();
    rounds.push_back(world.samples());
  }
  if (options.json)
    json_print(options, rounds, digest);
  else
    table_print(rounds);
  return 0;
}
