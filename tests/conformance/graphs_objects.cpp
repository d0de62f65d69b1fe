// Rows of family `graphs`: user objects - who holds references, and when the destructor runs.
#include "tests/conformance/graphs.h"

namespace conformance {
namespace {

/// Something whose destructor can be seen.
class Thing {
 public:
  explicit Thing(unsigned references = 1) {
    EXPECT_EQ(
        cuUserObjectCreate(&object_, this, destroy, references, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
        CUDA_SUCCESS);
  }
  operator CUuserObject() const { return object_; }  // NOLINT: it stands for the handle
  /// Whether it has ended; destructors run on a thread of the driver's.
  bool ended() const {
    for (int i = 0; i < 2000 && !ended_; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return ended_;
  }
  /// A destructor that came too early would have run by now.
  bool lives() const {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return !ended_;
  }

 private:
  static void destroy(void* thing) { static_cast<Thing*>(thing)->ended_ = true; }
  CUuserObject object_ = nullptr;
  std::atomic<bool> ended_{false};
};

ROW(graphs, object_create_checked) {
  const Context context;
  CUuserObject object = nullptr;
  const CUhostFn destroy = [](void*) {};
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(&object, nullptr, destroy, 1, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuUserObjectCreate(&object, nullptr, nullptr, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuUserObjectCreate(&object, nullptr, destroy, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
}

ROW(graphs, object_ends_with_its_last_reference) {
  const Context context;
  const Thing thing(2);
  MUST(cuUserObjectRetain(thing, 1));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuUserObjectRetain(thing, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuUserObjectRelease(thing, 0));
  MUST(cuUserObjectRelease(thing, 2));
  EXPECT_TRUE(thing.lives());
  MUST(cuUserObjectRelease(thing, 1));
  EXPECT_TRUE(thing.ended());
}

ROW(graphs, object_is_held_by_a_graph) {
  const Context context;
  Build graph(context);
  const Thing thing;
  MUST(cuGraphRetainUserObject(graph, thing, 1, 0));
  MUST(cuUserObjectRelease(thing, 1));
  EXPECT_TRUE(thing.lives());
  MUST(graph.destroy());
  EXPECT_TRUE(thing.ended());
}

ROW(graphs, object_references_move_to_a_graph) {
  const Context context;
  Build graph(context);
  const Thing thing;
  MUST(cuGraphRetainUserObject(graph, thing, 1, CU_GRAPH_USER_OBJECT_MOVE));
  EXPECT_TRUE(thing.lives());
  MUST(graph.destroy());
  EXPECT_TRUE(thing.ended()) << "the caller has none left to release";
}

ROW(graphs, object_is_released_by_a_graph) {
  const Context context;
  Build graph(context);
  const Thing thing;
  MUST(cuGraphRetainUserObject(graph, thing, 2, 0));
  MUST(cuUserObjectRelease(thing, 1));
  MUST(cuGraphReleaseUserObject(graph, thing, 1));
  EXPECT_TRUE(thing.lives());
  MUST(cuGraphReleaseUserObject(graph, thing, 1));
  EXPECT_TRUE(thing.ended());
}

ROW(graphs, object_flags_checked) {
  const Context context;
  Build graph(context);
  const Thing thing;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphRetainUserObject(graph, thing, 1, 8));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphRetainUserObject(graph, thing, 0, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphReleaseUserObject(graph, thing, 0));
  MUST(cuUserObjectRelease(thing, 1));
  EXPECT_TRUE(thing.ended());
}

ROW(graphs, object_is_held_by_an_instance) {
  const Context context;
  Build graph(context);
  graph.empty();
  const Thing thing;
  MUST(cuGraphRetainUserObject(graph, thing, 1, CU_GRAPH_USER_OBJECT_MOVE));
  Instance instance(graph);
  MUST(graph.destroy());
  EXPECT_TRUE(thing.lives());
  MUST(instance.destroy());
  EXPECT_TRUE(thing.ended());
}

ROW(graphs, object_is_held_by_a_clone) {
  const Context context;
  Build graph(context);
  const Thing thing;
  MUST(cuGraphRetainUserObject(graph, thing, 1, CU_GRAPH_USER_OBJECT_MOVE));
  CUgraph clone = nullptr;
  MUST(cuGraphClone(&clone, graph));
  MUST(graph.destroy());
  EXPECT_TRUE(thing.lives());
  MUST(cuGraphDestroy(clone));
  EXPECT_TRUE(thing.ended());
}

ROW(graphs, object_is_held_by_a_launch_in_flight) {
  const Context context;
  Gate gate;
  Build graph(context);
  const Word word;
  graph.set(word.device(), 1);
  const Thing thing;
  MUST(cuGraphRetainUserObject(graph, thing, 1, CU_GRAPH_USER_OBJECT_MOVE));
  Instance instance(graph);
  MUST(graph.destroy());
  const CUstream stream = stream_new();
  MUST(gate.hold(stream));
  MUST(cuGraphLaunch(instance, stream));
  MUST(instance.destroy());
  EXPECT_TRUE(thing.lives());
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_TRUE(thing.ended());
}

}  // namespace
}  // namespace conformance
