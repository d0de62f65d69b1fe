// Wraps a function of the C library and finds the real one in its constructor, as sanitizers and
// profilers do. Until then the wrapper cannot be called; its constructor runs before that of a
// preloaded library.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>

typedef int Visitor(struct dl_phdr_info*, size_t, void*);
typedef int Iterate(Visitor*, void*);
static Iterate* real_iterate;

int dl_iterate_phdr(Visitor* visitor, void* data) { return real_iterate(visitor, data); }

int early_ready(void) { return real_iterate != NULL; }

__attribute__((constructor)) static void prepare(void) {
  *(void**)&real_iterate = dlsym(RTLD_NEXT, "dl_iterate_phdr");
}
