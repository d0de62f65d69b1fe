// Rows of family `launches`: cuLaunchKernelEx and every launch attribute of the header - which take
// effect, which are hints, which are refused.
#include <vector>

#include "tests/conformance/gate.h"

namespace conformance {
namespace {

CUlaunchAttribute attribute(CUlaunchAttributeID id) {
  CUlaunchAttribute result{};
  result.id = id;
  return result;
}

/// A launch of one thread (or of `blocks` x `threads`) with these attributes.
CUresult launch_with(std::vector<CUlaunchAttribute> attributes, CUfunction function,
                     std::vector<void*> arguments, unsigned blocks = 1, unsigned threads = 1,
                     CUstream stream = nullptr) {
  CUlaunchConfig config{};
  config.gridDimX = blocks;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = threads;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = attributes.data();
  config.numAttrs = static_cast<unsigned>(attributes.size());
  return cuLaunchKernelEx(&config, function, arguments.data(), nullptr);
}

/// The launch of `store` with one attribute, and whether it ran.
CUresult store_with(const CUlaunchAttribute& one, bool* ran = nullptr) {
  const Word word;
  CUdeviceptr address = word.device();
  unsigned value = 7;
  const CUresult result = launch_with({one}, kernel("store"), {&address, &value});
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word.value(), result == CUDA_SUCCESS ? 7U : 0U);
  if (ran != nullptr) *ran = word.value() == 7;
  return result;
}

ROW(launches, ex_without_attributes) {
  const Context context;
  const Word word;
  CUdeviceptr address = word.device();
  unsigned value = 7;
  void* params[] = {&address, &value};
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.attrs = reinterpret_cast<CUlaunchAttribute*>(16);  // not looked at
  config.numAttrs = 0;
  ANSWERS(CUDA_SUCCESS, cuLaunchKernelEx(&config, kernel("store"), params, nullptr));
  MUST(cuCtxSynchronize());
  EXPECT_EQ(word.value(), 7U);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx(nullptr, kernel("store"), params, nullptr));
  config.blockDimX = 2048;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx(&config, kernel("store"), params, nullptr));
}

ROW(launches, attribute_ignore) {
  const Context context;
  ANSWERS(CUDA_SUCCESS, store_with(attribute(CU_LAUNCH_ATTRIBUTE_IGNORE)));
}

ROW(launches, attribute_unknown_refused) {
  const Context context;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, store_with(attribute(no_such<CUlaunchAttributeID>(999))));
}

ROW(launches, attribute_cooperative) {
  const Context context;
  const CUfunction function = kernel("grid_barrier");
  int sms = 0, blocks = 0;
  MUST(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, context.device()));
  MUST(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 0));
  const auto resident = static_cast<unsigned>(sms * blocks);
  CUdeviceptr counter = 0;
  MUST(cuMemAlloc(&counter, 8));
  MUST(cuMemsetD32(counter, 0, 2));
  CUdeviceptr out = counter + 4;
  CUlaunchAttribute cooperative = attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  cooperative.value.cooperative = 1;
  ANSWERS(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
          launch_with({cooperative}, function, {&counter, &out}, resident + 1, 256));
  ANSWERS(CUDA_SUCCESS, launch_with({cooperative}, function, {&counter, &out}, resident, 256));
  MUST(cuCtxSynchronize());
  unsigned passed = 0;
  MUST(cuMemcpyDtoH(&passed, out, 4));
  EXPECT_EQ(passed, resident);
}

ROW(launches, attribute_cooperative_zero_is_ordinary) {
  const Context context;
  int sms = 0;
  MUST(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, context.device()));
  ANSWERS(CUDA_SUCCESS,
          launch_with({attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE)}, kernel("count_threads"), {},
                      static_cast<unsigned>(sms) * 40, 64));
  MUST(cuCtxSynchronize());
}

ROW(launches, attribute_cluster_of_one) {
  const Context context;
  CUlaunchAttribute cluster = attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  cluster.value.clusterDim = {1, 1, 1};
  ANSWERS(CUDA_SUCCESS, store_with(cluster));
}

ROW(launches, attribute_cluster_needs_the_device) {
  const Context context;
  int able = 0;
  MUST(cuDeviceGetAttribute(&able, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, context.device()));
  CUlaunchAttribute cluster = attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  cluster.value.clusterDim = {2, 1, 1};
  ANSWERS(able != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED,
          launch_with({cluster}, kernel("empty"), {}, 2, 32));
  MUST(cuCtxSynchronize());
}

ROW(launches, attribute_programmatic_serialization) {
  const Context context;
  const Word first, second;
  const Store store;
  const CUstream stream = stream_new();
  CUlaunchAttribute programmatic = attribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
  programmatic.value.programmaticStreamSerializationAllowed = 1;
  CUdeviceptr address = second.device();
  unsigned value = 7;
  Gate gate;
  MUST(gate.hold(stream));
  MUST(store(first, 6, stream));
  ANSWERS(CUDA_SUCCESS,
          launch_with({programmatic}, store.function(), {&address, &value}, 1, 1, stream));
  EXPECT_EQ(second.value(), 0U) << "it may overlap the kernel before it, not what is before that";
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(first.value(), 6U);
  EXPECT_EQ(second.value(), 7U);
}

ROW(launches, attribute_priority) {
  const Context context;
  int least = 0, greatest = 0;
  MUST(cuCtxGetStreamPriorityRange(&least, &greatest));
  CUlaunchAttribute priority = attribute(CU_LAUNCH_ATTRIBUTE_PRIORITY);
  priority.value.priority = greatest;
  ANSWERS(CUDA_SUCCESS, store_with(priority));
  priority.value.priority = least;
  ANSWERS(CUDA_SUCCESS, store_with(priority));
}

ROW(launches, attribute_memory_domain) {
  const Context context;
  CUlaunchAttribute domain = attribute(CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN);
  domain.value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
  ANSWERS(CUDA_SUCCESS, store_with(domain));
  CUlaunchAttribute map = attribute(CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP);
  map.value.memSyncDomainMap = {0, 0};
  ANSWERS(CUDA_SUCCESS, store_with(map));
}

ROW(launches, attribute_synchronization_policy_is_for_streams) {
  const Context context;
  CUlaunchAttribute policy = attribute(CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY);
  policy.value.syncPolicy = CU_SYNC_POLICY_BLOCKING_SYNC;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, store_with(policy));
}

ROW(launches, attribute_access_policy_window) {
  const Context context;
  CUdeviceptr data = 0;
  MUST(cuMemAlloc(&data, 4096));
  CUlaunchAttribute window = attribute(CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW);
  window.value.accessPolicyWindow.base_ptr = reinterpret_cast<void*>(data);
  window.value.accessPolicyWindow.num_bytes = 4096;
  window.value.accessPolicyWindow.hitRatio = 1.0F;
  window.value.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_STREAMING;
  window.value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_NORMAL;
  ANSWERS(CUDA_SUCCESS, store_with(window));
  window.value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_PERSISTING;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, store_with(window));
}

ROW(launches, attribute_carveout) {
  const Context context;
  CUlaunchAttribute carveout = attribute(CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
  carveout.value.sharedMemCarveout = 50;
  ANSWERS(CUDA_SUCCESS, store_with(carveout));
}

ROW(launches, attribute_completion_event) {
  const Context context;
  const CUevent event = event_new(CU_EVENT_DISABLE_TIMING);
  CUlaunchAttribute completion = attribute(CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
  completion.value.launchCompletionEvent.event = event;
  const Word word, done;
  const Store store;
  const CUstream stream = stream_new(), waits = stream_new();
  CUdeviceptr address = word.device();
  unsigned value = 7;
  Gate gate;
  MUST(gate.hold(stream));
  ANSWERS(CUDA_SUCCESS,
          launch_with({completion}, store.function(), {&address, &value}, 1, 1, stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  MUST(cuStreamWaitEvent(waits, event, 0));
  MUST(store(done, 1, waits));
  EXPECT_EQ(done.value(), 0U);
  gate.open();
  MUST(cuStreamSynchronize(waits));
  MUST(cuStreamSynchronize(stream));
  MUST(cuEventSynchronize(event));
  EXPECT_EQ(word.value(), 7U);
}

ROW(launches, attribute_events_must_not_time) {
  const Context context;
  CUlaunchAttribute completion = attribute(CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
  completion.value.launchCompletionEvent.event = event_new(CU_EVENT_DEFAULT);
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED, store_with(completion));
  CUlaunchAttribute programmatic = attribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT);
  programmatic.value.programmaticEvent.event = event_new(CU_EVENT_DEFAULT);
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED, store_with(programmatic));
}

ROW(launches, attribute_programmatic_event) {
  const Context context;
  const CUevent event = event_new(CU_EVENT_DISABLE_TIMING);
  CUlaunchAttribute programmatic = attribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT);
  programmatic.value.programmaticEvent.event = event;
  programmatic.value.programmaticEvent.triggerAtBlockStart = 1;
  ANSWERS(CUDA_SUCCESS, store_with(programmatic));
  ANSWERS(CUDA_SUCCESS, cuEventSynchronize(event));
  ANSWERS(CUDA_SUCCESS, cuEventQuery(event));
}

ROW(launches, attribute_updatable_node_needs_a_capture) {
  const Context context;
  CUlaunchAttribute updatable = attribute(CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE);
  updatable.value.deviceUpdatableKernelNode.deviceUpdatable = 1;
  EXPECT_NE(store_with(updatable), CUDA_SUCCESS);
}

ROW(launches, attribute_cluster_scheduling_is_a_hint) {
  const Context context;
  CUlaunchAttribute policy = attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
  policy.value.clusterSchedulingPolicyPreference = CU_CLUSTER_SCHEDULING_POLICY_DEFAULT;
  ANSWERS(CUDA_SUCCESS, store_with(policy));
}

ROW(launches, attributes_combine) {
  const Context context;
  const Word word;
  CUdeviceptr address = word.device();
  unsigned value = 7;
  CUlaunchAttribute cooperative = attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  cooperative.value.cooperative = 1;
  CUlaunchAttribute priority = attribute(CU_LAUNCH_ATTRIBUTE_PRIORITY);
  priority.value.priority = -1;
  ANSWERS(CUDA_SUCCESS, launch_with({attribute(CU_LAUNCH_ATTRIBUTE_IGNORE), cooperative, priority},
                                    kernel("store"), {&address, &value}));
  MUST(cuCtxSynchronize());
  EXPECT_EQ(word.value(), 7U);
}

ROW(launches, attribute_event_flags_checked) {
  const Context context;
  CUlaunchAttribute completion = attribute(CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
  completion.value.launchCompletionEvent.event = event_new(CU_EVENT_DISABLE_TIMING);
  completion.value.launchCompletionEvent.flags = CU_EVENT_RECORD_EXTERNAL;
  EXPECT_NE(store_with(completion), CUDA_SUCCESS);
  completion.value.launchCompletionEvent.flags = CU_EVENT_RECORD_DEFAULT;
  ANSWERS(CUDA_SUCCESS, store_with(completion));
}

ROW(launches, attribute_events_must_not_be_shared) {
  const Context context;
  CUlaunchAttribute completion = attribute(CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
  completion.value.launchCompletionEvent.event =
      event_new(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED, store_with(completion));
}

ROW(launches, attribute_nvlink_is_a_hint) {
  const Context context;
  CUlaunchAttribute hint = attribute(CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING);
  hint.value.nvlinkUtilCentricScheduling = 1;
  ANSWERS(CUDA_SUCCESS, store_with(hint));
  hint.value.nvlinkUtilCentricScheduling = 0;
  ANSWERS(CUDA_SUCCESS, store_with(hint));
}

ROW(launches, attribute_preferred_cluster_needs_a_cluster) {
  const Context context;
  CUlaunchAttribute preferred = attribute(CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION);
  preferred.value.preferredClusterDim = {1, 1, 1};
  ANSWERS(CUDA_ERROR_INVALID_CLUSTER_SIZE, store_with(preferred));
}

ROW(launches, attribute_priority_goes_first) {
  settings_soft({{"SOFTGPU_PACING", "1"}, {"SOFTGPU_RATE", "4e5"}});
  const Context context;
  const CUfunction spin = kernel("spin");
  CUdeviceptr data = 0;
  MUST(cuMemAlloc(&data, 4));
  int sms = 0, least = 0, greatest = 0;
  MUST(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, context.device()));
  MUST(cuCtxGetStreamPriorityRange(&least, &greatest));
  const CUstream other = stream_new(), stream = stream_new();
  const CUevent begin = event_new(CU_EVENT_DEFAULT), end = event_new(CU_EVENT_DEFAULT);
  unsigned rounds = 1000;
  CUlaunchAttribute priority = attribute(CU_LAUNCH_ATTRIBUTE_PRIORITY);
  priority.value.priority = greatest;
  const auto urgent_ms = [&] {
    float ms = 0;
    EXPECT_EQ(cuEventRecord(begin, stream), CUDA_SUCCESS);
    EXPECT_EQ(
        launch_with({priority}, spin, {&data, &rounds}, static_cast<unsigned>(sms), 32, stream),
        CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(end, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuEventSynchronize(end), CUDA_SUCCESS);
    EXPECT_EQ(cuEventElapsedTime(&ms, begin, end), CUDA_SUCCESS);
    return ms;
  };
  (void)urgent_ms();
  const float alone = urgent_ms();
  for (int i = 0; i < 8; ++i)
    MUST(launch(spin, static_cast<unsigned>(sms), 32, {&data, &rounds}, other));
  const float contended = urgent_ms();
  EXPECT_LT(contended, 1.5F * alone + 0.1F);
  MUST(cuCtxSynchronize());
}

}  // namespace
}  // namespace conformance
