// See routes_beside.h.
#include "tests/interpose/routes_beside.h"

#include <algorithm>
#include <thread>

namespace sluice::test {
namespace {

using Names = std::vector<std::string>;

struct Beside {
  const char* reason;
  Names hooks;  // a name, the beginning of names ("cuLaunch*"), or a class ("class sync")
  Names calls;
};

const Names kFences = {
    "cuEventCreate",       "cuEventRecord", "cuEventQuery", "cuEventElapsedTime",
    "cuStreamIsCapturing", "cuStreamQuery"};  // after a tenth of a second in which nobody looked
const Names kPools = {"cuDeviceGetMemPool", "cuDeviceGetDefaultMemPool", "cuMemPoolGetAttribute",
                      "cuDeviceGetGraphMemAttribute"};
const Names kLoads = {"cuModule*",  "cuLibrary*",       "cuKernelGetFunction",
                      "cuFuncLoad", "cuGreenCtxCreate", "cuCtxSetLimit"};
const Names kQuestions = {"cuFuncGet*", "cuFuncIsLoaded", "cuFuncSet*", "cuOccupancy*"};

/// All of it returns at once, whatever the GPU is doing.
const std::vector<Beside> kBeside = {
    {"which GPU is meant: the devices once, the context when it may have changed",
     {"cu*"},
     {"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid", "cuCtxGetCurrent", "cuCtxGetDevice"}},
    {"the thread's capture mode, for what is unsafe in a capture",
     {"cu*"},
     {"cuThreadExchangeStreamCaptureMode"}},
    {"how much local memory a function or a kernel needs that is given out, or launched first in a "
     "context, and what the context has",
     {"cuModuleGetFunction", "cuModuleEnumerateFunctions", "cuLibraryGetKernel",
      "cuLibraryEnumerateKernels", "cuLibraryGetUnifiedFunction", "cuKernelGetFunction",
      "cuCtxSetLimit", "class launch"},
     {"cuFuncGetAttribute", "cuKernelGetAttribute", "cuModuleGetFunctionCount", "cuCtxGetLimit"}},
    {"where a stream is",
     {"class launch", "class work", "class sync", "class capture", "cuStreamQuery*",
      "cuStreamWaitEvent*"},
     {"cuStreamGetCtx", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"}},
    {"the meter: fences of launches, and of what the program is about to wait for, to capture or "
     "to "
     "destroy",
     {"class launch", "class work", "class sync", "class capture", "cuStreamQuery*",
      "cuStreamDestroy*", "cuStreamWaitEvent*", "cuEventQuery", "cuCtxDestroy*", "cuCtxDetach",
      "cuDevicePrimaryCtxRelease*", "cuDevicePrimaryCtxReset*"},
     kFences},
    {"the same of what other threads left in their default streams",
     {"class launch", "class work", "class sync", "class capture"},
     {"cuCtxRecordEvent"}},
    {"where launches end, before something else follows them in their stream",
     {"class copy", "class memset", "class host_fn", "class memop", "class interop",
      "class mem_managed", "cuStreamAddCallback*", "cuWaitExternalSemaphoresAsync*"},
     kFences},
    {"whether a copy stays on the GPU", {"cuMemcpy*"}, {"cuPointerGetAttribute"}},
    {"under the context that the stream belongs to, and whether contexts have events",
     {"cuStreamDestroy*", "cuCtxDestroy*", "cuCtxDetach", "cuDevicePrimaryCtxRelease*",
      "cuDevicePrimaryCtxReset*", "cuGreenCtxDestroy", "class copy", "class memset",
      "class host_fn", "class memop"},
     {"cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuCtxRecordEvent"}},
    {"whether the legacy stream waits for a stream, and the other way round, and whose it is",
     {"class launch", "class copy", "class memset", "class host_fn", "class memop", "class interop",
      "class mem_managed", "cuStreamAddCallback*", "cuStreamWaitEvent*",
      "cuWaitExternalSemaphoresAsync*"},
     {"cuStreamGetFlags", "cuStreamGetCtx", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"}},
    {"what pools have: read again where work of theirs may be over, or where memory is asked for",
     {"class mem_alloc", "class mem_free", "class mem_pool", "class mem_vmm", "class mem_ipc",
      "class sync", "class report_mem", "class green", "cuCtxCreate*", "cuDevicePrimaryCtxRetain",
      "cuCtxSetLimit", "cuModule*", "cuLibrary*", "cuKernelGetFunction", "cuFuncLoad",
      "cuStreamQuery*", "cuEventQuery"},
     kPools},
    {"the same, where a question about a kernel may have loaded it", kQuestions, kPools},
    {"whether a size is a multiple of what it must be, before a refusal",
     {"cuMemCreate"},
     {"cuMemGetAllocationGranularity"}},
    {"whether the context can be used, before a refusal",
     {"cuMemAlloc*", "class array", "cuModule*", "cuLibrary*"},
     {"cuMemGetAddressRange_v2"}},
    {"which allocation others may open", {"cuIpcGetMemHandle"}, {"cuMemGetAddressRange_v2"}},
    {"whether a stream is one, before a refusal",
     {"cuMemAllocAsync*", "cuMemAllocFromPoolAsync*"},
     {"cuStreamGetDevice"}},
    {"how much the graphs of the device have",
     {"class launch_graph", "class graph_mem", "cuGraphUpload*"},
     {"cuDeviceGetGraphMemAttribute"}},
    {"what a graph takes, before a launch that may pass the quota",
     {"class launch_graph"},
     {"cuGraphUpload", "cuGraphUpload_ptsz"}},
    {"what pools keep and nothing uses, before a refusal",
     {"class mem_alloc", "class mem_pool", "class mem_vmm", "class green", "class array",
      "cuCtxCreate*", "cuDevicePrimaryCtxRetain", "class launch_graph", "class graph_mem",
      "cuGraphUpload*", "cuModule*", "cuLibrary*", "cuKernelGetFunction", "cuFuncLoad",
      "cuCtxSetLimit"},
     {"cuMemPoolTrimTo"}},
    {"whether it is captured", {"cuMemAlloc*", "cuMemFreeAsync*"}, {"cuStreamIsCapturing"}},
    {"an event behind what a stream is to unmap, and whether streams have come to such",
     {"cuMemMapArrayAsync*", "cuMulticast*"},
     {"cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventDestroy_v2"}},
    {"what a green context leaves behind is whose",
     {"cuGreenCtxDestroy"},
     {"cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"}},
    {"whether the primary context is there",
     {"cuDevicePrimaryCtx*"},
     {"cuDevicePrimaryCtxGetState"}},
    {"where a green context is that the shim has not seen made",
     {"cuCtxFromGreenCtx"},
     {"cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"}},
    {"what a load takes, by what the device has left", kLoads, {"cuMemGetInfo_v2"}},
    {"what came back of exported memory, by what the device has left",
     {"class mem_free", "class mem_pool", "cuMemRelease", "cuMemUnmap", "cuIpcCloseMemHandle",
      "cuDestroyExternalMemory", "cuDevicePrimaryCtxRelease*", "cuDevicePrimaryCtxReset*"},
     {"cuMemGetInfo_v2"}},
    {"whether the device gives memory out in pages, as long as that is not known",
     {"cuMemAlloc", "cuMemAlloc_v2", "cuMemAllocManaged", "cuMemAllocPitch*", "class array"},
     {"cuMemGetInfo_v2"}},
    {"what an import takes, by what the device has left",
     {"cuImportExternalMemory", "cuIpcOpenMemHandle*", "cuMemImportFromShareableHandle",
      "cuMemPoolImportPointer"},
     {"cuMemGetInfo_v2"}},
    {"whether libraries are loaded with the call", {"cuLibraryLoad*"}, {"cuModuleGetLoadingMode"}},
    {"how many stacks the device has", {"cuCtxSetLimit"}, {"cuDeviceGetAttribute"}},
    {"what a question about a kernel loads", kQuestions, {"cuMemGetInfo_v2"}},
    {"whose code it is",
     {"cuKernelGetFunction", "cuFuncLoad", "cuFuncGet*", "cuFuncIsLoaded", "cuFuncSet*",
      "cuOccupancy*"},
     {"cuKernelGetLibrary", "cuFuncGetModule"}},
    {"the limit that was there", {"cuCtxSetLimit"}, {"cuCtxGetLimit"}},
    {"the size of an array",
     {"class array"},
     {"cuArrayGetMemoryRequirements", "cuMipmappedArrayGetMemoryRequirements"}},
    {"what a graph allocates",
     {"cuGraphInstantiate*", "cuGraphExecUpdate*"},
     {"cuGraphGetNodes", "cuGraphNodeGetType", "cuGraphChildGraphNodeGetGraph",
      "cuGraphMemAllocNodeGetParams"}},
};

/// What was done and does not fit is taken back by the driver's own call, which may wait as it does
/// when the program makes it.
const std::vector<Beside> kUndoing = {
    {"a module", {"cuModuleLoad*"}, {"cuModuleUnload"}},
    {"a library", {"cuLibraryLoad*"}, {"cuLibraryUnload"}},
    {"a green context", {"cuGreenCtxCreate"}, {"cuGreenCtxDestroy"}},
    {"a limit", {"cuCtxSetLimit"}, {"cuCtxSetLimit"}},
    {"rows whose pitch was not known", {"cuMemAllocPitch*"}, {"cuMemFree", "cuMemFree_v2"}},
    {"what a pool took beyond the quota",
     {"cuMemAllocAsync*", "cuMemAllocFromPoolAsync*"},
     {"cuMemFree_v2", "cuMemFreeAsync", "cuMemPoolTrimTo"}},
    {"what graphs took beyond the quota",
     {"class launch_graph", "class graph_mem", "cuGraphUpload*", "cuGraphInstantiate*"},
     {"cuDeviceGraphMemTrim", "cuGraphExecDestroy"}},
};

/// The helper's thread, whenever it looks. It waits for the GPU nowhere, either.
const Names kHelper = {"cuCtxSetCurrent",       "cuCtxRecordEvent",
                       "cuEventCreate",         "cuEventRecord",
                       "cuEventQuery",          "cuEventElapsedTime",
                       "cuEventDestroy_v2",     "cuStreamIsCapturing",
                       "cuStreamQuery",         "cuThreadExchangeStreamCaptureMode",
                       "cuCtxGetCurrent",       "cuCtxGetDevice",
                       "cuMemPoolGetAttribute", "cuDeviceGetGraphMemAttribute"};

bool has(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The helper may be about to write it.
std::string symbol_of(const RecordedCall& one) {
  const char* symbol;
  while ((symbol = __atomic_load_n(&one.symbol, __ATOMIC_ACQUIRE)) == nullptr)
    std::this_thread::yield();
  return symbol;
}

bool is_meant(const std::string& pattern, const std::string& symbol,
              const std::set<std::string>& classes) {
  if (pattern.rfind("class ", 0) == 0) return classes.count(pattern.substr(6)) != 0;
  if (pattern.back() != '*') return pattern == symbol;
  return symbol.compare(0, pattern.size() - 1, pattern, 0, pattern.size() - 1) == 0;
}

bool is_listed(const std::vector<Beside>& list, const std::string& hook, const std::string& call) {
  static const auto classes = classes_of_all();
  return std::any_of(list.begin(), list.end(), [&](const Beside& one) {
    return has(one.calls, call) &&
           std::any_of(one.hooks.begin(), one.hooks.end(), [&](const std::string& pattern) {
             return is_meant(pattern, hook, classes.at(hook));
           });
  });
}

bool says(const std::string& note, const char* word) { return note.find(word) != note.npos; }

// What the shim asks by itself must break no capture of the program's, and be no part of it.
void expect_safe_in_captures(const RecordedCall& one, const std::string& symbol) {
  static const auto notes = capture_notes();
  const auto found = notes.find(symbol);
  if (recording_answers.capturing == 0 || found == notes.end()) return;
  const std::string& note = found->second;
  EXPECT_TRUE(one.relaxed || !says(note, "unsafe")) << symbol << " invalidates the capture";
  if (recording_answers.capturing != 2) return;
  EXPECT_FALSE(note.find("edge") == 0 || note.find("node") == 0 || says(note, "with a capturing") ||
               says(note, "illegal on a capturing"))
      << symbol << " is about a capturing stream";
}

}  // namespace

void expect_only_listed(const HookedEntry& entry, const Call* own, int program, Outcome outcome) {
  const bool undone = outcome == Outcome::kUndone;
  const int count = fake_calls.count;
  ASSERT_LE(count, kRecordedCallsMax);
  bool own_seen = false;
  for (int i = 0; i < count; ++i) {
    const RecordedCall& one = fake_calls.calls[i];
    const std::string symbol = symbol_of(one);
    if (one.thread != program) {
      EXPECT_TRUE(has(kHelper, symbol)) << "the helper called " << symbol;
      expect_safe_in_captures(one, symbol);
    } else if (own != nullptr && (!own_seen || undone) &&
               (same_call(one, entry.real, *own) ||
                (answers_by_itself(entry.symbol) && symbol == entry.real))) {
      own_seen = true;  // once, or again where the first attempt was taken back
    } else {
      EXPECT_TRUE(is_listed(kBeside, entry.symbol, symbol) ||
                  (undone && is_listed(kUndoing, entry.symbol, symbol)))
          << entry.symbol << " called " << symbol << ", which the program did not ask for";
      expect_safe_in_captures(one, symbol);
    }
  }
  EXPECT_EQ(own_seen, own != nullptr) << "called:" << names_of_recorded();
}

}  // namespace sluice::test
