// An NVML of a GPU that counts how many of its SMs have work, with the layouts of nvml.h. The GPU
// is the one that COUNTING_NVML_UUID names. Whoever asks in another way than the header says gets
// an error.
#include <stdio.h>
#include <stdlib.h>

enum { kSuccess = 0, kInvalidArgument = 2 };

struct Sample {
  unsigned long number;
};
struct Metric {
  unsigned id;
  int result;
  double value;
  struct {
    const char *short_name, *long_name, *unit;
  } info;
};
struct MetricsGet {
  unsigned version, count;
  struct Sample *before, *after;
  struct Metric metrics[98];  // NVML_GPM_METRIC_MAX of CUDA 12.0, the shortest there was
};

static unsigned long samples_taken;

int nvmlInit_v2(void) { return kSuccess; }
int nvmlShutdown(void) { return kSuccess; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &samples_taken;
  return (int)index;
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) {
  (void)device;
  const char* name = getenv("COUNTING_NVML_UUID");
  return name != NULL && snprintf(uuid, size, "%s", name) > 0 ? kSuccess : kInvalidArgument;
}
int nvmlDeviceGetUtilizationRates(void* device, unsigned rates[2]) {
  (void)device;
  rates[0] = 40;
  rates[1] = 7;
  return kSuccess;
}

int nvmlGpmQueryDeviceSupport(void* device, unsigned support[2]) {
  (void)device;
  if (support[0] != 1) return kInvalidArgument;
  support[1] = 1;
  return kSuccess;
}
int nvmlGpmSampleAlloc(struct Sample** sample) {
  *sample = calloc(1, sizeof **sample);
  return kSuccess;
}
int nvmlGpmSampleFree(struct Sample* sample) {
  free(sample);
  return kSuccess;
}
int nvmlGpmSampleGet(void* device, struct Sample* sample) {
  (void)device;
  sample->number = ++samples_taken;
  return kSuccess;
}
int nvmlGpmMetricsGet(struct MetricsGet* asked) {
  const int good = asked->version == 1 && asked->count == 1 && asked->before->number > 0 &&
                   asked->before->number + 1 == asked->after->number;
  if (!good) return kInvalidArgument;
  struct Metric* metric = &asked->metrics[0];
  metric->result = metric->id == 2 ? kSuccess : kInvalidArgument;
  metric->value = 37.5;
  return kSuccess;
}
