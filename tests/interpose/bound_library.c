// A library that is linked against the driver, as extension modules are: which function do its calls mean?
#define _GNU_SOURCE
#include <dlfcn.h>

int cuMemAlloc_v2(unsigned long long* pointer, unsigned long bytes);

void* bound_address(void) { return (void*)&cuMemAlloc_v2; }

void* bound_lookup(const char* name) {
  // No tail call: the loader looks who asks.
  void* volatile found = dlsym(RTLD_DEFAULT, name);
  return found;
}

void* bound_next(const char* name) {
  void* volatile found = dlsym(RTLD_NEXT, name);
  return found;
}
