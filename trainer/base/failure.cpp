// See failure.h.
#include "trainer/base/failure.h"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace sluice::train {

std::string text_format(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  va_list again;
  va_copy(again, arguments);
  const int length = std::vsnprintf(nullptr, 0, format, arguments);
  va_end(arguments);
  std::string text(length > 0 ? static_cast<std::size_t>(length) : 0, '\0');
  if (length > 0) std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

Failure errno_failure(const std::string& what) {
  const int error = errno;
  return Failure(what + ": " + std::strerror(error));
}

}  // namespace sluice::train
