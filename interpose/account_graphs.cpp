// Memory of graphs' allocation nodes. The driver reserves it when an executable graph is first
// launched or uploaded and keeps it for the next launch of any graph, until it is trimmed; what
// counts is what it has reserved, read after every call that may change it.
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

uintptr_t trims = 1;
uint64_t charged[kDevicesMax];
uint64_t expected[kDevicesMax];  // reserved in the ledger for the launch that is on its way
Lock lock;
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

void allocation_add(CUgraphNode node, uint64_t* bytes) {
  CUDA_MEM_ALLOC_NODE_PARAMS params;
  memset(&params, 0, sizeof params);
  if (driver.cuGraphMemAllocNodeGetParams(node, &params) != CUDA_SUCCESS) return;
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

const void* trims_mark() { return reinterpret_cast<const void*>(load_acquire(trims)); }

bool reserved_read(int device, uint64_t* bytes) {
  cuuint64_t reserved = 0;
  const bool known = driver.cuDeviceGetGraphMemAttribute(
                         device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) == CUDA_SUCCESS;
  *bytes = reserved;
  return known;
}

// What was reserved for a launch becomes what the driver took, without being free in between.
void expected_settle(int device) {
  const LockScope scope(lock);
  if (expected[device] == 0) return;
  uint64_t reserved;
  const bool known = reserved_read(device, &reserved);
  const uint64_t grown = known && reserved > charged[device] ? reserved - charged[device] : 0;
  const uint64_t took = grown < expected[device] ? grown : expected[device];
  if (took > 0) charge_commit(device, took);
  if (took < expected[device]) charge_abort(device, expected[device] - took);
  charged[device] += took;
  expected[device] = 0;
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
  for (int device = 0; device < process.device_count && fits_; ++device) {
    Record record;
    if (!process.records.find(RecordKind::kGraphExec, key_of(exec, device), &record)) continue;
    // One that ran since the last trim has its memory: it is itself among what is in use.
    if (record.context == trims_mark()) continue;
    const uint64_t growth = growth_expected(device, record.bytes);
    if (growth == 0) continue;
    fits_ = charge_reserve(device, growth);
    const LockScope scope(lock);
    if (fits_) expected[device] = growth;
  }
}

GraphMemoryScope::~GraphMemoryScope() {
  const void* mark = trims_mark();
  for (int device = 0; device < process.device_count; ++device) {
    expected_settle(device);
    Record record;
    if (!taken_ || !process.records.find(RecordKind::kGraphExec, key_of(exec_, device), &record)) {
      continue;
    }
    if (record.context != mark) {
      record.context = mark;
      (void)process.records.insert(record);
    }
    graph_memory_settle(device);
  }
  launches.release();
}

void graph_memory_trimmed(int device) {
  __atomic_add_fetch(&trims, 1, __ATOMIC_RELEASE);
  graph_memory_settle(device);
}

void graph_memory_settle(int device) {
  const int gpu = device_gpu(device);
  if (gpu < 0 || !graph_memory_used()) return;
  const LockScope scope(lock);
  uint64_t reserved;
  if (!reserved_read(device, &reserved)) return;
  const auto index = static_cast<uint32_t>(gpu);
  if (reserved > charged[device] + expected[device]) {
    const uint64_t more = reserved - charged[device] - expected[device];
    process.ledger.hold_unasked(index, more);
    charged[device] += more;
  } else if (reserved < charged[device]) {
    process.ledger.release(index, charged[device] - reserved);
    charged[device] = reserved;
  }
}

void graph_memory_settle() {
  for (int device = 0; device < process.device_count; ++device) graph_memory_settle(device);
}

void graph_memory_sum(uint64_t* bytes_by_device) {
  for (int device = 0; device < kDevicesMax; ++device) bytes_by_device[device] += charged[device];
}

void graph_memory_reset_after_fork() {
  graph_memory_seen = 0;
  memset(charged, 0, sizeof charged);
  memset(expected, 0, sizeof expected);
  lock.reset_after_fork();
  launches.reset_after_fork();
}

}  // namespace sluice::interpose
