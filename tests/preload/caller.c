// Calls through the libraries and reports.
#include <dlfcn.h>
#include <stdio.h>

int early_ready(void);
int finder_value(void);

int main(void) {
  if (!early_ready()) return 1;
  int printed = puts("hello through RTLD_NEXT");
  printf("puts %s, leaf %d, cuInit %s\n", printed >= 0 ? "works" : "lost its caller",
         finder_value(), dlsym(RTLD_DEFAULT, "cuInit") == NULL ? "absent" : "present");
  return 0;
}
