// What runs at load where the shim is instrumented for ThreadSanitizer: a program that was not
// built with it, a shell that a test starts, has nobody else to begin its runtime. Itself plain.
void __tsan_init(void);
void sluice_load(int count, char** arguments, char** environment);
void sluice_load_tsan(int count, char** arguments, char** environment);

void sluice_load_tsan(int count, char** arguments, char** environment) {
  __tsan_init();
  sluice_load(count, arguments, environment);
}
