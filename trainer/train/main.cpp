// sluice-train: launcher and ranks are the same program.
#include <cstdio>
#include <cstring>

#include "trainer/job/command_line.h"
#include "trainer/plan/commands.h"
#include "trainer/train/gpus.h"
#include "trainer/train/launcher.h"
#include "trainer/train/pack.h"
#include "trainer/train/rank.h"

int main(int argc, char** argv) {
  using namespace sluice::train;
  if (argc > 1 && std::strcmp(argv[1], "pack") == 0) {
    return program_main("sluice-train pack", [&] { return pack_run(argc - 1, argv + 1); });
  }
  if (argc > 1 && std::strcmp(argv[1], "calibrate") == 0) {
    return program_main("sluice-train calibrate",
                        [&] { return planner::calibrate_run(argc - 1, argv + 1); });
  }
  if (argc > 1 && std::strcmp(argv[1], "plan") == 0) {
    return program_main("sluice-train plan", [&] { return planner::plan_run(argc - 1, argv + 1); });
  }
  TrainOptions options;
  int exit_code = 0;
  if (!train_options_parse(argc, argv, &options, &exit_code)) return exit_code;
  try {
    if (options.place.is_launcher()) return launcher_run(options, argc, argv);
    gpu_sharing_prepare(options);
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
