// The least that a preloaded library can be: what interpose_load compares the shim with.
int sluice_bench_nothing(void) { return 0; }
