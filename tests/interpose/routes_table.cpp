// See routes_table.h.
#include "tests/interpose/routes_table.h"

#include <algorithm>
#include <sstream>

namespace sluice::test {

alignas(64) unsigned char zeroes[1 << 20];

std::multimap<std::string, Entry> families() {
  std::ifstream file(SLUICE_ENTRYPOINTS);
  std::multimap<std::string, Entry> made;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string symbol, version, classes, notes;
    std::getline(fields, symbol, '\t');
    std::getline(fields, version, '\t');
    std::getline(fields, classes, '\t');
    std::getline(fields, notes);
    const auto at = notes.find("base=") + 5;
    made.emplace(
        notes.substr(at, notes.find(' ', at) - at),
        Entry{symbol, std::stoi(version), version.find("_pt", version.find('/')) != version.npos});
  }
  return made;
}

std::map<std::string, std::set<std::string>> classes_of_all() {
  std::ifstream file(SLUICE_ENTRYPOINTS);
  std::map<std::string, std::set<std::string>> made;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string symbol, version, classes;
    std::getline(fields, symbol, '\t');
    std::getline(fields, version, '\t');
    std::getline(fields, classes, '\t');
    std::istringstream list(classes);
    for (std::string one; std::getline(list, one, ';');) made[symbol].insert(one);
  }
  return made;
}

std::map<std::string, std::string> capture_notes() {
  constexpr char kBefore[] = "| capture=";
  std::ifstream file(SLUICE_ENTRYPOINTS);
  std::map<std::string, std::string> made;
  for (std::string line; std::getline(file, line);) {
    const auto at = line.find(kBefore);
    if (at == line.npos) continue;
    const std::string rest = line.substr(at + sizeof kBefore - 1);
    made[line.substr(0, line.find('\t'))] = rest.substr(0, rest.find('|'));
  }
  return made;
}

std::vector<Request> runtime_requests() {
  std::ifstream file(SLUICE_RUNTIME_LOOKUPS);
  std::vector<Request> made;
  bool header = true;
  for (std::string line; std::getline(file, line);) {
    if (line[0] == '#') continue;
    if (!header) {
      Request request;
      std::istringstream(line) >> request.base >> request.version >> request.flags >>
          request.symbol;
      made.push_back(request);
    }
    header = false;
  }
  return made;
}

std::string object_of(void* function) {
  Dl_info info{};
  if (function == nullptr || dladdr(function, &info) == 0) return "nothing";
  const char* slash = strrchr(info.dli_fname, '/');
  return slash == nullptr ? info.dli_fname : slash + 1;
}

namespace {

// Not a template: there are hundreds of signatures.
Call made(const unsigned long long* digests, size_t count, CUresult result) {
  return {std::vector<unsigned long long>(digests, digests + count), result};
}

template <class F>
struct Caller;
template <class... A>
struct Caller<CUresult (*)(A...)> {
  static Call call(void* function) { return expand(function, std::index_sequence_for<A...>()); }
  template <size_t... I>
  static Call expand(void* function, std::index_sequence<I...>) {
    return with(function, argument_make<A>(I)...);
  }
  static Call with(void* function, A... arguments) {
    const unsigned long long digests[] = {argument_digest(arguments)..., 0};
    return made(digests, sizeof...(A),
                reinterpret_cast<CUresult (*)(A...)>(function)(arguments...));
  }
};

}  // namespace

const std::vector<HookedEntry>& entries() {
  static const std::vector<HookedEntry> all = {
#define ENTRY(symbol, real) {#symbol, #real, &Caller<decltype(&symbol)>::call},
#include "call_table.gen.inc"
#undef ENTRY
  };
  return all;
}

void calls_forget() {
  for (RecordedCall& one : fake_calls.calls) one.symbol = nullptr;
  fake_calls.count = 0;
}

bool same_call(const RecordedCall& recorded, const std::string& symbol, const Call& call) {
  return symbol == recorded.symbol &&
         std::vector<unsigned long long>(
             recorded.arguments, recorded.arguments + recorded.argument_count) == call.arguments;
}

std::string names_of_recorded() {
  std::string names;
  for (int i = 0; i < fake_calls.count && i < kRecordedCallsMax; ++i) {
    names += std::string(" ") + fake_calls.calls[i].symbol;
  }
  return names;
}

}  // namespace sluice::test
