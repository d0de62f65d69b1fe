// See capture_table.h. One table for the whole driver: enter_any() and enter() look the name of
// every entry point up here while a capture is in progress, so a new entry point is subject to its
// rule without a line of its own; those that need the stream, context or event they are about check
// it themselves (capture_*_check). What is not in the table is either work for a stream, which
// becomes a node, or free: making contexts, making and destroying streams and events, asking for
// attributes, loading code, building graphs, address space and physical memory (cuMemCreate,
// cuMemMap).
//
// rule          when it is refused                                            with what
// kUnsafe       the calling thread is not RELAXED and has a capture of its    900
//               own that is not, or (thread mode GLOBAL) another thread has
//               a GLOBAL one
// kLegacyWait   a blocking stream of the context captures (the default        906, 900
//               stream would depend on it); otherwise as kUnsafe. In the
//               _ptds forms: the thread's own stream captures
// kStreamWait   the stream captures: 900; it is the legacy stream: as         900, 906
//               kLegacyWait; otherwise as kUnsafe
// kStreamUse    the stream captures: 900; it is the legacy stream: as         900, 906
//               kLegacyWait; otherwise never
// kStreamNone   the stream captures: 900, and the capture goes on; otherwise  900
//               never
// kContextWait  any stream of the context captures, whatever the modes        900
// kEventWait    the event was last recorded in a capture: 907; otherwise as   907, 900
//               kUnsafe, also when it was never recorded
// A refusal invalidates the captures that are its reason; one that was invalid before answers 901
// to those who are about its own streams.
//
// Sources: cuda.h, cuThreadExchangeStreamCaptureMode (what the modes forbid; allocation as the
// example of an unsafe call), cuStreamIsCapturing (the legacy stream), cuStreamAddCallback,
// cuCtxRecordEvent; programming guide, CUDA graphs, prohibited and unhandled operations
// (synchronous calls use the legacy stream; waiting for a stream, an event, a context). Which calls
// have kUnsafe, kStreamUse and kStreamNone is what a GPU answers (driver 580; the notes `capture=`
// in tests/interpose/driver-entrypoints.tsv).
#include "softgpu/driver/capture_table.h"

#include <algorithm>
#include <array>

namespace softgpu::driver {
namespace {

constexpr CaptureRule kUnsafe = CaptureRule::kUnsafe, kLegacyWait = CaptureRule::kLegacyWait,
                      kStreamWait = CaptureRule::kStreamWait, kStreamUse = CaptureRule::kStreamUse,
                      kStreamNone = CaptureRule::kStreamNone,
                      kContextWait = CaptureRule::kContextWait,
                      kEventWait = CaptureRule::kEventWait;

constexpr auto kTable = std::to_array<CaptureEntry>({
    // In the order of their names, for the search.
    {"cuArray3DCreate", kUnsafe},
    {"cuArrayCreate", kUnsafe},
    {"cuArrayDestroy", kUnsafe},
    {"cuCtxRecordEvent", kContextWait},
    {"cuCtxSetCacheConfig", kUnsafe},
    {"cuCtxSetLimit", kUnsafe},
    {"cuCtxSynchronize", kContextWait},
    {"cuCtxWaitEvent", kContextWait},
    {"cuEventQuery", kEventWait},
    {"cuEventSynchronize", kEventWait},
    {"cuGraphInstantiate", kUnsafe},
    {"cuGraphInstantiateWithFlags", kUnsafe},
    {"cuGraphInstantiateWithParams", kUnsafe},
    {"cuGraphLaunch", kStreamUse},
    {"cuGraphUpload", kStreamUse},
    {"cuLibraryUnload", kUnsafe},
    {"cuMemAlloc", kUnsafe},
    {"cuMemAllocHost", kUnsafe},
    {"cuMemAllocManaged", kUnsafe},
    {"cuMemAllocPitch", kUnsafe},
    {"cuMemDiscardAndPrefetchBatchAsync", kStreamUse},
    {"cuMemDiscardBatchAsync", kStreamUse},
    {"cuMemFree", kUnsafe},
    {"cuMemFreeHost", kUnsafe},
    {"cuMemHostAlloc", kUnsafe},
    {"cuMemHostRegister", kUnsafe},
    {"cuMemHostUnregister", kUnsafe},
    {"cuMemPoolCreate", kUnsafe},
    {"cuMemPoolDestroy", kUnsafe},
    {"cuMemPoolTrimTo", kUnsafe},
    {"cuMemPrefetchAsync", kStreamUse},
    {"cuMemPrefetchBatchAsync", kStreamUse},
    {"cuMemcpy", kLegacyWait},
    {"cuMemcpy2D", kLegacyWait},
    {"cuMemcpy2DUnaligned", kLegacyWait},
    {"cuMemcpy3D", kLegacyWait},
    {"cuMemcpy3DBatchAsync", kStreamNone},
    {"cuMemcpy3DPeer", kLegacyWait},
    {"cuMemcpyAtoA", kLegacyWait},
    {"cuMemcpyAtoD", kLegacyWait},
    {"cuMemcpyAtoH", kLegacyWait},
    {"cuMemcpyBatchAsync", kStreamNone},
    {"cuMemcpyDtoA", kLegacyWait},
    {"cuMemcpyDtoD", kLegacyWait},
    {"cuMemcpyDtoH", kLegacyWait},
    {"cuMemcpyHtoA", kLegacyWait},
    {"cuMemcpyHtoD", kLegacyWait},
    {"cuMemcpyPeer", kLegacyWait},
    {"cuMemsetD16", kLegacyWait},
    {"cuMemsetD2D16", kLegacyWait},
    {"cuMemsetD2D32", kLegacyWait},
    {"cuMemsetD2D8", kLegacyWait},
    {"cuMemsetD32", kLegacyWait},
    {"cuMemsetD8", kLegacyWait},
    {"cuMipmappedArrayCreate", kUnsafe},
    {"cuMipmappedArrayDestroy", kUnsafe},
    {"cuModuleUnload", kUnsafe},
    {"cuStreamAddCallback", kStreamUse},
    {"cuStreamAttachMemAsync", kStreamUse},
    {"cuStreamGetDevice", kStreamUse},
    {"cuStreamGetFlags", kStreamUse},
    {"cuStreamGetId", kStreamUse},
    {"cuStreamSynchronize", kStreamWait},
});
static_assert(std::is_sorted(kTable.begin(), kTable.end(),
                             [](const auto& a, const auto& b) { return a.name < b.name; }));

/// cuMemAlloc_v2 is the cuMemAlloc of cuda.h.
std::string_view name_plain(std::string_view name) {
  const std::size_t at = name.rfind("_v");
  return at == std::string_view::npos ? name : name.substr(0, at);
}

}  // namespace

std::span<const CaptureEntry> capture_entries() { return kTable; }

const CaptureEntry* capture_entry(std::string_view name) {
  const std::string_view plain = name_plain(name);
  const auto found = std::lower_bound(
      kTable.begin(), kTable.end(), plain,
      [](const CaptureEntry& entry, std::string_view n) { return entry.name < n; });
  return found != kTable.end() && found->name == plain ? &*found : nullptr;
}

}  // namespace softgpu::driver
