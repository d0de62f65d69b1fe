// See graphs.h. A hash table of chains; records come from slabs and are never given back, so that a
// pointer stays readable and its serial says whether it still means the same handle.
#include "interpose/graphs.h"

#include <string.h>

// A handle that no driver gives: our own object's address, known without a constructor.
struct CUgraphExec_st {
  char unused;
};
static CUgraphExec_st no_graph;

namespace sluice::interpose {

namespace {

constexpr unsigned kBuckets = 1024;
constexpr unsigned kSlab = 64;
constexpr unsigned kGraphsMax = 16384;

GraphCost* buckets[kBuckets];
GraphCost* spare;
unsigned made;
BriefLock lock;

unsigned bucket_of(CUgraphExec exec) {
  const auto bits = reinterpret_cast<uintptr_t>(exec) >> 4;
  return static_cast<unsigned>((bits ^ (bits >> 10)) % kBuckets);
}

GraphCost* record_take() {
  if (spare == nullptr) {
    if (made == kGraphsMax) return nullptr;
    auto* slab = static_cast<GraphCost*>(pages_allocate(kSlab * sizeof(GraphCost)));
    if (slab == nullptr) return nullptr;
    made += kSlab;
    for (unsigned i = 0; i < kSlab; ++i) {
      slab[i].exec = &no_graph;
      slab[i].next = spare;
      spare = &slab[i];
    }
  }
  GraphCost* record = spare;
  spare = record->next;
  return record;
}

}  // namespace

constinit GraphCost graph_none = {&no_graph, 0, 0, 0, nullptr};

GraphCost* graph_cost(CUgraphExec exec) {
  if (exec == nullptr || exec == &no_graph) return nullptr;
  const LockScope scope(lock);
  GraphCost*& first = buckets[bucket_of(exec)];
  for (GraphCost* graph = first; graph != nullptr; graph = graph->next) {
    if (graph->exec == exec) return graph;
  }
  GraphCost* graph = record_take();
  if (graph == nullptr) return nullptr;
  graph->mean_ns = 0;
  graph->until_measured = 0;  // whoever remembers the record of this handle must look
  store_release(graph->exec, exec);
  graph->next = first;
  first = graph;
  return graph;
}

void graph_forget(CUgraphExec exec) {
  const LockScope scope(lock);
  for (GraphCost** link = &buckets[bucket_of(exec)]; *link != nullptr; link = &(*link)->next) {
    GraphCost* graph = *link;
    if (graph->exec != exec) continue;
    *link = graph->next;
    store_release(graph->exec, &no_graph);
    ++graph->serial;
    graph->next = spare;
    spare = graph;
    return;
  }
}

double mean_learned(double mean_ns, double sample_ns) {
  return sample_ns >= mean_ns ? sample_ns : mean_ns + (sample_ns - mean_ns) / 8;
}

void graph_learn(GraphCost& graph, double sample_ns) {
  graph.mean_ns = mean_learned(graph.mean_ns, sample_ns);
}

void graphs_reset_after_fork() {
  // The child's driver starts anew; the slabs of the parent's records stay unused.
  memset(static_cast<void*>(buckets), 0, sizeof buckets);
  spare = nullptr;
  made = 0;
  lock.reset_after_fork();
}

}  // namespace sluice::interpose
