// See library_search.h. The cache's format is glibc's (dl-cache.h, "glibc-ld.so.cache1.1").
#include "broker/cli/library_search.h"

#include <elf.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sluice::cli {
namespace {

constexpr std::string_view kCacheMagic = "glibc-ld.so.cache1.1";
constexpr std::size_t kCacheHeaderBytes = 48;
constexpr std::int32_t kFlagsX8664 = 0x0303;  // libc6, x86-64

struct CacheEntry {
  std::int32_t flags;
  std::uint32_t key, value;  // offsets of texts
  std::uint32_t os_version;
  std::uint64_t hardware;
};
static_assert(sizeof(CacheEntry) == 24);

std::string_view cache_text(std::string_view bytes, std::size_t offset) {
  if (offset >= bytes.size()) return {};
  const std::string_view rest = bytes.substr(offset);
  return rest.substr(0, rest.find('\0'));
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::string origin_expand(std::string path, const std::string& object) {
  for (const std::string_view word : {std::string_view("${ORIGIN}"), std::string_view("$ORIGIN")}) {
    for (std::size_t i = path.find(word); i != std::string::npos; i = path.find(word)) {
      path.replace(i, word.size(), directory_of(object));
    }
  }
  return path;
}

bool is_of_our_kind(const std::string& path) {
  const FileBytes file(path);
  const ElfFacts facts = elf_read(file.view().substr(0, sizeof(Elf64_Ehdr)));
  return facts.elf && facts.is_64bit && facts.machine == EM_X86_64;
}

}  // namespace

FileBytes::FileBytes(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return;
  struct stat status {};
  if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    const auto size = static_cast<std::size_t>(status.st_size);
    void* bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes != MAP_FAILED) view_ = {static_cast<const char*>(bytes), size};
  }
  file_ = devices::Fd(fd);
}

std::vector<std::string_view> FileBytes::data(std::size_t most, bool* all) const {
  std::vector<std::string_view> parts;
  std::size_t end = 0;
  while (end < view_.size() && most > 0) {
    off_t begin = lseek(file_.get(), static_cast<off_t>(end), SEEK_DATA);
    if (begin < 0 && errno == ENXIO) break;  // a hole up to the end
    if (begin < 0) begin = static_cast<off_t>(end);
    const off_t hole = lseek(file_.get(), begin, SEEK_HOLE);
    end = hole > begin ? static_cast<std::size_t>(hole) : view_.size();
    const auto at = static_cast<std::size_t>(begin);
    if (at >= view_.size()) break;
    parts.push_back(view_.substr(at, std::min(end - at, most)));
    if (end - at > most) end = at + most;
    most -= parts.back().size();
  }
  *all = most > 0 || end >= view_.size();
  return parts;
}

FileBytes::~FileBytes() {
  if (!view_.empty()) munmap(const_cast<char*>(view_.data()), view_.size());
}

LibrarySearch::LibrarySearch(std::vector<std::string> first)
    : first_(std::move(first)), cache_(FileBytes("/etc/ld.so.cache").view()) {
  const char* variable = getenv("LD_LIBRARY_PATH");
  std::string_view rest = variable != nullptr ? variable : "";
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find_first_of(":;"), rest.size());
    if (end > 0) first_.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

std::string LibrarySearch::find(const std::string& name, const std::string& path,
                                const ElfFacts& object) const {
  if (name.find('/') != std::string::npos) {
    const std::string file = origin_expand(name, path);
    return is_of_our_kind(file) ? file : "";
  }
  std::vector<std::string> directories;
  if (object.runpath.empty()) directories = object.rpath;
  directories.insert(directories.end(), first_.begin(), first_.end());
  directories.insert(directories.end(), object.runpath.begin(), object.runpath.end());
  for (const std::string& directory : directories) {
    const std::string file = origin_expand(directory, path) + "/" + name;
    if (is_of_our_kind(file)) return file;
  }
  const std::string cached = cache_find(cache_, name);
  if (!cached.empty() && is_of_our_kind(cached)) return cached;
  for (const char* directory : {"/lib64/", "/usr/lib64/", "/lib/", "/usr/lib/",
                                "/lib/x86_64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/"}) {
    if (is_of_our_kind(directory + name)) return directory + name;
  }
  return "";
}

std::string cache_find(std::string_view cache, std::string_view name) {
  // An old format may stand before the one that counts.
  const std::size_t begin = cache.find(kCacheMagic);
  if (begin == std::string_view::npos) return "";
  cache.remove_prefix(begin);
  std::uint32_t count = 0;
  if (cache.size() < kCacheHeaderBytes) return "";
  std::memcpy(&count, cache.data() + kCacheMagic.size(), sizeof count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t offset = kCacheHeaderBytes + i * sizeof(CacheEntry);
    if (offset + sizeof(CacheEntry) > cache.size()) return "";
    CacheEntry entry;
    std::memcpy(&entry, cache.data() + offset, sizeof entry);
    if (entry.flags == kFlagsX8664 && cache_text(cache, entry.key) == name) {
      return std::string(cache_text(cache, entry.value));
    }
  }
  return "";
}

}  // namespace sluice::cli
