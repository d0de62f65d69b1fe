// The compute half of the software GPU: PTX text in, executed kernels out. It knows nothing of
// contexts, streams, time or other processes; the driver (softgpu/driver) owns those and calls in
// here to load a module and to run one launch.
//
// Device pointers are host addresses: memory is whatever the driver mapped, shared and local
// windows are real memory, so generic addressing costs nothing. A launch runs warp by warp, a warp
// executes 32 lanes an instruction; what it cost is the number of warp instructions executed, which
// is exact and repeatable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "softgpu/ptx/texture.h"

namespace softgpu::ptx {

struct Dim3 {
  std::uint32_t x = 1, y = 1, z = 1;
};

/// One kernel parameter in the parameter buffer.
struct Param {
  std::uint32_t offset = 0;
  std::uint32_t size = 0;
};

/// A .global/.const variable; `address` is where it lives (allocated through Memory at load,
/// initialised).
struct Variable {
  std::string name;
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  bool constant = false;
  bool managed = false;
};

struct KernelInfo {
  std::string name;  // as in PTX (mangled)
  std::vector<Param> params;
  std::uint32_t param_bytes = 0;
  std::uint32_t shared_bytes = 0;  // static
  std::uint32_t local_bytes = 0;   // per thread
  std::uint32_t const_bytes = 0;
  std::uint32_t registers = 32;  // an estimate per thread, 16-255 (we have no register allocator)
  std::uint32_t threads_max = 1024;  // .maxntid or 1024
  std::uint32_t ptx_version = 0;     // 90 = 9.0
  std::uint32_t target = 75;         // sm number
};

class Kernel;  // decoded code of one entry
class Module;  // owns its kernels and variables

/// Where module variables and the device heap live. The driver gives memory that counts against the
/// device.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* allocate(std::size_t bytes,
                         std::size_t align) = 0;  // zeroed; nullptr = out of device memory
  virtual void release(void* p) = 0;
};

enum class LoadStatus {
  kOk,
  kInvalidPtx,
  kUnresolved,  // right by itself; an initialiser names what another text has to define
  kUnsupported,
  kNoMemory
};

struct LoadResult {
  LoadStatus status = LoadStatus::kOk;
  std::string log;  // for people: line and instruction of the first thing not understood
  std::unique_ptr<Module, void (*)(Module*)> module{nullptr, nullptr};
};

/// Parses and decodes one PTX translation unit (not necessarily NUL-terminated).
LoadResult module_load(std::string_view ptx, Memory& memory);
const Kernel* module_kernel(const Module& module, std::string_view name);  // nullptr = not there
std::vector<const Kernel*> module_kernels(const Module& module);
const std::vector<Variable>& module_variables(const Module& module);
const KernelInfo& kernel_info(const Kernel& kernel);
/// The first instruction that keeps the kernel from running, of its own or of a function that it
/// calls by name, with its line. Empty: it runs.
const std::string& kernel_trouble(const Kernel& kernel);

enum class Fault {
  kNone,
  kIllegalAddress,  // CUDA_ERROR_ILLEGAL_ADDRESS
  kMisaligned,      // CUDA_ERROR_MISALIGNED_ADDRESS
  kIllegalInstruction,
  kTrap,    // trap; and others -> CUDA_ERROR_LAUNCH_FAILED
  kAssert,  // CUDA_ERROR_ASSERT
  kStackOverflow,
  kInvalidAddressSpace,  // CUDA_ERROR_INVALID_ADDRESS_SPACE
  kInvalidPc,            // CUDA_ERROR_INVALID_PC
  kAborted,              // charge() said stop
};

/// What the executing side needs from the one who launched.
class Host {
 public:
  virtual ~Host() = default;
  /// Called on every thread that takes part, before it touches memory of the device: a thread that
  /// a fault threw out of an earlier launch may have lost the right to.
  virtual void enter() {}
  /// `warp_instructions` more were executed since the last call. Called from worker threads, at
  /// least every kChargeEvery warp instructions of a worker and at the end; may block (the device
  /// is somebody else's turn). False = abandon the launch (context destroyed, process ending).
  virtual bool charge(std::uint64_t warp_instructions) = 0;
  /// Modelled time, for %globaltimer (ns) and %clock64.
  virtual std::uint64_t globaltimer_ns() = 0;
  virtual std::uint64_t clock_hz() = 0;
  /// printf output of the kernel, already formatted.
  virtual void print(std::string_view text) = 0;
  /// malloc/free of device code (device heap); nullptr = heap exhausted.
  virtual void* heap_allocate(std::size_t bytes) = 0;
  virtual void heap_free(void* p) = 0;
  /// The texture or surface object of this handle, which stays until the launch has ended; nullptr
  /// = there is none. Called from worker threads.
  virtual const Image* image(std::uint64_t /*handle*/) { return nullptr; }
};
/// About 1 ms of modelled time at the default rate.
inline constexpr std::uint64_t kChargeEvery = 16384;

struct Launch {
  Dim3 grid, block;
  std::uint32_t dynamic_shared_bytes = 0;
  std::uint32_t stack_bytes_max = 1024 * 64;
  bool cooperative = false;           // all CTAs co-resident: grid sync is legal
  const std::byte* params = nullptr;  // param_bytes, laid out by KernelInfo::params
  std::uint32_t sm_count = 16;        // for %smid, %nsmid
};

struct Outcome {
  Fault fault = Fault::kNone;
  std::uint64_t fault_address = 0;
  std::string fault_text;  // for the log: kernel, CTA, thread, instruction
  std::uint64_t warp_instructions = 0;
};

/// Runs one launch to its end on the calling thread and the process's worker pool (CTAs are
/// independent). Blocks. Thread-safe: several streams may run at once and share the pool.
Outcome launch_run(const Kernel& kernel, const Launch& launch, Host& host);

/// True when `pc`/`address` of a SIGSEGV happened inside a launch; the fault handler that ptx
/// installs uses it. Memory that a launch may touch is what the process has mapped: the driver
/// unmaps what is freed.
bool fault_is_ours(const void* address);

/// Everything of a fat binary that we can execute: the PTX images, decompressed (plain, LZ4, zstd),
/// highest target first. Accepts what cuModuleLoadData and __cudaRegisterFatBinary are given: a
/// wrapper (0x466243B1), a region (0xBA55ED50), or PTX text. `error` says what was there instead
/// (e.g. "only machine code for sm_90: build with -arch=compute_75").
struct PtxImage {
  std::string text;
  std::uint32_t target = 0;
};
std::vector<PtxImage> fatbin_images(const void* image, std::string* error);

}  // namespace softgpu::ptx
