// Rows of family `streams`: what a stream carries besides its queue - attributes and attached
// memory.
#include "tests/conformance/gate.h"

namespace conformance {
namespace {

ROW(streams, attribute_synchronization_policy) {
  const Context context;
  const CUstream stream = stream_new();
  CUstreamAttrValue value{};
  MUST(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  EXPECT_EQ(value.syncPolicy, no_such<CUsynchronizationPolicy>(-1));
  value.syncPolicy = CU_SYNC_POLICY_BLOCKING_SYNC;
  MUST(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  value = {};
  MUST(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  EXPECT_EQ(value.syncPolicy, CU_SYNC_POLICY_BLOCKING_SYNC);
}

ROW(streams, attribute_memory_domain) {
  const Context context;
  const CUstream stream = stream_new();
  CUstreamAttrValue value{};
  value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
  MUST(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
  EXPECT_EQ(value.memSyncDomain, CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT);
  value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
  ANSWERS(CUDA_SUCCESS, cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
  value = {};
  MUST(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
  EXPECT_EQ(value.memSyncDomain, CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE);
}

ROW(streams, attribute_priority_is_the_streams) {
  const Context context;
  const CUstream stream = stream_new(CU_STREAM_NON_BLOCKING, -1);
  CUstreamAttrValue value{};
  MUST(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_PRIORITY, &value));
  EXPECT_EQ(value.priority, -1);
}

ROW(streams, attributes_of_launches_are_refused) {
  const Context context;
  const CUstream stream = stream_new();
  CUstreamAttrValue value{};
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value));
  for (const auto id : {CU_LAUNCH_ATTRIBUTE_IGNORE, CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION})
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamGetAttribute(stream, id, &value));
}

ROW(streams, attributes_are_copied) {
  const Context context;
  const CUstream from = stream_new(), to = stream_new();
  CUstreamAttrValue value{};
  value.syncPolicy = CU_SYNC_POLICY_YIELD;
  MUST(cuStreamSetAttribute(from, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  MUST(cuStreamCopyAttributes(to, from));
  value = {};
  MUST(cuStreamGetAttribute(to, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  EXPECT_EQ(value.syncPolicy, CU_SYNC_POLICY_YIELD);
}

ROW(streams, attach_checks_its_arguments) {
  const Context context;
  const CUstream stream = stream_new();
  CUdeviceptr managed = 0, device = 0;
  MUST(cuMemAllocManaged(&managed, 8192, CU_MEM_ATTACH_GLOBAL));
  MUST(cuMemAlloc(&device, 8192));
  ANSWERS(CUDA_SUCCESS, cuStreamAttachMemAsync(stream, managed, 0, CU_MEM_ATTACH_SINGLE));
  ANSWERS(CUDA_SUCCESS, cuStreamAttachMemAsync(stream, managed, 8192, CU_MEM_ATTACH_HOST));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuStreamAttachMemAsync(nullptr, managed, 0, CU_MEM_ATTACH_SINGLE));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuStreamAttachMemAsync(stream, managed, 4096, CU_MEM_ATTACH_GLOBAL));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamAttachMemAsync(stream, managed, 0, 8));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuStreamAttachMemAsync(stream, device, 0, CU_MEM_ATTACH_GLOBAL));
}

ROW(streams, attribute_values_are_checked) {
  const Context context;
  const CUstream stream = stream_new();
  CUstreamAttrValue value{};
  for (const int policy : {-1, 0, 5, 77}) {
    value.syncPolicy = no_such<CUsynchronizationPolicy>(policy);
    ANSWERS(CUDA_ERROR_INVALID_VALUE,
            cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  }
  MUST(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  EXPECT_EQ(value.syncPolicy, no_such<CUsynchronizationPolicy>(-1)) << "it stays what it was";
}

ROW(streams, attribute_access_policy_window) {
  const Context context;
  const CUstream stream = stream_new();
  CUdeviceptr data = 0;
  MUST(cuMemAlloc(&data, 4096));
  CUstreamAttrValue value{};
  CUaccessPolicyWindow& window = value.accessPolicyWindow;
  window.base_ptr = reinterpret_cast<void*>(data);
  window.num_bytes = 4096;
  window.hitRatio = 0.5F;
  window.hitProp = CU_ACCESS_PROPERTY_PERSISTING;
  window.missProp = CU_ACCESS_PROPERTY_STREAMING;
  MUST(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
  value = {};
  MUST(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
  EXPECT_EQ(window.hitRatio, 0.5F);
  EXPECT_EQ(window.hitProp, CU_ACCESS_PROPERTY_PERSISTING);
  EXPECT_EQ(window.missProp, CU_ACCESS_PROPERTY_STREAMING);
  window.missProp = CU_ACCESS_PROPERTY_PERSISTING;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
}

ROW(streams, attribute_priority_is_set) {
  const Context context;
  int least = 0, greatest = 0;
  MUST(cuCtxGetStreamPriorityRange(&least, &greatest));
  const CUstream stream = stream_new();
  CUstreamAttrValue value{};
  value.priority = greatest;
  MUST(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_PRIORITY, &value));
  value = {};
  MUST(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_PRIORITY, &value));
  EXPECT_EQ(value.priority, greatest);
}

ROW(streams, attributes_of_other_contexts_are_not_copied) {
  const Context first;
  const CUstream from = stream_new();
  {
    const Context second;
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuStreamCopyAttributes(stream_new(), from));
  }
  MUST(cuCtxSetCurrent(first));
}

ROW(streams, attached_memory_is_usable) {
  const Context context;
  const Store store;
  const CUstream stream = stream_new();
  CUdeviceptr managed = 0;
  MUST(cuMemAllocManaged(&managed, 64, CU_MEM_ATTACH_GLOBAL));
  MUST(cuStreamAttachMemAsync(stream, managed, 0, CU_MEM_ATTACH_SINGLE));
  MUST(cuStreamSynchronize(stream));
  unsigned value = 7;
  MUST(launch(store.function(), 1, 1, {&managed, &value}, stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(*reinterpret_cast<unsigned*>(managed), 7U);
}

}  // namespace
}  // namespace conformance
