// A program that holds device memory, changes it and knows what must stand in it. One command per
// line of standard input, one answer per line of standard output:
//
//   alloc MIB COUNT   so many blocks more, each filled with a pattern of its own
//   step              a kernel adds one to the first word of every page of every block
//   steps COUNT       so many steps, one after the other
//   graph             makes a graph of one step over the blocks of now
//   replay            a step by way of that graph
//   work | stop       steps in the background; stop says how many there were
//   check             "right", or which word is wrong
//   free              the last block
//   memory            what cuMemGetInfo says: free and total MiB
//   pid | exit
//
// An answer that begins with "error" names the driver's code.
#include <cuda.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kPageWords = 1024;

constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry bump(.param .u64 at, .param .u32 pages)
{
  .reg .pred %p<2>;
  .reg .b32 %r<7>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [at];
  ld.param.u32 %r1, [pages];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  cvta.to.global.u64 %rd1, %rd1;
  mul.wide.u32 %rd2, %r5, 4096;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.u32 %r6, [%rd3];
  add.s32 %r6, %r6, 1;
  st.global.u32 [%rd3], %r6;
DONE:
  ret;
}
)";

struct Block {
  CUdeviceptr at;
  std::size_t words;
  std::uint32_t base;
  std::uint32_t steps;
};

CUcontext context;
CUfunction bump;
std::vector<Block> blocks;
std::atomic<bool> working{false};

std::string fault(CUresult result) {
  const char* name = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "?";
  return std::string("error ") + name;
}

std::uint32_t word_of(const Block& block, std::size_t i) {
  const std::uint32_t start = block.base + static_cast<std::uint32_t>(i) * 2654435761U;
  return i % kPageWords == 0 ? start + block.steps : start;
}

CUresult start() {
  CUdevice device = 0;
  CUmodule module = nullptr;
  CUresult result = cuInit(0);
  if (result == CUDA_SUCCESS) result = cuDeviceGet(&device, 0);
  if (result == CUDA_SUCCESS) result = cuDevicePrimaryCtxRetain(&context, device);
  if (result == CUDA_SUCCESS) result = cuCtxSetCurrent(context);
  if (result == CUDA_SUCCESS) result = cuModuleLoadData(&module, kPtx);
  return result == CUDA_SUCCESS ? cuModuleGetFunction(&bump, module, "bump") : result;
}

std::string alloc(std::size_t mib, std::size_t count) {
  const std::size_t bytes = mib << 20;
  std::vector<std::uint32_t> pattern(bytes / 4);
  for (std::size_t n = 0; n < count; ++n) {
    Block block{0, bytes / 4, static_cast<std::uint32_t>(getpid()) * 7919U, 0};
    block.base += static_cast<std::uint32_t>(blocks.size()) * 104729U;
    CUresult result = cuMemAlloc(&block.at, bytes);
    if (result != CUDA_SUCCESS) return fault(result);
    for (std::size_t i = 0; i < block.words; ++i) pattern[i] = word_of(block, i);
    result = cuMemcpyHtoD(block.at, pattern.data(), bytes);
    if (result != CUDA_SUCCESS) return fault(result);
    blocks.push_back(block);
  }
  return "done";
}

std::string step() {
  for (Block& block : blocks) {
    auto pages = static_cast<unsigned>(block.words / kPageWords);
    void* parameters[] = {&block.at, &pages};
    const CUresult result =
        cuLaunchKernel(bump, (pages + 127) / 128, 1, 1, 128, 1, 1, 0, nullptr, parameters, nullptr);
    if (result != CUDA_SUCCESS) return fault(result);
    ++block.steps;
  }
  const CUresult result = cuCtxSynchronize();
  return result == CUDA_SUCCESS ? "done" : fault(result);
}

CUresult graph_node_add(CUgraph graph, Block& block, CUgraphNode* node) {
  auto pages = static_cast<unsigned>(block.words / kPageWords);
  void* parameters[] = {&block.at, &pages};
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = bump;
  kernel.gridDimX = (pages + 127) / 128;
  kernel.gridDimY = kernel.gridDimZ = kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.blockDimX = 128;
  kernel.kernelParams = parameters;
  return cuGraphAddKernelNode(node, graph, nullptr, 0, &kernel);
}

CUgraphExec replayed = nullptr;
std::size_t replayed_blocks = 0;  // the first so many

std::string graph() {
  CUgraph made = nullptr;
  CUresult result = cuGraphCreate(&made, 0);
  for (Block& block : blocks) {
    CUgraphNode node = nullptr;
    if (result == CUDA_SUCCESS) result = graph_node_add(made, block, &node);
  }
  replayed_blocks = blocks.size();
  if (result == CUDA_SUCCESS) result = cuGraphInstantiate(&replayed, made, 0);
  return result == CUDA_SUCCESS ? "done" : fault(result);
}

std::string replay() {
  if (replayed == nullptr || replayed_blocks > blocks.size()) return "error: no graph of them";
  CUresult result = cuGraphLaunch(replayed, nullptr);
  if (result == CUDA_SUCCESS) result = cuCtxSynchronize();
  if (result != CUDA_SUCCESS) return fault(result);
  for (std::size_t i = 0; i < replayed_blocks; ++i) ++blocks[i].steps;
  return "done";
}

std::string check() {
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    std::vector<std::uint32_t> found(blocks[b].words);
    const CUresult result = cuMemcpyDtoH(found.data(), blocks[b].at, found.size() * 4);
    if (result != CUDA_SUCCESS) return fault(result);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i] == word_of(blocks[b], i)) continue;
      std::ostringstream text;
      text << "wrong: word " << i << " of block " << b << " is " << found[i] << ", not "
           << word_of(blocks[b], i);
      return text.str();
    }
  }
  return "right";
}

std::string release() {
  if (blocks.empty()) return "error: no block";
  const CUresult result = cuMemFree(blocks.back().at);
  blocks.pop_back();
  return result == CUDA_SUCCESS ? "done" : fault(result);
}

std::string memory() {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  const CUresult result = cuMemGetInfo(&free_bytes, &total_bytes);
  if (result != CUDA_SUCCESS) return fault(result);
  return std::to_string(free_bytes >> 20) + " " + std::to_string(total_bytes >> 20);
}

struct Worker {
  std::thread thread;
  std::string last = "done";
  std::uint64_t steps = 0;

  void begin() {
    working = true;
    steps = 0;
    thread = std::thread([this] {
      cuCtxSetCurrent(context);
      while (working && last == "done") {
        last = step();
        ++steps;
      }
    });
  }
  std::string end() {
    working = false;
    thread.join();
    return last == "done" ? "steps " + std::to_string(steps) : last;
  }
};

std::string execute(Worker& worker, const std::string& line) {
  std::istringstream words(line);
  std::string word;
  std::size_t a = 0;
  std::size_t b = 0;
  words >> word >> a >> b;
  if (word == "alloc") return alloc(a, b);
  if (word == "step") return step();
  if (word == "steps") {
    std::string last = "done";
    for (std::size_t n = 0; n < a && last == "done"; ++n) last = step();
    return last;
  }
  if (word == "graph") return graph();
  if (word == "replay") return replay();
  if (word == "check") return check();
  if (word == "free") return release();
  if (word == "memory") return memory();
  if (word == "pid") return std::to_string(getpid());
  if (word == "stop") return worker.end();
  if (word != "work") return "error: no command " + word;
  worker.begin();
  return "done";
}

}  // namespace

int main() {
  const CUresult result = start();
  std::cout << (result == CUDA_SUCCESS ? "started" : fault(result)) << std::endl;
  if (result != CUDA_SUCCESS) return 1;
  Worker worker;
  for (std::string line; std::getline(std::cin, line) && line != "exit";)
    std::cout << execute(worker, line) << std::endl;
  if (worker.thread.joinable()) worker.end();
  while (!blocks.empty()) release();
  return 0;
}
