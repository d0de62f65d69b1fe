// Opens, uses and closes a plugin with device code, twice: the second time its device variable must
// start afresh.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (int round = 0; round < 2; ++round) {
    void* plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (plugin == nullptr) {
      std::printf("%s\n", dlerror());
      return 1;
    }
    int (*call)() = nullptr;
    void* found = dlsym(plugin, "plugin_call");
    std::memcpy(&call, &found, sizeof(call));
    const int first = call();
    const int second = call();
    dlclose(plugin);
    if (first != 1 || second != 2) {
      std::printf("round %d: calls were counted as %d and %d\n", round, first, second);
      return 1;
    }
  }
  std::printf("plugin: all checks hold\n");
  return 0;
}
