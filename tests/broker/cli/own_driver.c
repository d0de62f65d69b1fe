// A program that exports a function of the CUDA driver.
int cuInit(unsigned flags);
int cuInit(unsigned flags) { return (int)flags; }

int main(void) { return cuInit(0); }
