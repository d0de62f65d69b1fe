/* Stands where libsluice.so does in the tests' installation: a library that can be preloaded and does nothing. */
int sluice_fake_shim_loaded(void);
int sluice_fake_shim_loaded(void) { return 1; }
