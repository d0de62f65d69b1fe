// What the tests of whole tables share: the reference list of entry points, and a call through
// every one of them over a driver that notes its calls (recording.h).
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <string.h>

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/interpose/fake_driver.h"
#include "tests/interpose/recording.h"
#include "tests/interpose/test_broker.h"

namespace sluice::test {

struct Entry {
  std::string symbol;
  int since;
  bool per_thread;
};
/// Every name the reference list has, also those of graphics that the toolkit's stub lacks.
std::multimap<std::string, Entry> families();
/// What each function does, by the words of the reference list.
std::map<std::string, std::set<std::string>> classes_of_all();
/// What the list says of each function while a stream is captured; empty = nothing.
std::map<std::string, std::string> capture_notes();

struct Request {
  std::string base;
  int version;
  cuuint64_t flags;
  std::string symbol;
};
/// What the CUDA runtime asks for.
std::vector<Request> runtime_requests();

/// The file name of the library that a function is in.
std::string object_of(void* function);

/// Memory that arguments point to.
extern unsigned char zeroes[1 << 20];

/// The argument at this place of any call.
template <class T>
T argument_make(size_t index) {
  T value{};
  if constexpr (std::is_pointer_v<T>) {
    // Pointers that differ, to memory that may be read and written.
    value = reinterpret_cast<T>(&zeroes[(index + 1) * 32768]);
  } else {
    memset(static_cast<void*>(&value), 0, sizeof value);
    // Small numbers that differ; of an enumeration one that every one has.
    const auto low = static_cast<unsigned char>(std::is_enum_v<T> ? index % 2 : index + 1);
    memcpy(static_cast<void*>(&value), &low, 1);
  }
  return value;
}

struct Call {
  std::vector<unsigned long long> arguments;  // their digests
  CUresult result;
};
struct HookedEntry {
  const char* symbol;
  const char* real;  // the function that a call ends in
  Call (*call)(void* function);
};
/// Every entry point of the toolkit's stub library.
const std::vector<HookedEntry>& entries();

/// Forgets what was noted.
void calls_forget();
/// Whether the driver was called with just these arguments.
bool same_call(const RecordedCall& recorded, const std::string& symbol, const Call& call);
std::string names_of_recorded();

/// Calls asked for and answered by the look-up itself, which has tests of its own.
inline bool is_lookup(const std::string& symbol) {
  return symbol.rfind("cuGetProcAddress", 0) == 0;
}
/// The view asks the driver into variables of its own.
inline bool answers_by_itself(const std::string& symbol) {
  return symbol.rfind("cuMemGetInfo", 0) == 0;
}

class RouteTableTest : public testing::Test {
 protected:
  RouteTableTest() {
    std::ifstream file(SLUICE_EXPORTS);
    for (std::string name; std::getline(file, name);) {
      if (name.rfind("cu", 0) == 0) hooks.insert(name);
    }
  }

  void* named(const std::string& symbol) { return dlsym(handle, symbol.c_str()); }
  bool is_called(const HookedEntry& entry) const {
    return hooks.count(entry.symbol) != 0 && !is_lookup(entry.symbol);
  }
  const char* owner(const std::string& symbol) {
    return hooks.count(symbol) != 0 ? "libsluice.so" : "libcuda.so.1";
  }

  void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  std::set<std::string> hooks;
};

}  // namespace sluice::test
