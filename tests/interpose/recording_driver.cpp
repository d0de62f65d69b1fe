// The few answers that the recording driver gives: one device, a current context, so that the shim
// does for a tenant what it does on a GPU.
#include "tests/interpose/fake_driver.h"
#include "tests/interpose/recording.h"

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE RecordingAnswers recording_answers;
RecordingAnswers recording_answers;

FAKE CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return recorded("cuDriverGetVersion", version);
}
// A runtime that asks for NVIDIA's private tables ends here, with an error.
FAKE CUresult cuGetExportTable(const void** table, const CUuuid*) {
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}
FAKE CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return recorded("cuDeviceGetCount", count);
}
FAKE CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  memset(uuid, kFakeUuidBase, sizeof *uuid);
  return recorded("cuDeviceGetUuid", uuid, device);
}
FAKE CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(0x1000);
  return recorded("cuCtxGetCurrent", context);
}
FAKE CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return recorded("cuCtxGetDevice", device);
}
FAKE CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  *pool = reinterpret_cast<CUmemoryPool>(0x5000);
  return recorded("cuDeviceGetMemPool", pool, device);
}
FAKE CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  *event = reinterpret_cast<CUevent>(0x2000);
  return recorded("cuEventCreate", event, flags);
}
FAKE CUresult cuEventElapsedTime(float* ms, CUevent from, CUevent to) {
  *ms = 0;
  return recorded("cuEventElapsedTime", ms, from, to);
}
FAKE CUresult cuEventQuery(CUevent event) {
  recorded("cuEventQuery", event);
  return recording_answers.events_pending != 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
FAKE CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  *status = recording_answers.capturing == 2 ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                             : CU_STREAM_CAPTURE_STATUS_NONE;
  return recorded("cuStreamIsCapturing", stream, status);
}
FAKE CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  recorded("cuThreadExchangeStreamCaptureMode", mode);
  const CUstreamCaptureMode before = recording_mode;
  recording_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}
FAKE CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    *static_cast<cuuint64_t*>(value) = recording_answers.pools_keep;
  return recorded("cuMemPoolGetAttribute", pool, attribute, value);
}
// Between two questions something was loaded.
FAKE CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = kRecordingBytes - recording_answers.taken.fetch_add(recording_answers.load_takes);
  *total = kRecordingBytes;
  return recorded("cuMemGetInfo_v2", free, total);
}
