// sluice-load: a synthetic tenant. It launches kernels of a known length in a pattern, so that
// shares, latencies and steps can be measured where the work itself does not matter.
#include "trainer/job/command_line.h"
#include "trainer/load/options.h"
#include "trainer/load/patterns.h"

int main(int argc, char** argv) {
  using namespace sluice::train;
  LoadOptions options;
  int exit_code = 0;
  if (!load_options_parse(argc, argv, &options, &exit_code)) return exit_code;
  return program_main("sluice-load", [&] {
    load_run(options);
    return 0;
  });
}
