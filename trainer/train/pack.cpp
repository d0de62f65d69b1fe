// See pack.h.
#include "trainer/train/pack.h"

#include <cstdio>

#include "trainer/data/shard.h"
#include "trainer/job/command_line.h"
#include "trainer/train/feed.h"

namespace sluice::train {

int pack_run(int argc, char** argv) {
  TrainOptions options;
  options.data_directory = kFashionDirectory;
  std::string out;
  std::uint64_t shards = 1;
  CommandLine line("sluice-train pack",
                   "Writes a data set as shards, which sluice-train --data DIRECTORY maps.");
  line.word("--data", options.data, "what to write", {"fashion-mnist", "synthetic"});
  line.text("--data-dir", options.data_directory, "directory of the four Fashion-MNIST files");
  line.number("--train-samples", options.train_samples, "only the first N; 0 = all");
  line.number("--seed", options.seed, "of synthetic data");
  line.text("--out", out, "directory to write to; made where it is not");
  line.number("--shards", shards, "training files, of equal length up to one image", 1, kShardsMax);
  int exit_code = 0;
  const auto check = [&] {
    if (out.empty()) throw Failure("--out must name a directory");
  };
  if (!line.parse(argc, argv, &exit_code, check)) return exit_code;

  const Dataset data = dataset_make(options);
  shards_write(out, data, static_cast<std::uint32_t>(shards));
  std::printf("packed %s: %u training images in %llu shard%s, %u test images, into %s\n",
              data.name.c_str(), data.train.size(), static_cast<unsigned long long>(shards),
              shards == 1 ? "" : "s", data.test.size(), out.c_str());
  return 0;
}

}  // namespace sluice::train
