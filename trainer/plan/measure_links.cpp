// The links of a calibration; see measure.h. On hardware a collective stands between two events of
// its stream. On software GPUs the collective is done as well, and then the modelled link is
// charged to a stream of its own between two events, as the reduction of gradients does it: Gloo's
// own time is this host's and in no figure.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "trainer/comm/nccl_sharing.h"
#include "trainer/plan/measure.h"

namespace sluice::train::planner {
namespace {

constexpr int kRoundsSoftware = 20;  // nothing is sent in them

struct Case {
  Operation operation;
  Algorithm algorithm;
};

class LinkBench {
 public:
  LinkBench(const MeasureOptions& options, const Device& device, Communicator& comm, int rank,
            int rank_count, std::size_t floats_max)
      : rounds_(device.is_software() ? kRoundsSoftware
                : options.quick      ? 2
                                     : 5),
        comm_(comm),
        rank_(rank),
        rank_count_(rank_count),
        stream_(device),
        data_(floats_max) {
    stream_.zero(data_.at(), floats_max);
    comm_.link_charge(false);
  }

  /// "pair LOW HIGH BYTES NS SPREAD\n" on the lower of the two ranks, nothing on others; all ranks
  /// call it, so that no two pairs are at it at once.
  std::string pair_measure(int low, int high, std::size_t floats) {
    if (!software()) comm_.barrier(stream_);
    if (rank_ != low && rank_ != high) return "";
    const std::size_t bytes = floats * sizeof(float);
    message(low, high, floats);  // sets it up
    std::vector<double> times;
    for (int round = 0; round < rounds_; ++round) {
      begin_.record(stream_);
      if (!software()) message(low, high, floats);
      stream_.link_delay(comm_.link_ns(Operation::kPointToPoint, bytes));
      end_.record(stream_);
      stream_.synchronize();
      times.push_back(static_cast<double>(end_.since(begin_)));
    }
    if (rank_ != low) return "";
    return text_format("pair %d %d %zu %s", low, high, bytes, times_text(times).c_str());
  }

  /// "OPERATION ALGORITHM BYTES NS SPREAD\n"; bytes as Communicator::link_ns counts them.
  std::string measure(const Case& what, std::size_t floats) {
    const std::size_t part = floats / static_cast<std::size_t>(rank_count_);
    const bool parts =
        what.operation == Operation::kReduceScatter || what.operation == Operation::kAllGather;
    if (parts) floats = part * static_cast<std::size_t>(rank_count_);
    const std::size_t bytes = floats * sizeof(float);
    once(what.operation, floats);  // sets it up
    std::vector<double> times;
    for (int round = 0; round < rounds_; ++round) {
      if (!software()) comm_.barrier(stream_);
      begin_.record(stream_);
      if (!software()) once(what.operation, floats);
      stream_.link_delay(comm_.link_ns(what.operation, bytes));
      end_.record(stream_);
      stream_.synchronize();
      times.push_back(static_cast<double>(end_.since(begin_)));
    }
    return text_format("%d %d %zu %s", static_cast<int>(what.operation),
                       static_cast<int>(what.algorithm), bytes, times_text(times).c_str());
  }

 private:
  bool software() const { return stream_.device().is_software(); }

  /// "NS SPREAD\n". On software GPUs whatever is above the least is this host's.
  std::string times_text(std::vector<double> times) const {
    std::sort(times.begin(), times.end());
    const double usual = software() ? times.front() : times[times.size() / 2];
    return text_format("%.9g %.9g\n", usual, (times.back() - times.front()) / std::max(usual, 1.0));
  }

  void message(int low, int high, std::size_t floats) {
    if (rank_ == low) comm_.send(stream_, data_.at(), floats, DataType::kFloat32, high);
    if (rank_ == high) comm_.receive(stream_, data_.at(), floats, DataType::kFloat32, low);
  }

  void once(Operation operation, std::size_t floats) {
    const std::size_t part = floats / static_cast<std::size_t>(rank_count_);
    const CUdeviceptr mine = data_.at(part * static_cast<std::size_t>(rank_));
    switch (operation) {
      case Operation::kAllReduce:
        return comm_.all_reduce(stream_, data_.at(), floats);
      case Operation::kReduceScatter:
        return comm_.reduce_scatter(stream_, data_.at(), mine, part);
      case Operation::kAllGather:
        return comm_.all_gather(stream_, mine, data_.at(), part);
      case Operation::kBroadcast:
        return comm_.broadcast(stream_, data_.at(), floats);
      case Operation::kPointToPoint:
        return message(0, 1, floats);
      case Operation::kReduce:
      case Operation::kBarrier:
        return;
    }
  }

  const int rounds_;
  Communicator& comm_;
  const int rank_, rank_count_;
  Stream stream_;
  DeviceArray<float> data_;
  Event begin_, end_;
};

std::vector<std::size_t> sizes(bool quick) {
  if (quick) return {1 << 10, 1 << 16};
  return {1 << 10, 1 << 14, 1 << 17, 1 << 20};
}

std::vector<Algorithm> algorithms_of(const std::string& engine, int rank_count) {
  if (engine != "gloo") return {Algorithm::kRing};  // the engine chooses by itself
  const bool whole = (rank_count & (rank_count - 1)) == 0;
  if (whole) return {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kBcube};
  return {Algorithm::kRing, Algorithm::kHalvingDoubling};
}

/// Returns when all ranks have come here. Not a barrier of a communicator: the first to pass that
/// would close its connections while others are still in it.
void leave_together(const MeasureOptions& options, int rank, int rank_count,
                    const std::string& directory) {
  const auto file = [&](int of) { return directory + "/done-" + std::to_string(of); };
  std::ofstream(file(rank)) << "done\n";
  const Nanos deadline = now_ns() + nanos_of_seconds(options.timeout_s);
  for (int other = 0; other < rank_count; ++other) {
    while (!std::filesystem::exists(file(other))) {
      if (now_ns() > deadline) throw Failure("a rank that measures links does not come to its end");
      sleep_until(now_ns() + kNanosPerMilli);
    }
  }
}

}  // namespace

std::string links_measure(const MeasureOptions& options, int rank, int rank_count, bool pairs,
                          const std::string& directory) {
  const int gpus = device_count();
  if (rank_count > gpus && options.engine != Engine::kGloo)
    nccl_sharing_set(
        nccl_sharing_variables(std::filesystem::path(directory).filename(), rank, "lo"));
  const Device device(rank % gpus);
  std::string lines;
  const auto comm_of = [&](Algorithm algorithm) {
    return comm_make({rank,
                      rank_count,
                      directory + "/" + algorithm_name(algorithm),
                      algorithm,
                      options.link,
                      options.timeout_s,
                      {}},
                     options.engine, rank_count <= gpus, device.is_software());
  };
  const auto measure_all = [&](Communicator& comm, const std::vector<Case>& cases) {
    LinkBench bench(options, device, comm, rank, rank_count, sizes(options.quick).back());
    for (const Case& one : cases)
      for (const std::size_t floats : sizes(options.quick)) lines += bench.measure(one, floats);
  };
  std::vector<std::unique_ptr<Communicator>> comms;
  comms.push_back(comm_of(Algorithm::kRing));
  const std::string engine = comms.front()->name();
  for (const Algorithm algorithm : algorithms_of(engine, rank_count)) {
    if (algorithm != Algorithm::kRing) comms.push_back(comm_of(algorithm));
    std::vector<Case> cases = {{Operation::kAllReduce, algorithm}};
    if (algorithm == Algorithm::kRing) {
      for (const Operation other : {Operation::kReduceScatter, Operation::kAllGather,
                                    Operation::kBroadcast, Operation::kPointToPoint})
        cases.push_back({other, algorithm});
    }
    measure_all(*comms.back(), cases);
  }
  if (pairs) {
    LinkBench bench(options, device, *comms.front(), rank, rank_count, sizes(options.quick).back());
    for (int low = 0; low < rank_count; ++low)
      for (int high = low + 1; high < rank_count; ++high)
        for (const std::size_t floats : sizes(options.quick))
          lines += bench.pair_measure(low, high, floats);
  }
  leave_together(options, rank, rank_count, directory);
  return engine + "\n" + lines;
}

std::vector<CollectiveRate> links_fit(const std::string& lines, int rank_count) {
  std::vector<CollectiveRate> rates;
  std::vector<std::vector<LinkSample>> samples;
  for (std::size_t at = 0; at < lines.size(); at = lines.find('\n', at) + 1) {
    if (lines.compare(at, 4, "pair") == 0) continue;
    int operation = 0, algorithm = 0;
    std::size_t bytes = 0;
    double ns = 0, spread = 0;
    if (std::sscanf(lines.c_str() + at, "%d %d %zu %lf %lf", &operation, &algorithm, &bytes, &ns,
                    &spread) != 5) {
      throw Failure("a rank's measurements of its links cannot be read");
    }
    CollectiveRate rate;
    rate.operation = static_cast<Operation>(operation);
    rate.algorithm = static_cast<Algorithm>(algorithm);
    rate.ranks = rank_count;
    const bool same = !rates.empty() && rates.back().operation == rate.operation &&
                      rates.back().algorithm == rate.algorithm;
    if (!same) {
      rates.push_back(rate);
      samples.emplace_back();
    }
    rates.back().spread = std::max(rates.back().spread, spread);
    samples.back().push_back({static_cast<double>(bytes), ns});
  }
  for (std::size_t i = 0; i < rates.size(); ++i) line_fit(samples[i], rates[i]);
  return rates;
}

std::vector<PairRate> pairs_fit(const std::string& lines) {
  std::vector<PairRate> pairs;
  std::vector<std::vector<LinkSample>> samples;
  for (std::size_t at = 0; at < lines.size(); at = lines.find('\n', at) + 1) {
    PairRate pair;
    std::size_t bytes = 0;
    double ns = 0, spread = 0;
    if (std::sscanf(lines.c_str() + at, "pair %d %d %zu %lf %lf", &pair.low, &pair.high, &bytes,
                    &ns, &spread) != 5) {
      continue;
    }
    if (pairs.empty() || pairs.back().low != pair.low || pairs.back().high != pair.high) {
      pair.line.operation = Operation::kPointToPoint;
      pairs.push_back(pair);
      samples.emplace_back();
    }
    pairs.back().line.spread = std::max(pairs.back().line.spread, spread);
    samples.back().push_back({static_cast<double>(bytes), ns});
  }
  for (std::size_t i = 0; i < pairs.size(); ++i) line_fit(samples[i], pairs[i].line);
  return pairs;
}

}  // namespace sluice::train::planner
