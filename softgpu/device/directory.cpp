// Files of the device directory; see directory.h. Device 0 carries the count and the settings:
// whoever comes later takes them from there, so all segments of a directory agree.
#include "softgpu/device/directory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>

#include "softgpu/device/descriptor.h"
#include "softgpu/device/device.h"

namespace softgpu::device {
namespace {

std::string segment_path(const std::string& directory, std::uint32_t index) {
  return directory + "/gpu" + std::to_string(index);
}

std::string with_errno(const std::string& what) { return what + ": " + std::strerror(errno); }

std::uint64_t mixed(std::uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// The same directory and index give the same UUID for ever, in every process that asks.
void uuid_make(const std::string& directory, std::uint32_t index, unsigned char (&uuid)[16]) {
  std::error_code ignored;
  std::string name = std::filesystem::weakly_canonical(directory, ignored).string();
  if (name.empty()) name = directory;
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  const std::uint64_t words[2] = {mixed(hash + index), mixed(hash + index + 0x9e3779b97f4a7c15ULL)};
  std::memcpy(uuid, words, sizeof uuid);
  uuid[6] = static_cast<unsigned char>((uuid[6] & 0x0f) | 0x40);
  uuid[8] = static_cast<unsigned char>((uuid[8] & 0x3f) | 0x80);
}

void segment_init(Segment& segment, const std::string& directory, std::uint32_t index,
                  const Settings& settings) {
  segment.version = kSegmentVersion;
  segment.bytes = sizeof(Segment);
  segment.index = index;
  segment.count = settings.count;
  segment.sm_count = settings.sm_count;
  segment.pacing = settings.pacing ? 1 : 0;
  segment.memory_bytes = settings.memory_bytes;
  segment.context_bytes = settings.context_bytes;
  segment.page_bytes = settings.page_bytes;
  segment.slice_ns = settings.slice_ns;
  segment.switch_ns = settings.switch_ns;
  segment.launch_ns = settings.launch_ns;
  segment.rate = settings.rates[index] > 0 ? settings.rates[index] : settings.rate;
  std::copy(settings.rates.begin(), settings.rates.end(), segment.rates);
  segment.copy_rate = settings.copy_rate;
  segment.timed_count = static_cast<std::uint32_t>(settings.timed.size());
  std::copy(settings.timed.begin(), settings.timed.end(), segment.timed);
  segment.created_ns = segment.now_ns = clock_ns();
  for (Idle& idle : segment.idle) idle_forget(idle, segment.now_ns);
  uuid_make(directory, index, segment.uuid);
  segment.magic = kSegmentMagic;
}

Segment* file_map(int file) {
  void* memory = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Segment*>(memory);
}

/// Gives a file without a name its name; it fails when the name is taken.
bool file_name(int file, const std::string& path) {
  const std::string self = "/proc/self/fd/" + std::to_string(file);
  return linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

/// Who may write in the directory shares its GPUs: its owner alone, or users of a group or all, as
/// whoever made it has said.
mode_t segment_mode(const std::string& directory) {
  struct stat status {};
  if (stat(directory.c_str(), &status) != 0) return 0600;
  return 0600 | ((status.st_mode & S_IWGRP) != 0 ? 0060 : 0) |
         ((status.st_mode & S_IWOTH) != 0 ? 0006 : 0);
}

/// A complete segment appears under its name in one step: written without a name, then linked,
/// which fails if one is there. Who is killed in between leaves nothing.
bool segment_create(const std::string& directory, std::uint32_t index, const Settings& settings,
                    std::string& error) {
  const std::string path = segment_path(directory, index);
  const int file = above_standard(open(directory.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
  if (file < 0) {
    error = with_errno("cannot create a file in " + directory);
    return false;
  }
  bool done = fchmod(file, segment_mode(directory)) == 0 && file_size_set(file, sizeof(Segment)) &&
              file_system_has(file, sizeof(Segment));
  Segment* segment = done ? file_map(file) : nullptr;
  if (segment != nullptr) {
    segment_init(*new (segment) Segment, directory, index, settings);
    munmap(segment, sizeof(Segment));
    done = file_name(file, path) || errno == EEXIST;
  } else {
    done = false;
  }
  const int fault = done ? 0 : errno;
  if (!done) error = with_errno("cannot create " + path);
  if (fault == EFBIG) error += "; raise the limit on the size of files (ulimit -f)";
  if (fault == ENOSPC)
    error += "; each GPU needs " + std::to_string((sizeof(Segment) >> 20) + 1) +
             " MiB there: give a container a larger /dev/shm, or set SOFTGPU_DIR to a directory "
             "with room";
  close(file);
  return done;
}

/// Says why a file is no segment of this version; an empty text if it is one.
std::string segment_fault(int file) {
  std::string error;
  if (!regular_file(file, error)) return error + "; remove it";
  const char* const reset = "; end its users and run `softgpu-ctl reset`";
  struct stat status {};
  if (fstat(file, &status) != 0) return std::strerror(errno);
  SegmentHead head;
  if (pread(file, &head, sizeof head, 0) != sizeof head || head.magic != kSegmentMagic)
    return std::string("it is damaged: it does not begin as a software GPU's file") + reset;
  if (head.version != kSegmentVersion)
    return std::string("another version of the software GPU made it") + reset;
  if (head.bytes != sizeof(Segment) || status.st_size != sizeof(Segment))
    return "it is damaged: it has " + std::to_string(status.st_size) + " bytes instead of " +
           std::to_string(sizeof(Segment)) + reset;
  if (head.count < 1 || head.count > kDevicesMax)
    return "it is damaged: it tells of " + std::to_string(head.count) + " GPUs" + reset;
  return "";
}

/// Whether the contents can be a segment's: what other programs wrote over it would be found out
/// by programs that hang. Looks at words that are right at every moment of a segment that is used.
bool segment_plausible(const Segment& segment) {
  bool good = segment.sm_count >= 1 && segment.rate > 0 && segment.copy_rate > 0 &&
              segment.slice_ns > 0 && segment.memory_bytes > 0 && segment.pacing <= 1 &&
              segment.timed_count <= kTimedMax && segment.fault_count <= kFaultsMax;
  for (std::uint32_t i = 0; i < kWindows; ++i)
    good = good && (segment.window_number[i] == 0 || segment.window_number[i] % kWindows == i);
  for (const std::uint32_t end : segment.shared_ends) good = good && end <= kSharedEach;
  return good;
}

/// nullptr with an empty error: there is no such file.
Segment* segment_open(const std::string& directory, std::uint32_t index, std::string& error) {
  const std::string path = segment_path(directory, index);
  const int file = above_standard(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (file < 0) {
    if (errno != ENOENT) error = with_errno("cannot open " + path);
    if (errno == EACCES)
      error +=
          " (GPUs that several users share are in a directory that they all may write before "
          "its first use)";
    return nullptr;
  }
  std::string fault = segment_fault(file);
  Segment* segment = fault.empty() ? file_map(file) : nullptr;
  if (segment == nullptr && fault.empty()) fault = std::strerror(errno);
  close(file);
  if (segment != nullptr && !segment_plausible(*segment)) {
    munmap(segment, sizeof(Segment));
    segment = nullptr;
    fault =
        "it is damaged: something else has written to it; end its users and run "
        "`softgpu-ctl reset`";
  }
  if (!fault.empty()) error = "cannot use " + path + ": " + fault;
  if (segment == nullptr || Lives::add(segment, path, error)) return segment;
  return nullptr;
}

Settings settings_of(const Segment& segment) {
  Settings settings;
  settings.count = segment.count;
  settings.sm_count = segment.sm_count;
  settings.memory_bytes = segment.memory_bytes;
  settings.context_bytes = segment.context_bytes;
  settings.page_bytes = segment.page_bytes;
  settings.slice_ns = segment.slice_ns;
  settings.switch_ns = segment.switch_ns;
  settings.launch_ns = segment.launch_ns;
  settings.rate = segment.rate;
  std::copy(std::begin(segment.rates), std::end(segment.rates), settings.rates.begin());
  settings.copy_rate = segment.copy_rate;
  settings.timed.assign(segment.timed, segment.timed + segment.timed_count);
  settings.pacing = segment.pacing != 0;
  return settings;
}

Segment* segment_need(const std::string& directory, std::uint32_t index, const Settings& settings,
                      std::string& error) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    Segment* segment = segment_open(directory, index, error);
    if (segment != nullptr || !error.empty()) return segment;
    if (!segment_create(directory, index, settings, error)) return nullptr;
  }
  error = segment_path(directory, index) + " keeps vanishing";
  return nullptr;
}

/// True if another user made the default directory: that user can change what is in it.
bool directory_is_anothers(const std::string& directory) {
  struct stat status {};
  if (directory != settings_directory_own() || lstat(directory.c_str(), &status) != 0) return false;
  return !S_ISDIR(status.st_mode) || status.st_uid != getuid();
}

}  // namespace

std::vector<Segment*> directory_open(const std::string& directory, std::string& error) {
  error.clear();
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    error = with_errno("cannot create the device directory " + directory);
    return {};
  }
  if (directory_is_anothers(directory)) {
    error = directory + " is another user's, who can change what is in it; have it removed, or " +
            "set SOFTGPU_DIR to a directory of your own";
    return {};
  }
  Settings settings;
  Segment* first = segment_open(directory, 0, error);
  if (!error.empty()) return {};
  if (first == nullptr) {
    if (!settings_read(settings, error)) return {};
    first = segment_need(directory, 0, settings, error);
    if (first == nullptr) return {};
  }
  settings = settings_of(*first);
  std::vector<Segment*> segments{first};
  for (std::uint32_t index = 1; index < settings.count; ++index) {
    Segment* segment = segment_need(directory, index, settings, error);
    if (segment == nullptr) return {};
    segments.push_back(segment);
  }
  return segments;
}

std::vector<Segment*> directory_look(const std::string& directory, std::string& error) {
  error.clear();
  std::vector<Segment*> segments;
  Segment* first = segment_open(directory, 0, error);
  for (std::uint32_t index = 0; first != nullptr && index < first->count; ++index) {
    Segment* segment = index == 0 ? first : segment_open(directory, index, error);
    if (segment == nullptr) return {};
    segments.push_back(segment);
  }
  return segments;
}

bool directory_remove(const std::string& directory, std::string& error) {
  for (std::uint32_t index = kDevicesMax; index-- > 0;) {
    if (unlink(segment_path(directory, index).c_str()) == 0 || errno == ENOENT) continue;
    error = with_errno("cannot remove " + segment_path(directory, index));
    return false;
  }
  return true;
}

std::string uuid_text(const unsigned char (&uuid)[16]) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", uuid[i]);
    text += digits;
  }
  return text;
}

}  // namespace softgpu::device
