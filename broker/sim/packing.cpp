#include "broker/sim/packing.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>

#include "broker/protocol/words.h"
#include "broker/sim/random.h"
#include "broker/sim/units.h"

namespace sluice::sim {
namespace {

constexpr std::uint32_t kWhole = 100;
constexpr Bytes kCapacity = Bytes{100} * kGiB;  // quotas are the same part of it as the shares are

std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> out(1);
  for (const char c : line) {
    if (c == ',')
      out.emplace_back();
    else if (c != '\r')
      out.back() += c;
  }
  return out;
}

std::optional<std::uint32_t> number(const std::string& text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// How often each kind of pod is drawn.
using Kinds = std::map<std::pair<std::uint32_t, std::uint32_t>, double>;

Kinds kinds_of(const std::vector<Pod>& pods) {
  Kinds kinds;
  for (const Pod& pod : pods)
    kinds[{pod.gpus, pod.percent}] += 1.0 / static_cast<double>(pods.size());
  return kinds;
}

using Free = std::vector<std::uint32_t>;  // per cent of each GPU

/// What of the free parts a pod cannot use: all where it does not fit at all, else those that are
/// too small for it.
double fragment(const Free& free, std::uint32_t gpus, std::uint32_t percent) {
  const auto fitting = std::ranges::count_if(free, [&](std::uint32_t f) { return f >= percent; });
  double sum = 0;
  for (const std::uint32_t f : free)
    if (f < percent || static_cast<std::uint32_t>(fitting) < gpus) sum += f;
  return sum;
}

/// The mean of that over the pods of the list.
double fragmentation(const Free& free, const Kinds& kinds) {
  double sum = 0;
  for (const auto& [kind, part] : kinds) sum += part * fragment(free, kind.first, kind.second);
  return sum;
}

/// Where a pod goes; empty = it does not fit.
class Placer {
 public:
  virtual ~Placer() = default;
  virtual std::vector<std::uint32_t> place(const Pod& pod, const Free& free) = 0;
};

class CorePlacer : public Placer {
 public:
  CorePlacer(core::PlacementRule rule, std::uint32_t gpus)
      : core_(core::state_create(policy(rule))) {
    for (std::uint32_t g = 0; g < gpus; ++g) {
      core::GpuUuid uuid{};
      uuid.bytes[0] = static_cast<std::uint8_t>(g + 1);
      core::step(*core_, core::GpuAdded{uuid, kCapacity, 1}, 0);
    }
  }

  std::vector<std::uint32_t> place(const Pod& pod, const Free&) override {
    core::TenantAsked ask;
    ask.request = ++requests_;
    ask.sm_percent = pod.percent;
    ask.memory_max = kCapacity / kWhole * pod.percent;
    ask.gpu_count = pod.gpus;
    ask.no_wait = true;
    std::vector<std::uint32_t> gpus;
    for (const core::Action& action : core::step(*core_, ask, 0))
      if (const auto* admitted = std::get_if<core::TenantAdmitted>(&action))
        for (const core::GpuUuid& uuid : admitted->gpus) gpus.push_back(uuid.bytes[0] - 1U);
    return gpus;
  }

 private:
  static core::Policy policy(core::PlacementRule rule) {
    core::Policy policy;
    policy.tenants_per_user_max = policy.tenants_max = UINT32_MAX;
    for (core::ClassPolicy& one : policy.classes) {
      one.placement = rule;
      one.sm = core::SmRule::kGuaranteed;
    }
    return policy;
  }

  std::unique_ptr<core::State, void (*)(core::State*)> core_;
  core::RequestId requests_ = 0;
};

class GradientPlacer : public Placer {
 public:
  explicit GradientPlacer(Kinds kinds) : kinds_(std::move(kinds)) {}

  std::vector<std::uint32_t> place(const Pod& pod, const Free& free) override {
    std::vector<std::uint32_t> fitting;
    for (std::uint32_t g = 0; g < free.size(); ++g)
      if (free[g] >= pod.percent) fitting.push_back(g);
    if (fitting.size() < pod.gpus) return {};
    if (pod.gpus == 1) {
      const auto after = [&](std::uint32_t g) {
        Free then = free;
        then[g] -= pod.percent;
        return fragmentation(then, kinds_);
      };
      std::vector<std::pair<double, std::uint32_t>> costs;
      for (const std::uint32_t g : fitting) costs.emplace_back(after(g), g);
      return {std::ranges::min_element(costs)->second};
    }
    fitting.resize(pod.gpus);  // they are whole GPUs, of which one is as good as the other
    return fitting;
  }

 private:
  Kinds kinds_;
};

std::unique_ptr<Placer> placer_make(PackingRule rule, std::uint32_t gpus, const Kinds& kinds) {
  if (rule == PackingRule::kGradient) return std::make_unique<GradientPlacer>(kinds);
  const auto placement =
      rule == PackingRule::kPack ? core::PlacementRule::kPack : core::PlacementRule::kSpread;
  return std::make_unique<CorePlacer>(placement, gpus);
}

struct Figure {
  double mean = 0, deviation = 0;
};

Figure figure_of(const std::vector<Packing>& runs, double Packing::*member) {
  const auto n = static_cast<double>(runs.size());
  Figure out;
  for (const Packing& run : runs) out.mean += run.*member / n;
  for (const Packing& run : runs) out.deviation += std::pow(run.*member - out.mean, 2) / n;
  out.deviation = std::sqrt(out.deviation);
  return out;
}

}  // namespace

std::vector<Pod> pods_read(std::istream& in, std::string* error) {
  const auto fail = [error](const std::string& text) {
    *error = text;
    return std::vector<Pod>{};
  };
  std::string line;
  if (!std::getline(in, line)) return fail("it is empty");
  const std::vector<std::string> names = cells(line);
  const auto column = [&](const char* name) {
    return static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
  };
  const std::size_t gpus_at = column("num_gpu");
  const std::size_t milli_at = column("gpu_milli");
  if (gpus_at == names.size() || milli_at == names.size())
    return fail("its first line has no num_gpu and gpu_milli");
  std::vector<Pod> pods;
  for (std::uint32_t number_of_line = 2; std::getline(in, line); ++number_of_line) {
    const std::vector<std::string> row = cells(line);
    const auto gpus = gpus_at < row.size() ? number(row[gpus_at]) : std::nullopt;
    const auto milli = milli_at < row.size() ? number(row[milli_at]) : std::nullopt;
    constexpr std::uint32_t kMilli = 1000;
    if (!gpus || !milli || *milli > kMilli)
      return fail("line " + std::to_string(number_of_line) + " has no such numbers");
    if (*gpus == 0 || *milli == 0 || *gpus > protocol::kTenantGpusMax) continue;
    const std::uint32_t percent = *gpus > 1 ? kWhole : (*milli * kWhole + kMilli - 1) / kMilli;
    pods.push_back({*gpus, percent});
  }
  if (pods.empty()) return fail("no pod in it asks for a GPU");
  return pods;
}

const char* packing_rule_name(PackingRule rule) {
  constexpr std::array<const char*, 3> kNames{"spread", "pack", "gradient"};
  return kNames[static_cast<std::size_t>(rule)];
}

Packing packing_run(const std::vector<Pod>& pods, PackingRule rule, std::uint32_t gpus,
                    std::uint64_t seed) {
  constexpr double kBeyond = 1.3;
  const Kinds kinds = kinds_of(pods);
  const auto placer = placer_make(rule, gpus, kinds);
  const double all = kWhole * static_cast<double>(gpus);
  Random random(seed);
  Free free(gpus, kWhole);
  Packing out;
  double asked = 0, used = 0;
  for (bool full = false; asked < kBeyond * all;) {
    const Pod& pod =
        pods[static_cast<std::size_t>(random.range(0, static_cast<std::int64_t>(pods.size()) - 1))];
    const double wanted = static_cast<double>(pod.gpus) * pod.percent;
    asked += wanted;
    const std::vector<std::uint32_t> where = placer->place(pod, free);
    for (const std::uint32_t g : where) free[g] -= pod.percent;
    if (!where.empty()) used += wanted;
    if (full || asked < all) continue;
    full = true;
    out.allocated_at_100 = used / all;
    out.useless_at_100 = fragmentation(free, kinds) / all;
  }
  out.allocated_at_130 = used / all;
  return out;
}

std::string packing_table(const std::vector<Pod>& pods, std::uint32_t gpus, std::uint64_t seed,
                          std::uint32_t runs) {
  char line[160];
  std::snprintf(line, sizeof line,
                "%zu pods, %u GPUs, %u runs from seed %llu; mean (deviation), %%\n", pods.size(),
                gpus, runs, static_cast<unsigned long long>(seed));
  std::string out = line;
  out += "rule        in use at 100 % asked   at 130 % asked   free and useless at 100 %\n";
  for (const PackingRule rule : kPackingRules) {
    std::vector<Packing> all;
    for (std::uint32_t i = 0; i < runs; ++i) all.push_back(packing_run(pods, rule, gpus, seed + i));
    const Figure at_100 = figure_of(all, &Packing::allocated_at_100);
    const Figure at_130 = figure_of(all, &Packing::allocated_at_130);
    const Figure useless = figure_of(all, &Packing::useless_at_100);
    std::snprintf(line, sizeof line, "%-11s %11.1f (%4.1f) %13.1f (%4.1f) %15.1f (%4.1f)\n",
                  packing_rule_name(rule), 100 * at_100.mean, 100 * at_100.deviation,
                  100 * at_130.mean, 100 * at_130.deviation, 100 * useless.mean,
                  100 * useless.deviation);
    out += line;
  }
  return out;
}

}  // namespace sluice::sim
