// A library that is linked against the driver, as extension modules are: which function do its
// calls mean?
#define _GNU_SOURCE
#include <dlfcn.h>

int cuMemAlloc_v2(unsigned long long* pointer, unsigned long bytes);

// One of its own under a name of the driver's.
int cuMemFreeHost(void* pointer) { return pointer == (void*)0 ? 4711 : 4712; }

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

// What programs have that were linked before dlsym moved into libc.
void* dlsym_old(void* where, const char* name);
void* dlvsym_old(void* where, const char* name, const char* version);
__asm__(".symver dlsym_old, dlsym@GLIBC_2.2.5");
__asm__(".symver dlvsym_old, dlvsym@GLIBC_2.2.5");

void* old_lookup(void* where, const char* name) {
  void* volatile found = dlsym_old(where, name);
  return found;
}

void* old_lookup_version(void* where, const char* name, const char* version) {
  void* volatile found = dlvsym_old(where, name, version);
  return found;
}

void* old_dlsym_address(void) { return (void*)&dlsym_old; }
