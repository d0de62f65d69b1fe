// One case a given number of times, for callgrind to count (interpose_bench.py).
//
//   interpose_calls plain|tenant|exclusive CASE COUNT SECONDS
// where SECONDS is how long the program waits behind cuInit
#include <stdlib.h>

#include "tests/bench/interpose/cases.h"

int main(int argc, char** argv) {
  using namespace sluice::bench;
  if (argc != 5) {
    fprintf(stderr,
            "interpose_calls: usage: interpose_calls plain|tenant|exclusive CASE COUNT SECONDS\n");
    return 2;
  }
  const auto broker = tenancy_begin(argv[1], atof(argv[4]));
  for (const Case& one : kCases) {
    if (strcmp(one.name, argv[2]) != 0) continue;
    case_prepare(one);
    one.body(atol(argv[3]));
    return 0;
  }
  fprintf(stderr, "interpose_calls: no case %s\n", argv[2]);
  return 2;
}
