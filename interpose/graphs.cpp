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

constexpr size_t kBucketsMin = 1024;
constexpr size_t kSlab = 64;
constexpr size_t kChainMax = 4;  // records in a bucket, on average

GraphCost* first_buckets[kBucketsMin];
GraphCost** buckets = first_buckets;
size_t bucket_count = kBucketsMin;  // a power of two
GraphCost* spare;
size_t made;
BriefLock lock;

GraphCost*& bucket_of(CUgraphExec exec) {
  const auto bits = reinterpret_cast<uintptr_t>(exec) >> 4;
  return buckets[(bits ^ (bits >> 10)) % bucket_count];
}

// Without memory for more, the chains grow.
void buckets_spread() {
  const size_t old_count = bucket_count;
  auto* more = static_cast<GraphCost**>(pages_allocate(4 * old_count * sizeof(GraphCost*)));
  if (more == nullptr) return;
  GraphCost** old = buckets;
  buckets = more;
  bucket_count = 4 * old_count;
  for (size_t i = 0; i < old_count; ++i) {
    for (GraphCost *graph = old[i], *next; graph != nullptr; graph = next) {
      next = graph->next;
      GraphCost*& first = bucket_of(graph->exec);
      graph->next = first;
      first = graph;
    }
  }
  if (old != first_buckets) pages_free(old, old_count * sizeof(GraphCost*));
}

GraphCost* record_take() {
  if (spare == nullptr) {
    if (made >= kChainMax * bucket_count) buckets_spread();
    auto* slab = static_cast<GraphCost*>(pages_allocate(kSlab * sizeof(GraphCost)));
    if (slab == nullptr) return nullptr;
    made += kSlab;
    for (size_t i = 0; i < kSlab; ++i) {
      slab[i].exec = &no_graph;
      slab[i].next = spare;
      spare = &slab[i];
    }
  }
  GraphCost* record = spare;
  spare = record->next;
  return record;
}

// Whoever launches reads it without the lock.
void mean_set(GraphCost& graph, double mean_ns) {
  __atomic_store(&graph.mean_ns, &mean_ns, __ATOMIC_RELAXED);
}

}  // namespace

constinit GraphCost graph_none = {&no_graph, 0, 0, 0, nullptr};

GraphCost* graph_cost(CUgraphExec exec) {
  if (exec == nullptr || exec == &no_graph) return nullptr;
  const LockScope scope(lock);
  for (GraphCost* graph = bucket_of(exec); graph != nullptr; graph = graph->next) {
    if (graph->exec == exec) return graph;
  }
  GraphCost* graph = record_take();
  if (graph == nullptr) return nullptr;
  GraphCost*& first = bucket_of(exec);
  mean_set(*graph, 0);
  graph->until_measured = 0;  // whoever remembers the record of this handle must look
  store_release(graph->exec, exec);
  graph->next = first;
  first = graph;
  return graph;
}

void graph_forget(CUgraphExec exec) {
  const LockScope scope(lock);
  for (GraphCost** link = &bucket_of(exec); *link != nullptr; link = &(*link)->next) {
    GraphCost* graph = *link;
    if (graph->exec != exec) continue;
    *link = graph->next;
    store_release(graph->exec, &no_graph);
    graph->serial = graph->serial + 1;
    graph->next = spare;
    spare = graph;
    return;
  }
}

double mean_learned(double mean_ns, double sample_ns) {
  const double learned_ns = sample_ns >= mean_ns ? sample_ns : mean_ns + (sample_ns - mean_ns) / 8;
  return learned_ns > kMeasuredNsMin ? learned_ns : kMeasuredNsMin;
}

void graph_learn(GraphCost& graph, uint32_t serial, double sample_ns) {
  const LockScope scope(lock);
  if (graph.serial == serial) mean_set(graph, mean_learned(graph.mean_ns, sample_ns));
}

void graphs_reset_after_fork() {
  // The child's driver starts anew; the slabs of the parent's records stay unused.
  memset(static_cast<void*>(buckets), 0, bucket_count * sizeof *buckets);
  spare = nullptr;
  made = 0;
  lock.reset_after_fork();
}

}  // namespace sluice::interpose
