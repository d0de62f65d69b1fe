// `sluice-train calibrate` and `sluice-train plan`.
#pragma once

namespace sluice::train::planner {

/// Both return the exit code and throw Failure; argv[0] is the subcommand.
int calibrate_run(int argc, char** argv);
int plan_run(int argc, char** argv);

}  // namespace sluice::train::planner
