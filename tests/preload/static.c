// A static program: the preload cannot reach it and must not hurt it.
#include <stdio.h>

int main(void) {
  printf("static\n");
  return 3;
}
