// Rows of family `graphs`: building - nodes, edges, clones, child graphs, and what is refused.
#include "tests/conformance/graphs.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace conformance {
namespace {

bool holds(const Nodes& nodes, CUgraphNode node) {
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

ROW(graphs, create_flags_checked) {
  const Context context;
  CUgraph graph = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphCreate(&graph, 1));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphCreate(nullptr, 0));
  ANSWERS(CUDA_SUCCESS, cuGraphCreate(&graph, 0));
  ANSWERS(CUDA_SUCCESS, cuGraphDestroy(graph));
}

ROW(graphs, null_handles_refused) {
  const Context context;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  CUgraph graph = nullptr;
  CUgraphNodeType type{};
  std::size_t count = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, nullptr, nullptr, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphGetNodes(nullptr, nullptr, &count));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphClone(&graph, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphNodeGetType(nullptr, &type));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphDestroyNode(nullptr));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&exec, nullptr, 0));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(nullptr, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphUpload(nullptr, nullptr));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphExecDestroy(nullptr));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(nullptr));
}

ROW(graphs, nodes_are_listed) {
  const Context context;
  Build graph(context);
  const CUgraphNode a = graph.empty(), b = graph.empty({a}), c = graph.empty();
  std::size_t count = 99;
  MUST(cuGraphGetNodes(graph, nullptr, &count));
  EXPECT_EQ(count, 3U);
  Nodes nodes(5, reinterpret_cast<CUgraphNode>(&count));
  count = 5;
  MUST(cuGraphGetNodes(graph, nodes.data(), &count));
  EXPECT_EQ(count, 3U);
  for (const CUgraphNode node : {a, b, c}) EXPECT_TRUE(holds(nodes, node));
  EXPECT_EQ(nodes[3], nullptr);
  EXPECT_EQ(nodes[4], nullptr);
  MUST(cuGraphGetRootNodes(graph, nullptr, &count));
  EXPECT_EQ(count, 2U);
  Nodes roots(2);
  MUST(cuGraphGetRootNodes(graph, roots.data(), &count));
  EXPECT_TRUE(holds(roots, a) && holds(roots, c));
}

ROW(graphs, few_places_get_few_nodes) {
  const Context context;
  Build graph(context);
  for (int i = 0; i < 3; ++i) graph.empty();
  Nodes nodes(3, nullptr);
  std::size_t count = 2;
  MUST(cuGraphGetNodes(graph, nodes.data(), &count));
  EXPECT_NE(nodes[0], nullptr);
  EXPECT_NE(nodes[1], nullptr);
  EXPECT_EQ(nodes[2], nullptr);
}

ROW(graphs, edges_are_listed) {
  const Context context;
  Build graph(context);
  const CUgraphNode a = graph.empty(), b = graph.empty({a}), c = graph.empty({a, b});
  std::size_t count = 0;
  MUST(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  ASSERT_EQ(count, 3U);
  Nodes from(4), to(4);
  count = 4;
  MUST(cuGraphGetEdges(graph, from.data(), to.data(), nullptr, &count));
  ASSERT_EQ(count, 3U);
  std::vector<std::pair<CUgraphNode, CUgraphNode>> edges;
  for (std::size_t i = 0; i < count; ++i) edges.emplace_back(from[i], to[i]);
  for (const auto& edge : {std::pair(a, b), std::pair(a, c), std::pair(b, c)})
    EXPECT_EQ(std::count(edges.begin(), edges.end(), edge), 1);
  EXPECT_EQ(from[3], nullptr);
  EXPECT_EQ(to[3], nullptr);
}

ROW(graphs, neighbours_are_told) {
  const Context context;
  Build graph(context);
  const CUgraphNode a = graph.empty(), b = graph.empty(), c = graph.empty({a, b});
  Nodes nodes(3);
  std::size_t count = 3;
  MUST(cuGraphNodeGetDependencies(c, nodes.data(), nullptr, &count));
  EXPECT_EQ(count, 2U);
  EXPECT_TRUE(holds(nodes, a) && holds(nodes, b));
  count = 3;
  MUST(cuGraphNodeGetDependentNodes(a, nodes.data(), nullptr, &count));
  ASSERT_EQ(count, 1U);
  EXPECT_EQ(nodes[0], c);
  EXPECT_EQ(nodes[1], nullptr);
  MUST(cuGraphNodeGetDependentNodes(c, nullptr, nullptr, &count));
  EXPECT_EQ(count, 0U);
}

ROW(graphs, edge_data_of_plain_edges_is_zero) {
  const Context context;
  Build graph(context);
  const CUgraphNode a = graph.empty(), b = graph.empty();
  const CUgraphEdgeData plain{};
  MUST(cuGraphAddDependencies(graph, &a, &b, &plain, 1));
  const CUgraphEdgeData zero{};
  CUgraphEdgeData told;
  CUgraphNode from = nullptr, to = nullptr;
  std::size_t count = 1;
  std::memset(&told, 0xff, sizeof told);
  MUST(cuGraphGetEdges(graph, &from, &to, &told, &count));
  EXPECT_EQ(std::memcmp(&told, &zero, sizeof zero), 0);
  std::memset(&told, 0xff, sizeof told);
  MUST(cuGraphNodeGetDependencies(b, &from, &told, &count));
  EXPECT_EQ(std::memcmp(&told, &zero, sizeof zero), 0);
  std::memset(&told, 0xff, sizeof told);
  MUST(cuGraphNodeGetDependentNodes(a, &to, &told, &count));
  EXPECT_EQ(std::memcmp(&told, &zero, sizeof zero), 0);
}

ROW(graphs, edge_data_needs_nodes) {
  const Context context;
  Build graph(context);
  const CUgraphNode a = graph.empty(), b = graph.empty({a});
  CUgraphEdgeData data{};
  std::size_t count = 1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphGetEdges(graph, nullptr, nullptr, &data, &count));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphNodeGetDependencies(b, nullptr, &data, &count));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphNodeGetDependentNodes(a, nullptr, &data, &count));
}

ROW(graphs, dependency_twice_refused) {
  const Context context;
  Build graph(context);
  const CUgraphNode a = graph.empty(), b = graph.empty();
  MUST(cuGraphAddDependencies(graph, &a, &b, nullptr, 1));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &a, &b, nullptr, 1));
  const Nodes twice{a, a};
  CUgraphNode node = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, graph, twice.data(), 2));
}

ROW(graphs, foreign_nodes_refused) {
  const Context context;
  Build one(context), other(context);
  const CUgraphNode mine = one.empty(), foreign = other.empty();
  CUgraphNode node = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, one, &foreign, 1));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(one, &mine, &foreign, nullptr, 1));
}

ROW(graphs, dependencies_are_removed) {
  const Context context;
  Build graph(context);
  const CUgraphNode a = graph.empty(), b = graph.empty({a});
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(graph, &b, &a, nullptr, 1));
  ANSWERS(CUDA_SUCCESS, cuGraphRemoveDependencies(graph, nullptr, nullptr, nullptr, 0));
  MUST(cuGraphRemoveDependencies(graph, &a, &b, nullptr, 1));
  std::size_t count = 9;
  MUST(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  EXPECT_EQ(count, 0U);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(graph, &a, &b, nullptr, 1));
}

ROW(graphs, destroyed_node_takes_its_edges) {
  const Context context;
  Build graph(context);
  const CUgraphNode a = graph.empty(), b = graph.empty({a}), c = graph.empty({b});
  MUST(cuGraphDestroyNode(b));
  EXPECT_EQ(nodes_of(graph).size(), 2U);
  std::size_t count = 9;
  MUST(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  EXPECT_EQ(count, 0U);
  MUST(cuGraphNodeGetDependencies(c, nullptr, nullptr, &count));
  EXPECT_EQ(count, 0U);
}

ROW(graphs, types_are_told) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context), child(context);
  const CUevent event = event_new();
  CUgraphNode record = nullptr, wait = nullptr, inner = nullptr;
  MUST(cuGraphAddEventRecordNode(&record, graph, nullptr, 0, event));
  MUST(cuGraphAddEventWaitNode(&wait, graph, nullptr, 0, event));
  MUST(cuGraphAddChildGraphNode(&inner, graph, nullptr, 0, child));
  const std::pair<CUgraphNode, CUgraphNodeType> expected[] = {
      {graph.empty(), CU_GRAPH_NODE_TYPE_EMPTY},
      {graph.set(word.device(), 1), CU_GRAPH_NODE_TYPE_MEMSET},
      {graph.copy(word.device(), word.device() + 4, 4), CU_GRAPH_NODE_TYPE_MEMCPY},
      {graph.store(store.function(), word.device(), 1), CU_GRAPH_NODE_TYPE_KERNEL},
      {graph.host([](void*) {}, nullptr), CU_GRAPH_NODE_TYPE_HOST},
      {graph.wait(word, 0), CU_GRAPH_NODE_TYPE_BATCH_MEM_OP},
      {record, CU_GRAPH_NODE_TYPE_EVENT_RECORD},
      {wait, CU_GRAPH_NODE_TYPE_WAIT_EVENT},
      {inner, CU_GRAPH_NODE_TYPE_GRAPH}};
  for (const auto& [node, type] : expected) {
    CUgraphNodeType told{};
    MUST(cuGraphNodeGetType(node, &told));
    EXPECT_EQ(told, type);
  }
}

ROW(graphs, clone_is_a_copy) {
  const Context context;
  const Word word;
  Build graph(context);
  const CUgraphNode first = graph.set(word.device(), 1);
  const CUgraphNode second = graph.set(word.device(), 2, {first});
  CUgraph clone = nullptr;
  MUST(cuGraphClone(&clone, graph));
  const auto later = set_params(word.device(), 7);
  MUST(cuGraphMemsetNodeSetParams(second, &later));
  MUST(cuGraphDestroyNode(first));
  EXPECT_EQ(nodes_of(clone).size(), 2U);
  const Instance instance(clone);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 2U) << "the original was changed after it was cloned";
  MUST(cuGraphDestroy(clone));
}

ROW(graphs, clone_has_twins) {
  const Context context;
  Build graph(context), unrelated(context);
  const CUgraphNode a = graph.empty(), b = graph.empty({a});
  const CUgraphNode stranger = unrelated.empty();
  CUgraph clone = nullptr;
  MUST(cuGraphClone(&clone, graph));
  CUgraphNode twin_a = nullptr, twin_b = nullptr, none = nullptr;
  MUST(cuGraphNodeFindInClone(&twin_a, a, clone));
  MUST(cuGraphNodeFindInClone(&twin_b, b, clone));
  std::size_t count = 1;
  CUgraphNode before = nullptr;
  MUST(cuGraphNodeGetDependencies(twin_b, &before, nullptr, &count));
  EXPECT_EQ(before, twin_a);
  EXPECT_NE(twin_a, a);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphNodeFindInClone(&none, stranger, clone));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphNodeFindInClone(&none, a, unrelated));
  MUST(cuGraphDestroyNode(twin_a));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphNodeFindInClone(&none, a, clone));
  MUST(cuGraphDestroy(clone));
}

ROW(graphs, child_is_cloned_when_added) {
  const Context context;
  const Word word;
  Build graph(context), child(context);
  const CUgraphNode set = child.set(word.device(), 1);
  CUgraphNode node = nullptr;
  MUST(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
  const auto later = set_params(word.device(), 2);
  MUST(cuGraphMemsetNodeSetParams(set, &later));
  MUST(child.destroy());
  const Instance instance(graph);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 1U);
}

ROW(graphs, child_is_changed_through_its_handle) {
  const Context context;
  const Word word;
  Build graph(context), child(context);
  child.set(word.device(), 1);
  CUgraphNode node = nullptr;
  CUgraph inner = nullptr;
  MUST(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
  MUST(cuGraphChildGraphNodeGetGraph(node, &inner));
  EXPECT_NE(inner, static_cast<CUgraph>(child));
  const Nodes nodes = nodes_of(inner);
  ASSERT_EQ(nodes.size(), 1U);
  const auto later = set_params(word.device(), 9);
  MUST(cuGraphMemsetNodeSetParams(nodes[0], &later));
  const Instance instance(graph);
  MUST(instance.run());
  EXPECT_EQ(word.value(), 9U);
}

ROW(graphs, cycle_refused_at_instantiation) {
  const Context context;
  Build graph(context);
  const CUgraphNode a = graph.empty(), b = graph.empty({a}), c = graph.empty({b});
  MUST(cuGraphAddDependencies(graph, &c, &a, nullptr, 1));
  CUgraphExec exec = nullptr;
  EXPECT_NE(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  EXPECT_NE(cuGraphInstantiateWithParams(&exec, graph, &params), CUDA_SUCCESS);
  EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE);
  EXPECT_TRUE(holds({a, b, c}, params.hErrNode_out));
}

ROW(graphs, dot_file_is_written) {
  const Context context;
  const Store store;
  const Word word;
  Build graph(context);
  const CUgraphNode first = graph.store(store.function(), word.device(), 1);
  graph.empty({first});
  const auto file = std::filesystem::temp_directory_path() /
                    ("conformance-graph-" + std::to_string(getpid()) + ".dot");
  MUST(cuGraphDebugDotPrint(graph, file.c_str(), CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE));
  std::ifstream in(file);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  std::filesystem::remove(file);
  EXPECT_NE(text.find("digraph"), std::string::npos);
  EXPECT_NE(text.find("store"), std::string::npos) << "the kernel's name";
  EXPECT_NE(text.find("->"), std::string::npos) << "the edge";
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphDebugDotPrint(graph, nullptr, 0));
  EXPECT_NE(cuGraphDebugDotPrint(graph, "/nonexistent/directory/graph.dot", 0), CUDA_SUCCESS);
}

ROW(graphs, programmatic_edges) {
  if (on_hardware()) GTEST_SKIP() << "hardware has them";
  const Context context;
  const Store store;
  const Word word;
  Build graph(context);
  const CUgraphNode a = graph.store(store.function(), word.device(), 1);
  const CUgraphNode b = graph.store(store.function(), word.device(), 2);
  CUgraphEdgeData edge{};
  edge.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
  edge.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddDependencies(graph, &a, &b, &edge, 1));
}

ROW(graphs, edge_data_unknown_refused) {
  const Context context;
  Build graph(context);
  const CUgraphNode a = graph.empty(), b = graph.empty();
  CUgraphEdgeData edge{};
  edge.to_port = 1;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &a, &b, &edge, 1));
  std::size_t count = 9;
  MUST(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  EXPECT_EQ(count, 0U);
}

ROW(graphs, conditional_nodes) {
  if (on_hardware()) GTEST_SKIP() << "hardware has them";
  const Context context;
  Build graph(context);
  CUgraphConditionalHandle handle = 0;
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED, cuGraphConditionalHandleCreate(&handle, graph, context, 0, 0));
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  CUgraphNode node = nullptr;
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
}

ROW(graphs, external_semaphore_nodes) {
  if (on_hardware()) GTEST_SKIP() << "hardware has them";
  const Context context;
  Build graph(context);
  CUgraphNode node = nullptr;
  CUDA_EXT_SEM_SIGNAL_NODE_PARAMS signal{};
  CUDA_EXT_SEM_WAIT_NODE_PARAMS wait{};
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED,
          cuGraphAddExternalSemaphoresSignalNode(&node, graph, nullptr, 0, &signal));
  ANSWERS(CUDA_ERROR_NOT_SUPPORTED,
          cuGraphAddExternalSemaphoresWaitNode(&node, graph, nullptr, 0, &wait));
}

}  // namespace
}  // namespace conformance
