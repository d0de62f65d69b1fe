// Wraps puts the usual way: RTLD_NEXT from inside this library must mean the libraries after *this*
// one. A look-up that loses its caller finds this very function again and recurses.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

int next_depth;

int puts(const char* text) {
  if (++next_depth > 1) return -1;
  int (*real)(const char*) = (int (*)(const char*))dlsym(RTLD_NEXT, "puts");
  int result = real == NULL || real == puts ? -1 : real(text);
  --next_depth;
  return result;
}
