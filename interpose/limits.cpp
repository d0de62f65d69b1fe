// See limits.h.
#include "interpose/limits.h"

#include <dlfcn.h>
#include <string.h>

#include "interpose/lookup.h"
#include "interpose/types.h"

namespace sluice::interpose {
namespace {

constexpr size_t kShownMax = 40;  // of a wrong value

constinit Policy current;
uint32_t current_known;
Lock policy_lock;

Line& value_show(Line& line, const char* text) {
  char shown[kShownMax + 1] = {};
  strncpy(shown, text, kShownMax);
  for (char& c : shown) {
    if (c != '\0' && (c < ' ' || c > '~')) c = '?';
  }
  return line.text("'").text(shown).text(strlen(text) > kShownMax ? "...'" : "'");
}

void policy_ignored_say(const char* reason, const char* remedy) {
  Line line;
  line.text(policy_path()).text(" is ignored: ").text(reason).text("; ").text(remedy);
  line.text("; programs without a broker run as if it were not there").say();
}

// Looked up when needed: each further version of libc that is named costs every program's start.
const char* error_text(int error) {
  using Describe = const char*(int);
  auto* describe = reinterpret_cast<Describe*>(real_dlsym(RTLD_DEFAULT, "strerrordesc_np"));
  const char* text = describe == nullptr ? nullptr : describe(error);
  return text == nullptr ? "it cannot be opened" : text;
}

// Once, by whoever holds policy_lock: no stack of the program's has to have room for the file.
void policy_load() {
  static char text[protocol::kPolicyBytesMax + 1];
  protocol::PolicyIgnored ignored;
  const protocol::PolicyFile file = protocol::policy_file_read(policy_path(), text, &ignored);
  if (file == protocol::PolicyFile::kIgnored) {
    policy_ignored_say(ignored.reason != nullptr ? ignored.reason : error_text(ignored.error),
                       ignored.remedy);
  }
  if (file == protocol::PolicyFile::kIgnored || file == protocol::PolicyFile::kAbsent) return;
  protocol::PolicyMistake mistake{0, protocol::kPolicyNoText};
  if (file == protocol::PolicyFile::kRead && policy_parse(text, &current, &mistake)) return;
  current = protocol::policy_of_mistake();
  Line fault;
  fault.text(policy_path()).text(": ");
  if (mistake.line != 0) fault.text("line ").number(mistake.line).text(": ");
  fault.text(mistake.wrong);
  fault.text("; until that is corrected, CUDA calls without a broker wait (missing_broker = hold)");
  fault.say();
}

}  // namespace

Limits limits_narrow(const Limits& a, const Limits& b) {
  Limits out = a;
  // 0 is the widest: by one less, it is the largest number.
  if (b.memory_bytes - 1 < a.memory_bytes - 1) out.memory_bytes = b.memory_bytes;
  if (b.sm_percent < a.sm_percent) out.sm_percent = b.sm_percent;
  return out;
}

bool limits_read(const char* memory, const char* sm, Limits* out, Line* fault) {
  if (memory != nullptr && memory[0] != '\0' && !protocol::size_read(memory, &out->memory_bytes)) {
    value_show(fault->text(kMemoryVariable).text(" is "), memory)
        .text(
            ", which is no size above 0 with its unit; CUDA calls fail until it is one, such as "
            "2GiB or 512MiB, or is unset");
    return false;
  }
  if (sm != nullptr && sm[0] != '\0' && !protocol::percent_read(sm, &out->sm_percent)) {
    value_show(fault->text(kSmVariable).text(" is "), sm)
        .text(
            ", which is no whole percentage from 1 to 100; CUDA calls fail until it is one, such "
            "as 50%, or is unset");
    return false;
  }
  return true;
}

void policy_reset_after_fork() { policy_lock.reset_after_fork(); }

const Policy& policy() {
  if (load_acquire(current_known) != 0) return current;
  const SystemGuard guard;
  const LockScope scope(policy_lock);
  if (current_known == 0) policy_load();
  store_release(current_known, 1u);
  return current;
}

}  // namespace sluice::interpose
