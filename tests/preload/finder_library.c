// Opens a library by its bare name; only this library's own RUNPATH ($ORIGIN/deep) leads to it, and
// glibc looks at the caller's RUNPATH.
#include <dlfcn.h>
#include <stddef.h>

int finder_value(void) {
  void* leaf = dlopen("libleaf.so", RTLD_NOW);
  if (leaf == NULL) return -1;
  int (*value)(void) = (int (*)(void))dlsym(leaf, "leaf_value");
  return value == NULL ? -2 : value();
}
