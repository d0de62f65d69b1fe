// What GCC's OpenMP offloading does on a GPU: loops over teams, reductions, data regions, variables
// of the device, memory asked for by name, targets that do not wait. Prints the same on the host
// and on a GPU.
//
//   openmp [MIB]     asks for that much device memory first; exit 3 when there is none
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kSide = 48, kWords = 1000 };

#pragma omp declare target
int counter;
static int collatz_steps(long n) {
  int steps = 0;
  for (; n != 1; ++steps) n = n % 2 == 1 ? 3 * n + 1 : n / 2;
  return steps;
}
#pragma omp end declare target

static double a[kSide][kSide], b[kSide][kSide], c[kSide][kSide];

static void multiply(void) {
  for (int i = 0; i < kSide; ++i)
    for (int j = 0; j < kSide; ++j) a[i][j] = i + j, b[i][j] = i == j;
#pragma omp target teams distribute parallel for collapse(2) map(to : a, b) map(from : c)
  for (int i = 0; i < kSide; ++i)
    for (int j = 0; j < kSide; ++j) {
      double sum = 0;
      for (int k = 0; k < kSide; ++k) sum += a[i][k] * b[k][j];
      c[i][j] = sum;
    }
  printf("a product with the identity %s\n",
         memcmp(a, c, sizeof a) == 0 ? "is the same" : "differs");
}

static void reduce(void) {
  int longest = 0;
#pragma omp target teams distribute parallel for reduction(max : longest) map(tofrom : longest)
  for (int i = 1; i < 2000; ++i) {
    const int steps = collatz_steps(i);
    if (steps > longest) longest = steps;
  }
  printf("the longest of 2000 sequences: %d\n", longest);
}

static void stay(void) {
  int* words = malloc(kWords * sizeof *words);
  if (words == NULL) exit(1);
  for (int i = 0; i < kWords; ++i) words[i] = i;
#pragma omp target data map(to : words [0:kWords])
  {
#pragma omp target
    {
      for (int i = 0; i < kWords; ++i) words[i] *= 2;
      counter = 7;
    }
#pragma omp target update from(words [0:kWords])
  }
  long sum = 0;
  for (int i = 0; i < kWords; ++i) sum += words[i];
  int kept = 0;
#pragma omp target map(from : kept)
  kept = counter;
  printf("words that stayed: %ld, a variable of the device: %d\n", sum, kept);
  free(words);
}

static void overlap(void) {
  int squares[4] = {0};
  for (int t = 0; t < 4; ++t) {
#pragma omp target nowait map(tofrom : squares [t:1]) firstprivate(t)
    squares[t] = t * t;
  }
#pragma omp taskwait
  double roots = 0;
#pragma omp target map(tofrom : roots)
  for (int i = 1; i <= 100; ++i) roots += sqrt(i);
  printf("%d %d %d %d, roots %.6f\n", squares[0], squares[1], squares[2], squares[3], roots);
}

int main(int argc, char** argv) {
  const int device = omp_get_default_device();
  void* asked = NULL;
  if (argc > 1) {
    asked = omp_target_alloc((size_t)atol(argv[1]) << 20, device);
    if (asked == NULL) {
      fprintf(stderr, "no memory on the device\n");
      return 3;
    }
  }
  multiply();
  reduce();
  stay();
  overlap();
  if (asked != NULL) omp_target_free(asked, device);
  return 0;
}
