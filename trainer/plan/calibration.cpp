// See calibration.h.
#include "trainer/plan/calibration.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "trainer/base/failure.h"

namespace sluice::train::planner {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 2;
constexpr std::uintmax_t kFileBytesMax = 4 << 20;

Json rate_json(WorkKind kind, const Rate& rate) {
  return {{"work", work_name(kind)},
          {"ns", std::vector<double>(rate.ns.begin(), rate.ns.end())},
          {"residual", rate.residual},
          {"spread", rate.spread},
          {"samples", rate.samples}};
}

Json link_json(const CollectiveRate& rate) {
  return {{"operation", operation_name(rate.operation)},
          {"algorithm", algorithm_name(rate.algorithm)},
          {"ranks", rate.ranks},
          {"alpha_ns", rate.alpha_ns},
          {"ns_per_byte", rate.ns_per_byte},
          {"residual", rate.residual},
          {"spread", rate.spread},
          {"samples", rate.samples}};
}

double finite(const Json& json, const char* key) {
  const double value = json.at(key).get<double>();
  if (!std::isfinite(value)) throw Failure(std::string(key) + " is not a number");
  return value;
}

double not_negative(const Json& json, const char* key) {
  const double value = finite(json, key);
  if (value < 0) throw Failure(std::string(key) + " is negative");
  return value;
}

void rate_parse(const Json& json, KernelRates& out) {
  const auto kind = work_parse(json.at("work").get<std::string>());
  if (!kind) return;  // a kernel that this build does not have
  Rate rate;
  const auto ns = json.at("ns").get<std::vector<double>>();
  if (ns.size() != kAmountCount) throw Failure("a rate has not four values");
  for (std::size_t i = 0; i < kAmountCount; ++i) {
    if (!std::isfinite(ns[i])) throw Failure("a rate is not a number");
    rate.ns[i] = ns[i];
  }
  rate.residual = finite(json, "residual");
  rate.spread = finite(json, "spread");
  rate.samples = json.at("samples").get<int>();
  out.rates[*kind] = rate;
}

Operation operation_parse(const std::string& name) {
  for (std::size_t i = 0; i < kOperationCount; ++i)
    if (name == operation_name(static_cast<Operation>(i))) return static_cast<Operation>(i);
  throw Failure("unknown operation '" + name + "'");
}

CollectiveRate link_parse(const Json& json) {
  CollectiveRate rate;
  rate.operation = operation_parse(json.at("operation").get<std::string>());
  const auto algorithm = algorithm_parse(json.at("algorithm").get<std::string>());
  if (!algorithm) throw Failure("unknown algorithm");
  rate.algorithm = *algorithm;
  rate.ranks = json.at("ranks").get<int>();
  rate.alpha_ns = not_negative(json, "alpha_ns");
  rate.ns_per_byte = not_negative(json, "ns_per_byte");
  rate.residual = finite(json, "residual");
  rate.spread = finite(json, "spread");
  rate.samples = json.at("samples").get<int>();
  return rate;
}

Json pair_json(const PairRate& pair) {
  return {{"ranks", {pair.low, pair.high}},       {"alpha_ns", pair.line.alpha_ns},
          {"ns_per_byte", pair.line.ns_per_byte}, {"residual", pair.line.residual},
          {"spread", pair.line.spread},           {"samples", pair.line.samples}};
}

PairRate pair_parse(const Json& json) {
  PairRate pair;
  pair.low = json.at("ranks").at(0).get<int>();
  pair.high = json.at("ranks").at(1).get<int>();
  if (pair.low < 0 || pair.high <= pair.low) throw Failure("a pair of ranks is none");
  pair.line.operation = Operation::kPointToPoint;
  pair.line.alpha_ns = not_negative(json, "alpha_ns");
  pair.line.ns_per_byte = not_negative(json, "ns_per_byte");
  pair.line.residual = finite(json, "residual");
  pair.line.spread = finite(json, "spread");
  pair.line.samples = json.at("samples").get<int>();
  return pair;
}

Calibration calibration_of(const Json& json) {
  if (json.at("format").get<int>() != kFormat) {
    throw Failure(text_format("its format is %d, and this program reads %d",
                              json.at("format").get<int>(), kFormat));
  }
  Calibration out;
  out.date = json.at("date").get<std::string>();
  out.engine = json.at("engine").get<std::string>();
  const Json& device = json.at("device");
  out.device = {device.at("name").get<std::string>(), device.at("count").get<int>(),
                device.at("multiprocessors").get<int>(),
                device.at("memory_bytes").get<std::uint64_t>(), device.at("software").get<bool>()};
  if (out.device.multiprocessors < 1 || out.device.count < 1)
    throw Failure("its device has no multiprocessors");
  out.link = {not_negative(json.at("link"), "alpha_us"), not_negative(json.at("link"), "gbps")};
  out.kernels.multiprocessors = out.device.multiprocessors;
  out.kernels.launch_ns = not_negative(json, "launch_ns");
  out.kernels.host_ns = not_negative(json, "host_ns");
  for (const Json& one : json.at("rates")) rate_parse(one, out.kernels);
  for (const Json& one : json.at("collectives")) out.links.rates.push_back(link_parse(one));
  for (const Json& one : json.at("pairs")) out.links.pairs.push_back(pair_parse(one));
  return out;
}

}  // namespace

std::string calibration_json(const Calibration& c) {
  Json json = {{"format", kFormat},
               {"date", c.date},
               {"device",
                {{"name", c.device.name},
                 {"count", c.device.count},
                 {"multiprocessors", c.device.multiprocessors},
                 {"memory_bytes", c.device.memory_bytes},
                 {"software", c.device.software}}},
               {"engine", c.engine},
               {"link", {{"alpha_us", c.link.alpha_us}, {"gbps", c.link.gigabits_per_s}}},
               {"launch_ns", c.kernels.launch_ns},
               {"host_ns", c.kernels.host_ns},
               {"rates", Json::array()},
               {"collectives", Json::array()},
               {"pairs", Json::array()}};
  for (WorkKind kind = 0; kind < kWorkKinds; ++kind) {
    if (c.kernels.rates[kind].samples > 0)
      json["rates"].push_back(rate_json(kind, c.kernels.rates[kind]));
  }
  for (const CollectiveRate& rate : c.links.rates) json["collectives"].push_back(link_json(rate));
  for (const PairRate& pair : c.links.pairs) json["pairs"].push_back(pair_json(pair));
  return json.dump(1) + "\n";
}

Calibration calibration_parse(const std::string& text, const std::string& path) {
  try {
    return calibration_of(Json::parse(text));
  } catch (const Json::exception& error) {
    throw Failure("--calibration " + path + " is none: " + error.what());
  } catch (const Failure& failure) {
    throw Failure("--calibration " + path + " is none: " + failure.what());
  }
}

Calibration calibration_read(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw errno_failure("reading --calibration " + path);
  if (file.tellg() < 0 || static_cast<std::uintmax_t>(file.tellg()) > kFileBytesMax)
    throw Failure("--calibration " + path + " is none: it is too long");
  file.seekg(0);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return calibration_parse(text, path);
}

void calibration_write(const std::string& path, const Calibration& calibration) {
  const std::string fresh = path + ".new";
  {
    std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
    file << calibration_json(calibration);
    file.close();
    if (!file) throw errno_failure("writing " + fresh);
  }
  if (std::rename(fresh.c_str(), path.c_str()) != 0) {
    const Failure failure = errno_failure("renaming " + fresh);
    unlink(fresh.c_str());
    throw failure;
  }
}

void calibration_check(const Calibration& c, const std::string& path, const DeviceFacts& device,
                       const LinkModel& link) {
  const auto facts = [](const DeviceFacts& one) {
    return text_format("%s, %d multiprocessors, %llu MiB", one.name.c_str(), one.multiprocessors,
                       static_cast<unsigned long long>(one.memory_bytes >> 20));
  };
  const bool same = c.device.name == device.name &&
                    c.device.multiprocessors == device.multiprocessors &&
                    c.device.memory_bytes == device.memory_bytes &&
                    c.device.count == device.count && c.device.software == device.software;
  if (!same) {
    throw Failure(
        text_format("--calibration %s is of %d x %s; here are %d x %s: make one here with "
                    "sluice-train calibrate",
                    path.c_str(), c.device.count, facts(c.device).c_str(), device.count,
                    facts(device).c_str()));
  }
  if (device.software &&
      (c.link.alpha_us != link.alpha_us || c.link.gigabits_per_s != link.gigabits_per_s)) {
    throw Failure(
        text_format("--calibration %s is of links of %g us and %g Gbit/s, this job's are "
                    "of %g us and %g Gbit/s: make one with sluice-train calibrate "
                    "--link-alpha-us %g --link-gbps %g",
                    path.c_str(), c.link.alpha_us, c.link.gigabits_per_s, link.alpha_us,
                    link.gigabits_per_s, link.alpha_us, link.gigabits_per_s));
  }
}

std::string calibration_text(const Calibration& c) {
  std::string text = text_format(
      "%d x %s, %d multiprocessors; a kernel takes %.2f us at least, the host %.2f us to ask for "
      "it\n%-30s %34s %9s %8s\n",
      c.device.count, c.device.name.c_str(), c.device.multiprocessors, c.kernels.launch_ns / 1e3,
      c.kernels.host_ns / 1e3, "work", "ns of each amount", "residual", "spread");
  for (WorkKind kind = 0; kind < kWorkKinds; ++kind) {
    const Rate& rate = c.kernels.rates[kind];
    if (rate.samples == 0) continue;
    std::string amounts;
    for (const double one : rate.ns)
      if (one != 0) amounts += text_format(" %.4g", one);
    text += text_format("%-30s %34s %8.2f%% %7.2f%%\n", work_name(kind), amounts.c_str(),
                        100 * rate.residual, 100 * rate.spread);
  }
  text += text_format("%-16s %-18s %5s %11s %13s %9s %8s\n", "collective", "algorithm", "ranks",
                      "alpha us", "bytes/us", "residual", "spread");
  for (const CollectiveRate& rate : c.links.rates) {
    text += text_format("%-16s %-18s %5d %11.2f %13.1f %8.2f%% %7.2f%%\n",
                        operation_name(rate.operation), algorithm_name(rate.algorithm), rate.ranks,
                        rate.alpha_ns / 1e3, rate.ns_per_byte > 0 ? 1e3 / rate.ns_per_byte : 0.0,
                        100 * rate.residual, 100 * rate.spread);
  }
  for (const PairRate& pair : c.links.pairs) {
    const CollectiveRate& line = pair.line;
    text += text_format("%-16s %-18s %2d-%-2d %11.2f %13.1f %8.2f%% %7.2f%%\n", "a message",
                        "between ranks", pair.low, pair.high, line.alpha_ns / 1e3,
                        line.ns_per_byte > 0 ? 1e3 / line.ns_per_byte : 0.0, 100 * line.residual,
                        100 * line.spread);
  }
  return text;
}

}  // namespace sluice::train::planner
