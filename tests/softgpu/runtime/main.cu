// Runs the group of checks its argument names; exits 0 when all hold, 77 when the group does not
// apply here.
#include <cstring>

#include "checks.h"

int g_failures = 0;

int main(int argc, char** argv) {
  struct Group {
    const char* name;
    void (*run)();
  };
  const Group groups[] = {
      {"copies", check_copies},
      {"devices", check_devices},
      {"errors", check_errors},
      {"graphs", check_graphs},
      {"illegal_address", check_illegal_address},
      {"launches", check_launches},
      {"memory", check_memory},
      {"no_driver", check_no_driver},
      {"streams", check_streams},
      {"symbols", check_symbols},
  };
  for (const Group& group : groups) {
    if (argc != 2 || std::strcmp(argv[1], group.name) != 0) continue;
    group.run();
    if (g_failures == 0) std::printf("%s: all checks hold\n", group.name);
    return g_failures == 0 ? 0 : 1;
  }
  std::printf("usage: runtime_checks GROUP\n");
  return 2;
}
