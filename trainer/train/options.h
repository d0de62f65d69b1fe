// The command line of sluice-train, checked.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/data/tokenizer.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/model/loss_scale.h"
#include "trainer/model/optimizer.h"
#include "trainer/train/fault_options.h"
#include "trainer/train/node_options.h"
#include "trainer/train/schedule.h"

namespace sluice::train {

/// Which rank this process is; given by the launcher to the processes it starts.
struct RankPlace {
  int rank = -1;  // -1 = this is the launcher
  int rank_count = 1;
  int gpu_count = 1;
  int board_fd = -1;
  /// The worker that the process is: its line on the board and its GPU. The same as the rank, until
  /// the members of the job change (membership.h).
  int slot = -1;
  bool joins = false;     // a replacement: its rank is what the next membership says
  std::string directory;  // where they meet, or a place in the network (comm/store.h)

  bool is_launcher() const { return rank < 0; }
};

enum class Model : std::uint8_t { kMlp, kCnn, kGpt };

/// Who has what of the model.
enum class Strategy : std::uint8_t {
  kData,     // every rank all weights and the optimizer's whole state
  kSharded,  // every rank all weights, and the state of its part of them
  kAsync,    // rank 0 weights and state, which it serves; the others gradients (async.h)
};

/// Fewer bytes on the wire for the same gradients: compression.h.
enum class Compression : std::uint8_t { kNone, kFp16, kBf16, kTopk, kPowersgd };
inline constexpr int kPowersgdRankMax = 32;

struct CompressionSettings {
  Compression kind = Compression::kNone;
  double ratio = 1;  // of kTopk, in (0, 1]
  int rank = 0;      // of kPowersgd

  /// What is not sent in a step is kept for the next.
  bool keeps_rest() const { return kind == Compression::kTopk || kind == Compression::kPowersgd; }

  std::string text() const;
};

/// "none", "fp16", "bf16", "topk:RATIO" or "powersgd:RANK".
std::optional<CompressionSettings> compression_parse(const std::string& text);

/// Who has which training samples.
enum class Sharing : std::uint8_t {
  kIndex,       // every rank opens all data and takes its part of each global batch
  kScatter,     // rank 0 opens all data and sends the others their parts of each global batch
  kPresharded,  // every rank opens shards of its own and trains on those alone
};

/// A rank that sleeps in every `every`-th of its steps.
struct SlowRank {
  int rank = -1;  // -1 = none
  std::uint64_t us = 0;
  std::uint64_t every = 1;
};

/// "RANK:US" or "RANK:US:EVERY".
std::optional<SlowRank> slow_parse(const std::string& text);

/// What a plan that is chosen leaves as it was given.
struct PlanFixed {
  bool strategy = false;
  bool bucket = false;
  bool algorithm = false;
  bool grid = false;  // --tensor, --pipeline and micro-batches
};

struct TrainOptions {
  int rank_count = 0;       // 0 = one per visible GPU
  bool start_self = false;  // whatever mpirun or srun say
  int batch = 64;           // per rank and micro-batch
  int accumulate = 1;       // micro-batches of a step
  int tensor = 1;           // ranks that share out every layer
  int pipeline = 1;         // stages of consecutive layers
  Model model = Model::kMlp;
  std::vector<int> hidden = {128};      // of mlp and cnn
  std::vector<int> channels = {8, 16};  // of cnn: filters of its convolutions
  GptShape gpt;                         // of gpt; its vocabulary follows from the two files
  std::string vocabulary;               // GPT-2's vocab.json and merges.txt; none = bytes
  std::string merges;
  double rate = 0.05;
  std::uint64_t rate_batch = 0;  // the global batch that the rate is meant for; 0 = any
  Schedule schedule = Schedule::kConstant;
  double rate_low = -1;           // of the schedule; -1 = its usual part of the rate
  std::uint64_t rate_warmup = 0;  // steps
  std::uint64_t rate_period = 0;  // steps of a triangle; 0 = two epochs
  OptimizerSettings optimizer;
  Precision precision = Precision::kFp32;
  GemmChoice gemm = GemmChoice::kAuto;  // who computes 16-bit products
  LossScaleSettings loss_scale;         // of fp16
  std::uint64_t overflow_step = 0;      // a planted overflow of gradients, in this step; 0 = none
  std::uint64_t steps = 0;
  double seconds = 0;
  std::uint64_t epochs = 0;  // with neither steps nor seconds nor epochs: one epoch
  std::uint64_t seed = 1;
  std::uint32_t eval_samples = 1000;
  std::uint64_t eval_every = 0;  // steps; 0 = only at the end
  // fashion-mnist, synthetic or a directory of shards; for gpt synthetic or a file
  std::string data = "fashion-mnist";
  Sharing sharing = Sharing::kIndex;
  std::string data_directory;
  std::uint32_t train_samples = 0;  // 0 = all
  int prefetch = 2;                 // batches made ahead; 0 = by the training thread
  std::uint64_t load_delay_us = 0;  // a planted slow store, per batch
  std::uint64_t bucket_bytes = 1 << 20;
  bool overlap = true;
  Strategy strategy = Strategy::kData;
  std::uint64_t staleness = 4;  // of kAsync: steps that a worker may be ahead of the slowest
  SlowRank slow;                // a planted straggler
  bool offload = false;         // the optimizer's state in the host's memory
  CompressionSettings compression;
  Algorithm algorithm = Algorithm::kRing;
  Engine engine = Engine::kAuto;
  LinkModel link;
  WireThrottle throttle;
  double timeout_s = 60;
  bool plan_auto = false;  // by trainer/plan, but for plan_fixed
  PlanFixed plan_fixed;
  std::string calibration;  // what plan_auto predicts from; none = measured at the start
  std::string log;
  std::string timeline;  // a Chrome trace of the first steps; none = none
  std::uint64_t timeline_steps = 100;
  std::string save;
  bool quiet = false;
  FaultOptions faults;
  NodeOptions nodes;
  RankPlace place;

  /// Samples of a rank in a step.
  int rank_batch() const { return batch * accumulate; }
  /// Of so many ranks those that train; the first of them is rank_count less these.
  int worker_count(int ranks) const { return strategy == Strategy::kAsync ? ranks - 1 : ranks; }
  bool is_server() const { return strategy == Strategy::kAsync && place.rank == 0; }
};

inline constexpr int kRanksMax = 64;
inline constexpr int kBatchMax = 65536;
inline constexpr int kPrefetchMax = 64;

/// The one that the options name.
std::unique_ptr<Tokenizer> tokenizer_make(const TrainOptions& options);

/// Parses and checks. On --help or a mistake prints what is due and returns false with the exit
/// code.
bool train_options_parse(int argc, char** argv, TrainOptions* out, int* exit_code);

/// The argument that makes a process the rank of `place`, and back.
std::string place_format(const RankPlace& place);
bool place_parse(const std::string& text, RankPlace* out);

}  // namespace sluice::train
