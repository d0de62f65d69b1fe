// Lines of helpers become a result.
#include "broker/devices/checkpoint_task.h"

#include <errno.h>
#include <unistd.h>

#include <string_view>

namespace sluice::devices {
namespace {

constexpr std::size_t kLineBytesMax = 256;  // no line of the helper is as long

void state_put(CheckpointResult* result, const CheckpointLine& line) {
  for (CheckpointedProcess& process : result->processes)
    if (process.pid == line.pid) process.state = line.state;
}

void touch_put(CheckpointTask* task, const CheckpointLine& line) {
  if (line.step <= CheckpointStep::kState) return;
  task->touched = true;
  for (CheckpointedProcess& process : task->result.processes)
    if (process.pid == line.pid) process.touched = true;
}

// The first failure is what the result is about; what failed afterwards is told.
void fault_put(CheckpointTask* task, const CheckpointLine& line) {
  CheckpointResult& result = task->result;
  if (result.text.empty()) {
    result.pid = line.pid;
    result.step = line.step;
    if (line.code.rfind("CUDA_", 0) == 0) result.code = line.code;
  }
  checkpoint_text_add(&result, checkpoint_fault_text(line, task->job.lock_ms));
}

void line_put(CheckpointTask* task, std::string_view text) {
  CheckpointLine line;
  if (!checkpoint_line_parse(text, &line)) {
    CheckpointResult& result = task->result;
    if (result.text.empty()) result.step = CheckpointStep::kStart;
    checkpoint_text_add(&result, "the helper said something unexpected");
    return;
  }
  switch (line.kind) {
    case CheckpointLine::Kind::kCall:
      task->helper.last = line;
      touch_put(task, line);
      break;
    case CheckpointLine::Kind::kState:
      state_put(&task->result, line);
      break;
    case CheckpointLine::Kind::kFault:
      fault_put(task, line);
      break;
    case CheckpointLine::Kind::kBytes:
      task->result.bytes = line.bytes;
      break;
    case CheckpointLine::Kind::kEnd:
      task->helper.ended_well = true;
      break;
  }
}

std::string call_text(const CheckpointLine& call) {
  if (call.step == CheckpointStep::kNone) return "";
  std::string text = std::string(" (last call: ") + checkpoint_step_name(call.step);
  if (call.pid != 0) text += " of process " + std::to_string(call.pid);
  return text + ")";
}

}  // namespace

CheckpointOrder checkpoint_order(const CheckpointTask& task) {
  if (task.afterwards)
    return task.job.verb == CheckpointVerb::kTake ? CheckpointOrder::kMend : CheckpointOrder::kLook;
  switch (task.job.verb) {
    case CheckpointVerb::kTake:
      return CheckpointOrder::kTake;
    case CheckpointVerb::kReturn:
      return CheckpointOrder::kReturn;
    case CheckpointVerb::kLook:
      break;
  }
  return CheckpointOrder::kLook;
}

bool checkpoint_output_read(CheckpointTask* task) {
  CheckpointHelper& helper = task->helper;
  char buffer[4096];
  for (;;) {
    const ssize_t got = read(helper.child.output.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0;
    helper.unread.append(buffer, static_cast<std::size_t>(got));
    std::size_t end = 0;
    while ((end = helper.unread.find('\n')) != std::string::npos) {
      line_put(task, std::string_view(helper.unread).substr(0, end));
      helper.unread.erase(0, end + 1);
    }
    if (helper.unread.size() > kLineBytesMax) helper.unread.clear();
  }
}

void checkpoint_text_add(CheckpointResult* result, const std::string& text) {
  if (result->text.find(text) != std::string::npos) return;
  if (!result->text.empty()) result->text += "; ";
  result->text += text;
}

void checkpoint_break_put(CheckpointTask* task, const std::string& why) {
  CheckpointResult& result = task->result;
  if (task->afterwards) {
    checkpoint_text_add(&result, "afterwards: " + why);
    return;
  }
  const CheckpointLine& last = task->helper.last;
  if (task->cancelled && result.text.empty()) {
    checkpoint_text_add(&result, "cancelled");
  } else if (result.text.empty()) {
    result.step = last.step == CheckpointStep::kNone ? CheckpointStep::kStart : last.step;
    result.pid = last.pid;
  }
  checkpoint_text_add(&result, why + call_text(last));
}

}  // namespace sluice::devices
