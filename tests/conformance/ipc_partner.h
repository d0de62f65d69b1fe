// A second process for rows about two of them: forked before the row's own first driver call, it
// runs a function of the row with a channel to it. What the function expects counts as the row's:
// the process ends with an error when something failed in it.
#pragma once

#include <cstddef>
#include <functional>
#include <type_traits>

namespace conformance {

/// One end of a connection that keeps messages whole. A call that gets nothing in time, or finds
/// the other end gone, is a failed expectation.
class Channel {
 public:
  explicit Channel(int socket) : socket_(socket) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    send(&value, sizeof value, -1);
  }
  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    receive(&value, sizeof value, nullptr);
    return value;
  }
  /// A descriptor; the receiver owns its own.
  void put_file(int file);
  int get_file();
  /// Nothing but "I am here": what follows happens after what was before the other side's signal().
  void signal() { put('!'); }
  void await() { (void)get<char>(); }

 protected:
  void send(const void* data, std::size_t bytes, int file);
  void receive(void* data, std::size_t bytes, int* file);
  void hang_up();

 private:
  int socket_;
};

class Partner : public Channel {
 public:
  explicit Partner(const std::function<void(Channel&)>& body);
  /// Hangs up and waits for the process's end, which must be a good one unless it was killed.
  ~Partner();
  /// SIGKILL, and the process is gone when this returns.
  void kill();
  int pid() const { return pid_; }

 private:
  struct Started {
    int socket;
    int pid;
  };
  explicit Partner(Started started);
  static Started start(const std::function<void(Channel&)>& body);
  int pid_;
};

}  // namespace conformance
