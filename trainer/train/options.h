// The command line of sluice-train, checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/model/optimizer.h"
#include "trainer/train/schedule.h"

namespace sluice::train {

/// Which rank this process is; given by the launcher to the processes it starts.
struct RankPlace {
  int rank = -1;  // -1 = this is the launcher
  int rank_count = 1;
  int gpu_count = 1;
  int board_fd = -1;
  std::string directory;

  bool is_launcher() const { return rank < 0; }
};

/// Who has which training samples.
enum class Sharing : std::uint8_t {
  kIndex,       // every rank opens all data and takes its part of each global batch
  kPresharded,  // every rank opens shards of its own and trains on those alone
};

struct TrainOptions {
  int rank_count = 0;  // 0 = one per visible GPU
  int batch = 64;      // per rank
  std::vector<int> hidden = {128};
  double rate = 0.05;
  std::uint64_t rate_batch = 0;  // the global batch that the rate is meant for; 0 = any
  Schedule schedule = Schedule::kConstant;
  double rate_low = -1;           // of the schedule; -1 = its usual part of the rate
  std::uint64_t rate_warmup = 0;  // steps
  std::uint64_t rate_period = 0;  // steps of a triangle; 0 = two epochs
  OptimizerSettings optimizer;
  std::uint64_t steps = 0;
  double seconds = 0;
  std::uint64_t epochs = 0;  // with neither steps nor seconds nor epochs: one epoch
  std::uint64_t seed = 1;
  std::uint32_t eval_samples = 1000;
  std::uint64_t eval_every = 0;        // steps; 0 = only at the end
  std::string data = "fashion-mnist";  // or "synthetic", or a directory of shards
  Sharing sharing = Sharing::kIndex;
  std::string data_directory;
  std::uint32_t train_samples = 0;  // 0 = all
  int prefetch = 2;                 // batches made ahead; 0 = by the training thread
  std::uint64_t load_delay_us = 0;  // a planted slow store, per batch
  std::uint64_t bucket_kib = 1024;
  Algorithm algorithm = Algorithm::kRing;
  Engine engine = Engine::kAuto;
  LinkModel link;
  double timeout_s = 60;
  std::string log;
  std::string save;
  bool quiet = false;
  RankPlace place;
};

inline constexpr int kRanksMax = 64;
inline constexpr int kBatchMax = 65536;
inline constexpr int kPrefetchMax = 64;

/// Parses and checks. On --help or a mistake prints what is due and returns false with the exit
/// code.
bool train_options_parse(int argc, char** argv, TrainOptions* out, int* exit_code);

/// The argument that makes a process the rank of `place`, and back.
std::string place_format(const RankPlace& place);
bool place_parse(const std::string& text, RankPlace* out);

}  // namespace sluice::train
