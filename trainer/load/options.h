// The command line of sluice-load, checked.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::train {

struct LoadOptions {
  std::string pattern = "loop";
  std::string kernel = "load";  // its name
  int kernel_us = 1000;
  int kernels = 1;
  int depth = 2;        // in flight, of loop
  int streams = 1;      // of streams and once
  int pause_us = 0;     // mean pause between bursts, of bursts
  int gap_us = 10000;   // mean time from one request to the next
  int host_us = 0;      // on the host before and after a collective
  int ranks = 1;        // of gang and rank
  int rank = 0;         // of rank
  std::string meeting;  // of rank: the file in which ranks meet
  std::uint64_t seed = 1;
  double rounds_per_us = 0;  // 0 = the GPU knows the kernel's length by its name
};

/// Parses and checks. On --help or a mistake prints what is due and returns false with the exit
/// code.
bool load_options_parse(int argc, char** argv, LoadOptions* out, int* exit_code);

}  // namespace sluice::train
