// What a stream can be told to do, as plain values: the same description is run by a stream's
// worker and kept as a node of a graph. Validation has happened before one of these exists.
#pragma once

#include <optional>
#include <variant>

#include "softgpu/driver/image.h"
#include "softgpu/driver/module.h"
#include "softgpu/driver/stream.h"

namespace softgpu::driver {

class Event;
class Graph;
class Pool;

struct KernelCommand {
  FunctionRef function;
  CUkernel kernel = nullptr;       // the handle that the program gave, where it was one of a kernel
  std::shared_ptr<Module> module;  // keeps the code while it is queued
  ptx::Dim3 grid, block;
  std::uint32_t shared_bytes = 0;
  bool cooperative = false;
  std::vector<std::byte> params;
  std::optional<int> priority;  // instead of its stream's
};

/// A box of bytes; pitch and plane are distances between rows and between planes.
struct CopyCommand {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t width = 0, height = 1, depth = 1;
  std::size_t to_pitch = 0, from_pitch = 0, to_plane = 0, from_plane = 0;
  bool on_device = true;  // false: host to host, no engine
  device::WorkKind kind = device::WorkKind::kCopyInside;
  std::shared_ptr<std::vector<std::byte>> staged;  // pageable source, copied when the call was made
};

struct SetCommand {
  std::byte* to = nullptr;
  std::size_t pitch = 0, width = 0, height = 1;  // width in elements
  unsigned value = 0;
  unsigned element = 1;  // bytes: 1, 2, 4
};

struct HostCommand {
  std::function<void()> call;
  CUhostFn function = nullptr;  // as graphs give it back
  void* data = nullptr;
  bool always = false;  // also after a fault: it is told of it
};

struct DelayCommand {
  double ns = 0;
};

struct FreeCommand {
  std::shared_ptr<Pool> pool;
  CUdeviceptr address = 0;
};

struct RecordCommand {
  std::shared_ptr<Event> event;
};

struct WaitCommand {
  std::shared_ptr<Event> event;
};

/// A word of memory written or waited for.
struct Word {
  CUdeviceptr address = 0;
  std::uint64_t value = 0;
  unsigned bytes = 4;
  unsigned flags = 0;
  bool wait = false;
};

/// Words in their order.
struct WordsCommand {
  std::vector<Word> words;
};

struct GraphCommand {
  std::shared_ptr<Graph> graph;
};

struct EmptyCommand {};

using Command =
    std::variant<EmptyCommand, KernelCommand, CopyCommand, SetCommand, HostCommand, DelayCommand,
                 FreeCommand, RecordCommand, WaitCommand, WordsCommand, GraphCommand>;

/// A command in a stream.
class CommandOp : public Op {
 public:
  explicit CommandOp(Command command);
  void run(Stream& on) override;
  void drop() override;

 private:
  Command command_;
  std::optional<ImageHold> images_;  // of a kernel, until it has run
};

void command_run(const Command& command, Stream& stream, Op& op);

/// Runs it in the stream, or makes it a node when the stream captures. `done` receives the
/// operation (null when captured). Errors are those of capture.
CUresult command_submit(const StreamRef& stream, Command command, OpRef* done = nullptr);
/// Work that gives something back: done in the stream's order, or when its context ends or fails
/// before the stream has come there. After an error it is not done.
CUresult command_submit_return(const StreamRef& stream, std::function<void()> work);

}  // namespace softgpu::driver
