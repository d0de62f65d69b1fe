// Memory of graphs' allocation nodes. The driver reserves it when an executable graph is first
// launched or uploaded and keeps it for the next launch of any graph, until it is trimmed; what
// counts is what it has reserved, read after every call that may change it. A driver trims by
// itself when the device is full, and tells nobody which graphs have lost their memory: it is seen
// by what is reserved, and then each of them is asked for again.
#include <string.h>

#include "interpose/account.h"
#include "interpose/say.h"

namespace sluice::interpose {

uint32_t graph_memory_seen;

namespace {

// What the driver takes physical memory in. A guess too small shows in the account right after the
// call.
constexpr uint64_t kGrain = 2u << 20;
// Of graphs within graphs, which are walked on the program's stack; no capture makes more than one
// level.
constexpr int kDepthMax = 128;

// Of the launch that is on its way; one at a time.
struct Way {
  uint64_t expected;  // reserved in the ledger for it
  uint64_t room;      // what the device had free before; 0 = not known
};

uintptr_t trims = 1;  // a graph whose record says the same has run since the last one
uint64_t charged[kDevicesMax];
Way ways[kDevicesMax];
bool launching;  // the launch itself moves the mark, when it knows what became of its own graph
bool trimmed_meanwhile;
Lock lock;  // of all above
Lock launches;

// One record for each device on which an executable graph allocates.
uint64_t key_of(CUgraphExec exec, int device) {
  return reinterpret_cast<uint64_t>(exec) * kDevicesMax + static_cast<uint64_t>(device);
}

bool node_add(CUgraphNode node, uint64_t* bytes, int depth);

// False when part of the graph could not be looked at.
bool graph_add(CUgraph graph, uint64_t* bytes, int depth) {
  size_t count = 0;
  if (depth == kDepthMax) return false;
  if (driver.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0) return true;
  auto* nodes = static_cast<CUgraphNode*>(pages_allocate(count * sizeof(CUgraphNode)));
  if (nodes == nullptr) return false;
  const size_t room = count;
  bool whole = true;
  if (driver.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS) {
    for (size_t i = 0; i < count && i < room; ++i) whole &= node_add(nodes[i], bytes, depth);
  }
  pages_free(nodes, room * sizeof(CUgraphNode));
  return whole;
}

// There the number of the place is none of a device's.
bool is_of_host(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

void allocation_add(CUgraphNode node, uint64_t* bytes) {
  CUDA_MEM_ALLOC_NODE_PARAMS params;
  memset(&params, 0, sizeof params);
  if (driver.cuGraphMemAllocNodeGetParams(node, &params) != CUDA_SUCCESS) return;
  if (is_of_host(params.poolProps.location.type)) return;
  const int device = params.poolProps.location.id;
  if (device < 0 || device >= kDevicesMax) return;
  bytes[device] += (params.bytesize + kGrain - 1) / kGrain * kGrain;
}

bool node_add(CUgraphNode node, uint64_t* bytes, int depth) {
  CUgraphNodeType type;
  if (driver.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return true;
  if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) allocation_add(node, bytes);
  CUgraph child = nullptr;
  return type != CU_GRAPH_NODE_TYPE_GRAPH ||
         driver.cuGraphChildGraphNodeGetGraph(node, &child) != CUDA_SUCCESS ||
         graph_add(child, bytes, depth + 1);
}

const void* mark_of(uintptr_t mark) { return reinterpret_cast<const void*>(mark); }

bool reserved_read(int device, uint64_t* bytes) {
  cuuint64_t reserved = 0;
  const bool known = driver.cuDeviceGetGraphMemAttribute(
                         device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) == CUDA_SUCCESS;
  *bytes = reserved;
  return known;
}

// What is free on the device, if that is the thread's.
uint64_t room_on(int device) {
  size_t bytes = 0;
  const bool here = thread_context(this_thread) && this_thread->device == device;
  return here && driver.cuMemGetInfo_v2(&bytes, nullptr) == CUDA_SUCCESS ? bytes : 0;
}

// What was reserved for a launch becomes what the driver took, without being free in between. True:
// it took less than the launch needed, on a device without room for that: it may have trimmed.
bool expected_settle(int device) {
  Way& way = ways[device];
  if (way.expected == 0) return false;
  const uint64_t room_now = room_on(device);
  const LockScope scope(lock);
  uint64_t reserved;
  const bool known = reserved_read(device, &reserved);
  const uint64_t grown = known && reserved > charged[device] ? reserved - charged[device] : 0;
  const uint64_t took = grown < way.expected ? grown : way.expected;
  if (took > 0) charge_commit(device, took);
  if (took < way.expected) charge_abort(device, way.expected - took);
  charged[device] += took;
  const bool full = way.room < way.expected || room_now + took < way.expected;
  const bool less = took < way.expected;
  way = Way{};
  return less && full;
}

// With the lock held.
void trim_seen() {
  if (launching) {
    trimmed_meanwhile = true;
  } else {
    ++trims;
  }
}

// What a graph that needs `bytes` adds to what is reserved.
uint64_t growth_expected(int device, uint64_t bytes) {
  cuuint64_t reserved = 0, in_use = 0;
  if (driver.cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                          &reserved) != CUDA_SUCCESS ||
      driver.cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &in_use) !=
          CUDA_SUCCESS) {
    return bytes;
  }
  return in_use + bytes > reserved ? in_use + bytes - reserved : 0;
}

}  // namespace

bool graph_memory_learn(CUgraphExec exec, CUgraph graph) {
  graph_memory_forget(exec);  // one with this handle may have ended with its context
  uint64_t bytes[kDevicesMax] = {};
  bool whole = graph_add(graph, bytes, 0);
  for (int device = 0; device < kDevicesMax; ++device) {
    if (bytes[device] == 0) continue;
    store_release(graph_memory_seen, 1u);
    whole &= process.records.insert(
        Record{key_of(exec, device), bytes[device], nullptr, RecordKind::kGraphExec, device});
  }
  if (SLUICE_LIKELY(whole)) return true;
  unrecorded_say("what a graph allocates (its nodes, or more than 128 graphs within each other)");
  graph_memory_forget(exec);
  return false;
}

void graph_memory_forget(CUgraphExec exec) {
  if (!graph_memory_used()) return;
  Record record;
  for (int device = 0; device < process.device_count; ++device)
    (void)process.records.remove(RecordKind::kGraphExec, key_of(exec, device), &record);
}

GraphMemoryScope::GraphMemoryScope(CUgraphExec exec) : exec_(exec) {
  launches.acquire();
  Record record;
  for (int device = 0; device < process.device_count; ++device) {
    if (process.records.find(RecordKind::kGraphExec, key_of(exec, device), &record))
      devices_ |= uint64_t{1} << device;
  }
  begin();
  for (int device = 0; device < process.device_count && fits_; ++device) {
    if ((devices_ >> device & 1) == 0) continue;
    if (!process.records.find(RecordKind::kGraphExec, key_of(exec, device), &record)) continue;
    // One that ran since the last trim has its memory: it is itself among what is in use.
    if (record.context != mark_of(mark_)) fits_ = reserve(device, record.bytes);
  }
}

GraphMemoryScope::GraphMemoryScope(CUgraph graph) : exec_(nullptr) {
  uint64_t bytes[kDevicesMax] = {};
  (void)graph_add(graph, bytes, 0);  // what cannot be looked at is refused when it is learned
  launches.acquire();
  for (int device = 0; device < process.device_count; ++device) {
    if (bytes[device] == 0) continue;
    devices_ |= uint64_t{1} << device;
    store_release(graph_memory_seen, 1u);
  }
  begin();
  for (int device = 0; device < process.device_count && fits_; ++device) {
    if (bytes[device] != 0) fits_ = reserve(device, bytes[device]);
  }
}

// With `launches` held, for devices_.
void GraphMemoryScope::begin() {
  for (int device = 0; device < process.device_count; ++device) {
    // The driver may have trimmed since.
    if ((devices_ >> device & 1) != 0) graph_memory_settle(device);
  }
  const LockScope scope(lock);
  launching = true;
  trimmed_meanwhile = false;
  mark_ = trims;
}

bool GraphMemoryScope::reserve(int device, uint64_t bytes) const {
  const uint64_t growth = growth_expected(device, bytes);
  if (growth == 0) return true;
  if (!charge_reserve(device, growth)) return false;
  const uint64_t room = room_on(device);
  const LockScope scope(lock);
  ways[device] = Way{growth, room};
  return true;
}

GraphMemoryScope::~GraphMemoryScope() {
  bool trimmed = false;
  for (int device = 0; device < process.device_count; ++device) {
    if ((devices_ >> device & 1) == 0) continue;
    trimmed |= expected_settle(device);
    graph_memory_settle(device);
  }
  {
    const LockScope scope(lock);
    launching = false;
    if (trimmed || trimmed_meanwhile) {
      const bool unasked = trims == mark_;
      ++trims;
      if (unasked) mark_ = trims;  // this graph is the one that it was trimmed for
    }
  }
  for (int device = 0; device < process.device_count && taken_; ++device) {
    if ((devices_ >> device & 1) != 0) remember(device);
  }
  launches.release();
}

void GraphMemoryScope::remember(int device) const {
  Record record;
  if (!process.records.find(RecordKind::kGraphExec, key_of(exec_, device), &record)) return;
  if (record.context == mark_of(mark_)) return;
  record.context = mark_of(mark_);
  (void)process.records.insert(record);
}

void graph_memory_trimmed(int device) {
  {
    const LockScope scope(lock);
    ++trims;
  }
  graph_memory_settle(device);
}

void graph_memory_settle(int device) {
  const int gpu = device_gpu(device);
  if (gpu < 0 || !graph_memory_used()) return;
  const LockScope scope(lock);
  uint64_t reserved;
  if (!reserved_read(device, &reserved)) return;
  const auto index = static_cast<uint32_t>(gpu);
  const uint64_t known = charged[device] + ways[device].expected;
  if (reserved > known) {
    process.ledger.hold_unasked(index, reserved - known);
    charged[device] += reserved - known;
  } else if (reserved < charged[device]) {
    process.ledger.release(index, charged[device] - reserved);
    charged[device] = reserved;
    trim_seen();
  }
}

void graph_memory_settle() {
  for (int device = 0; device < process.device_count; ++device) graph_memory_settle(device);
}

void graph_memory_sum(uint64_t* bytes_by_device) {
  for (int device = 0; device < kDevicesMax; ++device) bytes_by_device[device] += charged[device];
}

GraphMemoryPause::GraphMemoryPause() { lock.acquire(); }
GraphMemoryPause::~GraphMemoryPause() { lock.release(); }

void graph_memory_reset_after_fork() {
  graph_memory_seen = 0;
  memset(charged, 0, sizeof charged);
  memset(ways, 0, sizeof ways);
  launching = trimmed_meanwhile = false;
  lock.reset_after_fork();
  launches.reset_after_fork();
}

}  // namespace sluice::interpose
