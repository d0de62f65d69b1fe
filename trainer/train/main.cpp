// sluice-train: launcher and ranks are the same program.
#include <cstdio>

#include "trainer/train/launcher.h"
#include "trainer/train/rank.h"

int main(int argc, char** argv) {
  using namespace sluice::train;
  TrainOptions options;
  int exit_code = 0;
  if (!train_options_parse(argc, argv, &options, &exit_code)) return exit_code;
  try {
    if (options.place.is_launcher()) return launcher_run(options, argc, argv);
    rank_run(options);
    return 0;
  } catch (const PeerFailure& failure) {
    std::fprintf(stderr, "sluice: sluice-train: rank %d: %s\n", options.place.rank, failure.what());
    return kPeerLostExit;
  } catch (const std::exception& failure) {
    if (options.place.is_launcher()) {
      std::fprintf(stderr, "sluice: sluice-train: %s\n", failure.what());
    } else {
      std::fprintf(stderr, "sluice: sluice-train: rank %d: %s\n", options.place.rank,
                   failure.what());
    }
    return 1;
  }
}
