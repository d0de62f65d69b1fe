// See memory_strict.h.
#include "softgpu/driver/memory_strict.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace softgpu::driver {
namespace {

constexpr int kNoKey = -1;
constexpr int kDefaultKey = 0;  // pages that everybody may touch carry it

// Set once, by cuInit, before any thread of ours exists.
std::atomic<int> g_key{kNoKey};
std::atomic<bool> g_bounds{false};

int key() { return g_key.load(std::memory_order_relaxed); }

bool protect(void* pages, std::size_t bytes, int protection, int with_key) {
  return key() == kNoKey || pkey_mprotect(pages, bytes, protection, with_key) == 0;
}

}  // namespace

bool strict_enable(std::string& error) {
  if (key() != kNoKey) return true;  // an initialisation that failed later is tried again
  // No thread has a right to a new key, except this one when it asks for it. (Programs that had
  // keys of their own and freed them may have left rights behind.)
  const int fresh = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  if (fresh < 0) {
    error =
        std::string(
            "SOFTGPU_STRICT needs a memory protection key (pku), and this machine gives none (") +
        std::strerror(errno) + "); unset it to run without";
    return false;
  }
  g_key = fresh;
  return true;
}

bool bounds_read(bool strict, std::string& error) {
  const char* asked = std::getenv("SOFTGPU_BOUNDS");
  const std::string text = asked == nullptr ? "" : asked;
  if (!text.empty() && text != "0" && text != "1") {
    error = "SOFTGPU_BOUNDS: \"" + text + "\" is no value for it (0 or 1)";
    return false;
  }
  g_bounds = strict || text == "1";
  return true;
}

bool bounds_close(void* pages, std::size_t bytes) {
  return !g_bounds || mprotect(pages, bytes, PROT_NONE) == 0;
}

bool strict_close(void* pages, std::size_t bytes, int protection) {
  return protect(pages, bytes, protection, key());
}

bool strict_open(void* pages, std::size_t bytes, int protection) {
  return protect(pages, bytes, protection, kDefaultKey);
}

StrictScope::StrictScope(bool device) : before_(key() == kNoKey ? kNoKey : pkey_get(key())) {
  if (before_ != kNoKey) pkey_set(key(), device ? 0U : unsigned{PKEY_DISABLE_ACCESS});
}

StrictScope::~StrictScope() {
  if (before_ != kNoKey) pkey_set(key(), static_cast<unsigned>(before_));
}

void strict_thread_enter() {
  if (key() != kNoKey) pkey_set(key(), 0);
}

}  // namespace softgpu::driver
