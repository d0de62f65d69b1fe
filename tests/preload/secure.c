// Says in which mode ld.so runs it, whether the shim is in it, and whether that acted on variables.
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

int main(void) {
  int shim = 0, limits = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  for (char line[4096]; maps != NULL && fgets(line, sizeof line, maps) != NULL;) {
    shim |= strstr(line, "libsluice.so") != NULL;
    limits |= strstr(line, "sluice-limits") != NULL;
  }
  printf("secure %d, shim %d, limits %d\n", getauxval(AT_SECURE) != 0, shim, limits);
  return 0;
}
