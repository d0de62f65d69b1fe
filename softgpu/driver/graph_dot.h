// A graph as a DOT file, for people.
#pragma once

#include "softgpu/driver/graph.h"

namespace softgpu::driver {

/// `flags` are CUgraphDebugDot_flags. OPERATING_SYSTEM: the file cannot be written.
CUresult graph_dot_write(const Graph& graph, const char* path, unsigned flags);

}  // namespace softgpu::driver
