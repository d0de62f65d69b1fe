// Found only through the RUNPATH of finder_library.
int leaf_value(void) { return 42; }
