// Answers dlsym and dlvsym for the names of hooks, and finds the real two. They cannot be found by
// asking dlvsym, which is ours as well: the loaded objects' own hash tables are read instead, in
// load order after this library, so that another preloaded library that wraps dlsym stays in the
// chain. The search calls no function of other libraries: the first dlsym of a process can come
// from a sanitizer's runtime that wraps dl_iterate_phdr and strcmp and is not ready for calls yet.
#include "interpose/lookup.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/auxv.h>

#include "interpose/resolve.h"
#include "interpose/table.h"
#include "interpose/types.h"

extern "C" {
using DlsymFunction = void*(void*, const char*);
using DlvsymFunction = void*(void*, const char*, const char*);
// The trampolines jump through these (dlsym.S).
__attribute__((visibility("hidden"))) DlsymFunction* sluice_real_dlsym;
__attribute__((visibility("hidden"))) DlvsymFunction* sluice_real_dlvsym;
__attribute__((visibility("hidden"))) void* sluice_dlsym_decide(void* handle, const char* name);
__attribute__((visibility("hidden"))) void* sluice_dlvsym_decide(void* handle, const char* name,
                                                                 const char* version);
// Where the linker put this library's first and last byte.
extern __attribute__((visibility("hidden"))) const char __ehdr_start[];
extern __attribute__((visibility("hidden"))) const char _end[];
}

namespace sluice::interpose {
namespace {

void* seen_handle;

// One loaded object's dynamic symbols, by its GNU hash table.
struct SymbolTable {
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const uint32_t* hash = nullptr;
  const ElfW(Half) * versions = nullptr;
  ElfW(Addr) base = 0;
};

uint32_t gnu_hash(const char* name) {
  uint32_t h = 5381;
  for (; *name != '\0'; ++name) h = h * 33 + static_cast<unsigned char>(*name);
  return h;
}

bool symbols_read(const link_map* object, SymbolTable* out) {
  out->base = object->l_addr;
  for (const ElfW(Dyn)* dynamic = object->l_ld; dynamic->d_tag != DT_NULL; ++dynamic) {
    // The loader relocates these pointers in place, except in the vDSO.
    ElfW(Addr) address = dynamic->d_un.d_ptr;
    if (address < object->l_addr) address += object->l_addr;
    if (dynamic->d_tag == DT_SYMTAB) out->symbols = reinterpret_cast<const ElfW(Sym)*>(address);
    if (dynamic->d_tag == DT_STRTAB) out->strings = reinterpret_cast<const char*>(address);
    if (dynamic->d_tag == DT_GNU_HASH) out->hash = reinterpret_cast<const uint32_t*>(address);
    if (dynamic->d_tag == DT_VERSYM) out->versions = reinterpret_cast<const ElfW(Half)*>(address);
  }
  return out->symbols != nullptr && out->strings != nullptr && out->hash != nullptr;
}

bool name_equals(const char* a, const char* b) {
  while (*a != '\0' && *a == *b) ++a, ++b;
  return *a == *b;
}

// The defined function `name`, its default version if it has several.
void* symbol_find(const SymbolTable& table, const char* name) {
  const uint32_t bucket_count = table.hash[0], first = table.hash[1], bloom_words = table.hash[2];
  if (bucket_count == 0) return nullptr;
  const uint32_t* buckets = table.hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / 4);
  const uint32_t* chain = buckets + bucket_count;
  const uint32_t h = gnu_hash(name);
  void* found = nullptr;
  uint32_t i = buckets[h % bucket_count];
  if (i < first) return nullptr;
  for (;; ++i) {
    const ElfW(Sym)& symbol = table.symbols[i];
    if ((chain[i - first] | 1) == (h | 1) && symbol.st_shndx != SHN_UNDEF &&
        ELF64_ST_TYPE(symbol.st_info) == STT_FUNC &&
        name_equals(table.strings + symbol.st_name, name)) {
      const bool hidden = table.versions != nullptr && (table.versions[i] & 0x8000) != 0;
      if (found == nullptr || !hidden) {
        found = reinterpret_cast<void*>(table.base + symbol.st_value);
      }
    }
    if ((chain[i - first] & 1) != 0) return found;
  }
}

// Where the program's headers say that the loader keeps its list for debuggers; nullptr = not
// there. To name _r_debug would make the loader's library one more that this library needs and
// every program's start looks at.
const r_debug* debug_list() {
  const auto* headers = reinterpret_cast<const ElfW(Phdr)*>(getauxval(AT_PHDR));
  const ElfW(Phdr)* own = nullptr;
  const ElfW(Phdr)* dynamic = nullptr;
  for (uint64_t i = 0; headers != nullptr && i < getauxval(AT_PHNUM); ++i) {
    if (headers[i].p_type == PT_PHDR) own = &headers[i];
    if (headers[i].p_type == PT_DYNAMIC) dynamic = &headers[i];
  }
  if (own == nullptr || dynamic == nullptr) return nullptr;
  const ElfW(Addr) base = reinterpret_cast<ElfW(Addr)>(headers) - own->p_vaddr;
  const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(base + dynamic->p_vaddr);
  while (entry->d_tag != DT_NULL && entry->d_tag != DT_DEBUG) ++entry;
  return entry->d_tag == DT_DEBUG ? reinterpret_cast<const r_debug*>(entry->d_un.d_ptr) : nullptr;
}

// The first of the loaded objects, which is the program.
const link_map* objects_first() {
  const r_debug* list = debug_list();
  if (list != nullptr && list->r_map != nullptr) return list->r_map;
  Dl_info file;
  void* object = nullptr;  // slower: all of this library's symbols are looked at
  if (dladdr1(__ehdr_start, &file, &object, RTLD_DL_LINKMAP) == 0) return nullptr;
  const auto* first = static_cast<const link_map*>(object);
  while (first != nullptr && first->l_prev != nullptr) first = first->l_prev;
  return first;
}

struct Search {
  bool past_us = false;
  void* dlsym_before = nullptr;  // in objects before us: only if nobody behind us has it
  void* dlvsym_before = nullptr;
  void* dlsym_found = nullptr;
  void* dlvsym_found = nullptr;
};

void object_visit(const link_map* object, Search* search) {
  if (object->l_ld == _DYNAMIC) {
    search->past_us = true;
    return;
  }
  SymbolTable table;
  if (!symbols_read(object, &table)) return;
  void*& a = search->past_us ? search->dlsym_found : search->dlsym_before;
  void*& b = search->past_us ? search->dlvsym_found : search->dlvsym_before;
  if (a == nullptr) a = symbol_find(table, "dlsym");
  if (b == nullptr) b = symbol_find(table, "dlvsym");
}

// The name that the object has for the loader; nullptr = none.
const char* soname_of(const link_map* object) {
  const char* strings = nullptr;
  const ElfW(Dyn)* name = nullptr;
  for (const ElfW(Dyn)* entry = object->l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_SONAME) name = entry;
  }
  return strings == nullptr || name == nullptr ? nullptr : strings + name->d_un.d_val;
}

// Whether what a look-up found is of the driver's library, or NVML's, and no other's.
bool function_is_drivers(int entry, void* found) {
  const bool is_nvml = entry_is_nvml(entry);
  if (!is_nvml && found == driver_pointers()[entry]) return true;
  Dl_info file;
  void* object = nullptr;
  if (dladdr1(found, &file, &object, RTLD_DL_LINKMAP) == 0 || object == nullptr) return true;
  const char* name = soname_of(static_cast<const link_map*>(object));
  if (name == nullptr) {
    const char* slash = strrchr(file.dli_fname, '/');
    name = slash != nullptr ? slash + 1 : file.dli_fname;
  }
  const char* stem = is_nvml ? "libnvidia-ml.so" : "libcuda.so";
  return strncmp(name, stem, strlen(stem)) == 0;
}

// The answer for a name that is one of our hooks. nullptr = let the real function answer.
void* answer(void* handle, const char* name, const char* version) {
  const int entry = entry_find(name);
  if (entry < 0 || entry_hook(entry) == nullptr) return nullptr;
  const ErrnoGuard guard;
  lookup_prepare();
  if (handle != RTLD_NEXT) {
    void* real = version == nullptr ? sluice_real_dlsym(handle, name)
                                    : sluice_real_dlvsym(handle, name, version);
    if (real == nullptr) return nullptr;
    if (!address_is_ours(real)) {
      // A library may have a function of its own of such a name.
      if (!function_is_drivers(entry, real)) return nullptr;
      if (handle != RTLD_DEFAULT && !entry_is_nvml(entry)) store_release(seen_handle, handle);
      return entry_hook(entry);
    }
  }
  // The search met our own export first (RTLD_DEFAULT, the main program's handle) or begins behind
  // us. Without us it would have found a driver, if one is loaded; a program that probes for CUDA
  // this way must not be told a lie.
  if (library_has(entry_is_nvml(entry), name, version)) return entry_hook(entry);
  static void* nowhere = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  // Leaves the right text for dlerror.
  if (version == nullptr) {
    sluice_real_dlsym(nowhere, name);
  } else {
    sluice_real_dlvsym(nowhere, name, version);
  }
  return reinterpret_cast<void*>(1);
}

}  // namespace

void lookup_prepare() {
  if (SLUICE_LIKELY(load_acquire(sluice_real_dlsym) != nullptr)) return;
  Search search;
  for (const link_map* object = objects_first(); object != nullptr; object = object->l_next) {
    object_visit(object, &search);
  }
  void* a = search.dlsym_found != nullptr ? search.dlsym_found : search.dlsym_before;
  void* b = search.dlvsym_found != nullptr ? search.dlvsym_found : search.dlvsym_before;
  store_release(sluice_real_dlvsym, reinterpret_cast<DlvsymFunction*>(b));
  store_release(sluice_real_dlsym, reinterpret_cast<DlsymFunction*>(a));
}

void* real_dlsym(void* handle, const char* name) {
  lookup_prepare();
  return sluice_real_dlsym(handle, name);
}

void* real_dlvsym(void* handle, const char* name, const char* version) {
  lookup_prepare();
  return sluice_real_dlvsym(handle, name, version);
}

bool address_is_ours(const void* address) { return address >= __ehdr_start && address < _end; }

void* driver_handle_seen() { return load_acquire(seen_handle); }

}  // namespace sluice::interpose

void* sluice_dlsym_decide(void* handle, const char* name) {
  using namespace sluice::interpose;
  if (SLUICE_UNLIKELY(load_acquire(sluice_real_dlsym) == nullptr)) lookup_prepare();
  if (SLUICE_LIKELY(name == nullptr || !name_may_be_ours(name))) return nullptr;
  return answer(handle, name, nullptr);
}

void* sluice_dlvsym_decide(void* handle, const char* name, const char* version) {
  using namespace sluice::interpose;
  if (SLUICE_UNLIKELY(load_acquire(sluice_real_dlsym) == nullptr)) lookup_prepare();
  if (SLUICE_LIKELY(name == nullptr || !name_may_be_ours(name))) return nullptr;
  return answer(handle, name, version);
}
